"""The power method on a block: subspace iteration with a shift that rises as it converges."""

from __future__ import annotations

import math

import numpy as np
from numpy.random import Generator

from fastdr.actions import Action, images
from fastdr.lanczos import BLOCK, Callback, Ritz, rounding
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
            moved = images(action, np.ascontiguousarray(rows))
            values, turn = np.linalg.eigh((rows @ moved.T + moved @ rows.T) / 2)
            values, turn = values[::-1], turn[:, ::-1]
            rows, moved = turn.T @ rows, turn.T @ moved
            scale = float(np.abs(values).max())
            floor = rounding(size, np.dtype(np.float64)) * scale
            if values[-1] < -floor:
                raise ValueError(f"C is not positive semi-definite: it has an eigenvalue of at "
                                 f"most {math.ldexp(values[-1], action.exponent):g}, and the "
                                 "power method finds the largest magnitude; use "
                                 "method='lanczos'.")
            left = moved - values[:, None] * rows
            residuals = np.linalg.norm(left[:count], axis=1)
            if callback is not None:
                callback(action.columns - began, values[:count], residuals)
            converged = bool((residuals <= max(tol * scale, floor)).all())
            if converged or action.columns - began + width > budget:
                break
            rows = np.linalg.qr((moved - values[-1] / 2 * rows).T)[0].T
    gram = left[:count] @ left[:count].T
    spread = math.sqrt(max(0.0, float(np.linalg.eigvalsh(gram)[-1])))
    following = float(values[count]) if count < len(values) else -math.inf
    return Ritz(values[:count], np.ascontiguousarray(rows[:count]), residuals, spread, following,
                scale, converged, action.columns - began, 0)
