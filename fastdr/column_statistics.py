"""Means of columns and sums of squares about them, of dense or sparse rows; they add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from fastdr.sparse import SparseSource, sparse_moments
from fastdr.statistics import Weighted, column_moments, counts_of
from fastdr.validation import AnyArray, FloatArray


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
