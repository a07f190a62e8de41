"""How many axes to keep, judged by their variances alone."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from fastdr.validation import FloatArray

EPS = float(np.finfo(np.float64).eps)


def fraction(values: FloatArray, total: float, divisor: float, share: float) -> int:
    """Return the fewest axes whose share of the variance is strictly greater than `share`.

    `values` (r,) and `total` are of the scatter, `divisor` times the variances. The shares are
    added as a user adds up ``explained_variance_ratio_``, to the bit.

    Examples
    --------
    >>> fraction(np.array([18.0, 8.0, 2.0]), 28.0, 5.0, 9 / 14)
    2
    """
    if total == 0.0:
        return min(1, len(values))
    shares = np.cumsum(values / divisor / (total / divisor))
    return min(int(np.searchsorted(shares, share, side="right")) + 1, len(values))


def minka(variances: FloatArray, count: int) -> int:
    """Return the number of axes, 1 to d - 1, of largest evidence given all `variances`.

    Examples
    --------
    >>> minka(np.array([9.0, 4.0, 0.11, 0.1, 0.09]), 200)
    2
    """
    if len(variances) < 2 or variances[0] == 0.0:
        return min(1, len(variances))
    return int(np.argmax(minka_evidence(variances, count))) + 1


def minka_evidence(variances: FloatArray, count: int) -> FloatArray:
    """Return the log evidence of 1 ... d - 1 axes from d `variances` of `count` rows.

    Laplace's approximation of Minka (2000, eq. 77); sums over pairs are kept as prefix sums, so
    all numbers of axes cost O(d^2) together. Axes below rounding have evidence -inf.
    """
    size = len(variances)
    floor = max(count, size) ** 2 * EPS**2 * variances[0]
    values = np.maximum(variances, max(floor, np.finfo(float).tiny))
    axes = np.arange(1, size)
    noise = np.maximum(np.cumsum(variances[::-1])[-2::-1] / (size - axes), values.min())
    logs = np.log(values)
    half = (size - axes + 1) / 2
    prior = np.cumsum(gammaln(half) - half * math.log(math.pi)) - axes * math.log(2)
    degrees = size * axes - axes * (axes + 1) / 2
    pairs = np.zeros(size - 1)  # sum of log (v_i - v_j) over i < k <= j
    kept = np.zeros(size - 1)  # sum over i < j < k of log (v_i - v_j)^2 / (v_i v_j)
    for k in range(1, size):
        new = k - 1
        gaps = np.log(np.maximum(np.abs(values - values[new]), EPS * values[0]))
        before, after = gaps[:new].sum(), gaps[k:].sum()
        pairs[new] = (pairs[new - 1] if new else 0.0) - before + after
        kept[new] = ((kept[new - 1] if new else 0.0) + 2 * before - logs[:new].sum()
                     - new * logs[new])
    inverse = [np.log(np.maximum(1 / noise[k - 1] - 1 / values[:k], EPS / values[k - 1])).sum()
               for k in axes]
    hessian = kept + pairs + (size - axes) * np.array(inverse) + degrees * math.log(count)
    evidence = (prior - count / 2 * np.cumsum(logs)[:-1]
                - count / 2 * (size - axes) * np.log(noise)
                + (degrees + axes) / 2 * math.log(2 * math.pi) - hessian / 2
                - axes / 2 * math.log(count))
    evidence[variances[:-1] <= floor] = -math.inf
    return np.asarray(evidence)
