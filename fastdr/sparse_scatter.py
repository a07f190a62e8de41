"""Gram matrices of sparse rows, features by features or rows by rows, from outer products."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from fastdr.sparse import SparseMoments, SparseSource, sparse_product
from fastdr.validation import FloatArray


def sparse_gram(rows: SparseSource, moments: SparseMoments, scale: FloatArray | None = None,
                weights: FloatArray | None = None) -> FloatArray:
    """Return the scatter B'W B of `SparseAction`, (d, d) float64, from the outer products of rows.

    O(sum of squares of the entries a row); for few features and sparse rows.
    """
    total = _outer_products(rows, moments.shift, moments.exponent, weights)
    both = np.outer(moments.average - 0.5 * moments.rest, moments.weight * moments.rest)
    total -= both + both.T
    if scale is not None:
        total /= scale
        total /= scale[:, None]
    return total


def sparse_outer_gram(rows: SparseSource, moments: SparseMoments, scale: FloatArray | None = None,
                      weights: FloatArray | None = None) -> FloatArray:
    """Return the inner products of the rows sqrt(W) B of `SparseAction`, (n, n) float64.

    O(sum of squares of the entries a column), from a transposed copy of what is stored.
    """
    count, roots = len(rows), None if weights is None else np.sqrt(weights)
    lengths, kept = np.diff(rows.indptr), slice(rows.stored)
    indices = rows.indices[kept]
    values = np.ldexp(rows.values[kept].astype(np.float64), moments.exponent)
    if moments.shift is not None:
        values -= moments.shift[indices]
    if scale is not None:
        values /= scale[indices]
    if roots is not None:
        values *= np.repeat(roots, lengths)
    upright = csr_array((values, indices, rows.indptr), shape=rows.shape)
    turned = upright.T.tocsr()
    total = _outer_products(SparseSource(turned.indptr, turned.indices, turned.data, count), None,
                            0, None)
    rest = moments.rest if scale is None else moments.rest / scale
    if rest.any():
        unit = np.ones(count) if roots is None else roots
        both = np.outer(upright @ rest - (0.5 * rest @ rest) * unit, unit)
        total -= both + both.T
    return total


def sparse_images(vectors: FloatArray, rows: SparseSource, moments: SparseMoments,
                  scale: FloatArray | None = None, weights: FloatArray | None = None
                  ) -> FloatArray:
    """Return sqrt(W) B `vectors`', (n, k), for `vectors` (k, d) in float64."""
    factor = (vectors if scale is None else vectors / scale).T
    images = np.ldexp(sparse_product(rows, np.ascontiguousarray(factor)), moments.exponent)
    images -= moments.mean @ factor
    if weights is not None:
        images *= np.sqrt(weights)[:, None]
    return images


def _outer_products(rows: SparseSource, shift: FloatArray | None, exponent: int,
                    weights: FloatArray | None) -> FloatArray:
    """Return A'W A, symmetric, (d, d), the stored values changed as `SparseSource.pieces` does."""
    from fastdr._jit_sparse import add_gram  # importing Numba is slow

    given = np.empty(0) if weights is None else weights

    def part(first: int, last: int) -> FloatArray:
        out = np.zeros((rows.features, rows.features))
        for which, entries in rows.pieces(first, last, np.float64, shift, exponent):
            add_gram(*entries, given[which], out)
        return out

    total = rows.sum_of_parts(rows.parts(rows.features), part)
    total += np.triu(total, 1).T
    return total
