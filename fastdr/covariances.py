"""Covariance matrices of rows, in float64 or, where they were asked for so, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from fastdr.sources import ArraySource, BlockSource
from fastdr.statistics import (
    Moments,
    add_outer,
    arithmetic,
    check_ddof,
    counts_of,
    degrees_left,
    divided,
    scatter_of,
)
from fastdr.validation import AnyArray, FloatArray, as_matrix, as_vector, as_weights, output

SHRINKING = -530  # exponent that takes sums of squares which overflow into the range


def covariance(X: Any, *, sample_weight: ArrayLike | None = None, mean: ArrayLike | None = None,
               ddof: float | None = None, dtype: DTypeLike | None = None,
               out: AnyArray | None = None) -> AnyArray:
    """Covariance matrix of the columns of `X`, accurate for any offset.

    Parameters
    ----------
    X : (n, d) array of float64, float32, float16, integers or bool
        Any memory layout; memory-mapped arrays are read in place.
    sample_weight : (n,), optional
        Frequencies: how often each row counts. 2 is the row twice, 0 is no row. For reliabilities,
        whose scale means nothing, see `Moments.covariance`.
    mean : (d,), optional
        The known mean; without it the sample mean is used.
    ddof : float, optional
        The divisor is the number (or total weight) of rows less `ddof`: by default 1 with the
        sample mean and 0 with a known one.
    dtype : float64 or float32, optional
        Of the result, by default float64. Sums are of float64 in any case. A float32 result of
        more than 4096 rows of float32 takes half the memory throughout.
    out : (d, d) float64 or float32 array, optional
        Where to put the result; it shares no memory with the operands.

    Returns
    -------
    (d, d) array, symmetric, in squared units of `X`.

    Raises
    ------
    ValueError
        NaN or infinity in `X`, wrong shapes, too few rows for `ddof`, another `dtype`, or
        variances that float32 cannot hold if it was asked for.
    TypeError
        Sparse, complex or non-numeric `X`.

    Notes
    -----
    One pass, O(n d²); extra memory of a few blocks of rows. Error relative to √(C_ii C_jj):
    a small multiple of rounding for float64; for more than 4096 float32 rows about 1e-8, a few 1e-6
    where the same numbers occur again and again; 6e-8 more in a float32 result. However it rounds,
    at most (288 + n/168) 1.1e-16, of float32 rows 1.3e-5 more (Higham, Accuracy and Stability of
    Numerical Algorithms, 2002, section 3.5); ``X.astype(float)`` has the former. Beside it stands
    what rounding of the sum of weights is of that sum less `ddof`. What float64 does not hold is
    infinite.

    References
    ----------
    Chan, Golub & LeVeque, Amer. Statist. 37 (1983).

    Examples
    --------
    >>> import fastdr
    >>> fastdr.covariance([[1e9, 1.0], [1e9 + 2, 5.0]])
    array([[2., 4.],
           [4., 8.]])
    """
    rows = as_matrix(X)
    kind = _result_dtype(dtype, out)
    if out is not None:
        output(out, (rows.shape[1],) * 2, kind, rows, sample_weight, mean)
    lost = float(mean is None) if ddof is None else ddof
    check_ddof(lost)
    if kind == np.float32 and mean is None:
        narrow = _narrow_covariance(rows, as_weights(sample_weight, len(rows)), lost)
        if narrow is not None:
            if out is None:
                return narrow
            out[...] = narrow
            return out
    about = None if mean is None else as_vector(mean, rows.shape[1], "mean")
    found = Moments.of(rows, sample_weight)
    squares = found.squares if about is None else _squares_about(found, about)
    exponents = np.where(np.isfinite(squares), 0, SHRINKING)
    if exponents.any():  # sums overflow, which the variances need not
        found = _of_shrunk(rows, sample_weight, exponents)
        about = None if about is None else np.ldexp(about, exponents)
    divisor = found.divisor(lost)
    if about is not None:
        add_outer(found.scatter, (found.mean - about) + found.rest, found.weight)
    if exponents.any():
        divided(found.scatter, divisor, found.scatter)
        divisor = 1.0
        with np.errstate(over="ignore"):
            np.ldexp(found.scatter, -exponents - exponents[:, None], out=found.scatter)
    if kind == np.float32:
        _refuse_what_float32_cannot_hold(np.diagonal(found.scatter) / divisor)
        out = np.empty(found.scatter.shape, kind) if out is None else out
    return divided(found.scatter, divisor, found.scatter if out is None else out)


def _squares_about(found: Moments, mean: FloatArray) -> FloatArray:
    """Return the sums of squares about a known mean, (d,), not finite where they overflow."""
    with np.errstate(over="ignore"):
        squares: FloatArray = found.squares + found.weight * ((found.mean - mean) + found.rest)**2
    return squares


def _of_shrunk(rows: AnyArray, weight: ArrayLike | None, exponents: AnyArray) -> Moments:
    """Moments of the rows with columns times 2**exponents."""
    def blocks() -> Iterator[AnyArray]:
        for block in ArraySource(rows).blocks():
            yield np.ldexp(block.astype(np.float64), exponents)

    return Moments.of_source(BlockSource(blocks, rows.shape[1], len(rows)), weight)


def _result_dtype(dtype: DTypeLike | None, out: AnyArray | None) -> np.dtype[Any]:
    """Return the type that was asked for, by `out` if it was not named."""
    if dtype is None:
        single = getattr(out, "dtype", None) == np.float32
        return np.dtype(np.float32 if single else np.float64)
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = None
    if kind not in (np.float64, np.float32):
        raise ValueError(f"dtype={dtype!r}; allowed are float64 and float32.")
    return kind


def _narrow_covariance(rows: AnyArray, weight: FloatArray | None, ddof: float) -> AnyArray | None:
    """Return a float32 covariance where one of float64 never stood, None if that does not do."""
    working = arithmetic(rows, weight, None)
    if working == np.float64:
        return None
    count, whole, _ = counts_of(len(rows), weight)
    divisor = degrees_left(count, whole, ddof, ddof)
    total, finite = scatter_of(rows, weight, working, narrow=True)
    if not finite or total.outside:
        return None
    found = total.finish_narrow(divisor)
    return found if _float32_holds(np.diagonal(found)) else None


def _float32_holds(variances: AnyArray) -> bool:
    info = np.finfo(np.float32)
    return bool(((variances == 0) | (variances >= info.tiny) & (variances <= info.max)).all())


def _refuse_what_float32_cannot_hold(variances: FloatArray) -> None:
    if not _float32_holds(variances):
        some = variances[variances != 0]
        raise ValueError(f"variances are {some.min():.1e} to {some.max():.1e}, which float32 "
                         "cannot hold: leave out dtype=float32, or scale the columns.")
