"""Latent coordinates of rows with missing cells: what the observed cells of a row tell of them.

Probabilistic PCA (Tipping & Bishop 1999) takes a row as x = mean + W z + noise, z (k,) normal of
unit variance, the noise normal of one variance s in every cell. Given the observed cells O of a
row, z is normal with mean M^-1 W_O' (x_O - mean_O) and covariance s M^-1, M = W_O' W_O + s I. M
depends on which cells are observed and on nothing else: rows are grouped by that, and each group
takes one Cholesky factorisation. The small matrices of all groups stand in one array
(k, k, groups), along whose last axis NumPy runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fastdr.threads import blas_limit, ordered_map
from fastdr.validation import AnyArray, FloatArray, raise_not_finite, raise_unobserved

BLOCK = 1 << 17  # float64 numbers of a block of rows: what stays in a cache


def block_rows(features: int, axes: int) -> int:
    """Return how many rows to work on at a time."""
    return max(16, BLOCK // max(features, axes**2))


@dataclass(frozen=True)
class Latent:
    """Parameters of probabilistic PCA: ``loadings`` W (d, k), ``offset`` (d,), ``noise`` s > 0."""

    loadings: FloatArray
    offset: FloatArray
    noise: float

    @property
    def axes(self) -> int:
        """Number of latent coordinates."""
        return int(self.loadings.shape[1])

    @cached_property
    def products(self) -> FloatArray:
        """W_a W_b for a >= b, then W_a offset, each a row (d,): M and W' offset of any cells."""
        columns = self.loadings.T
        first, second = np.tril_indices(self.axes)
        return np.concatenate([columns[first] * columns[second], columns * self.offset])


class Groups(NamedTuple):
    """Rows grouped by which of their cells are missing.

    ``first`` (p,) a row of each group, ``group`` (m,) that of each row; ``order`` (m,) rows one
    group after the other, of which each begins at ``starts`` (p,).
    """

    first: AnyArray
    group: AnyArray
    order: AnyArray
    starts: AnyArray


@dataclass(frozen=True)
class Block:
    """Some rows with 0 in missing cells: ``rows`` (m, d) float64, ``missing`` (m, d) bool."""

    rows: FloatArray
    missing: AnyArray
    groups: Groups

    @cached_property
    def observed(self) -> FloatArray:
        """(p, d), 1 where the rows of a group are observed."""
        return (~self.missing[self.groups.first]).astype(np.float64)

    def sums(self, values: FloatArray) -> FloatArray:
        """Return (q, p): sums of `values` (q, m), one a row, over the rows of each group."""
        sums: FloatArray = np.add.reduceat(values[:, self.groups.order], self.groups.starts, axis=1)
        return sums


def grouped(missing: AnyArray) -> Groups:
    """Group rows by `missing` (m, d).

    Examples
    --------
    >>> grouped(np.array([[False, True], [False, False], [False, True]])).group
    array([1, 0, 1])
    """
    packed = np.packbits(missing, axis=1)
    keys = packed.view(np.dtype((np.void, packed.shape[1])))[:, 0]
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(group, kind="stable")
    return Groups(first, group, order, np.searchsorted(group[order], np.arange(len(first))))


@dataclass(frozen=True)
class Posterior:
    """Latent coordinates of the rows of a block, given their observed cells.

    ``means`` (k, m); ``inverses`` (k, k, p) M^-1 of each group, ``log_dets`` (p,) log det M.
    """

    latent: Latent
    block: Block
    means: FloatArray
    inverses: FloatArray
    log_dets: FloatArray

    def fitted(self) -> FloatArray:
        """Return the conditional means of all cells, (m, d)."""
        values: FloatArray = self.means.T @ self.latent.loadings.T
        values += self.latent.offset
        return values

    def squares(self) -> FloatArray:
        """Return (m,) squared distances of observed cells to their fit."""
        gaps = self.fitted()
        np.subtract(self.block.rows, gaps, out=gaps)
        gaps[self.block.missing] = 0.0
        squares: FloatArray = np.einsum("ij,ij->i", gaps, gaps)
        return squares

    def log_densities(self, squares: FloatArray) -> FloatArray:
        """Return the log density (m,) of the observed cells of each row.

        No term cancels: (x - mean)' C^-1 (x - mean) = squares / s + |z|^2 and
        log det C = (cells - k) log s + log det M.
        """
        latent, group = self.latent, self.block.groups.group
        cells = self.block.observed.sum(axis=1)
        volume = (cells * math.log(2 * math.pi) + self.log_dets
                  + (cells - latent.axes) * math.log(latent.noise))
        distances = squares / latent.noise + np.einsum("ij,ij->j", self.means, self.means)
        densities: FloatArray = -0.5 * (volume[group] + distances)
        return densities


def posterior(latent: Latent, block: Block) -> Posterior:
    """Return the latent coordinates of rows; O(d k^2 + k^3) a group and O(d k) a row."""
    axes = latent.axes
    packed = latent.products @ block.observed.T
    first, second = np.tril_indices(axes)
    group = block.groups.group
    matrices = np.empty((axes, axes, packed.shape[1]))
    matrices[first, second] = packed[:len(first)]
    matrices[np.diag_indices(axes)] += latent.noise
    inverses, log_dets = inverted(matrices)
    sides = latent.loadings.T @ block.rows.T - packed[len(first):][:, group]
    means = np.einsum("abm,bm->am", inverses[:, :, group], sides)
    return Posterior(latent, block, means, inverses, log_dets)


def inverted(matrices: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return inverses (k, k, p) and log determinants (p,) of positive definite `matrices`.

    Only their lower triangles are read, and overwritten by Cholesky factors L; the inverse is
    L^-T L^-1. O(k^3 p).
    """
    size, lower = len(matrices), matrices
    for j in range(size):
        lower[j:, j] -= np.einsum("abp,bp->ap", lower[j:, :j], lower[j, :j])
        lower[j:, j] /= np.sqrt(lower[j, j])
    diagonal = np.einsum("aap->ap", lower)
    log_dets = 2 * np.log(diagonal).sum(axis=0)
    back = np.zeros_like(lower)  # L^-1
    for i in range(size):
        back[i, i] = 1 / diagonal[i]
        back[i, :i] = np.einsum("bp,bap->ap", lower[i, :i], back[:i, :i]) * -back[i, i]
    inverses = np.empty_like(lower)
    for j in range(size):
        inverses[j, :j + 1] = np.einsum("cap,cp->ap", back[j:, :j + 1], back[j:, j])
        inverses[:j, j] = inverses[j, :j]
    return inverses, log_dets


def each_posterior(latent: Latent, rows: AnyArray, centred: Callable[[AnyArray], FloatArray],
                   use: Callable[[slice, Posterior], None]) -> None:
    """Call `use` with the posterior of each block of `rows`, which `centred` centres and scales.

    Raises ValueError for infinity, and for a row without an observed cell.
    """
    size = block_rows(rows.shape[1], latent.axes)

    def work(index: int) -> None:
        part = slice(index * size, min((index + 1) * size, len(rows)))
        values = np.ascontiguousarray(centred(rows[part]))
        missing = np.isnan(values)
        if np.isinf(values).any():
            raise_not_finite(rows, allow_nan=True)
        if missing.all(axis=1).any():
            raise_unobserved(rows)
        values[missing] = 0.0
        with np.errstate(over="ignore", invalid="ignore"):  # of rows far away, which `use` judges
            use(part, posterior(latent, Block(values, missing, grouped(missing))))

    with blas_limit(1):
        ordered_map(work, -(-len(rows) // size))
