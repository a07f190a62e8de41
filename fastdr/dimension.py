"""How many axes: what was asked for, and rules that judge by the variances alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.special import gammaln

from fastdr.validation import FloatArray, whole

RULES = ("mle", "gavish-donoho", "parallel")  # names that n_components may have
TRIALS = 19  # so that noise passes for an axis once in 20 times
EPS = float(np.finfo(np.float64).eps)


def axes_asked_for(wanted: Any, count: int, features: int, solver: str = "lapack",
                   iterated: bool = False) -> tuple[int, float | None]:
    """Return how many axes to find at most, and the share of variance to reach or None.

    `wanted` is an integer, a fraction, one of `RULES` or None; `solver` names the solver in
    errors, and `iterated` says that it finds some axes only, at least one. Raises ValueError.

    Examples
    --------
    >>> axes_asked_for(0.9, 10, 4), axes_asked_for(None, 10, 4)
    ((4, 0.9), (4, None))
    """
    most = min(count, features)
    if wanted is None:
        return most - (solver == "arpack"), None
    if isinstance(wanted, str) and wanted in RULES:
        if iterated:
            raise ValueError(f"n_components={wanted!r} cannot be a string with "
                             f"svd_solver='{solver}'; use 'lapack' or 'svd'.")
        if count < features and wanted == "mle":
            raise ValueError("n_components='mle' is only supported if n_samples >= "
                             f"n_features; got {count} and {features}.")
        return most, None
    if whole(wanted, 0):
        least = int(iterated)
        if not least <= wanted <= most:
            raise ValueError(
                f"n_components={wanted} must be between {least} and min(n_samples, "
                f"n_features)={most} with svd_solver={solver!r}: the data have {count} "
                f"samples and {features} features.")
        if solver == "arpack" and wanted == most:
            raise ValueError(
                f"n_components={wanted} must be strictly less than min(n_samples, "
                f"n_features)={most} with svd_solver='arpack'; 'lapack' finds all.")
        return int(wanted), None
    if isinstance(wanted, Real) and 0 < float(wanted) < 1:
        return most, float(wanted)
    raise ValueError(f"n_components={wanted!r} is not allowed; it must be an integer from 0 "
                     f"to min(n_samples, n_features)={most}, a fraction strictly between 0 "
                     f"and 1, {', '.join(map(repr, RULES))}, or None for all.")


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


def gavish_donoho(values: FloatArray, shape: tuple[int, int]) -> int:
    """Return how many singular values stand out of noise of unknown size, at least 1.

    `values` (min(shape),) are all singular values of a matrix of this `shape`. The threshold is
    omega(beta) times their median, beta the smaller side over the larger: the best one for white
    noise, in the limit and in squared error (Gavish & Donoho 2014). For as many zeros as values
    the median is 0, and all that are not are kept.

    Examples
    --------
    >>> gavish_donoho(np.array([9.0, 8.0, 1.1, 1.0, 0.9]), (5, 5))
    2
    """
    if not values.size:
        return 0
    beta = min(shape) / max(shape)
    threshold = optimal_factor(beta) * float(np.median(values))
    return max(1, int(np.count_nonzero(values > threshold)))


def optimal_factor(beta: float) -> float:
    """Return omega(beta) of Gavish & Donoho (2014): the threshold over the median.

    Examples
    --------
    >>> round(optimal_factor(1.0), 3), round(optimal_factor(0.5), 3)
    (2.858, 2.171)
    """
    size = 8 * beta / ((beta + 1) + math.sqrt(beta**2 + 14 * beta + 1))
    return math.sqrt(2 * (beta + 1) + size) / math.sqrt(_median_of_noise(beta))


def _median_of_noise(beta: float) -> float:
    """Return the median of the law of Marchenko & Pastur (1967) for aspect `beta` in (0, 1].

    The substitution x = middle + 2 sqrt(beta) cos(angle) leaves a smooth integrand, which the
    trapezoidal rule on half a period sums to rounding.
    """
    half = 2 * math.sqrt(beta)
    points = 1 << 14
    angle = (np.arange(points) + 0.5) * math.pi / points
    x = 1 + beta + half * np.cos(angle)
    density = (half * np.sin(angle)) ** 2 / (2 * math.pi * beta * x) * math.pi / points
    mass = np.cumsum(density)  # of all that lies above x
    return float(np.interp(0.5, mass, x - 0.5 * half * np.sin(angle) * math.pi / points))


def parallel(values: FloatArray, flipped: FloatArray) -> int:
    """Return how many of the leading values exceed those of every signflipped matrix, at least 1.

    `values` (m,) eigenvalues of the scatter, descending; `flipped` (trials, m) the same of the
    scatter of rows whose entries got random signs, which leaves noise as it was and destroys
    what columns have in common (Hong, Sheng & Dobriban 2020).

    Examples
    --------
    >>> parallel(np.array([9.0, 3.0, 1.0]), np.array([[4.0, 3.5, 3.0], [4.2, 3.4, 3.1]]))
    1
    """
    if not values.size:
        return 0
    noise = values <= flipped.max(axis=0, initial=0.0)
    return max(1, int(np.argmax(noise)) if noise.any() else len(values))


def flipped_values(blocks: Iterable[FloatArray], size: int, rng: Generator) -> FloatArray:
    """Return the eigenvalues, descending, of the Gram matrix of (m, size) blocks, signs flipped."""
    total = np.zeros((size, size))
    for block in blocks:
        signs = rng.integers(0, 2, block.shape, dtype=np.int8)
        part = np.where(signs, block, -block)
        total += part.T @ part
    values: FloatArray = np.maximum(np.linalg.eigvalsh(total)[::-1], 0.0)
    return values


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
