"""Weights are frequencies wherever rows have them: two is the row twice, zero is no row."""

import numpy as np
import pytest

import fastdr

ROWS, FEATURES = 120, 6


def made(rows=ROWS):
    """Rows of three classes, labels, and weights of which a third are zero."""
    rng = np.random.default_rng(5)
    y = np.arange(rows) % 3
    sources = rng.laplace(size=(rows, FEATURES)) + 0.1 * y[:, None]
    return sources @ rng.standard_normal((FEATURES, FEATURES)), y, rng.integers(0, 3, rows)


def covered(make):
    """Return a fit, from rows, labels and weights to what the model has."""
    def fitted(X, y, weights):
        model = make().fit(X, y, sample_weight=weights)
        return [getattr(model, name) for name in
                ("explained_variance_", "noise_variance_", "mean_", "n_samples_", "scale_")
                if getattr(model, name, None) is not None] + [np.abs(model.components_)]
    return fitted


def incremental(X, y, weights):
    stream = fastdr.IncrementalPCA(3)
    for start in range(0, len(X), 40):
        part = slice(start, start + 40)
        if weights is None or weights[part].any():
            stream.partial_fit(X[part], sample_weight=None if weights is None else weights[part])
    return [stream.explained_variance_, stream.mean_, stream.n_samples_, stream.var_,
            np.abs(stream.components_)]


def discriminant(**given):
    def fitted(X, y, weights):
        lda = fastdr.LinearDiscriminantAnalysis(**given).fit(X, y, sample_weight=weights)
        return [lda.priors_, lda.means_, lda.coef_, lda.intercept_]
    return fitted


def class_moments(X, y, weights):
    found = fastdr.ClassMoments.of(X, y, weights)
    return [found.weights, found.means, found.within]


def moments(X, y, weights):
    found = fastdr.moments(X, weights)
    return [found.weight, found.mean, found.scatter, found.covariance(), found.variances()]


def ica(X, y, weights):
    found = fastdr.FastICA(tol=1e-9).fit(X, sample_weight=weights)
    return [found.mean_, np.abs(found.components_)]


# What takes weights joins with one line here: a fit, and how near two iterations of it end.
TABLE = {
    "PCA": (covered(lambda: fastdr.PCA(3)), 1e-11),
    "PCA lanczos": (covered(lambda: fastdr.PCA(3, svd_solver="lanczos", tol=1e-13)), 1e-11),
    "PCA svd": (covered(lambda: fastdr.PCA(3, svd_solver="svd")), 1e-11),
    "PCA whiten": (covered(lambda: fastdr.PCA(3, standardize=True, whiten=True)), 1e-11),
    "PCA mean": (covered(lambda: fastdr.PCA(3, mean=np.ones(FEATURES))), 1e-11),
    "PCA em": (covered(lambda: fastdr.PCA(2, missing="em", tol=1e-11)), 1e-8),
    "IncrementalPCA": (incremental, 1e-11),
    "LDA": (discriminant(), 1e-11),
    "LDA shrinkage": (discriminant(shrinkage="auto"), 1e-11),
    "LDA lsqr": (discriminant(solver="lsqr"), 1e-11),
    "ClassMoments": (class_moments, 1e-11),
    "moments": (moments, 1e-11),
    "covariance": (lambda X, y, weights: [fastdr.covariance(X, sample_weight=weights)], 1e-11),
    "FastICA": (ica, 1e-6),
}


@pytest.fixture(params=TABLE, ids=str)
def fit(request):
    """A function from rows, labels and weights to arrays, its tolerance, and data for it."""
    X, y, weights = made(2000 if request.param == "FastICA" else ROWS)
    if request.param == "PCA em":
        X[np.arange(X.size).reshape(X.shape) % 7 == 3] = np.nan
    return *TABLE[request.param], X, y, weights


def assert_same(found, expected, rtol):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=rtol * np.abs(other).max())


def test_whole_weights_are_rows_repeated(fit):
    fitted, rtol, X, y, weights = fit
    repeated = fitted(np.repeat(X, weights, axis=0), np.repeat(y, weights), None)
    assert_same(fitted(X, y, weights.astype(float)), repeated, rtol)


def test_rows_of_weight_zero_are_absent_whatever_they_hold(fit):
    fitted, rtol, X, y, weights = fit
    some = weights > 0
    expected = fitted(X[some], y[some], weights[some] / 0.7)
    X[~some] = 1e4 * np.random.default_rng(8).standard_normal((np.count_nonzero(~some), FEATURES))
    assert_same(fitted(X, y, weights / 0.7), expected, rtol)


def test_a_class_of_weight_zero_is_absent(fit):
    fitted, rtol, X, y, _ = fit
    found = fitted(X, y, (y > 0) * 1.0)
    assert_same(found, fitted(X[y > 0], y[y > 0], None), rtol)


def test_weights_of_one_are_no_weights(fit):
    fitted, rtol, X, y, _ = fit
    assert_same(fitted(X, y, np.ones(len(X))), fitted(X, y, None), rtol)


@pytest.mark.parametrize("missing", [None, "em"])
def test_a_large_total_weight_makes_no_model_singular(missing):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 4)) * [1, 1, 1e-4, 1e-4]
    X[0, 0] = X[0, 0] if missing is None else np.nan
    plain = fastdr.PCA(2, missing=missing).fit(X, sample_weight=np.full(200, 2.0))
    heavy = fastdr.PCA(2, missing=missing).fit(X, sample_weight=np.full(200, 4e11))
    assert heavy.n_samples_ == 200 * 4e11
    assert heavy.score(X) == pytest.approx(plain.score(X), abs=0.01)


def test_reliability_weights_are_frequencies_of_another_sum():
    X, _, _ = made()
    trust = np.random.default_rng(1).random(ROWS)
    expected = np.linalg.eigvalsh(fastdr.moments(X, trust).covariance(kind="reliability"))[::-1]
    for weights in (trust, 7.5 * trust):
        worth = weights * weights.sum() / (weights**2).sum()
        pca = fastdr.PCA().fit(X, sample_weight=worth)
        np.testing.assert_allclose(pca.explained_variance_, expected, rtol=1e-12)
    plain = fastdr.PCA().fit(X, sample_weight=trust)
    np.testing.assert_allclose(plain.explained_variance_ratio_, pca.explained_variance_ratio_,
                               rtol=1e-12)
