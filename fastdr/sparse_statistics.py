"""Moments of sparse rows, and sparse rows put together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from fastdr.sources import BlockSource
from fastdr.sparse import SparseSource, sparse_moments
from fastdr.sparse_scatter import sparse_gram
from fastdr.statistics import Moments
from fastdr.validation import AnyArray, FloatArray, as_csr

DENSE = 24.0  # products of dense panels in the time of one of sparse rows


def moments_of_sparse(rows: SparseSource, weights: FloatArray | None = None) -> Moments:
    """Moments of sparse rows in float64, from outer products of what is stored.

    O(sum of squares of the entries a row) and a few d x d matrices; rows too full for that are
    made dense a block at a time. Raises ValueError if their squares leave the float64 range.
    """
    if _full(rows):
        size, features = rows.shape
        blocks = BlockSource(rows.blocks, features, size, rows.dtype)
        return Moments.of_source(blocks, weights, precision="double")
    told = sparse_moments(rows, weights)
    if told.exponent:
        raise ValueError("the squares of these rows leave the range of float64; multiply the rows "
                         "by a power of ten.")
    squared = told.weight if weights is None else float(weights @ weights)
    return Moments(told.count, told.weight, squared, told.mean,
                   sparse_gram(rows, told, None, weights), told.lost)


def _full(rows: SparseSource) -> bool:
    products = float((np.diff(rows.indptr).astype(np.float64) ** 2).sum())
    return products * DENSE > float(len(rows)) * rows.features**2


def chosen(rows: SparseSource, which: NDArray[np.bool_]) -> SparseSource:
    """Return the rows for which `which` is true."""
    return _source(_matrix(rows)[np.flatnonzero(which)])


def stacked(parts: Sequence[AnyArray | SparseSource]) -> SparseSource:
    """Return sparse and dense rows below each other as sparse rows, in memory of their own."""
    return _source(vstack([_matrix(part) if isinstance(part, SparseSource)
                           else csr_array(part.astype(part.dtype.newbyteorder("=")))
                           for part in parts], format="csr"))


def _matrix(rows: SparseSource) -> csr_array:
    return csr_array((rows.values, rows.indices, rows.indptr), shape=rows.shape)


def _source(matrix: csr_array) -> SparseSource:
    csr = as_csr(matrix)
    return SparseSource(csr.indptr, csr.indices, csr.data, csr.shape[1])
