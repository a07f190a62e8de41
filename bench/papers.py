"""Published results beside ours: ``python -m bench.papers``, about a minute.

Matrices are diagonal: with a Gaussian start the results do not depend on their vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np

import fastdr
from bench.accuracy import ROUTES, exact, graded
from fastdr.actions import OperatorAction
from fastdr.dimension import fraction
from fastdr.lanczos import lanczos
from fastdr.power import randomized

Row = tuple[str, str, str]
TRIALS = 10


def diagonal(values: Any) -> OperatorAction:
    """Return the action of diag(values)."""
    return OperatorAction(lambda X: values[:, None] * X, len(values), np.dtype(np.float64))


def excess(sigma: Any, found: Any) -> float:
    """Return how much larger than the best the Frobenius error of a rank k approximation is."""
    k = len(found)
    total, best = float((sigma**2).sum()), float((sigma[k:] ** 2).sum())
    return math.sqrt(total - float(found.sum())) / math.sqrt(best) - 1


def single_vector_krylov() -> Iterator[Row]:
    """Meyer, Musco & Musco, SODA 2024: rank 50 of 1000 by block Krylov, no restart."""
    index = np.arange(1.0, 1001)
    for name, sigma, block, products, published in (
            ("i^-0.1", index**-0.1, 1, 244, 1.530e-3), ("i^-0.1", index**-0.1, 3, 300, 5.556e-4),
            ("i^-0.1", index**-0.1, 50, 800, 9.57e-6),
            ("1.01^(1-i)", 1.01 ** (1 - index), 1, 244, 2.600e-2),
            ("1.01^(1-i)", 1.01 ** (1 - index), 50, 800, 5.94e-10),
            ("i^-1.5", index**-1.5, 3, 237, 4.83e-6)):
        steps = round((products / block - 1) / 3) + 1
        errors = []
        for seed in range(TRIALS):
            with patch.dict("fastdr.lanczos.BLOCK", {8: block}):
                found = lanczos(diagonal(sigma**2), 50, tol=0.0, rng=np.random.default_rng(seed),
                                budget=steps * block, length=1000)
            errors.append(excess(sigma, found.values))
        yield (f"block Krylov, {name}, b={block}, {products} products", f"{published:.3e}",
               f"{np.median(errors):.3e}")


def subspace_iteration() -> Iterator[Row]:
    """Feng, Yu, Xie & Tang, TOMS 2024, figure 1: largest error of a value, k = 100, l = 150.

    Published are curves; the figures are those of its plain iteration at the same passes, as
    computed with another implementation.
    """
    sigma = np.arange(1.0, 1001) ** -0.5
    for passes, published in ((2, 5.1e-2), (4, 9.3e-3), (8, 4.0e-4), (14, 3.5e-6)):
        errors = []
        for seed in range(TRIALS):
            found = randomized(diagonal(sigma**2), 100, tol=0.0, oversamples=50, steps=passes,
                               rng=np.random.default_rng(seed))
            errors.append(np.abs(found.values - sigma[:100] ** 2).max() / sigma[100] ** 2)
        yield (f"subspace iteration, i^-0.5, {passes} steps, PVE", f"{published:.1e}",
               f"{np.median(errors):.1e}")


def blocks_and_power() -> Iterator[Row]:
    """Ding, Yu, Xie & Li, TOMS 2025 (farPCA), experiment 1: rank 200 of 1000, 10 blocks of 20.

    Published is the excess of the Frobenius error after p power steps, 200 (p + 1) columns of C,
    of randQB_EI and of farPCA; ours after 400 and 600 columns of block Lanczos.
    """
    rng = np.random.default_rng(0)
    dense = np.linalg.svd(rng.standard_normal((1000, 1000)), compute_uv=False)
    for name, sigma, published in (("normal numbers", dense, "7.2e-3|3.5e-3"),
                                   ("i^-0.5", np.arange(1.0, 1001) ** -0.5, "3.8e-3|2.0e-3")):
        for columns in (400, 600):
            errors = []
            for seed in range(3):
                with patch.dict("fastdr.lanczos.BLOCK", {8: 10}):
                    found = lanczos(diagonal(sigma**2), 200, tol=0.0, budget=columns,
                                    rng=np.random.default_rng(seed), length=1000)
                errors.append(excess(sigma, found.values))
            yield (f"{name}, p=5 (1200 columns), ours {columns}", published,
                   f"{np.median(errors):.1e}")


def fixed_precision() -> Iterator[Row]:
    """Yu, Gu & Li, SIMAX 2018: least rank whose relative Frobenius error is below a tolerance."""
    index = np.arange(1.0, 8001)
    spectra = (("j^-2", index**-2.0, ((1e-2, 15), (1e-4, 313))),
               ("e^(-j/7)", np.exp(-index / 7), ((1e-4, 65), (1e-5, 81))),
               ("1e-4 + 1/(1 + e^(j-30))", 1e-4 + 1 / (1 + np.exp(np.minimum(index - 30, 700))),
                ((1e-2, 32), (1.5e-3, 1587))))
    for name, sigma, wanted in spectra:
        for tolerance, published in wanted:
            values = sigma**2
            ours = fraction(values, float(values.sum()), 1.0, 1 - tolerance**2)
            yield f"rank for {tolerance:g}, {name}, n=8000", str(published), str(ours)


def duels() -> Iterator[Row]:
    """Compare on data that others got wrong: scikit-learn #20589 and #29534, faiss #773."""
    X = np.random.RandomState(12345).randn(100_000, 20)
    true = np.linalg.eigvalsh(np.cov(X, rowvar=False))[-1]
    found = fastdr.PCA(1).fit(X).explained_variance_[0]
    yield "scikit-learn #20589, first variance, relative error", "0", f"{abs(found / true - 1):.0e}"
    from sklearn.datasets import make_low_rank_matrix

    X = make_low_rank_matrix(1000, 10, effective_rank=2, tail_strength=0, random_state=0)
    scores = fastdr.PCA(whiten=True).fit_transform(X)
    worst = np.abs(np.cov(scores, rowvar=False) - np.eye(10)).max()
    yield "scikit-learn #29534, whitened covariance - I", "0", f"{worst:.0e}"
    X = np.array([[1e5 + 1, 1e5], [1e5, 1e5 + 1]], np.float32)
    axis = fastdr.PCA(1).fit(X).components_[0] * math.sqrt(2)
    yield "faiss #773, first axis times sqrt(2)", "(1, -1)", f"({axis[0]:.6g}, {axis[1]:.6g})"


def far_from_zero() -> Iterator[Row]:
    """Relative error of a covariance, 200 000 x 24, by mean / deviation: XᵀX - n mmᵀ and ours.

    In the precision of the rows; Chan, Golub & LeVeque (1983) bound the first by its square.
    """
    Z = np.random.default_rng(0).standard_normal((200_000, 24))
    for dtype in ("f4", "f8"):
        for offset in (0, 1e3, 1e5):
            X = (Z + offset).astype(dtype)
            A = X.astype(np.longdouble) - X.mean(axis=0, dtype=np.longdouble)
            true = np.stack([(A * column[:, None]).sum(axis=0) for column in A.T]) / (len(A) - 1)
            mean = X.mean(axis=0, dtype=dtype)
            textbook = (X.T @ X - len(X) * np.outer(mean, mean)) / (len(X) - 1)
            wrong, ours = (float(np.linalg.norm((found - true).astype(float))
                                 / np.linalg.norm(true.astype(float)))
                           for found in (textbook, fastdr.covariance(X)))
            yield f"covariance, {dtype}, offset {offset:g}", f"{wrong:.0e}", f"{ours:.0e}"


def small_values() -> Iterator[Row]:
    """Relative error of the smallest singular value, 400 x 40, by condition: eig(XᵀX) and ours."""
    for power in (3, 6, 9, 12, 15):
        X = graded(400, 40, 0, 10.0**-power)
        true = float(exact(X)[-1])
        wrong, ours = (abs(float(ROUTES[name](X)[-1]) / true - 1)
                       for name in ("LAPACK eig(XᵀX)", "fastdr lapack"))
        yield f"smallest singular value, condition 1e{power}", f"{wrong:.0e}", f"{ours:.0e}"


def main() -> None:
    """Print the table."""
    groups: tuple[Callable[[], Iterator[Row]], ...] = (
        single_vector_krylov, subspace_iteration, blocks_and_power, fixed_precision, duels,
        far_from_zero, small_values)
    for group in groups:
        print(f"\n{(group.__doc__ or '').splitlines()[0]}")
        for what, published, ours in group():
            print(f"  {what:58} {published:>10} {ours:>12}", flush=True)


if __name__ == "__main__":
    main()
