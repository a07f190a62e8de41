"""The likelihood of the observed cells of rows, maximised by EM.

A step of EM finds the latent coordinates of each row (`latent.posterior`), then solves one small
system a feature; the coordinates are brought to mean 0 and unit variance, too (parameter
expansion: Liu, Rubin & Wu 1998). Both only ever raise the likelihood. Two steps are extrapolated
(Varadhan & Roland 2008), and what they lead to is taken if it is no less likely. Without missing
cells the maximum has a closed form, ordinary PCA (Tipping & Bishop 1999).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdr.latent import Block, Groups, Latent, block_rows, grouped, posterior
from fastdr.mapped import read
from fastdr.missing import ObservedRows
from fastdr.sources import BLOCK_BYTES
from fastdr.threads import blas_limit, get_num_threads, ordered_map
from fastdr.validation import AnyArray, FloatArray

PARTS = 16  # at most, of the rows; each has sums of its own
SUMS = 1 << 28  # bytes that these may take
HELD = 12  # arrays of the size of a block that a thread has at a time
LOOKED = 5  # the same of a first look at the rows, by one thread


def start(rows: ObservedRows, components: AnyArray, variances: FloatArray, offset: FloatArray,
          noise: float) -> Latent:
    """Return parameters to begin with, from axes (k, d) and variances (k,) of rows.

    No axis begins without variance and no noise with none: from there EM would not move.
    """
    noise = max(noise, 1e-4 * rows.total / len(offset))
    sizes = np.sqrt(np.maximum(variances - noise, 0.1 * noise))
    return Latent(components.T.astype(np.float64) * sizes, offset.astype(np.float64), noise)


@dataclass(frozen=True)
class Step:
    """A point of the search: `latent`, its log-likelihood, and where a step of EM leads.

    ``gradient`` is the length of the derivative of the log-likelihood by the loadings, times that
    of the loadings, over the number of observed cells.
    """

    latent: Latent
    likelihood: float
    following: Latent
    gradient: float


@dataclass(frozen=True)
class Maximum:
    """Where the search ended: a `step`, what it took, and what is known of it.

    ``change`` is what a further step of EM would change, see `change`; ``growth`` what the last
    one added to the log-likelihood, if there was one; ``likelihoods`` those of all points passed.
    """

    step: Step
    steps: int
    change: float
    converged: bool
    growth: float
    likelihoods: tuple[float, ...]


def peak_bytes(rows: int, features: int, axes: int) -> int:
    """Return about how much memory a fit takes beyond the rows.

    For each thread some blocks; of what is solved for each feature three copies, besides the sums
    of the parts; and the groups of rows. Before that, a first look has some larger blocks, and
    few rows of many features are filled for PCA to begin with.
    """
    block = block_rows(features, axes) * max(features, axes**2)
    parts = _parts(rows, features, axes) + 3
    steps = get_num_threads() * HELD * block + parts * features * (axes + 1)**2 + 3 * rows
    look = LOOKED * min(rows * features, BLOCK_BYTES // 8) + (rows < features) * rows * features
    return 8 * max(steps, look)


def _parts(rows: int, features: int, axes: int) -> int:
    sums = 4 * features * (axes + 1) * (axes + 2)
    return min(PARTS, -(-rows // block_rows(features, axes)), max(1, SUMS // sums))


def maximised(rows: ObservedRows, begin: Latent, tol: float, most: int,
              callback: Callable[[int, float], None] | None = None) -> Maximum:
    """Climb from `begin` until a step of EM changes no more than `tol`, or for `most` steps.

    A step is one pass over the rows: O(d k^2 + k^3) for each pattern of missing cells in a block,
    O(d k) a row.
    """
    with blas_limit(1):
        search = _Search(rows, begin)
        here, steps, limit = search.step(begin), 1, 4.0
        likelihoods = [here.likelihood]
        while (left := change(here.latent, here.following)) > tol and steps < most:
            if callback is not None:
                callback(steps, left)
            there, steps = search.step(here.following), steps + 1
            far, length = _extrapolated(here, there, limit, rows)
            if length > 1 and steps < most:
                tried, steps = search.step(far), steps + 1
                taken = tried.likelihood >= there.likelihood
                there = tried if taken else there
                limit = max(4.0, limit / 4) if not taken else limit * (4 if length == limit else 1)
            here = there
            likelihoods.append(here.likelihood)
    growth = likelihoods[-1] - likelihoods[-2] if len(likelihoods) > 1 else 0.0
    return Maximum(here, steps, left, left <= tol, growth, tuple(likelihoods))


def change(old: Latent, new: Latent) -> float:
    """Return the largest of what a step changed: axes, variances, noise.

    The sine of the largest angle between the spans, the change of a variance in units of the
    largest, and that of the noise in units of itself.
    """
    axes, sizes, _ = np.linalg.svd(old.loadings, full_matrices=False)
    others, others_sizes, _ = np.linalg.svd(new.loadings, full_matrices=False)
    turned = np.linalg.norm(others - axes @ (axes.T @ others), 2)
    varied = np.abs(others_sizes**2 - sizes**2).max() / (sizes[0]**2 + old.noise)
    return float(max(turned, varied, abs(new.noise - old.noise) / old.noise))


def _extrapolated(here: Step, there: Step, limit: float, rows: ObservedRows
                  ) -> tuple[Latent, float]:
    """Return a point far along two steps of EM, and how far: scheme S3 of Varadhan & Roland."""
    unit = float(np.linalg.norm(here.latent.loadings)) or 1.0

    def flat(latent: Latent) -> FloatArray:
        return np.concatenate([latent.loadings.ravel() / unit, latent.offset / unit,
                               [math.log(latent.noise)]])

    first, second, third = map(flat, (here.latent, there.latent, there.following))
    step, bend = second - first, third - 2 * second + first
    bent = float(np.linalg.norm(bend))
    length = min(limit, max(1.0, float(np.linalg.norm(step)) / bent)) if bent else 1.0
    point = first + 2 * length * step + length**2 * bend
    shape = here.latent.loadings.shape
    noise = math.exp(min(point[-1], math.log(max(rows.total, rows.floor))))
    size = shape[0] * shape[1]
    return Latent(point[:size].reshape(shape) * unit, point[size:-1] * unit,
                  max(noise, rows.floor)), length


@dataclass(frozen=True)
class _Moments:
    """Sums over rows: of what a step of EM solves for, and the log-likelihood.

    With z = (z, 1), ``moments`` (q, d) are those of z z' over the rows that have a feature, a
    triangle of each, ``every`` (q,) those over all rows; ``products`` (k + 1, d) of z x';
    ``squares`` of observed cells about their fit, expected.
    """

    moments: FloatArray
    every: FloatArray
    products: FloatArray
    squares: float
    likelihood: float

    def plus(self, other: _Moments) -> _Moments:
        """Return the sums over the rows of both, in the memory of these."""
        return _Moments(np.add(self.moments, other.moments, out=self.moments),
                        self.every + other.every, self.products + other.products,
                        self.squares + other.squares, self.likelihood + other.likelihood)


class _Search:
    """Steps of EM over rows that stay the same: their groups are found once."""

    def __init__(self, rows: ObservedRows, latent: Latent) -> None:
        count, features = rows.array.shape
        self.rows, self.parts = rows, _parts(count, features, latent.axes)
        self.edges = [*range(0, count, block_rows(features, latent.axes)), count]
        self.groups = ordered_map(self._grouped, len(self.edges) - 1)

    def _grouped(self, index: int) -> Groups:
        part = read(self.rows.array[self.edges[index]:self.edges[index + 1]])
        return grouped(np.isnan(part))

    def step(self, latent: Latent) -> Step:
        """Return the point `latent` and a step of EM from there."""
        blocks = len(self.edges) - 1
        bounds = [blocks * part // self.parts for part in range(self.parts + 1)]

        def part(index: int) -> _Moments:
            total = None
            for block in range(bounds[index], bounds[index + 1]):
                found = self._moments(latent, block)
                total = found if total is None else total.plus(found)
            assert total is not None
            return total

        first, *others = ordered_map(part, self.parts)
        for other in others:
            first = first.plus(other)
        following, gradient = _following(self.rows, latent, first)
        return Step(latent, first.likelihood + self.rows.log_volume, following, gradient)

    def _moments(self, latent: Latent, index: int) -> _Moments:
        first, last = self.edges[index], self.edges[index + 1]
        rows = self.rows.centred(first, last)
        missing = np.isnan(rows)
        rows[missing] = 0.0
        block = Block(rows, missing, self.groups[index])
        told = posterior(latent, block)
        weights = self.rows.weights_of(first, last)
        coordinates = np.concatenate([told.means, np.ones((1, len(rows)))])
        weighted = coordinates * weights
        upper, lower = np.tril_indices(latent.axes + 1)
        moments = block.sums(coordinates[upper] * weighted[lower])
        counts = latent.noise * moments[-1]
        inner = len(upper) - len(coordinates)
        moments[:inner] += told.inverses[upper[:inner], lower[:inner]] * counts
        squares = told.squares()
        spread = latent.axes - latent.noise * np.einsum("aap->p", told.inverses)
        return _Moments(moments @ block.observed, moments.sum(axis=1), weighted @ rows,
                        float(weights @ squares + counts @ spread),
                        float(weights @ told.log_densities(squares)))


def _following(rows: ObservedRows, latent: Latent, sums: _Moments) -> tuple[Latent, float]:
    """Maximise the expected likelihood: loadings, offset and noise, then the latent moments."""
    axes = latent.axes
    columns = np.column_stack([latent.loadings, latent.offset])
    matrices = _square(sums.moments.T, axes + 1)
    sides = sums.products.T - np.einsum("dij,dj->di", matrices, columns)
    solved = axes + rows.estimated
    sides = sides[:, :solved]
    steps = np.linalg.solve(matrices[:, :solved, :solved], sides[:, :, None])[:, :, 0]
    columns[:, :solved] += steps
    cells = float(rows.totals.sum())
    noise = max((sums.squares - float((steps * sides).sum())) / cells, rows.floor)
    slope = float(np.linalg.norm(sides[:, :axes])) / latent.noise
    gradient = slope * float(np.linalg.norm(latent.loadings)) / cells
    every = _square(sums.every, axes + 1) / sums.every[-1]
    means = every[-1, :-1] * rows.estimated
    sizes, turn = np.linalg.eigh(every[:-1, :-1] - np.outer(means, means))
    root = (turn * np.sqrt(sizes)) @ turn.T
    loadings = columns[:, :-1]
    return Latent(loadings @ root, columns[:, -1] + loadings @ means, noise), gradient


def _square(triangles: FloatArray, size: int) -> Any:
    """Return symmetric matrices (..., size, size) from their lower triangles, a row each."""
    first, second = np.tril_indices(size)
    squares = np.empty((*triangles.shape[:-1], size, size))
    squares[..., first, second] = squares[..., second, first] = triangles
    return squares
