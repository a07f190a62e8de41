"""Moments of sparse rows."""

from __future__ import annotations

import numpy as np

from fastdr.sources import BlockSource
from fastdr.sparse import SparseSource, sparse_gram, sparse_moments
from fastdr.statistics import Moments
from fastdr.validation import FloatArray

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
                   sparse_gram(rows, told, None, weights), np.zeros_like(told.mean))


def _full(rows: SparseSource) -> bool:
    products = float((np.diff(rows.indptr).astype(np.float64) ** 2).sum())
    return products * DENSE > float(len(rows)) * rows.features**2
