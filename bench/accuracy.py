"""How many digits of small singular values each way keeps.

Test matrices have known decay: singular values fall geometrically from 1 to `SMALLEST` between
random orthogonal factors. What counts as exact are the singular values of the rounded matrix,
from its Gram matrix in `DIGITS` digits, so that rounding the input is nobody's error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import fastdr

DIGITS = 80
SMALLEST = 1e-14


def _eigh(X: Any) -> Any:
    values = np.linalg.eigvalsh(X.T @ X)[::-1]
    return np.sqrt(np.maximum(values, 0.0))


def _fastdr(solver: str) -> Callable[[Any], Any]:
    """Singular values about a mean known to be zero, so that nothing is centred."""
    def run(X: Any) -> Any:
        model = fastdr.PCA(svd_solver=solver, mean=np.zeros(X.shape[1]))
        return model.fit(X).singular_values_

    return run


ROUTES: dict[str, Callable[[Any], Any]] = {
    "LAPACK eig(XᵀX)": _eigh,
    "LAPACK SVD": lambda X: np.linalg.svd(X, compute_uv=False),
    "fastdr lapack": _fastdr("lapack"),
    "fastdr svd": _fastdr("svd"),
}


def graded(rows: int, columns: int, seed: int, smallest: float = SMALLEST) -> Any:
    """Return a matrix whose singular values fall from 1 to `smallest`."""
    rng = np.random.default_rng([seed, rows, columns])
    U, V = (np.linalg.qr(rng.standard_normal((size, columns)))[0] for size in (rows, columns))
    return (U * np.geomspace(1.0, smallest, columns)) @ V.T


def exact(X: Any) -> list[Any]:
    """Return the singular values of X as mpmath numbers, descending."""
    import mpmath

    with mpmath.workdps(DIGITS):
        A = mpmath.matrix(X.tolist())
        values = mpmath.eigsy(A.T * A, eigvals_only=True)
        return sorted(map(mpmath.sqrt, values), reverse=True)


def measure(quick: bool) -> dict[str, Any]:
    """Return, for each route, the relative error of each value of each matrix, and σ₁/σᵢ."""
    rows, columns, seeds = (60, 16, 2) if quick else (300, 32, 6)
    ratios: list[float] = []
    errors: dict[str, list[float]] = {name: [] for name in ROUTES}
    for seed in range(seeds):
        X = graded(rows, columns, seed)
        values = exact(X)
        ratios += [float(values[0] / value) for value in values]
        for name, route in ROUTES.items():
            errors[name] += [float(abs(found - value) / value)
                             for found, value in zip(route(X).tolist(), values, strict=True)]
    return {"rows": rows, "columns": columns, "ratio": ratios, "error": errors}
