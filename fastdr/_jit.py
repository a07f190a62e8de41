"""Functions compiled by Numba; the only module that imports it.

Nothing is cached on disk: several processes may start at once, and the folder of the package may
not be writable. Users' own functions that call these may be cached as they like.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from fastdr.validation import FloatArray


class LinearArrays(NamedTuple):
    """A linear model as Numba sees it: made by `LinearModel.jit`, passed to the functions here.

    Attributes
    ----------
    mean : (d,) float64.
    axes : (d, k) components as columns, float64 or float32.
    back : (d, k) what rows are put together from; `axes` where those are orthonormal.
    scale : (d,) float64, 1 where columns are not scaled.
    divisors : (k,) float64, 1 without whitening, infinite beyond the rank with it.
    turned : bool, whether scores are turned back to the features ("zca").
    """

    mean: FloatArray
    axes: Any
    back: Any
    scale: FloatArray
    divisors: FloatArray
    turned: bool


@njit(nogil=True)
def _gather(m: LinearArrays, x: Any, t: FloatArray) -> None:
    """t = axes' ((x - mean) / scale)"""  # noqa: D400, D403
    features, count = m.axes.shape
    t[:] = 0.0
    for i in range(features):
        value = (x[i] - m.mean[i]) / m.scale[i]
        for j in range(count):
            t[j] += value * m.axes[i, j]


# "reassoc" lets the sum use vectors; NaN and infinity stay as they are.
@njit(nogil=True, fastmath={"reassoc"})
def _spread(axis: Any, t: FloatArray) -> float:
    """Return axis . t, in float64."""
    total = 0.0
    for j in range(t.size):
        total += t[j] * axis[j]
    return total


@njit(nogil=True)
def _project_row(m: LinearArrays, x: Any, out: Any, t: FloatArray) -> None:
    features, count = m.axes.shape
    _gather(m, x, t)
    for j in range(count):
        t[j] /= m.divisors[j]
    if m.turned:
        for i in range(features):
            out[i] = _spread(m.back[i], t)
    else:
        for j in range(count):
            out[j] = t[j]


@njit(nogil=True)
def _inverse_row(m: LinearArrays, z: Any, out: Any, t: FloatArray) -> None:
    features, count = m.axes.shape
    if m.turned:
        t[:] = 0.0
        for i in range(features):
            for j in range(count):
                t[j] += z[i] * m.axes[i, j]
    else:
        for j in range(count):
            t[j] = z[j]
    for j in range(count):
        t[j] *= m.divisors[j] if m.divisors[j] < np.inf else 0.0
    for i in range(features):
        out[i] = _spread(m.back[i], t) * m.scale[i] + m.mean[i]


@njit(nogil=True)
def _error_row(m: LinearArrays, x: Any, t: FloatArray) -> float:
    _gather(m, x, t)
    total = 0.0
    for i in range(m.mean.size):
        gap = (x[i] - m.mean[i]) - _spread(m.back[i], t) * m.scale[i]
        total += gap * gap
    return total


@njit(nogil=True)
def project(m: LinearArrays, x: Any, out: Any) -> None:
    """Put the scores of a row (d,) or of rows (n, d) into `out`, (k,) or (n, k), a separate array.

    Raises ValueError if shapes do not fit. NaN passes through.
    """
    outputs = m.axes.shape[0] if m.turned else m.axes.shape[1]
    if x.shape[-1] != m.axes.shape[0] or out.shape != x.shape[:-1] + (outputs,):
        raise ValueError("project: x or out does not have the model's shape")
    t = np.empty(m.axes.shape[1])
    if x.ndim == 1:
        _project_row(m, x, out, t)
    else:
        for row in range(x.shape[0]):
            _project_row(m, x[row], out[row], t)


@njit(nogil=True)
def inverse(m: LinearArrays, z: Any, out: Any) -> None:
    """Put the row (d,) or rows (n, d) that scores stand for into `out`, a separate array.

    Raises ValueError if shapes do not fit. NaN passes through.
    """
    outputs = m.axes.shape[0] if m.turned else m.axes.shape[1]
    if z.shape[-1] != outputs or out.shape != z.shape[:-1] + (m.axes.shape[0],):
        raise ValueError("inverse: z or out does not have the model's shape")
    t = np.empty(m.axes.shape[1])
    if z.ndim == 1:
        _inverse_row(m, z, out, t)
    else:
        for row in range(z.shape[0]):
            _inverse_row(m, z[row], out[row], t)


@njit(nogil=True)
def error(m: LinearArrays, x: Any) -> Any:
    """Return the squared distance of a row to its reconstruction, or an array of them for rows.

    Raises ValueError if shapes do not fit. NaN passes through.
    """
    if x.shape[-1] != m.axes.shape[0]:
        raise ValueError("error: x does not have the model's shape")
    t = np.empty(m.axes.shape[1])
    if x.ndim == 1:
        return _error_row(m, x, t)
    errors = np.empty(x.shape[0])
    for row in range(x.shape[0]):
        errors[row] = _error_row(m, x[row], t)
    return errors
