"""Thick-restart block Lanczos: a few of the largest eigenpairs of a symmetric operator.

A basis K of orthonormal rows grows by the block X of the newest images, C X = H K + T X', fully
reorthogonalised; Ritz pairs of the small matrix K C K' tell their residuals at no cost, the
norm of T' z over the entries z of the newest block. At full length the best Ritz vectors become
the new basis (Wu & Simon 2000; blocks as in Krylov-Schur, Stewart 2001).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import DTypeLike
from scipy.linalg import qr

from fastdr._krylov import expand, rotate
from fastdr.actions import Action, images
from fastdr.threads import blas_limit
from fastdr.validation import AnyArray, FloatArray

BLOCK = {8: 8, 4: 16}  # one cache line of columns
CHECK = 1.1  # the small problem is solved each time the basis has grown by this
# Of a race's columns those by which so much of the digits must be there: spectra of j^-2 to j^-0.25
# and 0.99^j that converge just in time have 0.4 or more by then; noise has 0.18 to 0.32.
LATE, THERE = 0.6, 0.4
COLUMNS = 512  # of the basis that a restart turns at a time
Callback = Callable[[int, FloatArray, FloatArray], object]


@dataclass(frozen=True)
class Ritz:
    """What an iteration found.

    ``values`` (k,) descending; ``vectors`` (k, size) orthonormal rows, float64; ``residuals``
    (k,) norms of C v - value v, computed at the end; ``spread`` their joint 2-norm; ``next``
    estimate of the largest value left out; ``scale`` largest magnitude of a value seen;
    ``converged`` whether every residual is at most tol scale; ``columns`` multiplied by C.
    """

    values: FloatArray
    vectors: FloatArray
    residuals: FloatArray
    spread: float
    next: float
    scale: float
    converged: bool
    columns: int
    restarts: int


@dataclass
class _Basis:
    """Rows K, the matrix K C K' of the first `used`, the newest block behind, how they couple."""

    rows: AnyArray
    small: FloatArray
    used: int
    size: int
    last: int = 0
    coupling: FloatArray | None = None


def lanczos(action: Action, count: int, *, tol: float, rng: Generator,
            start: FloatArray | None = None, budget: float = math.inf, length: int | None = None,
            callback: Callback | None = None, race: bool = False) -> Ritz:
    """Return `count` eigenpairs of largest value, residuals at most `tol` times the largest.

    `start` (j, size) rows begin the basis, random ones from `rng` are added; `length` bounds the
    basis, the default is max(3 count, count + 10 blocks); no more than `budget` columns are
    multiplied, of a `race` against LAPACK no more than `LATE` of them if residuals are `hopeless`;
    `callback(columns, values, residuals)` is called after each small problem. Cost a column: one of
    C and 8 size length operations; memory size (length + 2 blocks).
    """
    with blas_limit(1):  # small products; so results do not depend on the number of threads
        early = LATE * budget if race else math.inf
        return _lanczos(action, count, tol, rng, start, budget, early, length, callback)


def _lanczos(action: Action, count: int, tol: float, rng: Generator, start: FloatArray | None,
             budget: float, early: float, length: int | None, callback: Callback | None
             ) -> Ritz:
    """Iterate; see `lanczos`."""
    size, block = action.size, min(BLOCK[action.dtype.itemsize], action.size)
    length = min(size, max(length or 0, 3 * count, count + 10 * block))
    basis = _begin(action, block, length, start, rng)
    began, restarts, due = action.columns, 0, count
    while True:
        _grow(action, basis, block, tol, rng)
        complete = basis.used == size
        full = not complete and basis.used + basis.size > length
        spent = action.columns - began + basis.size
        stop = spent > budget
        if basis.used >= due or full or complete or stop:
            values, turn, residuals = _small_problem(basis, count)
            limit = tol * float(np.abs(values).max())
            if callback is not None:
                callback(action.columns - began, values[:count], residuals)
            stop |= spent > early and hopeless(residuals, tol, limit / tol)
            if (complete or stop or (residuals <= limit).all()) and basis.used >= count:
                break
            due = math.ceil(CHECK * basis.used)
        if full:
            _restart(basis, values, turn, count, block, length)
            restarts, due = restarts + 1, basis.used + 2 * block
    scale = float(np.abs(values).max())
    _turn(basis, turn[:, :count])
    vectors = basis.rows[:count].astype(np.float64)
    following = float(values[count]) if len(values) > count else -math.inf
    return polished(action, vectors, following, scale, tol, began, restarts)


def _begin(action: Action, block: int, length: int, start: FloatArray | None, rng: Generator
           ) -> _Basis:
    """Return a basis of the first block alone: `start` and one block of random rows."""
    first = rng.standard_normal((block, action.size))
    if start is not None:
        first = np.concatenate([start, first])[:length]
    rows = np.empty((length + 2 * len(first), action.size), action.dtype)
    rows[:len(first)] = np.linalg.qr(first.T)[0].T
    return _Basis(rows, np.zeros((length + len(first),) * 2), 0, len(first))


def _grow(action: Action, basis: _Basis, block: int, tol: float, rng: Generator) -> None:
    """Multiply the newest block; make the next one of what is new in its images."""
    first, size = basis.used, basis.size
    known = first + size
    rows = basis.rows
    rows[known:known + size] = action(rows[first:known])
    overlap = np.zeros((size, known), rows.dtype)
    factor = np.zeros((size, size), rows.dtype)
    room = len(rows[0]) - known
    sound = expand(rows, known, size, overlap, factor) > 0
    small = overlap.astype(np.float64)
    if sound and size <= min(block, room):
        coupling, fresh = factor.astype(np.float64), size
    else:
        if sound:  # back to what was not normalised
            rows[known:known + size] = factor @ rows[known:known + size]
        scale = max(float(np.abs(small).max()), float(np.abs(basis.small[:first, :first]).max(
            initial=0.0)), np.finfo(np.float64).tiny)
        coupling, fresh = _independent(basis, known, size, min(block, room), scale, tol, rng)
    for _ in range(2 if not sound else 1):
        overlap = np.zeros((fresh, known), rows.dtype)
        factor = np.zeros((fresh, fresh), rows.dtype)
        if fresh and expand(rows, known, fresh, overlap, factor) > 0:
            small += coupling @ overlap
            coupling = coupling @ factor.astype(np.float64)
    basis.small[first:known, :known] = small
    basis.small[:known, first:known] = small.T
    basis.small[first:known, first:known] = (small[:, first:] + small[:, first:].T) / 2
    basis.used, basis.last, basis.size, basis.coupling = known, size, fresh, coupling


def _independent(basis: _Basis, known: int, size: int, block: int, scale: float, tol: float,
                 rng: Generator) -> tuple[FloatArray, int]:
    """Replace the images behind `known` rows by an independent block, at least `block` if it can.

    Directions of mere rounding are dropped; random rows, which couple to nothing, fill up: so
    the iteration goes on behind an exact invariant subspace.
    """
    rows = basis.rows
    eps = float(np.finfo(rows.dtype).eps)
    right, factor, order = qr(rows[known:known + size].T.astype(np.float64), mode="economic",
                              pivoting=True, check_finite=False)
    drop = max(1e2 * eps, tol / 8 if size > block else 0.0) * scale
    room = rows.shape[1] - known
    kept = min(int(np.count_nonzero(np.abs(np.diagonal(factor)) > drop)), room)
    fresh = max(kept, block)
    right = right.T[:kept]
    filler = rng.standard_normal((fresh - kept, rows.shape[1]))
    for _ in range(2):
        filler -= (filler @ rows[:known].T) @ rows[:known]
        filler -= (filler @ right.T) @ right
        filler = np.linalg.qr(filler.T)[0].T
    rows[known:known + kept] = right
    rows[known + kept:known + fresh] = filler
    coupling = np.zeros((size, fresh))
    coupling[order, :kept] = factor[:kept].T
    return coupling, fresh


def _small_problem(basis: _Basis, count: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return all Ritz values, descending, their vectors as columns, `count` residuals."""
    used, last = basis.used, basis.last
    values, vectors = np.linalg.eigh(basis.small[:used, :used])
    values, vectors = values[::-1], vectors[:, ::-1]
    assert basis.coupling is not None
    residuals = np.linalg.norm(vectors[used - last:, :count].T @ basis.coupling, axis=1)
    return values, vectors, residuals


def _turn(basis: _Basis, turn: FloatArray) -> None:
    """Put the combinations `turn` (used, q) of the rows into the first q."""
    dtype = basis.rows.dtype
    rotate(basis.rows, np.ascontiguousarray(turn.T, dtype),
           np.empty((basis.used, min(COLUMNS, basis.rows.shape[1])), dtype))


def _restart(basis: _Basis, values: FloatArray, turn: FloatArray, count: int, block: int,
             length: int) -> None:
    """Keep the best Ritz vectors and the newest block."""
    used, size = basis.used, basis.size
    kept = min(count + block + max(0, used - count - 2 * block) // 2, length - size)
    _turn(basis, turn[:, :kept])
    basis.rows[kept:kept + size] = basis.rows[used:used + size].copy()
    basis.small[:kept, :kept] = np.diag(values[:kept])
    basis.used = kept


def polished(action: Action, vectors: FloatArray, following: float, scale: float, tol: float,
             began: int, restarts: int) -> Ritz:
    """Make `vectors` orthonormal in float64, turn them by a last Rayleigh-Ritz, measure them."""
    vectors = np.ascontiguousarray(np.linalg.qr(vectors.T)[0].T)
    values, vectors, moved = rayleigh_ritz(action, vectors)
    moved -= values[:, None] * vectors
    residuals = np.linalg.norm(moved, axis=1)
    scale = max(scale, float(np.abs(values).max()))
    return Ritz(values, vectors, residuals, joint_norm(moved), following, scale,
                converged(residuals, tol, action.size, scale), action.columns - began, restarts)


def rayleigh_ritz(action: Action, rows: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the Ritz values of the span of orthonormal `rows`, descending, vectors and images."""
    moved = images(action, rows)
    values, turn = np.linalg.eigh((rows @ moved.T + moved @ rows.T) / 2)
    turn = turn[:, ::-1].T
    return values[::-1], turn @ rows, turn @ moved


def joint_norm(rows: FloatArray) -> float:
    """Return the 2-norm of a few long rows, through their Gram matrix."""
    return math.sqrt(max(0.0, float(np.linalg.eigvalsh(rows @ rows.T)[-1])))


def hopeless(residuals: FloatArray, tol: float, scale: float) -> bool:
    """Tell whether residuals are far from `tol`, in digits."""
    return bool((residuals > tol**THERE * scale).any())


def converged(residuals: FloatArray, tol: float, size: int, scale: float) -> bool:
    """Tell whether residuals are within `tol` of the largest value, or as small as they can be."""
    return bool((residuals <= max(tol, rounding(size)) * scale).all())


def rounding(size: int, dtype: DTypeLike = np.float64) -> float:
    """Residual, relative to the largest value, that rounding in `dtype` may leave."""
    return 10 * float(np.finfo(dtype).eps) * math.sqrt(size)
