"""Limits of T² and SPE that rows like the fitted ones stay below.

They follow from the model alone, so new rows never move them.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import ndtri
from scipy.stats import chi2, f

from fastdr.diagnostics import as_linear, first_axes, is_complete, varying_axes
from fastdr.models import LinearModel, times_power
from fastdr.validation import FloatArray, as_numbers


def t_squared_limit(model: Any, k: int | None = None, confidence: float = 0.95) -> float:
    """Return the T² that `confidence` of new rows like the fitted ones stay below.

    For normal rows, and a mean and variances estimated from ``model.count`` = n rows, k (n² - 1) /
    (n (n - k)) times the quantile of F with k and n - k degrees of freedom. That holds exactly if
    the axes are all or were known; axes fitted to the same few rows make it too small. A model
    made by hand (count 0) is taken as exact: chi-squared.

    Parameters
    ----------
    model : PCA or LinearModel
        Fitted.
    k : int, optional
        As for `t_squared`.
    confidence : float from 0.5, below 1, default 0.95

    Raises
    ------
    ValueError
        If `k` or `confidence` is out of range, or the model was fitted to no more than k rows.

    References
    ----------
    Tracy, Young & Mason, Journal of Quality Technology 24 (1992).

    Examples
    --------
    >>> from fastdr import LinearModel
    >>> model = LinearModel(mean=[0.0], components=[[1.0]], variances=[1.0], count=10)
    >>> round(t_squared_limit(model), 3)                       # 1.96**2 if the variance were known
    5.629
    """
    fitted, axes, _ = varying_axes(model, k)
    used, count = len(axes), fitted.count
    _check_confidence(confidence)
    if not count:
        return float(chi2.ppf(confidence, used))
    if count <= used:
        raise ValueError(f"the model was fitted to {count} rows; limits of T² on {used} axes need "
                         f"more than {used} rows. Pass a smaller k.")
    factor = used * (count - 1) / (count - used) * (1 + 1 / count)
    return float(factor * f.ppf(confidence, used, count - used))


def spe_limit(model: Any, k: int | None = None, confidence: float = 0.95) -> float:
    """Return the SPE that `confidence` of new rows like the fitted ones stay below.

    For normal rows SPE is a sum of squares weighted by the variances left out. Its quantile is
    found by the saddlepoint approximation: the probability of exceeding the limit is within 7 %
    of 1 - `confidence` in all spectra tried, up to 0.999, and worst for a single variance.

    Parameters
    ----------
    model : PCA or LinearModel
        Fitted with all its components, since the limit depends on every variance left out.
    k : int
        As for `spe`; fewer than the components of the model.
    confidence : float from 0.5, below 1, default 0.95

    Returns
    -------
    float
        In the units of the variances; 0 if no variance is left out.

    Raises
    ------
    ValueError
        If `k` or `confidence` is out of range, or the model does not have the variances left out:
        then take ``spe_limit_of`` the errors of reference rows.

    References
    ----------
    Kuonen, Biometrika 86 (1999); Barndorff-Nielsen, Biometrika 73 (1986).

    Examples
    --------
    >>> from fastdr import LinearModel
    >>> model = LinearModel(mean=[0.0] * 6, components=np.eye(6), variances=[9.0, 1, 1, 1, 1, 1])
    >>> round(spe_limit(model, k=1), 2)                          # chi-squared of 5: 11.07
    11.08
    """
    fitted, rest = _left_out(model, k)
    _check_confidence(confidence)
    if not rest.size:
        return 0.0
    return float(times_power(_weighted_quantile(rest, confidence), -2 * fitted.exponent))


def spe_limit_jackson_mudholkar(model: Any, k: int | None = None,
                                confidence: float = 0.95) -> float:
    """Return the limit of SPE by the formula of Jackson and Mudholkar.

    For comparison with other programs. Where few of the variances left out are much larger than
    the others it has no value or exceeds the quantile by far; `spe_limit` is right there too.
    Parameters and errors are those of `spe_limit`, and ValueError where there is no value.

    References
    ----------
    Jackson & Mudholkar, Technometrics 21 (1979), equation 3.4.

    Examples
    --------
    >>> from fastdr import LinearModel
    >>> model = LinearModel(mean=[0.0] * 6, components=np.eye(6), variances=[9.0, 1, 1, 1, 1, 1])
    >>> round(spe_limit_jackson_mudholkar(model, k=1), 2)        # chi-squared of 5: 11.07
    11.04
    """
    fitted, rest = _left_out(model, k)
    _check_confidence(confidence)
    if not rest.size:
        return 0.0
    largest = float(rest[0])
    first, second, third = (float(np.sum((rest / largest) ** power)) for power in (1, 2, 3))
    h = 1 - 2 * first * third / (3 * second**2)
    deviate = float(ndtri(confidence))  # the formula takes that of the sign of h, squared h inside
    root = 1 + second * h * (h - 1) / first**2 + deviate * h * math.sqrt(2 * second) / first
    if h == 0 or root <= 0:
        raise ValueError("the formula of Jackson and Mudholkar has no value for these variances "
                         f"at confidence={confidence}; use spe_limit.")
    return float(times_power(largest * first * root ** (1 / h), -2 * fitted.exponent))


def spe_limit_of(errors: ArrayLike, confidence: float = 0.95) -> float:
    """Return a limit of SPE from the errors of reference rows, for a model with few components.

    The quantile of the multiple of a chi-squared variable that has mean and variance of `errors`.

    Parameters
    ----------
    errors : (n,) SPE of at least two rows that were not fitted, not all equal
        Those of the fitted rows are too small where rows are few.
    confidence : float from 0.5, below 1, default 0.95

    Raises
    ------
    ValueError
        If `errors` is anything else, or `confidence` out of range.

    References
    ----------
    Box, Annals of Mathematical Statistics 25 (1954); Nomikos & MacGregor, Technometrics 37 (1995).

    Examples
    --------
    >>> errors = np.square(np.random.default_rng(0).standard_normal((2000, 5))).sum(axis=1)
    >>> round(spe_limit_of(errors), 1)                           # chi-squared of 5: 11.07
    10.9
    """
    values = as_numbers(errors, "errors").astype(np.float64, copy=False)
    if values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all() or (values < 0).any():
        raise ValueError("errors must be a vector of at least two finite numbers, none negative.")
    _check_confidence(confidence)
    mean, variance = float(values.mean()), float(values.var(ddof=1))
    if variance == 0:
        raise ValueError("errors are all equal, which leaves no distribution to take a limit of.")
    return float(variance / (2 * mean) * chi2.ppf(confidence, 2 * mean**2 / variance))


def _left_out(model: Any, k: int | None) -> tuple[LinearModel, FloatArray]:
    """Return the model and the positive variances beyond its first `k` axes, as stored."""
    fitted = as_linear(model)
    kept = len(first_axes(fitted, k))
    if not is_complete(fitted):
        raise ValueError(
            "the limit depends on each variance left out, and this model has only their sum. Fit "
            "all components and pass k, or take spe_limit_of errors of reference rows.")
    rest = fitted.variances[kept:fitted.rank]
    return fitted, rest[rest > 0]


def _check_confidence(confidence: Any) -> None:
    if not (isinstance(confidence, Real) and 0.5 <= float(confidence) < 1):
        raise ValueError(f"confidence={confidence!r} is not a share of at least 0.5, below 1.")


def _weighted_quantile(weights: FloatArray, probability: float) -> float:
    """Return the quantile of a sum of squares of standard normal variables times `weights`.

    The saddlepoint t belongs to the argument x = K'(t) of the cumulant generating function
    K(t) = -½ Σ log(1 - 2 t λ); the root is found in t itself.
    """
    largest = float(weights.max())
    scaled = weights / largest
    wanted = float(ndtri(probability))

    def above(t: float) -> float:
        return _normal_deviate(scaled, t) - wanted

    low, gap = -1.0, 0.25
    while above(low) > 0:
        low *= 4
    while above(0.5 - gap) < 0:
        gap /= 4
    t = float(brentq(above, low, 0.5 - gap, xtol=1e-15))
    return largest * float(np.sum(scaled / (1 - 2 * t * scaled)))


def _normal_deviate(weights: FloatArray, t: float) -> float:
    """Return r* at the saddlepoint `t`: P(sum < K'(t)) is its normal probability."""
    tilted = weights / (1 - 2 * t * weights)
    curvature = 2 * float(tilted @ tilted)
    if abs(t) < 1e-5:  # the limit at the mean, where the quotients below cancel
        return 4 * float(np.sum(weights**3)) / (3 * math.pow(curvature, 1.5))
    cumulant = -0.5 * float(np.log1p(-2 * t * weights).sum())
    r = math.copysign(math.sqrt(2 * max(t * float(tilted.sum()) - cumulant, 0.0)), t)
    return r + math.log(t * math.sqrt(curvature) / r) / r
