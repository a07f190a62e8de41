"""PCA of sparse rows against PCA of their dense copy."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from reference import integer_scatter
from tolerance import eigenvalue_error, rounding, subspace_angle

import fastdr


def counts(rng, rows, features, density=0.1, dtype="f8"):
    """Counts with a few strong directions, and one column that is never zero."""
    X = sp.random_array((rows, features), density=density, rng=rng, dtype=np.float64)
    X.data = np.ceil(20 * X.data)
    strength = 3.0 / (1 + np.arange(features)) ** 0.5
    dense = X.toarray() * strength
    dense[:, 0] = 50 + rng.standard_normal(rows)
    return np.round(dense, 1).astype(dtype)


SHAPES = [(300, 40), (900, 500), (60, 450)]


def assert_same(found, dense, dtype, k):
    largest = dense.explained_variance_[0]
    features = dense.n_features_in_
    safety = 64 if dtype == "f8" else 1e3
    atol = safety * eigenvalue_error(features, largest, np.dtype(dtype))
    np.testing.assert_allclose(found.explained_variance_, dense.explained_variance_, rtol=0,
                               atol=atol)
    assert abs(found.total_variance_ - dense.total_variance_) <= features * atol
    assert abs(found.noise_variance_ - dense.noise_variance_) <= features * atol
    gaps = -np.diff(dense.explained_variance_)
    cut = int(np.argmax(gaps)) + 1
    assert subspace_angle(found.components_[:cut].astype("f8"),
                          dense.components_[:cut].astype("f8")) <= 1e3 * atol / gaps[cut - 1] + 1e-5
    assert found.n_components_ == dense.n_components_ == k


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_matrix])
@pytest.mark.parametrize("more", [{}, {"standardize": True}, {"whiten": True},
                                  {"mean": "known"}, {"svd_solver": "lanczos"},
                                  {"svd_solver": "lapack"}], ids=str)
def test_sparse_is_dense(rng, floating, shape, kind, more):
    X = counts(rng, *shape, dtype=floating)
    more = more | ({"mean": X.mean(axis=0, dtype="f8") + 1} if "mean" in more else {})
    found = fastdr.PCA(6, **more).fit(kind(X))
    dense = fastdr.PCA(6, **more).fit(X)
    assert_same(found, dense, floating, 6)
    np.testing.assert_allclose(found.mean_, dense.mean_, rtol=1e-12, atol=1e-12)
    assert found.report_["reason"].startswith("sparse rows")
    model, dense_rows = found.model_, X
    Z, errors = found.transform(kind(X)), found.reconstruction_error(kind(X), per_row=True)
    size = np.linalg.norm(dense_rows, axis=1).max() / (
        1 if model.scale is None else model.scale.min()) / (
        np.sqrt(model.variances.min()) if more.get("whiten") else 1)
    eps = np.finfo(floating).eps
    np.testing.assert_allclose(Z, found.transform(X), rtol=0, atol=32 * shape[1] * eps * size)
    back = found.reconstruction_error(X, per_row=True)
    np.testing.assert_allclose(errors, back, rtol=0,
                               atol=32 * shape[1] * eps * (dense_rows**2).sum(axis=1).max())
    if not more.get("whiten") and "mean" not in more:
        np.testing.assert_allclose(found.score(kind(X)), found.score(X), rtol=1e-3)


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_count_rows(rng, shape):
    X = counts(rng, *shape)
    weights = rng.integers(0, 3, shape[0])
    found = fastdr.PCA(4).fit(sp.csr_array(X), sample_weight=weights)
    dense = fastdr.PCA(4).fit(np.repeat(X, weights, axis=0))
    assert_same(found, dense, "f8", 4)


@pytest.mark.parametrize("share", [0.3, 0.8, 0.95])
def test_shares_of_the_variance(rng, share):
    X = counts(rng, 900, 500)
    found = fastdr.PCA(share).fit(sp.csr_array(X))
    dense = fastdr.PCA(share).fit(X)
    assert found.n_components_ == dense.n_components_
    assert found.explained_variance_ratio_.sum() > share
    assert found.explained_variance_ratio_[:-1].sum() <= share


@pytest.mark.parametrize("wanted", [None, "mle", "gavish-donoho"])
def test_all_axes_and_rules(rng, wanted):
    X = counts(rng, 300, 40)
    found, dense = fastdr.PCA(wanted).fit(sp.csr_array(X)), fastdr.PCA(wanted).fit(X)
    assert_same(found, dense, "f8", dense.n_components_)


def test_offsets_are_no_matter(rng):
    """A full column far from zero beside sparse ones (C06)."""
    X = counts(rng, 400, 30)
    far = X + np.r_[1e8, np.zeros(29)]
    near = X - np.r_[50.0, np.zeros(29)]
    found = fastdr.PCA(5).fit(sp.csr_array(far)).explained_variance_
    expected = fastdr.PCA(5).fit(near).explained_variance_
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7 * expected[0])


@pytest.mark.parametrize("offset", [0.0, 1e8, 1e12])
@pytest.mark.parametrize("more", [{}, {"n_components": 2, "svd_solver": "lanczos"},
                                  {"standardize": True}], ids=str)
@pytest.mark.parametrize("shape", [(3000, 6), (6, 3000)])
def test_full_columns_far_from_zero_lose_nothing(rng, offset, more, shape):
    N = rng.integers(-512, 512, shape)
    C = integer_scatter(N) / 256**2 / (shape[0] - 1)
    scale = np.sqrt(np.diagonal(C)) if more.get("standardize") else np.ones(shape[1])
    most = min(shape[1], shape[0] - 1)
    expected = np.linalg.svd((N - N.mean(axis=0)) / 256 / scale, compute_uv=False)[:most]**2
    expected /= shape[0] - 1
    found = fastdr.PCA(**{"n_components": most} | more).fit(sp.csr_array(N / 256 + offset))
    own = eigenvalue_error(min(shape), 2 * expected[0])
    atol = own + found.report_["variance_error"]
    assert atol < rounding("f8", max(shape), expected.sum())
    np.testing.assert_allclose(found.explained_variance_, expected[:found.n_components_], rtol=0,
                               atol=atol)
    assert found.total_variance_ == pytest.approx((np.diagonal(C) / scale**2).sum(), rel=1e-14)
    told = found.certificate_
    assert (told.lower <= expected[:found.n_components_] + own / 8).all()
    assert (told.upper >= expected[:found.n_components_] - own / 8).all()


@pytest.mark.parametrize("solver", ["auto", "lanczos", "lapack"])
@pytest.mark.parametrize("powers", [[-560, 560], [0, -700], [-1000, 0], [990, -900]])
def test_columns_that_are_scaled_have_units_of_their_own(rng, powers, solver):
    """The squares of one column leave float64 in the units of another."""
    X = counts(rng, 80, 12)
    X[:, 5], X[:, 6] = 0, 3  # neither varies
    powers = np.where(np.arange(12) < 4, *powers)
    mean = X.mean(axis=0)
    for more in ({}, {"mean": mean}):
        with pytest.warns(UserWarning, match="constant column"):
            plain = fastdr.PCA(3, standardize=True, svd_solver=solver, **more).fit(sp.csr_array(X))
        scaled = fastdr.PCA(3, standardize=True, svd_solver=solver,
                            **{name: np.ldexp(given, powers) for name, given in more.items()})
        with pytest.warns(UserWarning, match="constant column"):
            scaled.fit(sp.csr_array(np.ldexp(X, powers)))
        np.testing.assert_allclose(scaled.explained_variance_, plain.explained_variance_,
                                   rtol=0, atol=rounding(float, 80, plain.explained_variance_[0]))
        np.testing.assert_allclose(scaled.mean_, np.ldexp(plain.mean_, powers), rtol=4e-16)
        np.testing.assert_allclose(np.delete(scaled.scale_, [5, 6]), np.delete(
            np.ldexp(plain.scale_, powers), [5, 6]), rtol=rounding(float, 80, 1))


def test_what_is_refused(rng):
    X = sp.csr_array(counts(rng, 50, 10))
    with pytest.raises(TypeError, match=r"toarray\(\)"):
        fastdr.PCA(2, svd_solver="full").fit(X)
    bad = X.copy()
    bad.data[3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        fastdr.PCA(2).fit(bad)
    fitted = fastdr.PCA(2).fit(X)
    with pytest.raises(ValueError, match="features"):
        fitted.transform(X[:, :5])


def test_threads_do_not_matter(rng):
    X = sp.csr_array(counts(rng, 900, 500))
    results = []
    for threads in (1, 2, 3):
        with fastdr.num_threads(threads):
            results.append(fastdr.PCA(3).fit(X).components_)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_zero_rows_and_columns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        X = sp.csr_array(np.diag([3.0, 2.0, 1.0, 0.0, 0.0]))
        found = fastdr.PCA(2).fit(X)
    dense = fastdr.PCA(2).fit(X.toarray())
    np.testing.assert_allclose(found.explained_variance_, dense.explained_variance_, rtol=1e-12)
