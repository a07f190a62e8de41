"""Rows of a sparse matrix: products, moments and the action of their scatter, never densified.

Centring is folded into the products: with rows A, mean m and ones e, (A - e m')' (A - e m') X is
A'T - m (e'T), where T = A X - e (m'X). Work is cut at rows into parts of about equally many stored
entries; parts depend on the data alone and are added up in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from fastdr.sources import block_rows
from fastdr.threads import ordered_map, ordered_sum
from fastdr.validation import AnyArray, FloatArray, as_csr, as_matrix, is_sparse

LINE = 64  # bytes of a row of a strip, as the kernels have it
PIECE = 1 << 20  # stored entries whose indices and values are converted at a time
SMALL = 1 << 16  # stored entries that stay on the calling thread
PARTS = 16  # at most, where each part has a result of its own
PER_PART = 32  # stored entries a column from which such a part is worth its memory
FEW = 8  # columns an entry from which those that occur are taken out
OFFSET = 16.0  # squared ratio of mean and deviation from which a full column is centred itself
FAR = 460  # the same in float64, with room for sums
Entries = tuple[AnyArray, AnyArray, AnyArray]


@dataclass(frozen=True, eq=False)
class SparseSource:
    """Rows stored as CSR: a `Source` whose blocks are dense, and pieces of what is stored.

    ``indptr, indices, values`` as SciPy has them, columns ascending and unique in each row;
    ``exponent`` is that of the largest magnitude. Nothing is copied, all values are finite.
    """

    indptr: AnyArray
    indices: AnyArray
    values: AnyArray
    features: int
    columns: list[str] | None = None
    rereadable: bool = True
    exponent: int | None = None

    def __post_init__(self) -> None:
        """Find the largest magnitude unless it is known; refuse NaN and infinity."""
        if self.exponent is not None:
            return
        peak = 0.0
        for start in range(0, self.stored, PIECE):
            part = self.values[start:min(start + PIECE, self.stored)]
            low, high = float(part.min()), float(part.max())
            if not (math.isfinite(low) and math.isfinite(high)):
                self._refuse(start)
            peak = max(peak, high, -low)
        object.__setattr__(self, "exponent", math.frexp(peak)[1] if peak else 0)

    @classmethod
    def of(cls, X: Any, name: str = "X", *, owner: str | None = None,
           columns: list[str] | None = None) -> SparseSource:
        """Return the rows of a sparse matrix or array of any format, judged by `as_csr`."""
        csr = as_csr(X, name, owner=owner)
        return cls(csr.indptr, csr.indices, csr.data, csr.shape[1], columns)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and features."""
        return len(self.indptr) - 1, self.features

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype as stored."""
        return self.values.dtype

    @property
    def stored(self) -> int:
        """Entries stored."""
        return int(self.indptr[-1])

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def blocks(self) -> Iterator[AnyArray]:
        """Yield consecutive rows as dense arrays of about 16 MB."""
        step = block_rows(self.features)
        for first in range(0, len(self), step):
            yield self.dense(first, min(first + step, len(self)))

    def dense(self, first: int, last: int) -> AnyArray:
        """Return rows [first, last) as a dense array."""
        rows = self.part(first, last)
        made: AnyArray = csr_array((rows.values, rows.indices, rows.indptr),
                                   shape=rows.shape).toarray()
        return made

    def part(self, first: int, last: int) -> SparseSource:
        """Return rows [first, last), which share the memory of these."""
        start, stop = int(self.indptr[first]), int(self.indptr[last])
        return SparseSource(self.indptr[first:last + 1] - start, self.indices[start:stop],
                            self.values[start:stop], self.features, self.columns,
                            exponent=self.exponent)

    def edges(self, parts: int) -> list[int]:
        """Return rows at which to cut into parts of about equally many stored entries."""
        inner = [self.stored * part // parts for part in range(1, parts)]
        cut = np.searchsorted(self.indptr, np.array(inner, self.indptr.dtype))
        return [0, *cut.tolist(), len(self)]

    def pieces(self, first: int, last: int, dtype: Any, shift: FloatArray | None = None,
               exponent: int = 0) -> Iterator[tuple[slice, Entries]]:
        """Yield rows of [first, last) and what the kernels take: int64, int32 and `dtype`.

        Values are multiplied by 2**exponent; `shift` (d,) is subtracted from what is stored.
        """
        while first < last:
            start = int(self.indptr[first])
            most = self.indptr.dtype.type(min(start + PIECE, self.stored))
            after = int(np.searchsorted(self.indptr, most, side="right")) - 1
            after = min(max(first + 1, after), last)
            stop = int(self.indptr[after])
            indices = np.require(self.indices[start:stop], np.int32, ["C", "A"])
            values = self.values[start:stop]
            if exponent:
                values = np.ldexp(values.astype(np.float64), exponent)
            if shift is not None:
                values = values - shift[indices]
            indptr = self.indptr[first:after + 1].astype(np.int64) - start
            yield slice(first, after), (indptr, indices, np.require(values, dtype, ["C", "A"]))
            first = after

    def sum_of_parts(self, parts: int, work: Callable[[int, int], AnyArray]) -> AnyArray:
        """Return the sum of the arrays `work(first, last)` of all parts, added in order."""
        edges = self.edges(parts)
        total: AnyArray = ordered_sum(lambda part: work(edges[part], edges[part + 1]), parts)
        return total

    def mapped(self, parts: int, work: Callable[[int, int], Any]) -> list[Any]:
        """Return `work(first, last)` of each part, in order, on all threads."""
        edges = self.edges(parts)
        return ordered_map(lambda part: work(edges[part], edges[part + 1]), parts)

    def parts(self, width: int = LINE // 8) -> int:
        """Return into how many parts to cut when each has a result (features, `width`)."""
        return part_count(self.stored, self.features, width)

    def _refuse(self, start: int) -> None:
        bad = ~np.isfinite(self.values[start:start + PIECE])
        entry = start + int(np.argmax(bad))
        row = int(np.searchsorted(self.indptr, entry, side="right")) - 1
        column = int(self.indices[entry])
        label = "" if self.columns is None else f" ({self.columns[column]!r})"
        kind = "NaN" if np.isnan(self.values[entry]) else "infinity"
        raise ValueError(f"Input X contains {kind} at row {row}, column {column}{label}. Remove "
                         "or impute such values first.")


def part_count(stored: int, features: int, width: int = LINE // 8) -> int:
    """Return into how many parts to cut entries when each has a result (features, `width`)."""
    if stored < SMALL:
        return 1
    return min(PARTS, max(2, stored * (LINE // 8) // (PER_PART * width * features)))


def as_rows(X: Any, name: str = "X", *, owner: str | None = None) -> AnyArray | SparseSource:
    """Return `X` as an array if it is dense, as a `SparseSource` if it is sparse or is one."""
    if isinstance(X, SparseSource):
        return X
    if is_sparse(X):
        return SparseSource.of(X, name, owner=owner)
    return as_matrix(X, name, owner=owner)


@dataclass(frozen=True)
class SparseMoments:
    """What one pass tells about sparse rows, in units of 2**-exponent.

    ``mean``, ``squares`` (d,): column means, or the given ones, and weighted sums of squares about
    them, float64; ``shift`` (d,) what to subtract from the stored values of columns that have
    them all and are far from zero, or None; ``rest`` = mean - shift, with what rounding took from
    the mean of such columns; ``average`` that of the shifted rows; ``count`` rows of positive
    weight, ``weight`` their sum; ``estimated`` whether the mean is that of the rows; ``exponent``
    is 0 unless squares would leave the float64 range.
    """

    mean: FloatArray
    squares: FloatArray
    shift: FloatArray | None
    rest: FloatArray
    average: FloatArray
    count: int
    weight: float
    estimated: bool
    exponent: int

    @property
    def divisor(self) -> float:
        """What turns sums of squares into variances."""
        return self.weight - self.estimated

    @property
    def scale(self) -> FloatArray:
        """Standard deviations (d,), 1 for constant columns."""
        scale = np.sqrt(self.squares / self.divisor)
        return np.where(scale > 0, scale, 1.0)

    @property
    def lost(self) -> FloatArray:
        """What rounding took from the mean, (d,)."""
        shift = np.zeros_like(self.mean) if self.shift is None else self.shift
        return (shift - self.mean) + self.rest

    def scaled(self, exponent: int) -> SparseMoments:
        """Return the same in units of 2**-exponent of these."""
        if not exponent:
            return self
        mean, rest, average = (np.ldexp(values, exponent)
                               for values in (self.mean, self.rest, self.average))
        shift = None if self.shift is None else np.ldexp(self.shift, exponent)
        return replace(self, mean=mean, squares=np.ldexp(self.squares, 2 * exponent), shift=shift,
                       rest=rest, average=average, exponent=self.exponent + exponent)

    @property
    def uncentred(self) -> SparseMoments:
        """The same about 0."""
        zero = np.zeros_like(self.mean)
        return SparseMoments(zero, self.squares + self.weight * self.mean**2, None, zero,
                             self.average if self.shift is None else self.average + self.shift,
                             self.count, self.weight, False, self.exponent)


def sparse_moments(rows: SparseSource, weights: FloatArray | None = None,
                   mean: FloatArray | None = None) -> SparseMoments:
    """Read the rows once: means and sums of squares about them, or about a known `mean`.

    Welford's updates over the stored entries, merged by Chan's formula, then with the zeros; no
    difference of large numbers is formed, so squares are never negative. O(stored + parts d).
    """
    from fastdr._jit_sparse import add_moments  # importing Numba is slow

    size = rows.exponent or 0
    if mean is not None and mean.any():
        size = max(size, math.frexp(np.abs(mean).max())[1])
    exponent = -size if abs(size) > FAR else 0
    given = np.empty(0) if weights is None else weights

    def part(first: int, last: int) -> tuple[AnyArray, FloatArray, FloatArray, FloatArray,
                                             FloatArray]:
        counts = np.zeros(rows.features, np.int64)
        weight, centre, lost, squares = np.zeros((4, rows.features))
        for which, entries in rows.pieces(first, last, np.float64, exponent=exponent):
            add_moments(*entries, given[which], counts, weight, centre, lost, squares)
        return counts, weight, centre, lost, squares

    parts = rows.mapped(rows.parts(4), part)
    counts, weight, centre, lost, squares = parts[0]
    for more_counts, more_weight, more_centre, more_lost, more in parts[1:]:
        counts = counts + more_counts
        centre, lost, squares, weight = _merged(centre, lost, squares + more, weight, more_centre,
                                                more_lost, more_weight)
    used = len(rows) if weights is None else int(np.count_nonzero(weights))
    total = float(len(rows)) if weights is None else float(weights.sum())
    zeros = np.where(counts == used, 0.0, np.maximum(total - weight, 0.0))
    origin = np.zeros_like(zeros)
    centre, lost, squares, _ = _merged(centre, lost, squares, weight, origin, origin, zeros)
    about = centre if mean is None else np.ldexp(mean, exponent)
    shift, rest = parts_of_centre(about, squares, total, counts == used)
    average = (centre - (about - rest)) + lost
    if mean is None:
        rest = average
    else:
        squares += total * ((centre - about) + lost)**2
    return SparseMoments(about, squares, shift, rest, average, used, total, mean is None, exponent)


def parts_of_centre(mean: FloatArray, squares: FloatArray, weight: float, full: AnyArray
                    ) -> tuple[FloatArray | None, FloatArray]:
    """Return what comes off the stored values, of `full` columns far from 0, and the rest."""
    first = full & (weight * mean**2 > OFFSET * squares)
    return np.where(first, mean, 0.0) if first.any() else None, np.where(first, 0.0, mean)


def _merged(mean: FloatArray, lost: FloatArray, squares: FloatArray, weight: FloatArray,
            there: FloatArray, lost_there: FloatArray, more: FloatArray
            ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Add rows of weight `more` about another mean (Chan, Golub & LeVeque 1983); see `Weighted`."""
    both, step = weight + more, (there - mean) + (lost_there - lost)
    whole = np.where(both > 0, both, 1.0)
    heavy = weight >= more
    near = np.where(heavy, mean, there)
    move = np.where(heavy, lost + step * (more / whole), lost_there - step * (weight / whole))
    moved = near + move
    return moved, (near - moved) + move, squares + step**2 * (weight * (more / whole)), both


@dataclass
class SparseAction:
    """C = B'W B of the rows B = (A - mean) / scale with weights W, as iterative solvers see it.

    One read of the stored entries for 8 columns in float64, 16 in float32; 4 operations for each
    of them and each column. Sums of float32 products are added in float64.
    """

    rows: SparseSource
    moments: SparseMoments
    scale: FloatArray | None = None
    weights: FloatArray | None = None
    dtype: np.dtype[Any] = np.dtype(np.float64)
    exponent: int = 0
    columns: int = 0
    passes: int = 0
    size: int = field(init=False)

    def __post_init__(self) -> None:
        """Take the order from the columns, and the size of the numbers from the trace."""
        self.size = self.rows.features
        total = self.trace
        self.exponent = math.frexp(total)[1] if total else 0

    @property
    def trace(self) -> float:
        """Trace of C."""
        squares = self.moments.squares
        return float((squares if self.scale is None else squares / self.scale**2).sum())

    def __call__(self, rows: AnyArray) -> AnyArray:
        """Return the images of `rows` (b, d), in their dtype."""
        self.columns += len(rows)
        given = np.ldexp(rows, -self.exponent)
        if self.scale is not None:
            given = (given / self.scale).astype(rows.dtype, copy=False)
        width = LINE // rows.dtype.itemsize
        images = np.empty_like(rows)
        for first in range(0, len(rows), width):
            part = slice(first, min(first + width, len(rows)))
            images[part] = self._image(strips(given[part].T)[0])[:, :part.stop - first].T
        return images

    def _image(self, strip: AnyArray) -> FloatArray:
        from fastdr._jit_sparse import add_gram_action

        self.passes += 1
        rows, told = self.rows, self.moments
        centre = (told.rest @ strip.astype(np.float64)).astype(strip.dtype)
        weights = np.empty(0) if self.weights is None else self.weights

        def part(first: int, last: int) -> tuple[AnyArray, AnyArray]:
            out, sums = np.zeros_like(strip), np.zeros_like(strip, shape=strip.shape[1])
            for which, entries in rows.pieces(first, last, strip.dtype, told.shift,
                                              told.exponent):
                add_gram_action(*entries, weights[which], strip, centre, out, sums)
            return out, sums

        total, sums = np.zeros(strip.shape), np.zeros(strip.shape[1])
        for out, more in rows.mapped(rows.parts(), part):
            total += out
            sums += more
        total -= np.outer(told.rest, sums)
        if self.scale is not None:
            total /= self.scale[:, None]
        return total


def strips(matrix: AnyArray) -> list[AnyArray]:
    """Return the columns of `matrix` (d, k), float64 or float32, as strips, padded with zeros."""
    width = LINE // matrix.dtype.itemsize
    cut = []
    for first in range(0, matrix.shape[1], width):
        strip = np.zeros((len(matrix), width), matrix.dtype)
        columns = matrix[:, first:first + width]
        strip[:, :columns.shape[1]] = columns
        cut.append(strip)
    return cut


def sparse_product(rows: SparseSource, factor: AnyArray, offset: FloatArray | None = None,
                   out: AnyArray | None = None) -> AnyArray:
    """Return A `factor` - `offset`, (n, k), for a `factor` (d, k) in float64 or float32.

    Multiplied in the factor's dtype; `out` may have another. O(stored k).
    """
    from fastdr._jit_sparse import add_product

    if rows.stored < rows.features // FEW:  # the others would be copied for nothing
        columns, places = np.unique(rows.indices[:rows.stored], return_inverse=True)
        factor = factor[columns]
        rows = SparseSource(rows.indptr, places, rows.values, len(columns),
                            exponent=rows.exponent)
    result = np.empty((len(rows), factor.shape[1]), factor.dtype) if out is None else out
    cut, width = strips(factor), LINE // factor.dtype.itemsize

    def part(first: int, last: int) -> None:
        for which, entries in rows.pieces(first, last, factor.dtype):
            for number, strip in enumerate(cut):
                columns = slice(number * width, min((number + 1) * width, factor.shape[1]))
                product = np.zeros((which.stop - which.start, width), strip.dtype)
                add_product(*entries, strip, product)
                product = product[:, :columns.stop - columns.start]
                result[which, columns] = product if offset is None else product - offset[columns]

    work = rows.stored * len(cut)
    rows.mapped(min(PARTS**2, max(1, work // SMALL)), part)
    return result


def sparse_adjoint(rows: SparseSource, factor: AnyArray) -> FloatArray:
    """Return A' `factor`, (d, k), float64, for a `factor` (n, k) in float64 or float32."""
    from fastdr._jit_sparse import add_adjoint

    width = LINE // factor.dtype.itemsize
    result = np.zeros((rows.features, factor.shape[1]))
    for number, strip in enumerate(strips(factor)):

        def part(first: int, last: int, strip: AnyArray = strip) -> AnyArray:
            out = np.zeros((rows.features, width), strip.dtype)
            for which, entries in rows.pieces(first, last, strip.dtype):
                add_adjoint(*entries, strip[which], out)
            return out

        target = result[:, number * width:(number + 1) * width]
        for out in rows.mapped(rows.parts(), part):
            target += out[:, :target.shape[1]]
    return result
