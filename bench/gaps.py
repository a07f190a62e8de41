"""PCA of rows with missing cells, by everybody to one and the same likelihood.

Each ends no more than GAP nats a cell below the largest likelihood known; how many steps that takes
is its own affair. The result is (loadings, mean, noise).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import fastdr
from bench.contestants import OURS, Contestant
from bench.data import Inputs

AXES = 10
SHARE = 0.1  # of cells that are missing
GAP = 1e-9
MOST = 3000  # steps


def inputs(rows: int, columns: int, dtype: str) -> Inputs:
    """Rows near AXES axes with noise, cells missing at random."""
    rng = np.random.default_rng([3, rows, columns])
    turn = np.linalg.qr(rng.standard_normal((columns, AXES)))[0]
    X = rng.standard_normal((rows, AXES)) * np.linspace(4, 1.5, AXES) @ turn.T
    X += rng.standard_normal(X.shape)
    X[rng.random(X.shape) < SHARE] = np.nan
    return Inputs(X.astype(dtype), k=AXES)


def likely(pca: Any) -> Any:
    """Return the parameters with divisor n, which have the likelihood that is maximised."""
    share = pca.report_["divisor"] / pca.report_["weight"]
    sizes = np.sqrt((pca.explained_variance_ - pca.noise_variance_) * share)
    return pca.components_.T * sizes, pca.mean_, pca.noise_variance_ * share


def numpy_step(X: Any, seen: Any, point: Any) -> tuple[float, Any]:
    """Return the log-likelihood of (loadings, mean, noise), and where a step of EM leads.

    `X` has 0 where `seen` has: all rows at once, in products and LAPACK's batches.
    """
    loadings, mean, noise = point
    rows, axes = len(X), loadings.shape[1]
    squares = np.einsum("ja,jb->jab", loadings, loadings).reshape(len(loadings), -1)
    matrices = (seen @ squares).reshape(rows, axes, axes) + noise * np.eye(axes)
    inverses = np.linalg.inv(matrices)
    gaps = (X - mean) * seen
    z = np.einsum("iab,ib->ia", inverses, gaps @ loadings)
    gaps -= z @ loadings.T * seen
    misfit = np.einsum("ij,ij->i", gaps, gaps)
    cells = seen.sum(axis=1)
    value = -0.5 * float(np.sum(
        cells * np.log(2 * np.pi) + (cells - axes) * np.log(noise)
        + np.linalg.slogdet(matrices)[1] + misfit / noise + np.einsum("ia,ia->i", z, z)))
    second = np.empty((rows, axes + 1, axes + 1))
    second[:, :axes, :axes] = noise * inverses + z[:, :, None] * z[:, None, :]
    second[:, axes, :axes] = second[:, :axes, axes] = z
    second[:, axes, axes] = 1
    sums = (seen.T @ second.reshape(rows, -1)).reshape(-1, axes + 1, axes + 1)
    sides = X.T @ np.column_stack([z, np.ones(rows)])
    columns = np.linalg.solve(sums, sides[:, :, None])[:, :, 0]
    rest = (np.einsum("ij,ij->", X, X) - 2 * np.einsum("ja,ja->", columns, sides)
            + np.einsum("ja,jab,jb->", columns, sums, columns))
    return value, (columns[:, :axes], columns[:, axes], float(rest) / cells.sum())


def best(inputs: Inputs) -> float:
    """Return the largest likelihood known, a cell."""

    def compute() -> float:
        pca = fastdr.PCA(inputs.k, missing="em", tol=1e-10).fit(inputs.X)
        return float(pca.report_["log_likelihood"]) / np.count_nonzero(~np.isnan(inputs.X))

    return inputs.once("best", compute)


def _ours(inputs: Inputs) -> Callable[[], Any]:
    return lambda: likely(fastdr.PCA(inputs.k, missing="em", tol=1e-5).fit(inputs.X))


def _numpy(inputs: Inputs) -> Callable[[], Any]:
    wanted = best(inputs) - GAP

    def run() -> Any:
        X, seen = np.nan_to_num(inputs.X), (~np.isnan(inputs.X)).astype(float)
        mean = X.sum(axis=0) / seen.sum(axis=0)
        filled = (X - mean) * seen
        values, vectors = np.linalg.eigh(filled.T @ filled / len(X))
        noise = values[:-inputs.k].mean()
        sizes = np.sqrt(values[-inputs.k:] - noise)
        point = vectors[:, -inputs.k:] * sizes, mean, noise
        for _ in range(MOST):
            value, following = numpy_step(X, seen, point)
            if value / seen.sum() >= wanted:
                return point
            point = following
        return point

    return run


MISSING = (Contestant(OURS, _ours),
           Contestant("NumPy, EM for all rows at once", _numpy, "numpy"))


def gap(inputs: Inputs, result: Any) -> float:
    """Return how far the likelihood lies below the largest known, in nats a cell."""
    X, seen = np.nan_to_num(inputs.X), (~np.isnan(inputs.X)).astype(float)
    return max(0.0, best(inputs) - numpy_step(X, seen, result)[0] / float(seen.sum()))
