"""Weights are frequencies wherever rows have them: two is the row twice, zero is no row."""

from fractions import Fraction
from functools import reduce
from operator import add

import numpy as np
import pytest
from reference import scatter
from scipy.sparse import csr_array

import fastdr
from fastdr.column_statistics import ColumnMoments, column_moments
from fastdr.scatter import middle, single_error
from fastdr.sparse import SparseSource, sparse_moments

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


def in_parts(X, weights, of):
    """The sum of moments `of` many parts, and the first are light as a whole."""
    return reduce(add, [of(X[i:i + 100], weights[i:i + 100]) for i in range(0, len(X), 100)])


LIGHT = {
    "covariance": lambda X, w: np.diagonal(fastdr.covariance(X, sample_weight=w)),
    "merged": lambda X, w: in_parts(X, w, fastdr.moments).variances(),
    "columns": lambda X, w: column_moments(X, w)[1] / (w.sum() - 1),
    "merged columns": lambda X, w: in_parts(X, w, ColumnMoments.of).squares / (w.sum() - 1),
    "sparse": lambda X, w: sparse_moments(SparseSource.of(csr_array(X)), w).scale**2,
}


@pytest.mark.parametrize("way", LIGHT)
@pytest.mark.parametrize("kind", ["f8", "f4"])
@pytest.mark.parametrize("where", [slice(300), slice(0, None, 50), slice(19_500)], ids=str)
def test_light_rows_far_from_the_others_cost_no_digits(rng, way, kind, where):
    X, weights = rng.standard_normal((20_000, 4)), np.ones(20_000)
    X[where] += 1e9
    weights[where] = 1e-24
    X = X.astype(kind)
    exact = np.diagonal(scatter(X, weights)).astype(float) / (weights.sum() - 1)
    single = kind == "f4" and way == "covariance"
    rtol = single_error(np.count_nonzero(weights == 1)) if single else 1e-13
    np.testing.assert_allclose(LIGHT[way](X, weights), exact, rtol=rtol)


@pytest.mark.parametrize("factor", [1e308, 1.0, 1e-308])
def test_the_point_about_which_sums_are_gathered_is_among_the_weight(factor):
    """Whatever the weights add up to, and whether they stand alone or in a crowd."""
    X, weights = np.arange(50_000.0)[:, None], np.zeros(50_000)
    weights[40_000] = factor
    assert middle(X, weights, integral=False) == 40_000
    weights[:] = factor
    assert middle(X, weights, integral=False) == pytest.approx(25_000, rel=0.01)


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


@pytest.mark.parametrize("weight", [1e149, 1e300, 1e307])
def test_a_sum_of_weights_whose_square_leaves_float64_is_refused(fit, weight):
    fitted, _, X, y, _ = fit
    with pytest.raises(ValueError, match=r"sample_weight has sum (\d.*e\+\d+|inf); at most 1e.150 "
                                         "is allowed. Divide the weights by a power of ten"):
        fitted(X, y, np.full(len(X), weight))


def test_the_largest_weights_work():
    X, _, _ = made()
    weights = np.full(ROWS, 1e147)
    for kind in ("frequency", "reliability"):
        found = fastdr.moments(X, weights).covariance(ddof=0, kind=kind)
        np.testing.assert_allclose(found, np.cov(X.T, ddof=0), rtol=1e-12)
    pca = fastdr.PCA("mle").fit(X, sample_weight=weights)
    assert pca.n_samples_ >= 1e149


@pytest.mark.parametrize("over", [1e-2, 1e-6, 1e-11])
def test_bounds_cover_a_divisor_that_rounding_has_made(rng, over):
    """Of weights whose sum is little over 1, rounding is much of what is left after the mean."""
    for width in (1, 40):
        w, column = rng.random(30), rng.standard_normal(30)
        w *= (1 + over) / w.sum()
        W, values = list(map(Fraction, w)), list(map(Fraction, column))
        mean = sum(a * x for a, x in zip(W, values, strict=True)) / sum(W)
        squares = sum(a * (x - mean) ** 2 for a, x in zip(W, values, strict=True))
        exact = width * squares / (sum(W) - 1)
        X = np.outer(column, np.ones(width))
        models = [fastdr.PCA(1, svd_solver=solver).fit(X, sample_weight=w)
                  for solver in ("lapack", "svd", "lanczos")]
        models.append(fastdr.PCA(1).fit(csr_array(X), sample_weight=w))
        models.append(fastdr.PCA(1).partial_fit(X, sample_weight=w))
        for model in models:
            told = model.certificate_
            assert told.lower[0] <= exact <= told.upper[0]
            error = abs(Fraction(model.explained_variance_[0]) - exact)
            assert error <= model.report_["variance_error"] <= 1e-13 / over * exact
