"""Rotations that make whitened rows independent: fixed points, L-BFGS, one by one.

Sources y = W x with W orthogonal make Σ s_i E G(y_i) stationary; s_i is the sign of the curvature
κ_i = E g'(y_i) - E y_i g(y_i), so that peaked and flat sources are both found. The relative
gradient is the antisymmetric part of diag(s) E g(y) yᵀ; it is zero at the answer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import expm

from fastdr._pointwise import PANEL
from fastdr.bases import completed
from fastdr.contrasts import Contrast, Run, normal_values
from fastdr.panels import KEEP, Panels
from fastdr.threads import calm_blas, ordered_map
from fastdr.validation import FloatArray

FIXED_STEPS = 15  # fixed-point steps before L-BFGS at most
CHANCE = 1e-6  # a gradient that is not met by accident
FALLEN = 0.3  # share of its largest value to which the gradient falls before L-BFGS begins
MEMORY = 7  # pairs that L-BFGS keeps
FLOOR = 0.01  # least curvature of a pair of sources
LARGEST_TURN = 1.0  # radians of one pair in one step
TRIES = 10  # lengths of one step
FLAT = 0.8  # a step is too long if the slope behind it is that steep again, upwards
COARSE = 8  # a start is first improved on one panel in so many
COARSE_ROWS = 10  # if these are at least so many times k² rows
COARSE_LEAST = 10_000  # and at least so many
COARSE_TOL = 0.1  # gradient to reach on them, times the root of their number of rows
EPS = float(np.finfo(np.float64).eps)
TIED = 1e-6  # variances that close count as equal when sources are put in order
_WORK = 1 << 25  # multiplications that one thread does at a time
_POINTWISE = 64  # multiplications that a score costs
_PARTS = 32  # of these that are summed together
Watch = Callable[[int, float], None]


@dataclass(frozen=True)
class Point:
    """A rotation W (p, k), E g(y) xᵀ (p, k) and E g'(y) (p,) there."""

    matrix: FloatArray
    products: FloatArray
    slopes: FloatArray

    @cached_property
    def relative(self) -> FloatArray:
        """E g(y) yᵀ, (p, p)."""
        with calm_blas(2 * self.matrix.size * len(self.matrix)):
            return self.products @ self.matrix.T

    @cached_property
    def curvatures(self) -> FloatArray:
        """E g'(y) - E y g(y), (p,): zero for a normal source."""
        return self.slopes - np.diagonal(self.relative)

    def signs(self, fixed: float | None) -> FloatArray:
        """Return the sign of each curvature, or the `fixed` one."""
        given = self.curvatures if fixed is None else np.full(len(self.matrix), fixed)
        return np.where(given >= 0, 1.0, -1.0)

    def gradient(self, signs: FloatArray) -> FloatArray:
        """Return the relative gradient (p, p), antisymmetric."""
        signed = signs[:, None] * self.relative
        return (signed - signed.T) / 2

    def order(self, mixing: FloatArray) -> NDArray[np.intp]:
        """Order sources by the variance they add to the rows, ties by distance from normal."""
        variances = np.einsum("ij,ij->j", mixing, mixing)
        order = np.argsort(-variances, kind="stable")
        ranked = variances[order]
        group = np.cumsum(np.concatenate([[0], ranked[1:] < (1 - TIED) * ranked[:-1]]))
        return np.asarray(order[np.lexsort((-np.abs(self.curvatures[order]), group))])


@dataclass(frozen=True)
class Rotation:
    """What was found: the point, the largest entry of the gradient, steps and passes made."""

    point: Point
    gradient: float
    steps: int
    passes: int
    coarse_steps: int = 0
    pairs: deque[tuple[FloatArray, FloatArray]] = field(default_factory=deque)


def _summed(panels: Panels, contrast: Contrast, outputs: int, *shapes: tuple[int, ...],
            add: Callable[..., None]) -> list[FloatArray]:
    """Sum over all panels what `add` adds to arrays of `shapes`, in an order that is fixed."""
    totals = [np.zeros(shape) for shape in shapes]
    work = PANEL * outputs * (2 * panels.features + _POINTWISE)
    group = max(1, _WORK // work)

    def part(run: Run) -> list[FloatArray]:
        sums = [np.zeros(shape) for shape in shapes]
        add(run, *sums)
        return sums

    for run in panels.runs():
        parts = [run.part(first, first + group) for first in range(0, len(run.panels), group)]
        for first in range(0, len(parts), _PARTS):
            for sums in _each(part, parts[first:first + _PARTS], contrast.threaded):
                for total, more in zip(totals, sums, strict=True):
                    total += more
    return totals


def _each(function: Callable[[Run], list[FloatArray]], runs: list[Run], threaded: bool
          ) -> list[list[FloatArray]]:
    """Apply a function to runs, in threads unless it belongs to the user."""
    if threaded:
        return ordered_map(lambda index: function(runs[index]), len(runs))
    return [function(run) for run in runs]


def scores_at(panels: Panels, contrast: Contrast, matrix: FloatArray) -> Point:
    """Read all rows: the point at `matrix` (p, k). Raises ValueError if it is not finite."""
    unmixing = np.ascontiguousarray(matrix, panels.dtype)
    products, slopes = _summed(
        panels, contrast, len(matrix), matrix.shape, (len(matrix),),
        add=lambda run, *sums: contrast.add_scores(run, unmixing, *sums))
    if not (np.isfinite(products).all() and np.isfinite(slopes).all()):
        raise ValueError("the contrast function gives NaN or infinity on these rows; scale rows "
                         "that are used without whitening, or correct fun.")
    return Point(matrix, products / panels.weight, slopes / panels.weight)


def losses_at(panels: Panels, contrast: Contrast, matrix: FloatArray) -> FloatArray:
    """Read all rows: E G(y) (p,) at `matrix` (p, k)."""
    unmixing = np.ascontiguousarray(matrix, panels.dtype)
    losses, = _summed(panels, contrast, len(matrix), (len(matrix),),
                      add=lambda run, *sums: contrast.add_losses(run, unmixing, *sums))
    return losses / panels.weight


def farthest_from_normal(panels: Panels, contrast: Contrast, found: list[Rotation]) -> int:
    """Return the index of the rotation whose contrasts differ most from those of normal sources.

    One pass for each, none if there is but one.
    """
    if len(found) == 1:
        return 0
    normal, _ = normal_values(contrast)
    return int(np.argmax([np.abs(losses_at(panels, contrast, one.point.matrix) - normal).sum()
                          for one in found]))


def orthogonal(matrix: FloatArray) -> FloatArray:
    """Return the orthogonal matrix next to `matrix` (k, k)."""
    with calm_blas(30 * len(matrix)**3):
        left, _, right = np.linalg.svd(matrix)
        nearest: FloatArray = left @ right
    return nearest


def _turned(matrix: FloatArray, turn: FloatArray) -> FloatArray:
    """Return exp(turn) matrix for an antisymmetric `turn`; rounding is taken off at once."""
    with calm_blas(30 * len(matrix)**3):
        moved = expm(turn) @ matrix
        moved = moved @ (1.5 * np.eye(len(moved)) - 0.5 * (moved.T @ moved))  # Newton-Schulz
    return np.asarray(moved)


def nearly_normal(point: Point, contrast: Contrast, rows: float) -> NDArray[np.bool_]:
    """Tell which curvatures are within what chance leaves to normal `rows`, rotated at best.

    Measured on normal columns: 2 deviations at most for the least of 2 or 3, 3 for those of 8 and
    5 for those of 32; more for "exp" and "cube" than for "logcosh".
    """
    _, variance = normal_values(contrast)
    chance = (2.0 + 0.5 * math.sqrt(len(point.matrix))) * math.sqrt(variance / rows)
    return np.abs(point.curvatures) <= chance


def fixed_point(point: Point) -> FloatArray:
    """Return the next rotation of symmetric FastICA (Hyvarinen 1999)."""
    moved = point.products - point.slopes[:, None] * point.matrix
    return orthogonal(-point.signs(None)[:, None] * moved)


@dataclass
class _Descent:
    """Directions of L-BFGS on the orthogonal group: Picard-O (Ablin, Cardoso & Gramfort 2018)."""

    pairs: deque[tuple[FloatArray, FloatArray]]

    def direction(self, point: Point, signs: FloatArray, gradient: FloatArray) -> FloatArray:
        """Return an antisymmetric direction of descent, no pair turned by more than LARGEST_TURN.

        The Hessian that it starts from, (|κ_i| + |κ_j|) / 2, is that of independent sources.
        """
        size = signs * point.curvatures
        hessian = np.maximum((size + size[:, None]) / 2, FLOOR)
        rest, factors = gradient.copy(), []
        for step, change in reversed(self.pairs):
            factor = float(np.vdot(step, rest) / np.vdot(step, change))
            rest -= factor * change
            factors.append(factor)
        turn = rest / hessian
        for (step, change), factor in zip(self.pairs, reversed(factors), strict=True):
            turn += (factor - float(np.vdot(change, turn) / np.vdot(step, change))) * step
        if not np.vdot(turn, gradient) > 0:
            self.pairs.clear()
            turn = gradient / hessian
        return -turn * min(1.0, LARGEST_TURN / max(float(np.abs(turn).max()), LARGEST_TURN))

    def learn(self, step: FloatArray, change: FloatArray) -> None:
        """Remember how the gradient changed over a step, if it curved upwards."""
        if np.vdot(step, change) > EPS * math.sqrt(np.vdot(step, step) * np.vdot(change, change)):
            self.pairs.append((step, change))
            if len(self.pairs) > MEMORY:
                self.pairs.popleft()


def simultaneous(panels: Panels, contrast: Contrast, start: FloatArray, *, tol: float,
                 max_iter: int, fixed_sign: float | None = None, fixed_steps: int = FIXED_STEPS,
                 pairs: deque[tuple[FloatArray, FloatArray]] | None = None,
                 watch: Watch | None = None) -> Rotation:
    """Find all sources together: fixed-point steps, then L-BFGS.

    From far away, where mixtures of many sources are nearly normal, fixed points find the way and
    L-BFGS does not; the gradient first grows there. Once it falls L-BFGS takes over, which does
    not need the model of independent sources to hold. Stops when the largest entry of the
    relative gradient is at most `tol`, or after `max_iter` steps; above CHANCE it must stay
    below `tol` and fall for a step, which would lead away from a saddle. The length of a step is
    judged by the slope behind it, which does not drown in rounding as differences of losses do:
    half the sum of both slopes is the change of a parabola.
    """
    descent = _Descent(deque() if pairs is None else pairs)
    point, passes, step = scores_at(panels, contrast, orthogonal(start)), 1, 0
    signs = point.signs(fixed_sign)
    gradient = point.gradient(signs)
    size = peak = float(np.abs(gradient).max())
    last = math.inf
    while step < max_iter and (
            step == 0 or size > tol or (size > CHANCE and not size <= last <= tol)):
        step += 1
        far = step <= fixed_steps and size > FALLEN * peak
        if far and fixed_sign is None:
            point, passes = scores_at(panels, contrast, fixed_point(point)), passes + 1
        else:
            turn = descent.direction(point, signs, gradient)
            slope = float(np.vdot(turn, gradient))
            for _ in range(TRIES):
                found = scores_at(panels, contrast, _turned(point.matrix, turn))
                passes += 1
                after = found.gradient(signs)
                behind = float(np.vdot(turn, after))
                if behind <= -FLAT * slope:
                    break
                shorter = min(0.5, max(0.1, slope / (slope - behind)))
                turn, slope = shorter * turn, shorter * slope
            descent.learn(turn, after - gradient)
            point = found
        before, signs = signs, point.signs(fixed_sign)
        if (signs != before).any():
            descent.pairs.clear()
        gradient = point.gradient(signs)
        last, size = size, float(np.abs(gradient).max())
        peak = max(peak, size)
        if watch is not None:
            watch(step, size)
    return Rotation(point, size, step, passes, pairs=descent.pairs)


def coarse_to_fine(panels: Panels, contrast: Contrast, start: FloatArray, *, tol: float,
                   max_iter: int, fixed_sign: float | None = None,
                   watch: Watch | None = None) -> Rotation:
    """As `simultaneous`, from a start that a share of the rows has improved in float32.

    On n rows the gradient at the true unmixing is noise of size 1 / sqrt(n): a share is good for
    that much, at its share of the cost, and float32 for more. What L-BFGS has learnt is kept. Few
    rows for the number of sources are not thinned: they would lead elsewhere.
    """
    run = partial(simultaneous, contrast=contrast, max_iter=max_iter, fixed_sign=fixed_sign)
    sample = _sample(panels, contrast)
    if sample is None:
        return run(panels, start=start, tol=tol, watch=watch)
    thinned = sample.rows <= panels.rows // 2
    enough = COARSE_TOL if thinned else COARSE_TOL / 10  # as far as float32 is worth it
    first = run(sample, start=start, tol=max(tol, enough / math.sqrt(sample.rows)))
    found = run(panels, start=first.point.matrix, tol=tol, watch=watch, fixed_steps=0,
                pairs=first.pairs)
    return replace(found, coarse_steps=first.steps)


def _sample(panels: Panels, contrast: Contrast) -> Panels | None:
    """Return a share of the rows in memory, or None if they are few."""
    every = min(COARSE, panels.rows // (COARSE_ROWS * panels.features**2),
                panels.rows // COARSE_LEAST)
    white = panels.factor is not None  # else float32 may be too narrow
    dtype = np.dtype(np.float32) if white and contrast.threaded else panels.dtype
    every = max(every, -(-panels.rows * panels.features * dtype.itemsize // KEEP), 1)
    if panels.rows < COARSE_LEAST or (every < 2 and dtype == panels.dtype):
        return None
    sample = panels.sample(every, dtype)
    return sample if sample.weight else None


def one_by_one(panels: Panels, contrast: Contrast, start: FloatArray, *, tol: float,
               max_iter: int, watch: Watch | None = None) -> Rotation:
    """Find one source after the other by fixed points, each orthogonal to those before.

    A source is found when the part of E g(y) x that is orthogonal to it and those before is no
    longer than `tol`. The gradient reported is the largest entry of these parts along the sources
    behind: that above the diagonal of E g(y) yᵀ.
    """
    matrix = np.zeros_like(start)
    most = passes = 0
    for row, first in enumerate(start):
        known = matrix[:row]
        vector, last = _outside(first, known), math.inf
        for step in range(1, max_iter + 1):
            point = scores_at(panels, contrast, vector[None])
            passes += 1
            rest = _without(point.products[0], np.vstack([known, vector]))
            size = math.sqrt(rest @ rest)
            most = max(most, step)
            if watch is not None:
                watch(step, size)
            if size <= tol and (size <= CHANCE or size <= last <= tol):
                break
            last = size
            vector = _outside(point.products[0] - point.slopes[0] * vector, known)
        matrix[row] = vector
    point = scores_at(panels, contrast, matrix)
    gradient = float(np.abs(np.triu(point.relative, 1)).max())
    return Rotation(point, gradient, most, passes + 1)


def _without(vector: FloatArray, known: FloatArray) -> FloatArray:
    """Return `vector` less its parts along orthonormal rows `known`; twice is enough."""
    for _ in range(2):
        vector = vector - (known @ vector) @ known
    return np.asarray(vector)


def _outside(vector: FloatArray, known: FloatArray) -> FloatArray:
    """Return the unit vector along the part of `vector` orthogonal to `known`."""
    rest = _without(vector, known)
    size = math.sqrt(rest @ rest)
    if size <= 1e-8 * math.sqrt(vector @ vector):  # inside their span: any direction outside
        return np.asarray(completed(known, len(known) + 1)[-1])
    return _without(rest / size, known)
