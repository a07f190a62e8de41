"""How wrong a result is, against references computed once on the same data.

References come from two passes over blocks of rows: float64 means, then products of centred
float64 blocks added in long double; per-row results are checked on a sample of rows in long
double throughout. Every measure is a relative error, 0 is perfect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench.data import Inputs

BLOCK_ELEMENTS = 1 << 19
SAMPLE_ROWS = 256


def centred_blocks(inputs: Inputs) -> Iterator[Any]:
    """Yield the centred rows in float64, block by block."""
    X = inputs.X
    step = max(16, min(1024, BLOCK_ELEMENTS // X.shape[1]))
    starts = range(0, len(X), step)

    def mean() -> Any:
        total = np.zeros(X.shape[1], np.longdouble)
        for start in starts:
            total += X[start : start + step].sum(0, dtype=np.float64)
        return np.asarray(total / len(X), np.float64)

    centre = inputs.once("mean", mean)
    for start in starts:
        yield np.asarray(X[start : start + step], np.float64) - centre


def total(blocks: Iterator[Any], product: Callable[[Any], Any]) -> Any:
    """Sum of `product` over blocks, accumulated in long double, returned as float64."""
    result: Any = np.longdouble(0)
    for block in blocks:
        result = result + product(block)
    return np.asarray(result, np.float64)


def covariance(inputs: Inputs) -> Any:
    def compute() -> Any:
        return total(centred_blocks(inputs), lambda A: A.T @ A) / (len(inputs.X) - 1)

    return inputs.once("covariance", compute)


def covariance_error(inputs: Inputs, result: Any) -> float:
    """Largest error of an entry, in units of the two columns' standard deviations.

    A pair (mean, product) is an uncentred result: its covariance is formed here, in long double.
    """
    if isinstance(result, tuple):
        mean, product = (np.asarray(part, np.longdouble) for part in result)
        n = len(inputs.X)
        result = np.asarray((product - n * np.outer(mean, mean)) / (n - 1), np.float64)
    exact = covariance(inputs)
    deviation = np.sqrt(np.diagonal(exact))
    difference = np.abs(result - exact)
    difference /= deviation
    difference /= deviation[:, None]
    return float(difference.max())


def spectrum(inputs: Inputs) -> Any:
    """All eigenvalues of the covariance, descending, from its smaller side."""

    def compute() -> Any:
        if inputs.X.shape[0] >= inputs.X.shape[1]:
            return np.linalg.eigvalsh(covariance(inputs))[::-1]
        A = np.concatenate(list(centred_blocks(inputs)))
        return np.linalg.eigvalsh(A @ A.T)[::-1] / (len(A) - 1)

    return inputs.once("spectrum", compute)


def fit_error(inputs: Inputs, result: Any) -> float:
    """Largest of |λ - λ_exact| and ‖C v - λ v‖, relative to the largest eigenvalue."""
    variances, components = (np.asarray(part, np.float64) for part in result)
    exact = spectrum(inputs)
    values = np.abs(variances - exact[: len(variances)]).max()
    image = total(centred_blocks(inputs), lambda A: A.T @ (A @ components.T))
    image /= len(inputs.X) - 1
    residual = np.linalg.norm(image - components.T * variances, axis=0).max()
    return float(max(values, residual) / exact[0])


def eigen_error(inputs: Inputs, result: Any) -> float:
    """Largest of |λ - λ_exact| and ‖C v - λ v‖, relative to the largest eigenvalue of X = C."""
    values, vectors = (np.asarray(part, np.float64) for part in result)
    exact = inputs.once("eigenvalues", lambda: np.linalg.eigvalsh(inputs.X)[::-1])
    residual = np.linalg.norm(inputs.X @ vectors - vectors * values, axis=0).max()
    return float(max(np.abs(values - exact[: len(values)]).max(), residual) / exact[0])


def sampled(rows: int) -> Any:
    return np.unique(np.linspace(0, rows - 1, min(rows, SAMPLE_ROWS)).astype(np.intp))


def centred_sample(X: Any, mean: Any) -> tuple[Any, Any]:
    rows = sampled(len(X))
    return rows, np.asarray(X[rows], np.longdouble) - np.asarray(mean, np.longdouble)


def transform_error(inputs: Inputs, result: Any) -> float:
    """Largest error of a row of scores, relative to the length of the centred row."""
    scores, components, mean = result
    rows, A = centred_sample(inputs.X, mean)
    difference = scores[rows] - A @ np.asarray(components, np.longdouble).T
    return float((_lengths(difference) / _lengths(A)).max())


def reconstruct_error(inputs: Inputs, result: Any) -> float:
    """Largest error of a reconstructed row, relative to the length of the row."""
    rebuilt, components, mean = result
    rows = sampled(len(inputs.Z))
    exact = np.asarray(inputs.Z[rows], np.longdouble) @ np.asarray(components, np.longdouble)
    exact += mean
    return float((_lengths(rebuilt[rows] - exact) / _lengths(exact)).max())


def row_error_error(inputs: Inputs, result: Any) -> float:
    """Largest relative error of a row's squared distance to its reconstruction."""
    distances, components, mean = result
    rows, A = centred_sample(inputs.X, mean)
    W = np.asarray(components, np.longdouble)
    exact = ((A - (A @ W.T) @ W) ** 2).sum(1)
    return float((np.abs(distances[rows] - exact) / exact).max())


def gram_apply_error(inputs: Inputs, result: Any) -> float:
    """Largest error of a column of AᵀAV, relative to the length of the column."""

    def compute() -> Any:
        V = np.asarray(inputs.V, np.float64)
        return total(centred_blocks(inputs), lambda A: A.T @ (A @ V))

    exact = inputs.once("gram_apply", compute)
    return float((_lengths((result - exact).T) / _lengths(exact.T)).max())


def gram_error(inputs: Inputs, result: Any) -> float:
    """Largest error of an inner product of centred rows, in units of the rows' lengths."""

    def compute() -> Any:
        A = np.concatenate(list(centred_blocks(inputs)))
        step = max(1, BLOCK_ELEMENTS // len(A))
        blocks = (A[:, start : start + step] for start in range(0, A.shape[1], step))
        return total(blocks, lambda part: part @ part.T)

    exact = inputs.once("gram", compute)
    length = np.sqrt(np.diagonal(exact))
    return float((np.abs(result - exact) / np.outer(length, length)).max())


def discriminant_error(inputs: Inputs, result: Any) -> float:
    """Relative error of the coefficients S⁺ (m_c - m) of the classes, S the pooled covariance.

    Coefficients of different origin differ by a vector common to all classes; it is taken off.
    """
    classes, codes = np.unique(inputs.y, return_inverse=True)
    share = np.bincount(codes) / len(codes)

    def compute() -> Any:
        X = inputs.X
        sums = [X[codes == code].sum(0, dtype=np.longdouble) for code in range(len(classes))]
        means = np.array(sums) / np.bincount(codes)[:, None]
        apart = np.asarray(means - share @ means, np.float64)
        near = np.asarray(means, np.float64)
        if X.shape[0] >= X.shape[1]:
            step = max(16, BLOCK_ELEMENTS // X.shape[1])
            parts = (slice(start, start + step) for start in range(0, len(X), step))
            within = total((X[part] - near[codes[part]] for part in parts), lambda A: A.T @ A)
            return np.linalg.solve(within / len(X), apart.T).T
        A = (X - near[codes]) / np.sqrt(len(X))
        scale = np.sqrt((A * A).sum(0))
        _, sizes, axes = np.linalg.svd(A / scale, full_matrices=False)
        axes = axes[sizes > 1e-4] / sizes[sizes > 1e-4, None]
        return (apart / scale @ axes.T) @ axes / scale

    exact = inputs.once("discriminant", compute)
    found = np.asarray(result, np.float64)
    found = found - share @ found
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def _lengths(rows: Any) -> Any:
    return np.sqrt((rows * rows).sum(1))


def unmixing_error(inputs: Inputs, result: Any) -> float:
    """Largest entry of the relative gradient of log cosh at the sources, in unit variance."""
    Y = (inputs.X - inputs.X.mean(0)) @ np.asarray(result, np.float64).T
    Y /= Y.std(0)
    g = np.tanh(Y)
    G = g.T @ Y / len(Y)
    signed = np.sign((1 - g * g).mean(0) - np.diagonal(G))[:, None] * G
    return float(np.abs(signed - signed.T).max() / 2)
