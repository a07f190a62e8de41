"""Moments of rows with too many features for a square matrix: their scatter on a few axes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from importlib import import_module
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh

from fastdr.column_statistics import column_moments
from fastdr.operators import gram, multiply
from fastdr.sparse import SparseSource, as_rows
from fastdr.statistics import Weighted, check_factor, counts_of
from fastdr.validation import FloatArray, as_weights

EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class LowRankMoments(Weighted):
    """First moments of rows, and a factor of their scatter; merge with ``a + b``.

    What `Moments` are where a d x d matrix is too large. F'F stands for the scatter C, and
    0 <= C - F'F <= bound I: each eigenvalue of C is at least that of F'F of the same rank, and at
    most `bound` more.

    Attributes
    ----------
    count, weight, square_weight, mean, rest : as of `Moments`
    squares : (d,) float64
        Sums of weight (row - mean)², exact however much the factor was truncated.
    factor : (m, d) float64, F.
    bound : float
        Sum of the squares of the largest singular value that each truncation left out.
    error : float, bound on the rounding of the truncations in F'F.

    Notes
    -----
    A merge puts one factor below the other, and the step between the means below both, so it
    loses nothing; `truncated` keeps the largest singular values of the factor, by the eigenvectors
    of FF', O(m² d) (Levy & Lindenbaum 2000; Ross et al., IJCV 77 (2008)).

    Examples
    --------
    >>> import fastdr
    >>> X = np.array([[0.0, 1, 0], [2, 5, 0], [4, 3, 6], [1, 1, 1]])
    >>> both = fastdr.LowRankMoments.of(X[:2]) + fastdr.LowRankMoments.of(X[2:])
    >>> np.allclose(both.factor.T @ both.factor, fastdr.moments(X).scatter)
    True
    >>> few = both.truncated(1)
    >>> len(few.factor), bool(few.bound > 0)
    (1, True)
    """

    count: int
    weight: float
    square_weight: float
    mean: FloatArray
    rest: FloatArray
    squares: FloatArray
    factor: FloatArray
    bound: float = 0.0
    error: float = 0.0

    @classmethod
    def of(cls, X: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Moments of the rows of a dense or sparse (n, d) array; their factor has n rows.

        Raises ValueError and TypeError as `Moments.of`.
        """
        given = as_rows(X)
        weights = as_weights(sample_weight, given.shape[0])
        dense = given.dense(0, len(given)) if isinstance(given, SparseSource) else given
        mean, _, _ = column_moments(dense, weights)
        factor = dense.astype(np.float64, order="C")
        factor -= mean
        rest = np.average(factor, axis=0, weights=weights)
        factor -= rest
        if weights is not None:
            factor *= np.sqrt(weights)[:, None]
        squares = np.einsum("ij,ij->j", factor, factor)
        return cls(*counts_of(len(dense), weights), mean, rest, squares, factor)

    def merge(self, other: Self) -> Self:
        """Moments of both sets of rows together, O(m d)."""
        both = self._joint(other)
        between = math.sqrt(both.share) * both.step
        return type(self)(
            both.count, both.weight, both.square_weight, both.mean, both.rest,
            self.squares + other.squares + between**2,
            np.concatenate([self.factor, other.factor, between[None]]),
            self.bound + other.bound, self.error + other.error)

    __add__ = merge

    def faded(self, factor: float) -> Self:
        """Moments of the same rows with all weights times a positive `factor`; ValueError else."""
        check_factor(factor)
        return replace(self, weight=factor * self.weight, bound=factor * self.bound,
                       square_weight=factor**2 * self.square_weight, error=factor * self.error,
                       squares=factor * self.squares, factor=math.sqrt(factor) * self.factor)

    def scaled(self, exponent: int) -> Self:
        """Moments of the same rows times 2**exponent."""
        if not exponent:
            return self
        mean, rest, factor = (np.ldexp(values, exponent)
                              for values in (self.mean, self.rest, self.factor))
        squares = np.ldexp(self.squares, 2 * exponent)
        bound, error = np.ldexp([self.bound, self.error], 2 * exponent).tolist()
        return replace(self, mean=mean, rest=rest, factor=factor, squares=squares, bound=bound,
                       error=error)

    def truncated(self, rank: int) -> Self:
        """Moments whose factor has at most `rank` rows, orthogonal and of descending length.

        Examples
        --------
        >>> found = LowRankMoments.of([[4.0, 1], [-4, 1], [4, -1], [-4, -1]]).truncated(1)
        >>> abs(found.factor.round(12)), round(found.bound, 12)
        (array([[8., 0.]]), 4.0)
        """
        if len(self.factor) <= rank:
            return self
        values, turn = principal(self.factor)
        error = 2 * (4 + math.sqrt(self.mean.size)) * EPS * float(values[0])
        return replace(self, factor=rotated(self.factor, turn[:, :rank]),
                       bound=self.bound + float(values[rank]), error=self.error + error)

    def variances(self, ddof: float = 1) -> FloatArray:
        """Return the (d,) variances of the features, which truncation leaves alone."""
        return self.squares / self.divisor(ddof)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the moments to one safetensors file; `fastdr.load` reads them back."""
        # persistence knows the values, not the reverse
        import_module("fastdr.persistence").save(self, path)


def principal(factor: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (values, turn): eigenvalues of F F', descending, and eigenvectors as columns.

    By the Gram matrix of the rows, so a value is known to rounding of the largest; what `rotated`
    makes of F with some of the vectors differs from F by what the others hold, to rounding.
    """
    inner = gram(factor)
    assert inner is not None  # float64
    values, turn = eigh(inner, driver="evd", check_finite=False, overwrite_a=True)
    return np.maximum(values[::-1], 0.0), np.ascontiguousarray(turn[:, ::-1])


def rotated(factor: FloatArray, turn: FloatArray) -> FloatArray:
    """Return turn' F, (k, d)."""
    return np.ascontiguousarray(multiply(factor.T, turn).T)
