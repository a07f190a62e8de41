"""The power method on a block: subspace iteration, with a shift that rises or for a few steps."""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator

from fastdr.actions import Action, images
from fastdr.lanczos import (
    BLOCK,
    Callback,
    Ritz,
    converged,
    joint_norm,
    rayleigh_ritz,
    rounding,
)
from fastdr.threads import blas_limit
from fastdr.validation import FloatArray


def power(action: Action, count: int, *, tol: float, rng: Generator,
          start: FloatArray | None = None, budget: float = math.inf,
          callback: Callback | None = None) -> Ritz:
    """Return `count` eigenpairs of largest value of a positive semi-definite operator.

    A block X of `count` rows and one cache line more is replaced by the orthonormal basis of
    X (C - shift), and turned to its Ritz vectors each time. Half the smallest Ritz value is a
    safe shift: it makes no eigenvalue left out larger in magnitude than the least kept one.
    Arguments and result as for `lanczos`. Raises ValueError if C has a negative eigenvalue.
    """
    size = action.size
    width = min(size, count + BLOCK[action.dtype.itemsize])
    rows = rng.standard_normal((width, size))
    if start is not None:
        rows = np.concatenate([start, rows])[:max(width, len(start))]
    rows, began = np.linalg.qr(rows.T)[0].T, action.columns
    with blas_limit(1):
        while True:
            values, rows, moved = rayleigh_ritz(action, np.ascontiguousarray(rows))
            scale = float(np.abs(values).max())
            if values[-1] < -rounding(size, action.dtype) * scale:
                raise ValueError(f"C is not positive semi-definite: it has an eigenvalue of at "
                                 f"most {math.ldexp(values[-1], action.exponent):g}, and the "
                                 "power method finds the largest magnitude; use "
                                 "method='lanczos'.")
            left = moved - values[:, None] * rows
            residuals = np.linalg.norm(left[:count], axis=1)
            if callback is not None:
                callback(action.columns - began, values[:count], residuals)
            done = converged(residuals, tol, size, scale)
            if done or action.columns - began + width > budget:
                break
            rows = np.linalg.qr((moved - values[-1] / 2 * rows).T)[0].T
    following = float(values[count]) if count < len(values) else -math.inf
    return Ritz(values[:count], np.ascontiguousarray(rows[:count]), residuals,
                joint_norm(left[:count]), following, scale, done, action.columns - began, 0)


def randomized(action: Action, count: int, *, tol: float, rng: Generator,
               start: FloatArray | None = None, callback: Callback | None = None,
               oversamples: int = 10, steps: int = 7) -> Ritz:
    """Return `count` approximate eigenpairs after `steps` products with a random block.

    The range finder of Halko, Martinsson & Tropp (2011), made orthonormal after each product,
    with a last Rayleigh-Ritz step: for C = A'A the same as their algorithm 4.4 with `steps`
    power iterations. Nothing makes it accurate; the residuals tell what it reached.
    """
    rows = rng.standard_normal((min(action.size, count + oversamples), action.size))
    if start is not None:
        rows = np.concatenate([start, rows])[:max(len(rows), len(start))]
    began = action.columns
    with blas_limit(1):
        for _ in range(steps + 1):
            rows = np.ascontiguousarray(np.linalg.qr(rows.T)[0].T)
            rows = images(action, rows)
        rows = np.ascontiguousarray(np.linalg.qr(rows.T)[0].T)
        following = -math.inf
        values, rows, moved = rayleigh_ritz(action, rows)
        if count < len(values):
            following = float(values[count])
        moved[:count] -= values[:count, None] * rows[:count]
        residuals = np.linalg.norm(moved[:count], axis=1)
        if callback is not None:
            callback(action.columns - began, values[:count], residuals)
        scale = float(np.abs(values).max())
        return Ritz(values[:count], np.ascontiguousarray(rows[:count]), residuals,
                    joint_norm(moved[:count]), following, scale,
                    converged(residuals, tol, action.size, scale), action.columns - began, 0)
