"""The covariance within classes of sparse rows, which are never made dense as a whole.

Centring at class means is folded into products: S_W = S_T - Σ W (m - m_c)(m - m_c)ᵀ about any
centre m. Where that would cost digits, few features are summed again about the class means, in
dense blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_array

from fastdr.class_statistics import CANCELLED, TINY, Codes
from fastdr.plan import LARGEST_SCATTER
from fastdr.sparse import (
    SparseAction,
    SparseMoments,
    SparseSource,
    sparse_adjoint,
    sparse_moments,
    sparse_product,
)
from fastdr.sparse_scatter import sparse_gram, sparse_outer_gram
from fastdr.validation import AnyArray, FloatArray
from fastdr.within import NOISE, ClassSample, Spread, Within, of_tall, shrunk_classes

EPS = float(np.finfo(np.float64).eps)
FAR = 1e8  # squared ratio of a mean and the deviation within classes that costs its digits


@dataclass(frozen=True, eq=False)
class SparseClassRows:
    """Sparse rows less their class means, in products; ``average`` (C, n) makes the means."""

    rows: SparseSource
    told: SparseMoments
    codes: Codes
    means: FloatArray
    average: csr_array

    def product(self, left: FloatArray) -> FloatArray:
        """Return left (k, n) times the rows, (k, d)."""
        indicators = csr_array((np.ones(len(self.codes)), self.codes,
                                np.arange(len(self.codes) + 1)), shape=self.average.shape[::-1])
        found: FloatArray = sparse_adjoint(self.rows, np.ascontiguousarray(left.T)).T
        return found - (left @ indicators) @ self.means

    def inner(self, right: FloatArray) -> FloatArray:
        """Return right (k, d) times the transposed rows, (k, n)."""
        found: FloatArray = sparse_product(self.rows, np.ascontiguousarray(right.T)).T
        return found - (right @ self.means.T)[:, self.codes]

    def gram(self, factor: FloatArray) -> FloatArray:
        """Return inner products (n, n) of the rows, their columns multiplied by `factor`."""
        scale = np.divide(1.0, factor, out=np.full(factor.size, np.inf), where=factor > 0)
        matrix = sparse_outer_gram(self.rows, self.told, scale)
        matrix -= (self.average @ matrix)[self.codes]
        matrix -= (self.average @ matrix.T)[self.codes].T
        return matrix

    def scatter(self, right: FloatArray, weights: FloatArray) -> FloatArray:
        """Return right (k, d) times Zᵀ diag(weights) Z for the rows Z, (k, d)."""
        sizes = np.bincount(self.codes, weights, minlength=len(self.means))
        apart = self.means - self.told.mean
        action = SparseAction(self.rows, self.told, None, weights)
        found = np.ldexp(action(right), action.exponent)
        return found - ((right @ apart.T) * sizes) @ apart

    def block(self, part: slice) -> FloatArray:
        """Return columns `part` of all rows, (n, columns), dense and centred."""
        dense = self.rows.dense(0, len(self.rows))[:, part].astype(np.float64)
        centred: FloatArray = dense - self.means[self.codes][:, part]
        return centred


def of_sparse(source: SparseSource, codes: Codes, weights: FloatArray, sample: ClassSample
              ) -> tuple[ClassSample, Within]:
    """Class means and the within-class covariance of sparse rows.

    As a matrix, for features no more than rows and than `LARGEST_SCATTER`, O(sum of squares of the
    entries a row); by inner products of rows if these are fewer, and no more than that; else by
    its action on vectors.
    """
    told, (rows, features) = _moments(source, weights), source.shape
    sizes: FloatArray = np.bincount(codes, weights, len(sample.classes)).astype(np.float64)
    means, squares = _class_moments(source, codes, weights, sizes)
    apart = means - told.mean
    tall = int(sample.counts.sum()) >= features
    matrix = None
    if tall and features <= LARGEST_SCATTER:
        least = np.maximum(told.squares / CANCELLED, sizes.sum() * told.mean**2 / FAR)
        if (least > squares)[squares > 0].any():
            return of_tall(source, codes, weights, sample)
        matrix = sparse_gram(source, told, None, weights)
        between = apart * np.sqrt(sizes)[:, None]
        matrix -= between.T @ between
        matrix[squares == 0] = matrix[:, squares == 0] = 0.0
        np.fill_diagonal(matrix, squares)
    average = csr_array((weights / sizes[codes], (codes, np.arange(rows))),
                        shape=(len(sizes), rows))
    known = SparseClassRows(source, told, codes, means, average)

    def blocks() -> Iterator[FloatArray]:
        first = 0
        for block in source.blocks():
            yield block - means[codes[first:first + len(block)]]
            first += len(block)

    sample = replace(sample, means=means, rests=np.zeros_like(means))
    if matrix is not None:
        return sample, Within(squares, weights, None, matrix, blocks, raw=told.squares)
    few = not tall and rows <= LARGEST_SCATTER
    return sample, Within(squares, weights, None, None, None, known if few else None,
                          codes, None if few else known.scatter, told.squares)


def sparse_ledoit_wolf(source: SparseSource, codes: Codes, weights: FloatArray | None,
                       priors: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return what `shrunk_classes` does, of sparse rows.

    Needs the correlations of a class or the inner products of its rows, whichever are fewer.
    """
    given = csr_array((source.values, source.indices, source.indptr), shape=source.shape)

    def spread(chosen: AnyArray, share: FloatArray) -> Spread:
        part = given[np.flatnonzero(chosen)]
        exponents = np.frexp(np.ravel(abs(part).max(axis=0).toarray()))[1]  # lest squares vanish
        values = np.ldexp(part.data.astype(np.float64), -exponents[part.indices])
        rows = SparseSource(part.indptr, part.indices, values, source.features)
        told = sparse_moments(rows, share)
        varying, scale = told.squares > 0, np.sqrt(told.squares)
        scale[~varying] = 1.0
        known = _lengths(rows, told.mean, scale), _square(rows, told, scale, share)
        return np.where(varying, np.ldexp(scale, exponents), 1.0), *known

    return shrunk_classes(spread, codes, weights, priors)


def _moments(rows: SparseSource, weights: FloatArray) -> SparseMoments:
    told = sparse_moments(rows, weights)
    if told.exponent:
        raise ValueError("squares of the rows overflow float64, or vanish in it; multiply X by a "
                         "power of ten.")
    return told


def _square(rows: SparseSource, told: SparseMoments, scale: FloatArray, share: FloatArray
            ) -> float:
    """Return the sum of squares of the entries of the correlations."""
    if min(rows.shape) > LARGEST_SCATTER:
        raise ValueError(
            f"shrinkage='auto' needs a matrix of order {min(rows.shape)} of the {len(rows)} rows "
            f"of a class, which is formed up to {LARGEST_SCATTER}; give a number instead, such as "
            "0.01.")
    gram = sparse_outer_gram if len(rows) < rows.features else sparse_gram
    matrix = gram(rows, told, scale, share)
    return float(np.einsum("ij,ij->", matrix, matrix))


def _lengths(rows: SparseSource, mean: FloatArray, scale: FloatArray) -> FloatArray:
    """Return squared norms (n,) of the centred and scaled rows.

    Those of a row of zeros, changed where entries are stored; columns that have all theirs take
    no part in it.
    """
    counts = np.bincount(rows.indices[:rows.stored], minlength=rows.features)
    zeros = np.where(counts == len(rows), 0.0, (mean / scale)**2)
    lengths = np.full(len(rows), zeros.sum())
    for which, (indptr, indices, values) in rows.pieces(0, len(rows), np.float64):
        of_row = np.repeat(np.arange(which.stop - which.start), np.diff(indptr))
        change = ((values - mean[indices]) / scale[indices])**2 - zeros[indices]
        lengths[which] += np.bincount(of_row, change, which.stop - which.start)
    return lengths


def _class_moments(source: SparseSource, codes: Codes, weights: FloatArray, sizes: FloatArray
                   ) -> tuple[FloatArray, FloatArray]:
    """Return means (C, d) and the sum of weighted squares (d,) about them, none of them negative.

    Each stored entry is subtracted from its mean; entries that are not stored are counted. What
    rounding of the means may have left of a column is 0; squares that vanish though rows differ
    are TINY.
    """
    shape = len(sizes), source.features
    stored, sums, counts = np.zeros((3, shape[0] * shape[1]))
    for which, (indptr, indices, values) in source.pieces(0, len(source), np.float64):
        of_row = np.repeat(np.arange(which.start, which.stop), np.diff(indptr))
        cells = codes[of_row] * shape[1] + indices
        stored += np.bincount(cells, weights[of_row], minlength=stored.size)
        sums += np.bincount(cells, weights[of_row] * values, minlength=stored.size)
        counts += np.bincount(cells, minlength=stored.size)
    means = sums.reshape(shape) / sizes[:, None]
    full = counts.reshape(shape) == np.bincount(codes, minlength=shape[0])[:, None]
    zeros = np.where(full, 0.0, np.maximum(sizes[:, None] - stored.reshape(shape), 0.0))
    squares = np.einsum("ij,ij->j", zeros, means**2)
    level = NOISE * EPS * np.abs(means).max(axis=0)
    differ = (np.where(zeros > 0, np.abs(means), 0.0) > level).any(axis=0)
    for which, (indptr, indices, values) in source.pieces(0, len(source), np.float64):
        of_row = np.repeat(np.arange(which.start, which.stop), np.diff(indptr))
        away = values - means[codes[of_row], indices]
        squares += np.bincount(indices, weights[of_row] * away**2, minlength=shape[1])
        differ[indices[(np.abs(away) > level[indices]) & (weights[of_row] > 0)]] = True
    gone = differ & (squares == 0)
    return means, np.where(squares > sizes.sum() * level**2, squares, np.where(gone, TINY, 0.0))
