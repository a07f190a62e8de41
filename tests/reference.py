"""Slow, obvious twins of each kernel and formula, in long double or exact arithmetic."""

from math import fsum

import mpmath
import numpy as np

Wide = np.longdouble


def wide(values):
    """Return `values` in long double; integers and halves convert exactly."""
    return np.asarray(values).astype(Wide)


def weights_of(X, sample_weight=None):
    """Row weights in long double, ones by default."""
    return np.ones(len(X), Wide) if sample_weight is None else wide(sample_weight)


def column_mean(X, sample_weight=None):
    """Weighted mean of each column: (sum of w x) / (sum of w), about a pivot row."""
    X, weights = wide(X), weights_of(X, sample_weight)
    return X[0] + (weights[:, None] * (X - X[0])).sum(axis=0) / weights.sum()


def scatter(X, sample_weight=None, mean=None):
    """Sum of w (x - mean)(x - mean)^T; the mean of the rows unless one is given."""
    weights = weights_of(X, sample_weight)
    centre = column_mean(X, sample_weight) if mean is None else wide(mean)
    centred = wide(X) - centre
    return (weights[:, None] * centred).T @ centred


def integer_scatter(X, sample_weight=None):
    """Scatter of small integers, exact but for one division: (n XᵀX - ssᵀ) / n.

    Every product and sum stays below 2^53, so float64 BLAS makes no rounding at all.
    """
    X = np.asarray(X).astype(np.float64)
    weights = np.ones(len(X)) if sample_weight is None else np.asarray(sample_weight, float)
    square = (X * weights[:, None]).T @ X
    total, sums = weights.sum(), weights @ X
    assert total * np.abs(square).max(initial=0) < 2.0**53, "reference would round"
    return (total * square - np.outer(sums, sums)) / total


def centred(X, mean=None, scale=None):
    """(X - mean) / scale in long double."""
    X = wide(X)
    X = X if mean is None else X - wide(mean)
    return X if scale is None else X / wide(scale)


def project(X, components, mean=None, scale=None):
    """((X - mean) / scale) @ components.T."""
    return centred(X, mean, scale) @ wide(components).T


def reconstruct(Z, components, mean=None, scale=None):
    """(Z @ components) * scale + mean."""
    rows = wide(Z) @ wide(components)
    rows = rows if scale is None else rows * wide(scale)
    return rows if mean is None else rows + wide(mean)


def row_errors(X, components, mean=None, scale=None):
    """Squared distance of each row to its reconstruction."""
    scores = project(X, components, mean, scale)
    residual = wide(X) - reconstruct(scores, components, mean, scale)
    return (residual**2).sum(axis=1)


def gram(X, mean=None, scale=None):
    """Inner products of the centred, scaled rows."""
    rows = centred(X, mean, scale)
    return rows @ rows.T


def gram_apply(X, V, mean=None, scale=None):
    """A^T (A V) with A = (X - mean) / scale."""
    A = centred(X, mean, scale)
    return A.T @ (A @ wide(V))


def exact_spectrum(X, sample_weight=None, digits=80):
    """Eigenvalues of the scatter, descending, in `digits` digits: for a few columns only.

    Floats are rationals, so the scatter itself is exact to the working precision.
    """
    X = np.asarray(X)
    rows, features = X.shape
    weights = [1] * rows if sample_weight is None else [float(w) for w in sample_weight]
    with mpmath.workdps(digits):
        columns = [[mpmath.mpf(float(v)) for v in X[:, j]] for j in range(features)]
        total = mpmath.fsum(weights)
        for j, column in enumerate(columns):
            mean = mpmath.fdot(weights, column) / total
            columns[j] = [value - mean for value in column]
        S = mpmath.matrix(features)
        for i in range(features):
            weighted = [w * a for w, a in zip(weights, columns[i], strict=True)]
            for j in range(i, features):
                S[i, j] = S[j, i] = mpmath.fdot(weighted, columns[j])
        values = mpmath.eigsy(S, eigvals_only=True)
        return np.array(sorted((float(v) for v in values), reverse=True))


def principal(X, k=None):
    """Variances (n - 1) and axes of the rows by SVD of the long-double-centred matrix."""
    centre = np.asarray(wide(X) - column_mean(X), np.float64)
    _, sizes, axes = np.linalg.svd(centre, full_matrices=False)
    return sizes[:k] ** 2 / (len(centre) - 1), axes[:k]


def log_likelihood(X, mean, covariance):
    """Log-density of each row under a normal law with this mean and covariance, by Cholesky."""
    residual = np.asarray(centred(X, mean), np.float64)
    lower = np.linalg.cholesky(np.asarray(covariance, np.float64))
    white = np.linalg.solve(lower, residual.T)
    logdet = 2 * fsum(np.log(np.diagonal(lower)))
    return -0.5 * ((white**2).sum(axis=0) + logdet + residual.shape[1] * np.log(2 * np.pi))


def signs_fixed(axes):
    """Flip each axis so that its entry of largest magnitude (first among ties) is positive."""
    axes = np.asarray(axes)
    size = np.abs(axes)
    nearly = size >= size.max(axis=1, keepdims=True) * (1 - 1e-6)
    lead = np.argmax(nearly, axis=1)
    return axes * np.sign(axes[np.arange(len(axes)), lead])[:, None]


def contrast(name, y, a):
    """Return g, g' and G of a contrast function at y, float64."""
    if name == "logcosh":
        t = np.tanh(a * y)
        return t, a * (1 - t * t), (np.logaddexp(a * y, -a * y) - np.log(2)) / a
    if name == "exp":
        e = np.exp(-y * y / 2)
        return y * e, (1 - y * y) * e, -np.expm1(-y * y / 2)
    return y**3, 3 * y**2, y**4 / 4


def relative_gradient(Y, name="logcosh", a=1.0):
    """Return the antisymmetric part of diag(s) E g(y) yᵀ for sources in the rows of Y."""
    g, slope, _ = contrast(name, Y, a)
    G = g.T @ Y / len(Y)
    signed = np.sign(slope.mean(axis=0) - np.diagonal(G))[:, None] * G
    return (signed - signed.T) / 2


def amari(P):
    """Return the distance of P from a scaled permutation, 0 to 1 (Amari, Cichocki & Yang 1996)."""
    P = np.abs(P)
    rows = (P.sum(axis=1) / P.max(axis=1) - 1).sum()
    columns = (P.sum(axis=0) / P.max(axis=0) - 1).sum()
    return (rows + columns) / (2 * len(P) * (len(P) - 1))


NETWORK_ACTIVATIONS = {
    "identity": (lambda z: z, np.ones_like),
    "relu": (lambda z: np.maximum(z, 0), lambda z: (z > 0).astype(z.dtype)),
    "tanh": (np.tanh, lambda z: 1 / np.cosh(z) ** 2),
    "sigmoid": (lambda z: 1 / (1 + np.exp(-z)), lambda z: 1 / (2 + 2 * np.cosh(z))),
    "gelu": (lambda z: z * normal_distribution(z), lambda z: normal_distribution(z) + z * np.exp(
        -(z**2) / 2) / np.sqrt(2 * np.pi)),
}


def normal_distribution(z):
    """P(N <= z) for a standard normal N, float64."""
    from scipy.special import ndtr
    return ndtr(np.asarray(z, np.float64))


def network_values(weights, biases, activations, h):
    """Values before and after each activation, from rows h on."""
    before, after = [], [h]
    for w, b, name in zip(weights, biases, activations, strict=True):
        before.append(after[-1] @ w.T + b)
        after.append(NETWORK_ACTIVATIONS[name][0](before[-1]))
    return before, after


def network_gradient(weights, biases, activations, fed, target):
    """Mean squared error of an entry; its derivative by weights and biases (backpropagation)."""
    before, after = network_values(weights, biases, activations, fed)
    residual = after[-1] - target
    delta = 2 * residual / residual.size
    by_weights, by_biases = [], []
    for layer in reversed(range(len(weights))):
        delta = delta * NETWORK_ACTIVATIONS[activations[layer]][1](before[layer])
        by_weights.insert(0, delta.T @ after[layer])
        by_biases.insert(0, delta.sum(axis=0))
        delta = delta @ weights[layer]
    return (residual**2).mean(), by_weights, by_biases


def weighted_scatter(X, mean, scale=1.0, weights=1.0):
    """B'W B of the rows B = (X - mean) / scale, in float64."""
    B = (np.asarray(X, np.float64) - mean) / scale
    return B.T @ (B * np.broadcast_to(weights, len(B))[:, None])


def run_graph(graph, rows):
    """Result of an ONNX graph for rows, through its bytes as another program would get it."""
    import onnxruntime
    session = onnxruntime.InferenceSession(graph.SerializeToString(),
                                           providers=["CPUExecutionProvider"])
    (given,), (result,) = session.get_inputs(), session.get_outputs()
    assert {given.name, result.name} == {"rows", "scores"}
    (found,) = session.run([result.name], {given.name: rows})
    assert found.shape[1:] == tuple(result.shape[1:])
    return found


def observed_log_likelihoods(X, loadings, mean, noise):
    """Log density of the observed cells of each row of probabilistic PCA, from its definition."""
    densities = []
    for row in np.asarray(X, float):
        seen = ~np.isnan(row)
        covariance = loadings[seen] @ loadings[seen].T + noise * np.eye(seen.sum())
        gap = row[seen] - mean[seen]
        sign, volume = np.linalg.slogdet(2 * np.pi * covariance)
        assert sign > 0
        densities.append(-0.5 * (volume + gap @ np.linalg.solve(covariance, gap)))
    return np.array(densities)


def conditional_rows(X, covariance, mean):
    """Rows with missing cells filled by their normal means given the others."""
    filled = np.array(X, float)
    for row in filled:
        gone = np.isnan(row)
        known = np.linalg.solve(covariance[np.ix_(~gone, ~gone)], row[~gone] - mean[~gone])
        row[gone] = mean[gone] + covariance[np.ix_(gone, ~gone)] @ known
    return filled


def expectation_step(X, loadings, mean, noise, weights):
    """One step of EM for probabilistic PCA, a row and a feature at a time; nothing is shared."""
    rows, features = X.shape
    axes = loadings.shape[1]
    seen = ~np.isnan(X)
    first, second = np.zeros((rows, axes + 1)), np.zeros((rows, axes + 1, axes + 1))
    for i in range(rows):
        part = loadings[seen[i]]
        spread = np.linalg.inv(np.eye(axes) + part.T @ part / noise)
        first[i] = [*(spread @ part.T @ (X[i, seen[i]] - mean[seen[i]]) / noise), 1]
        second[i] = np.outer(first[i], first[i])
        second[i, :axes, :axes] += spread
    columns = np.zeros((features, axes + 1))
    for j in range(features):
        i = seen[:, j]
        matrix = np.einsum("i,iab->ab", weights[i], second[i])
        columns[j] = np.linalg.solve(matrix, (weights[i] * X[i, j]) @ first[i])
    squares = (X**2 - 2 * X * (first @ columns.T)
               + np.einsum("ja,iab,jb->ij", columns, second, columns))
    noise = np.nansum(weights[:, None] * squares) / (weights @ seen.sum(axis=1))
    return columns[:, :axes], columns[:, axes], noise
