"""Means of classes and the scatter about them, in one pass and one square matrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastdr._dense import PANEL, Matrix, centre_classes
from fastdr.mapped import read, taken
from fastdr.scatter import ScatterSum
from fastdr.sources import Piece, Rows, Source
from fastdr.statistics import Precision, float_arithmetic
from fastdr.threads import calm_blas, ordered_map
from fastdr.validation import (
    AnyArray,
    FloatArray,
    as_labels,
    as_matrix,
    as_weights,
    raise_not_finite,
)

Codes = NDArray[np.intp]
HEAD_ROWS = 32  # first rows of a class whose mean serves as its centre until the sums are known
CANCELLED = 16  # sums of squares about such centres may exceed those about the means this much
FEW_CLASSES = 64  # up to this many, all are summed in every piece
TINY = float(np.finfo(np.float64).tiny)  # stands for squares that vanish, of rows that differ
_HEAD = 1 << 20  # entries of such rows, of all classes together
_PIECE = 1 << 17  # entries centred at a time: a megabyte, which stays in a core's cache
_SLAB = 1 << 23  # entries whose sums by class are kept at a time
_COLUMNS = 1 << 19  # entries of all rows and some columns, centred at a time


@dataclass(frozen=True, eq=False)
class ClassMoments:
    """Means of classes of rows and the scatter of rows about them; merge with ``a + b``.

    Attributes
    ----------
    classes : (C,) sorted labels of the classes that have rows of positive weight.
    counts : (C,) int64, such rows.
    weights : (C,) float64, sums of their weights; equal to `counts` without weights.
    means : (C, d) float64, weighted means, in input units.
    within : (d, d) float64, symmetric
        Sum over all rows of weight (row - m)(row - m)ᵀ with m the mean of the row's class. Where
        rows of a class differ by so little that their squares vanish, the diagonal is 2.2e-308.
    rests : (C, d) float64
        What rounding took from `means`, so that merging costs no digits.

    Examples
    --------
    >>> import fastdr
    >>> first = fastdr.ClassMoments.of([[0.0], [2.0], [9.0]], ["a", "a", "b"])
    >>> both = first + fastdr.ClassMoments.of([[13.0]], ["b"])
    >>> both.classes, both.means.ravel(), both.within
    (array(['a', 'b'], dtype='<U1'), array([ 1., 11.]), array([[10.]]))
    """

    classes: AnyArray
    counts: NDArray[np.int64]
    weights: FloatArray
    means: FloatArray
    within: FloatArray
    rests: FloatArray

    @classmethod
    def of(cls, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None, *,
           precision: Precision = None) -> Self:
        """Class moments of the rows of a dense (n, d) array with labels `y` (n,).

        One pass, O(n d²), in one d x d matrix for any number of classes. Rows are summed about
        the mean of the first rows of their class, which is moved to the mean of all afterwards;
        where that would cost digits, the array is read again about the means. So neither an
        offset of the data nor the distance between classes costs any. float32 rows are
        multiplied as by `Moments.of`. Rows of weight 0 are absent, as is a class of no other.

        Raises
        ------
        ValueError
            NaN or infinity, wrong shapes, unusable labels or weights.
        TypeError
            Sparse, complex or non-numeric `X`.
        """
        rows = as_matrix(X)
        weight = as_weights(sample_weight, rows.shape[0])
        classes, codes = encoded(as_labels(y, rows.shape[0]), weight)
        return cls._of_codes(rows, classes, codes, weight, precision)

    @classmethod
    def _of_codes(cls, rows: AnyArray, classes: AnyArray, codes: Codes,
                  weight: FloatArray | None, precision: Precision) -> Self:
        working = float_arithmetic(rows, precision)
        counts, weights = class_sizes(codes, weight, len(classes))
        centres = first_centres(rows, codes, weight, len(classes))
        constant = np.ones(rows.shape[1], np.bool_)
        for last in (False, True):
            total = ScatterSum(rows.shape[1], np.zeros(rows.shape[1]), working, fixed=True)
            sums = _add_classes(total, rows, codes, centres, weight, working, constant)
            if total.outside:
                return cls._of_codes(rows, classes, codes, weight, "double")
            within = total.finish(centred=False)[1]
            means, rests, moved = _moved(centres, sums, weights)
            before = np.diagonal(within).copy()
            if not np.isfinite(before).all():
                raise ValueError("squares of the rows overflow float64; divide X by a power of "
                                 "ten.")
            with calm_blas(2.0 * moved.size * len(within)):
                within -= moved.T @ moved
            after = np.maximum(np.diagonal(within), 0.0)
            np.fill_diagonal(within, after)
            if last or not (before / CANCELLED > after).any():
                break
            centres = means
        _mark(within, ~constant)
        return cls(classes, counts, weights, means, within, rests)

    @classmethod
    def of_source(cls, source: Source, y: ArrayLike, sample_weight: ArrayLike | None = None, *,
                  precision: Precision = None) -> Self:
        """Class moments of all row blocks of a Source with labels `y`, read once and merged."""
        array = getattr(source, "array", None)
        if array is not None:
            return cls.of(array, y, sample_weight, precision=precision)
        labels = as_labels(y, source.shape[0])
        weight = as_weights(sample_weight, len(labels))
        gathered = getattr(source, "class_moments", None)
        if gathered is not None:
            found: Self = gathered(labels, weight, precision)
            return found
        total: Self | None = None
        for part, block in labelled_blocks(source, len(labels)):
            if weight is not None and not weight[part].any():
                raise_not_finite(block)
                continue
            moments = cls.of(block, labels[part], None if weight is None else weight[part],
                             precision=precision)
            total = moments if total is None else total.merge(moments)
        if total is None:
            raise ValueError("Found no rows: the source is empty or all its weights are zero.")
        return total

    def merge(self, other: Self) -> Self:
        """Class moments of both sets of rows together (Chan, Golub & LeVeque 1983).

        O((C + d) d) and a product (d, C) (C, d) for the C classes they share.
        """
        if other.means.shape[1] != self.means.shape[1]:
            raise ValueError(f"cannot merge moments of {self.means.shape[1]} and "
                             f"{other.means.shape[1]} features.")
        classes = _joined(self.classes, other.classes)
        here, there = (np.searchsorted(classes, each.classes) for each in (self, other))
        size, features = len(classes), self.means.shape[1]
        counts = np.zeros(size, np.int64)
        weights, added = np.zeros(size), np.zeros(size)
        means, rests, step = (np.zeros((size, features)) for _ in range(3))
        counts[here], weights[here] = self.counts, self.weights
        means[here], rests[here] = self.means, self.rests
        fresh = ~np.isin(other.classes, self.classes)
        means[there[fresh]], rests[there[fresh]] = other.means[fresh], other.rests[fresh]
        step[there] = (other.means - means[there]) + (other.rests - rests[there])
        added[there] = other.weights
        counts[there] += other.counts
        both = weights + added
        shared = np.sqrt(weights / both * added)[:, None] * step
        within = self.within + other.within
        within += shared.T @ shared
        _mark(within, step.any(axis=0))
        move = rests + step * (added / both)[:, None]
        moved = means + move
        return type(self)(classes, counts, both, moved, within, (means - moved) + move)

    __add__ = merge


class _ClassRows(Rows):
    """Rows less the centre of their class, in the `working` dtype, with their sums by class.

    ``constant`` (d,) is set to False where some row differs from the centre of its class.
    """

    in_place = False

    def __init__(self, array: AnyArray, codes: Codes, centres: FloatArray,
                 weight: FloatArray | None, working: np.dtype[Any], constant: AnyArray) -> None:
        self.array, self.count, self.constant = array, len(array), constant
        self.codes, self.centres, self.weight, self.working = codes, centres, weight, working
        self.sums: list[tuple[int, Codes, FloatArray]] = []

    def pieces(self, first: int, last: int, least: int = PANEL) -> Iterator[Piece]:
        """Yield as `Rows.pieces`; add the class sums of each piece to `sums`."""
        step = max(1, _PIECE // self.array.shape[1] // least) * least
        for start in range(first, last, step):
            part = slice(start, min(start + step, last))
            given = np.require(read(self.array[part]), np.float64, ["C", "ALIGNED"])
            rows = np.empty_like(given)
            present, local = self._local(self.codes[part])
            sums = np.zeros((len(present), self.array.shape[1]))
            centre_classes(given, local, self.centres[present],
                           None if self.weight is None else self.weight[part], sums, rows)
            self.sums.append((start, present, sums))
            self._look(rows, part, sums)
            yield Matrix(rows.astype(self.working, copy=False)), start, 0, len(rows)

    def _look(self, rows: FloatArray, part: slice, sums: FloatArray) -> None:
        """Tell what columns have rows off their centre; those without a sum need a look."""
        self.constant[sums.any(axis=0)] = False
        columns = np.flatnonzero(self.constant)
        if columns.size:
            off = rows[:, columns] != 0
            if self.weight is not None:
                off = off[self.weight[part] > 0]
            self.constant[columns[off.any(axis=0)]] = False

    def _local(self, codes: Codes) -> tuple[Codes, Codes]:
        """Return (present, local) with present[local] = codes, short unless classes are few."""
        if len(self.centres) <= FEW_CLASSES:
            return np.arange(len(self.centres)), codes
        return np.unique(codes, return_inverse=True)


def _add_classes(total: ScatterSum, rows: AnyArray, codes: Codes, centres: FloatArray,
                 weight: FloatArray | None, working: np.dtype[Any], constant: AnyArray
                 ) -> FloatArray:
    """Add rows less the `centres` of their classes to `total`; return their sums by class."""
    sums = np.zeros_like(centres)
    entries = _SLAB if len(centres) > FEW_CLASSES else 8 * _SLAB
    step = max(PANEL, entries // rows.shape[1] // PANEL * PANEL)
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        weights = None if weight is None else weight[part]
        slab = _ClassRows(rows[part], codes[part], centres, weights, working, constant)
        with np.errstate(over="ignore", invalid="ignore"):
            if not total.add(slab, weights):
                raise_not_finite(rows)
        for _, present, more in sorted(slab.sums, key=lambda piece: piece[0]):
            sums[present] += more
    return sums


def _moved(centres: FloatArray, sums: FloatArray, weights: FloatArray) -> tuple[FloatArray, ...]:
    """Means, what rounding took from them, and rows whose squares the move takes off."""
    step = sums / weights[:, None]
    means = centres + step
    return means, (centres - means) + step, sums / np.sqrt(weights)[:, None]


def _mark(within: FloatArray, differ: Any) -> None:
    """Put TINY where the diagonal vanished although rows of a class `differ` in that column."""
    marked = np.flatnonzero(differ & (np.diagonal(within) == 0))
    within[marked, marked] = TINY


def _joined(one: AnyArray, other: AnyArray) -> AnyArray:
    """Return the sorted labels of both; refuse those that one dtype does not hold."""
    if one.dtype == other.dtype:
        return np.union1d(one, other)
    if (one.dtype.kind in "biuf") == (other.dtype.kind in "biuf"):
        both: AnyArray = np.union1d(one, other)
        if all(each.astype(both.dtype).tolist() == each.tolist() for each in (one, other)):
            return both
    raise TypeError(f"cannot merge labels of dtype {one.dtype} and {other.dtype}; convert them to "
                    "one dtype that holds all of them.")


def encoded(labels: AnyArray, weight: FloatArray | None = None) -> tuple[AnyArray, Codes]:
    """Return (classes, codes) with classes[codes] = labels for all rows of positive weight."""
    if weight is not None and not weight.all():
        classes = np.unique(labels[weight > 0])
        codes = np.searchsorted(classes, labels)
        return classes, np.minimum(codes, len(classes) - 1)
    if labels.dtype.kind in "iu" and labels.size:
        low, high = int(labels.min()), int(labels.max())
        if high - low < 2 * labels.size:  # counting is quicker than sorting
            offsets = labels - labels.dtype.type(low)  # of narrow types it may wrap to negative
            offsets = offsets.astype(f"u{labels.itemsize}").astype(np.intp)
            present = np.bincount(offsets) > 0
            found = np.flatnonzero(present)
            return labels.dtype.type(low) + found.astype(labels.dtype), (
                np.cumsum(present) - 1)[offsets]
    classes, codes = np.unique(labels, return_inverse=True)
    return classes, codes


def class_sizes(codes: Codes, weight: FloatArray | None, classes: int
                ) -> tuple[NDArray[np.int64], FloatArray]:
    """Return rows of positive weight and sums of weights, (C,) each."""
    used = codes if weight is None else codes[weight > 0]
    counts = np.bincount(used, minlength=classes).astype(np.int64)
    if weight is None:
        return counts, counts.astype(np.float64)
    return counts, np.bincount(codes, weight, minlength=classes).astype(np.float64)


def first_centres(rows: AnyArray, codes: Codes, weight: FloatArray | None, classes: int
                  ) -> FloatArray:
    """Return the mean of the first rows of each class, (C, d); exact for constant columns."""
    used = np.arange(len(codes)) if weight is None else np.flatnonzero(weight)
    small = codes.astype(np.uint16) if classes <= 1 << 16 else codes
    order = used[np.argsort(small[used], kind="stable")]  # radix sort for 16 bits
    starts = np.searchsorted(codes[order], np.arange(classes + 1))
    depth = min(HEAD_ROWS, max(1, _HEAD // (classes * rows.shape[1])))
    places = starts[:-1, None] + np.arange(depth)
    there = places < starts[1:, None]
    head = taken(rows, order[np.where(there, places, starts[:-1, None])]).astype(np.float64)
    first = head[:, 0].copy()
    with np.errstate(over="ignore", invalid="ignore"):
        head -= first[:, None]
        centres: FloatArray = first + head.sum(axis=1) / there.sum(axis=1)[:, None]
    centres[~np.isfinite(centres)] = 0.0
    return centres


def labelled_blocks(source: Source, rows: int) -> Iterator[tuple[slice, AnyArray]]:
    """Yield (which rows, block) for every block, and check that they are `rows` in all."""
    start = 0
    for block in source.blocks():
        if not len(block):
            continue
        if start + len(block) > rows:
            raise ValueError(f"y has {rows} labels, but X has more rows than that.")
        yield slice(start, start + len(block)), block
        start += len(block)
    if start < rows:
        raise ValueError(f"y has {rows} labels, but X has {start} rows.")


def class_columns(rows: AnyArray, codes: Codes, weight: FloatArray | None, classes: int
                  ) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return (means (C, d), rests (C, d), squares (d,)) without a (d, d) matrix.

    squares = Σ weight (x - class mean)², TINY where that vanishes though rows differ. O(n d),
    some columns at a time, for fewer rows than features. Raises ValueError for NaN and infinity.
    """
    size, features = rows.shape
    weights = class_sizes(codes, weight, classes)[1][:, None]
    means, rests = np.empty((classes, features)), np.empty((classes, features))
    squares = np.empty(features)
    width = max(8, _COLUMNS // size)

    def columns(index: int) -> None:
        part = slice(index * width, min((index + 1) * width, features))
        block = read(rows[:, part]).astype(np.float64, order="C")
        centres = first_centres(block, codes, weight, classes)
        with np.errstate(all="ignore"):
            sums, left = np.zeros_like(centres), np.zeros_like(centres)
            centre_classes(block, codes, centres, weight, sums, block)
            step = sums / weights
            centre_classes(block, codes, step, weight, left, block)
            step += left / weights
            means[:, part] = centres + step
            rests[:, part] = (centres - means[:, part]) + step
            found = (np.einsum("ij,ij->j", block, block) if weight is None
                     else weight @ block**2)
        if not found.all():
            off = block[... if weight is None else weight > 0].any(axis=0)
            found[off & (found == 0)] = TINY
        squares[part] = found

    ordered_map(columns, -(-features // width))
    if not np.isfinite(squares).all():
        raise_not_finite(rows)
        raise ValueError("squares of the rows overflow float64; divide X by a power of ten.")
    return means, rests, squares
