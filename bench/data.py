"""Seeded, realistic data for the benchmarks, made in blocks so that nothing but the data stays.

A matrix has 16 factors of decaying strength over noise whose scale decays from column to column,
and every column stands two to five standard deviations away from zero: a covariance has to
centre, yet an uncentred product is still meaningful work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

FACTORS = 16
HEAD_ROWS = 4096
BLOCK_ELEMENTS = 1 << 20


@dataclass
class Inputs:
    """What every contestant of a case is given, and what is known about it.

    X is the data (n, d), k a number of components, V a block of columns (d, b), mean the column
    means (d,) where a case takes them as given, Z scores (n, k), y labels of classes (n,).
    """

    X: Any
    k: int = 0
    V: Any = None
    mean: Any = None
    Z: Any = None
    y: Any = None
    known: dict[str, Any] = field(default_factory=dict)

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return what `compute` gave the first time it was asked for under `name`."""
        if name not in self.known:
            self.known[name] = compute()
        return self.known[name]


def matrix(rows: int, columns: int, dtype: str, seed: int = 0) -> Any:
    """Return the (rows, columns) matrix described above; u1 is scaled to mean 128 ± 32."""
    rng = np.random.default_rng([seed, rows, columns])
    work = np.float64 if dtype == "f8" else np.float32
    strength = 4 * 0.75 ** np.arange(min(FACTORS, columns))
    loadings = rng.standard_normal((len(strength), columns)) * strength[:, None]
    noise = np.geomspace(1.0, 0.1, columns)
    deviation = np.sqrt((loadings**2).sum(0) + noise**2)
    offset = rng.uniform(2, 5, columns) * rng.choice([-1.0, 1.0], columns) * deviation
    if dtype == "u1":
        loadings, noise, offset = loadings * 32 / deviation, noise * 32 / deviation, 128.0
    loadings, noise, offset = (np.asarray(part, work) for part in (loadings, noise, offset))
    X = np.empty((rows, columns), dtype)
    step = max(1, BLOCK_ELEMENTS // columns)
    for start in range(0, rows, step):
        size = min(step, rows - start)
        block = rng.standard_normal((size, columns), dtype=np.float32).astype(work, copy=False)
        block *= noise
        block += rng.standard_normal((size, len(strength)), dtype=np.float32) @ loadings
        block += offset
        X[start : start + size] = block if dtype != "u1" else np.clip(np.rint(block), 0, 255)
    return X


def plain(rows: int, columns: int, dtype: str) -> Inputs:
    return Inputs(matrix(rows, columns, dtype))


def with_components(k: int) -> Callable[[int, int, str], Inputs]:
    return lambda rows, columns, dtype: Inputs(matrix(rows, columns, dtype), k)


def decaying(k: int) -> Callable[[int, int, str], Inputs]:
    """Rows whose deviations fall like the root of the index, at an offset, for `k` axes."""

    def make(rows: int, columns: int, dtype: str) -> Inputs:
        rng = np.random.default_rng([4, rows, columns])
        deviations = np.asarray(np.arange(1.0, columns + 1) ** -0.5, dtype)
        X = np.empty((rows, columns), dtype)
        step = max(1, BLOCK_ELEMENTS // columns)
        for start in range(0, rows, step):
            size = min(step, rows - start)
            X[start : start + size] = rng.standard_normal((size, columns), dtype=np.float32)
            X[start : start + size] *= deviations
        X += np.asarray(rng.uniform(2, 5, columns), dtype) * deviations
        return Inputs(X, min(k, rows - 1, columns - 1))

    return make


def with_covariance(k: int) -> Callable[[int, int, str], Inputs]:
    """Take the covariance of such rows, twice as many as columns, as the matrix X itself."""

    def make(rows: int, columns: int, dtype: str) -> Inputs:
        order = min(rows, columns)
        A = decaying(k)(2 * order, order, dtype).X
        A -= A.mean(0)
        return Inputs(A.T @ A / (2 * order - 1), min(k, order - 1))

    return make


def with_scores(k: int) -> Callable[[int, int, str], Inputs]:
    """Scores (rows, k) to reconstruct from; X holds only the rows that the model is fitted on."""

    def make(rows: int, columns: int, dtype: str) -> Inputs:
        X = matrix(min(rows, HEAD_ROWS), columns, dtype)
        return Inputs(X, k, Z=matrix(rows, k, dtype, seed=1))

    return make


def with_columns(rows: int, columns: int, dtype: str) -> Inputs:
    """One block of columns to multiply by: 64 bytes a row, that is 8 of f8 or 16 of f4."""
    X = matrix(rows, columns, dtype)
    V = np.random.default_rng(2).standard_normal((columns, 64 // X.itemsize)).astype(X.dtype)
    return Inputs(X, V=V, mean=X.mean(0, dtype=np.float64))


def with_mean(rows: int, columns: int, dtype: str) -> Inputs:
    X = matrix(rows, columns, dtype)
    return Inputs(X, mean=X.mean(0, dtype=np.float64))


def mixture(rows: int, columns: int, dtype: str) -> Inputs:
    """Independent sources, each other one peaked and flat, mixed and far from zero."""
    rng = np.random.default_rng([4, rows, columns])
    X = rng.laplace(size=(rows, columns))
    X[:, 1::2] = rng.uniform(-2.4, 2.4, (rows, columns // 2))
    return Inputs((X @ rng.standard_normal((columns, columns)) + 10).astype(dtype))


def with_classes(classes: int) -> Callable[[int, int, str], Inputs]:
    """Classes of equal covariance whose means lie a fifth of the column's deviation apart."""

    def make(rows: int, columns: int, dtype: str) -> Inputs:
        X = matrix(rows, columns, dtype)
        rng = np.random.default_rng(3)
        y = rng.permutation(np.arange(rows) % classes)
        means = (0.2 * X[:HEAD_ROWS].std(0) * rng.standard_normal((classes, columns))).astype(dtype)
        for code in range(classes):
            X[y == code] += means[code]
        return Inputs(X, y=y)

    return make


def digits(k: int) -> Callable[[int, int, str], Inputs]:
    """Take the first rows of scikit-learn's handwritten digits (1797, 64)."""

    def make(rows: int, columns: int, dtype: str) -> Inputs:
        from sklearn.datasets import load_digits

        X = load_digits().data[:rows, :columns]
        return Inputs(np.ascontiguousarray(X, dtype), k)

    return make
