"""Means of columns and sums of squares about them, of dense or sparse rows; they add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from fastdr.sparse import SparseSource, sparse_moments
from fastdr.statistics import column_moments, counts_of
from fastdr.validation import AnyArray, FloatArray


@dataclass(frozen=True)
class ColumnMoments:
    """What one pass tells of rows without a (d, d) matrix; merge with ``a + b``.

    ``count`` rows of positive weight, ``weight`` their sum, ``mean`` (d,) of the columns and
    ``squares`` (d,) the weighted sums of squares about it.
    """

    count: int
    weight: float
    mean: FloatArray
    squares: FloatArray

    @classmethod
    def none(cls, features: int) -> Self:
        """Return those of no rows."""
        return cls(0, 0.0, np.zeros(features), np.zeros(features))

    @classmethod
    def of(cls, rows: AnyArray | SparseSource, weights: FloatArray | None = None) -> Self:
        """Read rows (n, d) once or twice, O(stored). Raises ValueError for NaN and infinity."""
        if isinstance(rows, SparseSource):
            told = sparse_moments(rows, weights)
            with np.errstate(over="ignore", under="ignore"):
                return cls(told.count, told.weight, np.ldexp(told.mean, -told.exponent),
                           np.ldexp(told.squares, -2 * told.exponent))
        count, weight, _ = counts_of(len(rows), weights)
        return cls(count, weight, *column_moments(rows, weights))

    def __add__(self, other: Self) -> Self:
        """Return those of both sets of rows together (Chan, Golub & LeVeque 1983)."""
        step, both = other.mean - self.mean, self.weight + other.weight
        squares = self.squares + other.squares + step**2 * (self.weight * other.weight / both)
        return type(self)(self.count + other.count, both,
                          self.mean + step * (other.weight / both), squares)
