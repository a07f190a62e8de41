"""Products of centred rows with a narrow matrix, each in one read of the data."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from fastdr._dense import (
    GramSum,
    Matrix,
    Products,
    RowChunks,
    RowErrors,
    SymmetricSum,
    gram_width,
)
from fastdr.mapped import read
from fastdr.scatter import ScatterSum
from fastdr.sources import Rows, block_rows
from fastdr.sparse import SparseSource, as_rows, sparse_product
from fastdr.threads import get_num_threads, ordered_map, ordered_sum, together
from fastdr.validation import (
    AnyArray,
    FloatArray,
    as_factors,
    as_matrix,
    as_scale,
    as_vector,
    output,
    raise_not_finite,
    working_dtype,
)

# Multiplications that make a chunk worth a thread of its own, and rows of a chunk at least.
_CHUNK_WORK = 1 << 23
_CHUNK_ROWS = 64
# A Gram action is the sum of at most so many chunks of rows. Each costs as much as some 120 rows
# and lets one more thread take part, so that √(rows / 120) is about best; a whole number of groups
# that kernels take together leaves no rest to copy; so many strips of columns share a read.
_GRAM_CHUNKS, _GRAM_ROWS, _GRAM_STEP, _STRIPS = 16, 120, 24, 4
_SYMMETRIC_CHUNKS = 8
_NONE = np.empty(0)
HUGE = 2.0**1022  # differences of numbers up to that are finite
Chunks = TypeVar("Chunks", bound=RowChunks)


def project(X: Any, components: ArrayLike, mean: ArrayLike | None = None,
            scale: ArrayLike | None = None, out: AnyArray | None = None) -> AnyArray:
    """Coordinates of rows: ((X - mean) / scale) @ components.T, centred before the product.

    Parameters
    ----------
    X : (n, d) array of float64, float32, float16, integers or bool, or sparse
        Any memory layout; sparse matrices and arrays of any format.
    components : (k, d)
        Directions as rows; they need not be orthonormal.
    mean, scale : (d,), optional
        Subtracted from and divided out of each row, in float64; scales must be positive.
    out : (n, k) array, optional
        Where to put the result, in the result's dtype; it shares no memory with the operands.

    Returns
    -------
    (n, k) array, float32 for float32 and float16 input, else float64.

    Raises
    ------
    ValueError
        NaN, infinity or masked values in an operand, mismatched shapes, unusable `out`; a result
        that its dtype does not hold.
    TypeError
        Complex or non-numeric operands.

    Notes
    -----
    One pass, O(n d k), extra memory of a few hundred rows.

    Examples
    --------
    >>> import fastdr
    >>> fastdr.project([[3.0, 4.0], [1.0, 2.0]], [[0.6, 0.8]], mean=[1.0, 2.0])
    array([[2.8],
           [0. ]])
    """
    rows = as_rows(X)
    factors = as_factors(components, rows.shape[1])
    divisor = as_scale(scale, rows.shape[1])
    shift = None if mean is None else as_vector(mean, rows.shape[1], "mean")
    out = output(out, (len(rows), len(factors)), working_dtype(rows.dtype), rows, components, mean,
                 scale)
    return centred_product(rows, factors, shift, divisor, out)


def centred_product(rows: AnyArray | SparseSource, factors: AnyArray, mean: FloatArray | None,
                    scale: FloatArray | None, out: AnyArray) -> AnyArray:
    """Do the work of `project` on arguments that have been judged, all but finiteness of rows."""
    if isinstance(rows, SparseSource):
        return _sparse_scores(rows, factors, mean, scale, out)
    with np.errstate(over="ignore"):
        divided = factors if scale is None else factors / scale
        right = np.ascontiguousarray(divided.T, out.dtype)
    if not _product(rows, _NONE if mean is None else mean, right, _NONE, out):
        _redo(rows, "X", partial(_scores, factors, mean, scale), out)
    return out


def _scores(factors: AnyArray, mean: FloatArray | None, scale: FloatArray | None, rows: FloatArray
            ) -> FloatArray:
    """Return the scores of rows, infinite only where float64 ends."""
    units, exponents = _centred(rows, mean, scale)
    scores: FloatArray = np.ldexp(units @ factors.T, exponents)
    return scores


def _sparse_scores(rows: SparseSource, factors: AnyArray, mean: FloatArray | None,
                   scale: FloatArray | None, out: AnyArray) -> AnyArray:
    """Put the scores into `out`; in float64 if centred, for the mean comes off last."""
    dtype = out.dtype if mean is None or not mean.any() else np.float64
    with np.errstate(all="ignore"):
        divided = (factors if scale is None else factors / scale).astype(dtype)
        sparse_product(rows, divided.T, None if mean is None else divided @ mean, out)
    if not np.isfinite(out).all():
        start = 0
        for block in rows.blocks():
            centred_product(block, factors, mean, scale, out[start:start + len(block)])
            start += len(block)
    return out


def reconstruct(Z: Any, components: ArrayLike, mean: ArrayLike | None = None,
                scale: ArrayLike | None = None, out: AnyArray | None = None) -> AnyArray:
    """Rows from coordinates: (Z @ components) * scale + mean.

    Parameters
    ----------
    Z : (n, k) array of float64, float32, float16, integers or bool
    components : (k, d)
    mean, scale : (d,), optional
    out : (n, d) array, optional
        Where to put the result, in the result's dtype; it shares no memory with the operands.

    Returns
    -------
    (n, d) array, float32 for float32 and float16 input, else float64.

    Raises
    ------
    ValueError
        NaN, infinity or masked values in an operand, mismatched shapes, unusable `out`; a result
        that its dtype does not hold.
    TypeError
        Sparse `Z`; complex or non-numeric operands.

    Notes
    -----
    One pass, O(n d k).

    Examples
    --------
    >>> import fastdr
    >>> fastdr.reconstruct([[2.0]], [[0.6, 0.8]], mean=[1.0, 2.0])
    array([[2.2, 3.6]])
    """
    factors = as_factors(components)
    if np.ndim(Z) == 2 and np.shape(Z)[1] == len(factors) == 0:  # a zero direction does as well
        Z = np.zeros((len(Z), 1), getattr(Z, "dtype", None))
        factors = np.zeros((1, factors.shape[1]))
    rows = as_matrix(Z, "Z")
    dtype = working_dtype(rows.dtype)
    if len(factors) != rows.shape[1]:
        raise ValueError(f"Z has {rows.shape[1]} column(s), but components has shape "
                         f"{factors.shape}; expected ({rows.shape[1]}, d).")
    features = factors.shape[1]
    multiplier = as_scale(scale, features)
    offset = _NONE if mean is None else as_vector(mean, features, "mean")
    out = output(out, (rows.shape[0], features), dtype, rows, components, mean, scale)
    with np.errstate(over="ignore"):
        right = np.ascontiguousarray(factors if multiplier is None else factors * multiplier, dtype)
    if not _product(rows, _NONE, right, offset, out):
        _redo(rows, "Z", partial(_fits, factors, offset if offset.size else 0.0, multiplier), out)
    return out


def _fits(factors: FloatArray, mean: FloatArray | float, scale: FloatArray | None, rows: FloatArray
          ) -> FloatArray:
    """Return the rows that scores stand for, infinite only where float64 ends."""
    units, exponents = _units(rows)
    halves = np.ldexp(units @ factors * (1.0 if scale is None else scale), exponents - 1)
    fits: FloatArray = 2 * (halves + np.multiply(mean, 0.5))
    return fits


def multiply(X: AnyArray, V: AnyArray) -> AnyArray:
    """Return X V, (n, b), in the dtype of V (d, b), float64 or float32; one read of `X`.

    Raises ValueError for NaN and infinity in `X`.
    """
    out = np.empty((X.shape[0], V.shape[1]), V.dtype)
    if not _product(X, _NONE, np.ascontiguousarray(V), _NONE, out):
        raise_not_finite(X)
    return out


def multiply_symmetric(C: AnyArray, V: AnyArray) -> AnyArray:
    """Return C V, (d, b), in the dtype of V, from a little more than a triangle of native C.

    It is read once for 8 columns, 16 in float32. The sum over a fixed number of parts does not
    depend on the number of threads. Raises ValueError for NaN and infinity there.
    """
    order, width = len(C), gram_width(V.dtype == np.float32)
    chunks = max(1, min(_SYMMETRIC_CHUNKS, order * order * width // _CHUNK_WORK))
    edges = order * (1 - np.sqrt(1 - np.arange(chunks + 1) / chunks))
    edges = np.minimum(np.ceil(edges / _GRAM_STEP) * _GRAM_STEP, order).astype(np.intp)
    result = np.empty((order, V.shape[1]), V.dtype)
    threads = min(get_num_threads(), chunks)
    together(SymmetricSum(Matrix(C), edges, threads, Matrix(np.ascontiguousarray(V)),
                          Matrix(result, writable=True)), threads)
    if not np.isfinite(result).all():
        raise_not_finite(C)
    return result


def _product(rows: AnyArray, shift: FloatArray, factor: AnyArray, offset: FloatArray,
             out: AnyArray) -> bool:
    """Put (rows - shift) factor + offset into `out`; tell whether all is known to be finite."""
    depth, width = factor.shape
    if rows.shape[0] == 0 or width == 0:
        return len(rows) == 0
    right = Matrix(factor)

    def made(matrix: Matrix, start: int, first: int, last: int, step: int, threads: int
             ) -> Products:
        return Products(matrix, first, last, step, threads, shift, right, offset,
                        Matrix(out[start:], writable=True))

    return all(done.finite for done in _chunked(Rows(rows), _chunk(depth * max(width, 8)), made))


def _redo(rows: AnyArray, name: str, made: Callable[[FloatArray], FloatArray], out: AnyArray
          ) -> None:
    """Put made(block) into `out` for finite rows whose result is not, in float64, by blocks.

    Raises ValueError for other rows and what `out` cannot hold; squares, (n,), may be infinite.
    """
    raise_not_finite(rows, name)
    step, results = block_rows(rows.shape[1]), out if out.ndim == 2 else out[:, None]
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        some = np.flatnonzero(~np.isfinite(results[part]).all(axis=1))
        if not some.size:
            continue
        with np.errstate(all="ignore"):
            found = made(read(rows[part])[some].astype(np.float64)).astype(out.dtype)
        lost = np.isnan(found) if out.ndim == 1 else np.any(~np.isfinite(found), axis=1)
        if lost.any():
            raise ValueError(f"{name} has row {start + int(some[np.argmax(lost)])}, whose result "
                             f"leaves the range of {out.dtype}: numbers up to "
                             f"{np.finfo(out.dtype).max:.1e} are allowed. Scale the rows"
                             f"{', or pass them as float64' * (out.dtype == np.float32)}.")
        out[part][some] = found


def _centred(rows: FloatArray, mean: FloatArray | None, scale: FloatArray | None
             ) -> tuple[FloatArray, FloatArray]:
    """Return `_units` of (rows - mean) / scale, in which no difference overflows."""
    half = 1.0
    if mean is not None:
        half = 0.5 if np.abs(rows).max() > HUGE or np.abs(mean).max() > HUGE else 1.0
        rows = rows * half - mean * half
    units, exponents = _units(rows if scale is None else rows / scale)
    return units, exponents + (half < 1)


def _units(rows: FloatArray) -> tuple[FloatArray, AnyArray]:
    """Return rows times powers of two that leave them at most 1, and the exponents, (n, 1)."""
    exponents = np.frexp(np.abs(rows).max(axis=1, keepdims=True))[1]
    return np.ldexp(rows, -exponents), exponents


def _chunked(rows: Rows, step: int, made: Callable[..., Chunks]) -> list[Chunks]:
    """Do made(matrix, start, first, last, step, threads) for all rows, in chunks of `step`.

    Rows in memory are one piece, which threads share; else each reads its own.
    """
    chunks = -(-rows.count // step)
    if rows.in_memory:
        threads = min(get_num_threads(), chunks)
        works = [made(*piece, step, threads) for piece in rows.pieces(0, rows.count)]
        together(works[0], threads)
        return works

    def part(index: int) -> list[Chunks]:
        works = []
        for piece in rows.pieces(index * step, min((index + 1) * step, rows.count)):
            works.append(made(*piece, step, 1))
            works[-1].work()
        return works

    return [work for works in ordered_map(part, chunks) for work in works]


def _chunk(work: int) -> int:
    """Rows of a chunk when each row costs `work` multiplications."""
    return max(1, _CHUNK_WORK // work // _CHUNK_ROWS) * _CHUNK_ROWS


def reconstruction_error(X: Any, components: ArrayLike, mean: ArrayLike | None = None,
                         scale: ArrayLike | None = None,
                         out: FloatArray | None = None) -> FloatArray:
    """Squared distance of each row to its reconstruction from `components`.

    Parameters
    ----------
    X : (n, d) array of float64, float32, float16, integers or bool, or sparse
        Sparse rows are made dense a block at a time.
    components : (k, d)
        Orthonormal rows (of the scaled space if `scale` is given).
    mean, scale : (d,), optional
    out : (n,) float64 array, optional
        It shares no memory with the operands.

    Returns
    -------
    (n,) float64 array, in squared units of `X`; infinite beyond the range of float64.

    Raises
    ------
    ValueError
        NaN, infinity or masked values in an operand, mismatched shapes, unusable `out`.
    TypeError
        Complex or non-numeric operands.

    Notes
    -----
    One pass, O(n d k); neither the reconstruction nor the residual is stored. The residual is
    formed entry by entry, so a small error keeps its digits (‖x‖² - ‖z‖² would lose them).

    Examples
    --------
    >>> import fastdr
    >>> fastdr.reconstruction_error([[3.0, 4.0], [4.0, -3.0]], [[0.6, 0.8]])
    array([ 0., 25.])
    """
    rows = as_rows(X)
    if isinstance(rows, SparseSource):
        errors = output(out, (len(rows),), np.float64, rows, components, mean, scale)
        start = 0
        for block in rows.blocks():
            reconstruction_error(block, components, mean, scale, errors[start:start + len(block)])
            start += len(block)
        return errors
    dtype = working_dtype(rows.dtype)
    factors = as_factors(components, rows.shape[1])
    divisor = as_scale(scale, rows.shape[1])
    known = None if mean is None else as_vector(mean, rows.shape[1], "mean")
    shift = _NONE if known is None else known
    errors = output(out, (rows.shape[0],), np.float64, rows, components, mean, scale)
    if not len(factors):  # nothing is projected on, so a zero direction does as well
        factors = np.zeros((1, rows.shape[1]))
    with np.errstate(over="ignore"):
        forward = np.ascontiguousarray((factors if divisor is None else factors / divisor).T, dtype)
        backward = np.ascontiguousarray(factors if divisor is None else factors * divisor, dtype)
    into, back = Matrix(forward), Matrix(backward)
    step = _chunk(2 * rows.shape[1] * max(len(factors), 8))

    def made(matrix: Matrix, start: int, first: int, last: int, step: int, threads: int
             ) -> RowErrors:
        return RowErrors(matrix, first, last, step, threads, shift, into, back, errors[start:])

    _chunked(Rows(rows), step, made)
    if not np.isfinite(errors).all():
        _redo(rows, "X", partial(_errors, factors, known, divisor), errors)
    return errors


def _errors(factors: FloatArray, mean: FloatArray | None, scale: FloatArray | None,
            rows: FloatArray) -> FloatArray:
    """Return squared distances of rows to their reconstruction, infinite where float64 ends."""
    units, exponents = _centred(rows, mean, scale)
    gaps, more = _units((units - units @ factors.T @ factors) * (1.0 if scale is None else scale))
    squares: FloatArray = np.ldexp(np.einsum("ij,ij->i", gaps, gaps),
                                   2 * (exponents + more)[:, 0])
    return squares


def gram(X: AnyArray, mean: FloatArray | None = None, scale: FloatArray | None = None,
         *, single: bool = False) -> FloatArray | None:
    """Inner products of centred rows, (n, n) float64: A Aᵀ with A = (X - mean) / scale.

    One pass, O(n² d), for fewer rows than features. `single` multiplies in float32; None is
    returned if its range is too small. Raises ValueError for NaN and infinity.
    """
    factor = None if scale is None else 1.0 / scale
    total = ScatterSum(X.shape[0], np.zeros(X.shape[0]), np.float32 if single else np.float64,
                       fixed=True, row_shift=mean)
    if not total.add(X, root=factor, transposed=True):
        raise_not_finite(X)
    outside, matrix = total.outside, total.finish(centred=False)[1]
    if single:  # the rows may be inside, but not their differences from a known mean
        outside |= not np.isfinite(np.diagonal(matrix)).all()
    return None if outside else matrix


def _gram_action(rows: Rows, step: int, shift: FloatArray, apart: bool, V: AnyArray,
                 out: AnyArray) -> None:
    """Put AᵀA V into `out`: the sum of what every `step` rows give, in their order."""
    given = Matrix(V)

    def made(matrix: Matrix, start: int, first: int, last: int, step: int, threads: int,
             out: AnyArray = out) -> GramSum:
        return GramSum(matrix, first, last, step, threads, shift, apart, given,
                       Matrix(out, writable=True))

    def part(index: int) -> AnyArray:
        total, piece_sum = np.zeros(out.shape, out.dtype), np.empty(out.shape, out.dtype)
        for piece in rows.pieces(index * step, min((index + 1) * step, rows.count)):
            made(*piece, step, 1, piece_sum).work()
            total += piece_sum
        return total

    if rows.in_memory:
        _chunked(rows, step, made)
    else:
        out[:] = ordered_sum(part, -(-rows.count // step))


def gram_apply(X: AnyArray, V: AnyArray, mean: FloatArray | None = None,
               scale: FloatArray | None = None, out: AnyArray | None = None, *,
               apart: bool = False) -> AnyArray:
    """Return Aᵀ(A V), (d, b), with A = (X - mean) / scale, never forming A or AᵀA.

    V is (d, b), float64 or float32, which is the arithmetic used and the dtype of the result;
    `X` is read once for every 32 columns of it, 64 in float32. The sum over a fixed number of row
    chunks does not depend on the number of threads. O(n d b). If the mean is to come off `apart`,
    the products are corrected instead of the rows: 1.4 times as fast, and rounding grows as
    ‖1 meanᵀ‖ / ‖A‖.
    """
    rows, features = X.shape
    dtype = V.dtype
    width = gram_width(dtype == np.float32)
    shift = _NONE if mean is None else mean
    inner = np.ascontiguousarray(V if scale is None else V / scale[:, None], dtype)
    result = output(out, inner.shape, dtype, X, V, mean, scale)
    if rows == 0:
        result[:] = 0
        return result
    view = Rows(X)
    for left in range(0, V.shape[1], _STRIPS * width):
        group = slice(left, left + _STRIPS * width)
        size = inner[:, group].size
        strips = -(-size // (features * width))
        most = min(_GRAM_CHUNKS, math.isqrt(rows // _GRAM_ROWS), 2 * _GRAM_CHUNKS // strips)
        chunks = max(1, min(most, rows * size // _CHUNK_WORK))
        step = -(-rows // (chunks * _GRAM_STEP)) * _GRAM_STEP
        _gram_action(view, step, shift, apart, inner[:, group], result[:, group])
    if scale is not None:
        result /= scale[:, None]
    if not np.isfinite(result).all():
        raise_not_finite(X)
    return result
