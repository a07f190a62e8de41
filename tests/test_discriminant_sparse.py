"""Discriminant analysis of sparse rows against that of their dense copy; what is refused."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from tolerance import rounding, subspace_angle

import fastdr
from fastdr import LinearDiscriminantAnalysis
from fastdr.sparse import SparseSource
from fastdr.sparse_within import sparse_ledoit_wolf
from fastdr.validation import AccuracyWarning
from fastdr.within import ledoit_wolf

SHAPES = [(400, 30), (60, 300)]


def classes_of(rng, rows, features, classes=4, density=0.15, apart=2.0):
    """Counts whose frequent columns depend on the class, and labels."""
    y = rng.permutation(np.arange(rows) % classes)
    rates = density * (1 + apart * (rng.random((classes, features)) < 0.2))
    return rng.poisson(rates[y]) * rng.random((rows, features)).round(2), y


def span_apart(found, dense):
    """Sine of the largest angle between what the directions of two models span."""
    return subspace_angle(*(np.linalg.qr(model.scalings_)[0].T for model in (found, dense)))


def assert_same(found, dense, D, size, features):
    """Same separations, span and predictions, to rounding times the condition of the scatter."""
    condition = max(1.0, dense.report_["relative_error"] / np.finfo(float).eps)**0.5  # of the rows
    limit = rounding(float, np.sqrt(features) * condition, size)
    np.testing.assert_allclose(found.separations_, dense.separations_, rtol=0,
                               atol=limit * dense.separations_[0])
    np.testing.assert_allclose(found.means_, dense.means_, rtol=0,
                               atol=rounding(float, len(D), np.abs(D).max()))
    gap = -np.diff(np.append(dense.separations_, 0)).min() / dense.separations_[0]
    assert span_apart(found, dense) <= limit * condition / gap + 1e-9
    scores = dense.transform(D)
    np.testing.assert_allclose(found.transform(sp.csr_array(D)) @ np.diag(np.sign(np.einsum(
        "ij,ij->j", found.transform(sp.csr_array(D)), scores))), scores, rtol=0,
        atol=np.abs(scores).max() * (limit * condition / gap + 1e-9))
    np.testing.assert_array_equal(found.predict(sp.csc_array(D)), dense.predict(D))
    np.testing.assert_allclose(found.predict_proba(sp.csr_matrix(D)), dense.predict_proba(D),
                               rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("more", [
    {}, {"shrinkage": 0.3}, {"shrinkage": "auto"}, {"solver": "eigen", "priors": "some"},
    {"weights": True}], ids=str)
@pytest.mark.parametrize("way", ["matrix", "products"])
def test_sparse_is_dense(rng, shape, more, way, monkeypatch):
    D, y = classes_of(rng, *shape)
    more = dict(more)
    weights = rng.integers(0, 3, len(D)).astype(float) if more.pop("weights", None) else None
    if "priors" in more:
        more["priors"] = [0.1, 0.2, 0.3, 0.4]
    if way == "products":
        if shape[0] < shape[1] and "shrinkage" not in more:
            pytest.skip("singular: refused, see below")
        if shape[0] > shape[1] and more.get("shrinkage") == "auto":
            pytest.skip("the matrix of a class is as large: refused, see below")
        monkeypatch.setattr("fastdr.sparse_within.LARGEST_SCATTER", 20)  # a class has 15 rows
    dense = LinearDiscriminantAnalysis(**more).fit(D, y, sample_weight=weights)
    found = LinearDiscriminantAnalysis(**more).fit(sp.csr_array(D), y, sample_weight=weights)
    expected = {"matrix": ("cholesky", "eig"), "products": ("conjugate",)}[way]
    assert found.report_["method"].startswith(expected)
    assert_same(found, dense, D, 1.0, shape[1])
    if more.get("solver") == "eigen" and way == "matrix" and shape[0] > shape[1]:
        np.testing.assert_allclose(found.covariance_, dense.covariance_, rtol=0,
                                   atol=rounding(float, len(D), dense.covariance_.max()))


def test_far_classes_and_full_columns_cost_no_digits(rng):
    """Where S_T - S_B would cancel, few features are summed again about the class means."""
    D, y = classes_of(rng, 300, 12)
    D[:, 3] = 1e7 + 1e5 * y + rng.standard_normal(300)
    dense = LinearDiscriminantAnalysis().fit(D, y)
    found = LinearDiscriminantAnalysis().fit(sp.csr_array(D), y)
    np.testing.assert_allclose(found.separations_, dense.separations_, rtol=1e-12)
    assert span_apart(found, dense) < 1e-6


def test_a_full_column_and_a_constant_one_take_no_dense_block(rng, monkeypatch):
    monkeypatch.setattr("fastdr.sparse_within.of_tall", None)
    D, y = classes_of(rng, 400, 30)
    D[:, 3], D[:, 5] = 50 + rng.standard_normal(400), 0.1
    dense = LinearDiscriminantAnalysis().fit(D, y)
    found = LinearDiscriminantAnalysis().fit(sp.csr_array(D), y)
    assert_same(found, dense, D, 1.0, 30)


def test_columns_that_are_constant_within_classes_are_left_out(rng):
    D, y = classes_of(rng, 200, 10)
    D[:, 4] = (y == 2) * 3.0
    D[:, 5] = 0
    for kind in (np.asarray, sp.csr_array):
        with pytest.warns(AccuracyWarning, match=r"1 column\(s\) \(4\) are constant"):
            found = LinearDiscriminantAnalysis().fit(kind(D), y)
        assert not found.scalings_[[4, 5]].any()


@pytest.mark.parametrize("shape", [(400, 30), (60, 300)])
@pytest.mark.parametrize("weighted", [False, True])
def test_shrinkage_by_ledoit_and_wolf_is_that_of_the_dense_copy(rng, shape, weighted):
    D, y = classes_of(rng, *shape)
    D[:, 3] = 0.0                                   # constant, absent
    D[:, 4] = 1e5 + rng.random(len(D))              # full and far from zero
    D[y == 1, 5] = 2.0                              # constant in one class
    D[1:, 6], D[0, 6] = 1e4 + rng.random(len(D) - 1), 0.0  # all but full
    weights = rng.integers(0, 3, len(D)).astype(float) if weighted else None
    priors = np.array([0.1, 0.2, 0.3, 0.4])
    shares, ridge = sparse_ledoit_wolf(SparseSource.of(sp.csr_array(D)), y, weights, priors)
    expected = ledoit_wolf(D, y, weights, priors)
    np.testing.assert_allclose(shares, expected[0], rtol=1e-9)
    np.testing.assert_allclose(ridge, expected[1], rtol=1e-9)


def test_dependent_columns_are_left_out_as_in_the_dense_copy(rng):
    D, y = classes_of(rng, 300, 20)
    D[:, 7] = D[:, 1] + D[:, 2]
    dense = LinearDiscriminantAnalysis().fit(D, y)
    found = LinearDiscriminantAnalysis().fit(sp.csr_array(D), y)
    assert found.report_["rank"] == dense.report_["rank"] == 19
    np.testing.assert_array_equal(found.predict(D), dense.predict(D))
    np.testing.assert_allclose(found.separations_, dense.separations_, rtol=1e-9)


def test_rows_in_single_precision_labels_of_any_kind_and_batches(rng):
    D, y = classes_of(rng, 300, 15)
    S, names = sp.csr_array(D.astype("f4")), np.array(list("wxyz"))[y]
    found = LinearDiscriminantAnalysis().fit(S, names)
    assert found.scalings_.dtype == np.float32
    assert found.transform(S).dtype == np.float32
    assert (found.predict(S) == found.predict(S.toarray())).all()
    parts = LinearDiscriminantAnalysis()
    for part in (slice(0, 100), slice(100, 300)):
        parts.partial_fit(S[part], names[part])
    np.testing.assert_allclose(parts.separations_, found.separations_, rtol=1e-5)
    Z = found.fit_transform(S, names)
    np.testing.assert_array_equal(Z, found.transform(S))


def test_what_products_cannot_solve_asks_for_shrinkage(rng, monkeypatch):
    monkeypatch.setattr("fastdr.sparse_within.LARGEST_SCATTER", 10)
    D, y = classes_of(rng, 60, 300)
    with pytest.raises(ValueError, match=r"too ill-conditioned .* Give shrinkage="):
        LinearDiscriminantAnalysis().fit(sp.csr_array(D), y)
    with pytest.raises(ValueError, match="store_covariance would make a matrix of all features"):
        LinearDiscriminantAnalysis(shrinkage=0.5, store_covariance=True).fit(sp.csr_array(D), y)
    with pytest.raises(ValueError, match="matrix of order 15 of the 15 rows of a class.*a number"):
        LinearDiscriminantAnalysis("lsqr", shrinkage="auto").fit(sp.csr_array(D), y)


@pytest.mark.parametrize("shape", [(1500, 60_000), (20_000, 10_000)])
def test_no_dense_copy_and_no_matrix_of_all_features(rng, shape):
    rows, features = shape
    X = sp.random_array(shape, density=4e-4, rng=rng, format="csr")
    y = rng.integers(0, 3, rows)
    model = LinearDiscriminantAnalysis(shrinkage=0.2)
    model.fit(X[:200], y[:200])
    tracemalloc.start()
    model.fit(X, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * rows * features / 4
    assert np.isfinite(model.separations_).all()
    assert fastdr.get_num_threads() >= 1
