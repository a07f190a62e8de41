"""Means of columns and sums of squares about them, of dense or sparse rows; they add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from fastdr._dense import add_column_sums
from fastdr.scatter import middle
from fastdr.sources import Rows
from fastdr.sparse import SparseSource, sparse_moments
from fastdr.statistics import Weighted, counts_of
from fastdr.threads import ordered_map
from fastdr.validation import AnyArray, FloatArray, raise_not_finite

# Columns and cells that one thread takes at a time in `column_moments`, and the squared distance of
# the shift from the mean, relative to the variance, up to which squares are corrected for it.
_COLUMNS, _CELLS, NEAR = 1 << 14, 1 << 22, 4.0


@dataclass(frozen=True)
class ColumnMoments(Weighted):
    """What one pass tells of rows without a (d, d) matrix; merge with ``a + b``.

    ``count``, ``weight``, ``square_weight``, ``mean`` and ``rest`` as of `Moments`; ``squares``
    (d,) the weighted sums of squares about the mean.
    """

    count: int
    weight: float
    square_weight: float
    mean: FloatArray
    squares: FloatArray
    rest: FloatArray

    @classmethod
    def none(cls, features: int) -> Self:
        """Return those of no rows."""
        return cls(0, 0.0, 0.0, *np.zeros((3, features)))

    @classmethod
    def of(cls, rows: AnyArray | SparseSource, weights: FloatArray | None = None) -> Self:
        """Read rows (n, d) once or twice, O(stored). Raises ValueError for NaN and infinity."""
        counts = counts_of(len(rows), weights)
        if isinstance(rows, SparseSource):
            told = sparse_moments(rows, weights)
            with np.errstate(over="ignore", under="ignore"):
                return cls(*counts, np.ldexp(told.mean, -told.exponent),
                           np.ldexp(told.squares, -2 * told.exponent),
                           np.ldexp(told.lost, -told.exponent))
        return cls(*counts, *column_moments(rows, weights))

    def __add__(self, other: Self) -> Self:
        """Return those of both sets of rows together (Chan, Golub & LeVeque 1983)."""
        both = self._joint(other)
        squares = self.squares + other.squares + both.step**2 * both.share
        return type(self)(both.count, both.weight, both.square_weight, both.mean, squares,
                          both.rest)


def _column_sums(X: AnyArray, shift: FloatArray, root: FloatArray | None
                 ) -> tuple[FloatArray, FloatArray]:
    """Return Σ root² (x - shift) and Σ root² (x - shift)² by column, from parts of fixed size."""
    rows, features = X.shape
    wide = min(features, _COLUMNS)
    tall = max(256, _CELLS // wide)
    corners = [(row, left) for left in range(0, features, wide) for row in range(0, rows, tall)]
    sums, squares = np.zeros((2, features))

    def part(index: int) -> tuple[slice, FloatArray]:
        row, left = corners[index]
        columns = slice(left, min(left + wide, features))
        found = np.zeros((2, columns.stop - left))
        for matrix, start, first, last in Rows(X[:, columns]).pieces(row, min(row + tall, rows)):
            add_column_sums(matrix, first, last, shift[columns],
                            None if root is None else root[start:], *found)
        return columns, found

    for columns, found in ordered_map(part, len(corners)):
        sums[columns] += found[0]
        squares[columns] += found[1]
    return sums, squares


def column_moments(X: AnyArray, weight: FloatArray | None = None
                   ) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return (mean, squares, rest) of the columns; no (d, d) matrix.

    squares = Σ weight (x - mean)², and rest is what rounding took from the mean.

    One pass over `X`, O(n d), for data with more features than rows, and a second one where the
    first rows are not near the mean. Raises ValueError for NaN and infinity.
    """
    total = float(len(X)) if weight is None else float(weight.sum())
    root = None if weight is None else np.sqrt(weight)
    means = middle(X, weight, integral=False)
    for _ in range(2):
        sums, squares = _column_sums(X, means, root)
        with np.errstate(all="ignore"):
            step = sums / total
            shift, means, moved = means, means + step, total * step**2
            squares -= moved
        if not (moved > NEAR * squares).any():
            break
    if not np.isfinite(means).all() or not np.isfinite(squares).all():
        raise_not_finite(X)
    return means, squares, (shift - means) + step
