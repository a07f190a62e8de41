"""How well a model describes rows and features, and which rows are unlike those it was fitted to.

A row differs from the fitted ones in two ways: along the axes, which Hotelling's T² measures in
their deviations, and away from them, which the squared prediction error (SPE or Q) measures. What
is much is said by `fastdr.limits`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fastdr.models import LinearModel, times_power
from fastdr.operators import project, reconstruct
from fastdr.sources import block_rows
from fastdr.validation import (
    AnyArray,
    FloatArray,
    as_matrix,
    check_features,
    raise_not_finite,
    whole,
)

_EPS = float(np.finfo(np.float64).eps)


def as_linear(model: Any) -> LinearModel:
    """Return the LinearModel of a fitted estimator, or `model` itself if it is one.

    Raises TypeError for anything else.
    """
    fitted = getattr(model, "model_", model)
    if not isinstance(fitted, LinearModel):
        raise TypeError(f"expected a fitted PCA or a LinearModel, got {type(model).__name__}"
                        f"{' that is not fitted' if hasattr(model, 'fit') else ''}.")
    return fitted


def t_squared(model: Any, X: ArrayLike, k: int | None = None) -> FloatArray:
    """Hotelling's T² of rows: squared distance to the mean along the axes, in deviations.

    Parameters
    ----------
    model : PCA or LinearModel
        Fitted. Whitening has no part in it.
    X : (n, d) rows of any real dtype
    k : int, optional
        Use the first `k` axes; by default all of the model. Axes beyond the rank add nothing.

    Returns
    -------
    (n,) float64
        The sum of ``score**2 / variance`` over the axes; no unit.

    Raises
    ------
    ValueError, TypeError
        For rows that do not fit the model, NaN or infinity, `k` out of range.

    Notes
    -----
    One read of `X`, O(d k) a row, memory of a block of rows.

    References
    ----------
    Hotelling, Annals of Mathematical Statistics 2 (1931).

    Examples
    --------
    >>> from fastdr import LinearModel
    >>> model = LinearModel(mean=[1.0, 1.0], components=[[0.6, 0.8]], variances=[4.0])
    >>> t_squared(model, [[1.0, 1.0], [3.4, 4.2]]).round(12)
    array([0., 4.])
    """
    fitted, axes, deviations = varying_axes(model, k)

    def distances(rows: FloatArray) -> FloatArray:
        scores = project(rows, axes) / deviations
        return square_lengths(scores)

    return _by_block(fitted, X, distances)


def t_squared_contributions(model: Any, X: ArrayLike, k: int | None = None) -> FloatArray:
    """Share of each feature in T², (n, d) float64, at least 0; a row sums to its T².

    The row's deviation from the mean times the square root of the matrix that T² is the quadratic
    form of, entries squared: what "zca" whitening to `k` axes makes of the row. Parameters and
    errors are those of `t_squared`.

    Notes
    -----
    One read of `X`, O(d k) a row; beside the result, memory of a block of rows.

    References
    ----------
    Alcala & Qin, Automatica 45 (2009): complete decomposition.

    Examples
    --------
    >>> from fastdr import LinearModel
    >>> model = LinearModel(mean=[1.0, 1.0], components=[[0.6, 0.8]], variances=[4.0])
    >>> t_squared_contributions(model, [[3.4, 4.2]]).round(12)
    array([[1.44, 2.56]])
    """
    fitted, axes, deviations = varying_axes(model, k)

    def shares(rows: FloatArray) -> FloatArray:
        return np.square(reconstruct(project(rows, axes) / deviations, axes))

    return _by_block(fitted, X, shares, fitted.mean.size)


def spe(model: Any, X: ArrayLike, k: int | None = None) -> FloatArray:
    """Squared prediction error (SPE, Q) of rows: squared distance to the axes.

    Parameters
    ----------
    model : PCA or LinearModel
        Fitted. Whitening has no part in it.
    X : (n, d) rows of any real dtype
    k : int, optional
        Use the first `k` axes; by default all of the model.

    Returns
    -------
    (n,) float64
        In the units of the variances: those of the scaled input for a standardized model, where
        ``model.reconstruction_error`` is in units of the input.

    Raises
    ------
    ValueError, TypeError
        For rows that do not fit the model, NaN or infinity, `k` out of range.

    Notes
    -----
    One read of `X`, O(d k) a row in float64, memory of a block of rows.

    References
    ----------
    Jackson & Mudholkar, Technometrics 21 (1979).

    Examples
    --------
    >>> from fastdr import LinearModel
    >>> model = LinearModel(mean=[1.0, 1.0], components=[[0.6, 0.8]], variances=[4.0])
    >>> spe(model, [[3.4, 4.2], [1.8, 0.4]]).round(12)
    array([0., 1.])
    """
    fitted = as_linear(model)
    axes = first_axes(fitted, k)

    def distances(rows: FloatArray) -> FloatArray:
        rows -= reconstruct(project(rows, axes), axes)
        return square_lengths(rows)

    return _by_block(fitted, X, distances, exponent=-2 * fitted.exponent)


def spe_contributions(model: Any, X: ArrayLike, k: int | None = None) -> FloatArray:
    """Share of each feature in SPE, (n, d) float64, at least 0; a row sums to its SPE.

    The squared entries of the residual. Parameters and errors are those of `spe`.

    Notes
    -----
    One read of `X`, O(d k) a row; beside the result, memory of a block of rows.

    References
    ----------
    Alcala & Qin, Automatica 45 (2009).

    Examples
    --------
    >>> from fastdr import LinearModel
    >>> model = LinearModel(mean=[1.0, 1.0], components=[[0.6, 0.8]], variances=[4.0])
    >>> spe_contributions(model, [[1.8, 0.4]]).round(12)
    array([[0.64, 0.36]])
    """
    fitted = as_linear(model)
    axes = first_axes(fitted, k)

    def shares(rows: FloatArray) -> FloatArray:
        rows -= reconstruct(project(rows, axes), axes)
        return np.square(rows, out=rows)

    return _by_block(fitted, X, shares, fitted.mean.size, exponent=-2 * fitted.exponent)


def cos_squared(model: Any, X: ArrayLike) -> FloatArray:
    """Quality of representation of rows: squared cosines of their angles to the axes.

    Parameters
    ----------
    model : PCA or LinearModel
        Fitted. Whitening has no part in it.
    X : (n, d) rows of any real dtype

    Returns
    -------
    (n, k) float64
        The share of the squared distance to the mean that lies along each axis, from 0 to 1; a row
        sums to 1 if no axis is left out. 0 for a row equal to the mean.

    Raises
    ------
    ValueError, TypeError
        For rows that do not fit the model, NaN or infinity.

    Notes
    -----
    One read of `X`, O(d k) a row; beside the result, memory of a block of rows.

    References
    ----------
    Abdi & Williams, WIREs Computational Statistics 2 (2010).

    Examples
    --------
    >>> from fastdr import LinearModel
    >>> model = LinearModel(mean=[0.0, 0.0], components=np.eye(2), variances=[2.0, 1.0])
    >>> cos_squared(model, [[3.0, 4.0], [0.0, 0.0]])
    array([[0.36, 0.64],
           [0.  , 0.  ]])
    """
    fitted = as_linear(model)
    axes = first_axes(fitted, None)

    def shares(rows: FloatArray) -> FloatArray:
        length = np.sqrt(square_lengths(rows))
        length[length == 0] = 1.0
        return np.square(project(rows, axes) / length[:, None])

    return _by_block(fitted, X, shares, len(axes))


def feature_cos_squared(model: Any) -> FloatArray:
    """Quality of representation of features: their squared correlations with the scores.

    Parameters
    ----------
    model : PCA or LinearModel
        Fitted with all its components, or standardized.

    Returns
    -------
    (k, d) float64
        The share of the variance of each feature that lies along each axis, from 0 to 1; a column
        sums to 1 if no axis is left out. 0 for a feature without variance.

    Raises
    ------
    ValueError
        If the variances of the features are unknown: a model with components left out that is not
        standardized.

    References
    ----------
    Abdi & Williams, WIREs Computational Statistics 2 (2010).

    Examples
    --------
    >>> from fastdr import LinearModel
    >>> model = LinearModel(mean=[0.0, 0.0], components=[[0.6, 0.8], [-0.8, 0.6]],
    ...                     variances=[2.0, 0.0])
    >>> feature_cos_squared(model)
    array([[1., 1.],
           [0., 0.]])
    """
    fitted = as_linear(model)
    shares = np.square(first_axes(fitted, None)) * fitted.variances[:, None]
    if is_complete(fitted):
        variance = shares.sum(axis=0)
    elif fitted.scale is not None:
        variance = np.ones_like(fitted.mean)
    else:
        raise ValueError("this model does not know the variances of the features, since components "
                         "were left out; fit it with all of them or with standardize=True.")
    shares /= np.where(variance > 0, variance, 1.0)
    return shares


def first_axes(model: LinearModel, k: int | None) -> FloatArray:
    """Return the first `k` axes in float64; judge `k`."""
    most = len(model.components)
    if k is not None and not (whole(k, 1) and k <= most):
        raise ValueError(f"k={k!r} is not a whole number from 1 to the {most} components fitted.")
    return model.components[:k].astype(np.float64, copy=False)


def varying_axes(model: Any, k: int | None) -> tuple[LinearModel, FloatArray, FloatArray]:
    """Return the model, those of its first `k` axes that have variance, and the deviations."""
    fitted = as_linear(model)
    axes = first_axes(fitted, k)[:fitted.rank]
    if not len(axes):
        raise ValueError("the model has no axis of positive variance, so no T² exists.")
    return fitted, axes, np.sqrt(fitted.variances[:len(axes)])


def is_complete(model: LinearModel) -> bool:
    """Whether the axes left out have no variance but rounding."""
    return model.left_out <= model.mean.size * _EPS * model.total_variance


def _by_block(model: LinearModel, X: ArrayLike, compute: Callable[[FloatArray], AnyArray],
              width: int | None = None, exponent: int = 0) -> FloatArray:
    """Return what `compute` makes of centred rows, times 2**exponent, a block at a time."""
    rows = as_matrix(X)
    check_features(X, rows.shape[1], model.mean.size, model.feature_names)
    result = np.empty(len(rows) if width is None else (len(rows), width))
    step = block_rows(rows.shape[1])
    for start in range(0, len(rows), step):
        try:
            found = compute(model.centred(rows[start:start + step]))
        except ValueError:
            raise_not_finite(rows)  # with its row in X, not in the block
            raise
        result[start:start + step] = times_power(found, exponent)
    return result


def square_lengths(rows: FloatArray) -> FloatArray:
    """Return the squared length of each row, (n,)."""
    lengths: FloatArray = np.einsum("ij,ij->i", rows, rows)
    return lengths
