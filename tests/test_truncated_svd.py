"""TruncatedSVD: against dense decompositions, scikit-learn's checks and tests, files."""

import inspect
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.decomposition import PCA as ScikitPCA
from sklearn.utils.estimator_checks import check_estimator
from test_discriminant import cases_of
from tolerance import assert_orthonormal, rounding, subspace_angle

import fastdr
from fastdr.plan import Task
from fastdr.sparse import SparseSource, sparse_moments
from fastdr.sparse_axes import SparseRows, sparse_axes
from fastdr.sparse_plan import Stored, sparse_plan

EPS = np.finfo(float).eps


def decaying(rng, rows, features, dtype="f8"):
    """Sparse rows whose singular values fall like 1 / sqrt(i), their mean far from 0."""
    density = max(0.05, 2.5 / features)
    X = sp.random_array((rows, features), density=density, rng=rng, format="csr")
    X.data[:] = rng.integers(1, 9, X.nnz)
    return (X * np.arange(1, features + 1)**-0.5).tocsr().astype(dtype)


@pytest.mark.parametrize(("rows", "features", "k"), [
    (120, 90, 5), (100, 500, 10), (900, 450, 4), (30, 400, 30), (60, 55, 55), (9, 3, 2)])
@pytest.mark.parametrize("kind", ["dense", "csr"])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("algorithm", ["auto", "lanczos"])
def test_values_and_vectors_are_those_of_the_dense_rows(rng, rows, features, k, kind, dtype,
                                                        algorithm):
    S = decaying(rng, rows, features, dtype)
    D = S.toarray().astype("f8")
    X = S.toarray() if kind == "dense" else S.asformat(kind)
    svd = fastdr.TruncatedSVD(k, algorithm=algorithm).fit(X)
    values, V = np.linalg.svd(D, full_matrices=False)[1:]
    V = V[:k]
    tol = 1e-10 if dtype == "f8" else 1e-5
    residual = tol * values[0]**2
    assert svd.report_["converged"]
    assert svd.report_["residual"] <= tol
    gap = (values[k - 1]**2 - (values[k]**2 if k < len(values) else 0)) / 2
    limit = residual**2 / gap / values[k - 1] + rounding(float, np.sqrt(features), values[0])
    np.testing.assert_allclose(svd.singular_values_, values[:k], rtol=0, atol=limit)
    assert svd.components_.dtype == dtype
    assert_orthonormal(svd.components_, dtype)
    moved = rounding(dtype, 4, values[0]**2) + residual * np.sqrt(k)
    if moved < gap:
        assert subspace_angle(V, svd.components_) <= moved / gap
    scores = D @ svd.components_.T.astype("f8")
    spread = rounding(dtype, 4, values[0]**2 / rows)
    np.testing.assert_allclose(svd.explained_variance_, scores.var(axis=0), rtol=0, atol=spread)
    np.testing.assert_allclose(svd.explained_variance_ratio_,
                               scores.var(axis=0) / D.var(axis=0).sum(), rtol=0,
                               atol=spread / D.var(axis=0).sum())
    np.testing.assert_allclose(svd.squared_ratio_, values[:k]**2 / (values**2).sum(),
                               rtol=0, atol=limit * 2 / values[0])


def test_small_singular_values_keep_the_accuracy_of_the_rows(rng):
    """Of the Gram matrix they would keep sqrt(eps) of the largest."""
    U = np.linalg.qr(rng.standard_normal((80, 6)))[0]
    V = np.linalg.qr(rng.standard_normal((50, 6)))[0]
    values = 10.0 ** -np.arange(0, 12, 2)
    D = (U * values) @ V.T
    for X in (D, sp.csr_array(D)):
        svd = fastdr.TruncatedSVD(6).fit(X)
        assert np.abs(svd.singular_values_ - values).max() <= rounding(float, 50, 1.0, 1)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("method", ["auto", "lanczos"])
@pytest.mark.parametrize(("rows", "features", "dtype"), [
    (500, 90, "f8"), (500, 600, "f8"), (900, 500, "f4")])
def test_c69_principal_axes_of_sparse_rows_are_those_of_the_dense_copy(rng, centred, method, rows,
                                                                       features, dtype):
    S = decaying(rng, rows, features, dtype)
    D = S.toarray().astype(float)
    weights = rng.integers(0, 3, rows).astype(float)
    for scaled, w in ((False, None), (True, None), (True, weights)):
        source = SparseSource.of(S)
        told = sparse_moments(source, w, None if centred else np.zeros(features))
        task = Task(rows, features, dtype, 8, solver=method)
        given = SparseRows(source, told, told.scale if scaled else None, w)
        spectrum = sparse_axes(given, 8, sparse_plan(task, Stored.of(source)), rng=rng)
        dense = fastdr.PCA(8, standardize=scaled, mean=None if centred else np.zeros(features))
        model = dense.fit(D, sample_weight=w).model_
        tol = (1e-10 if dtype == "f8" else 1e-5) * model.variances[0]
        gap = model.variances[7] * 1e-3
        np.testing.assert_allclose(spectrum.values / told.divisor, model.variances, rtol=0,
                                   atol=rounding(float, features, model.variances[0], 1)
                                   + tol**2 / gap)
        assert spectrum.total / told.divisor == pytest.approx(model.total_variance, rel=1e-12)
        assert spectrum.left_out / told.divisor == pytest.approx(model.left_out, rel=1e-6)
        assert spectrum.rank == 8
        assert spectrum.converged
        assert_orthonormal(spectrum.vectors)
        rest = D - model.mean if model.scale is None else (D - model.mean) / model.scale
        kept = np.average(((rest @ spectrum.vectors.T)**2).sum(axis=1), weights=w)
        best = np.average(((rest @ model.components.T)**2).sum(axis=1), weights=w)
        assert kept >= best * (1 - 1e-8)


def test_warm_start_takes_fewer_columns(rng):
    source = SparseSource.of(decaying(rng, 2000, 600))
    given = SparseRows(source, sparse_moments(source))
    way = sparse_plan(Task(2000, 600, "f8", 10, solver="lanczos"), Stored.of(source))
    first = sparse_axes(given, 10, way, rng=rng)
    again = sparse_axes(given, 10, way, rng=rng, start=first.vectors)
    assert again.columns < first.columns / 2


@pytest.mark.parametrize("algorithm", ["auto", "lanczos"])
def test_scikit_learn_finds_an_estimator_of_its_own_kind(algorithm):
    for result in check_estimator(fastdr.TruncatedSVD(algorithm=algorithm), on_skip=None):
        skipped = result["check_name"] == "check_array_api_input"  # needs SCIPY_ARRAY_API=1
        assert result["status"] == "passed" or skipped


def test_scikit_learns_own_tests_pass(monkeypatch):
    tests = pytest.importorskip("sklearn.decomposition.tests.test_truncated_svd")
    monkeypatch.setattr(tests, "TruncatedSVD", fastdr.TruncatedSVD)
    monkeypatch.setattr(tests, "PCA", ScikitPCA)
    X = sp.random_array((60, 55), density=0.2, format="csr", rng=np.random.default_rng(42))
    X.data[:] = 1 + np.log(X.data)
    fixtures, run = {"X_sparse": X, "global_random_seed": 42}, 0
    for name, test in list(vars(tests).items()):
        if not name.startswith("test_") or not inspect.isfunction(test):
            continue
        wanted = inspect.signature(test).parameters
        for arguments in cases_of(test):
            test(**arguments, **{name: fixtures[name] for name in wanted if name in fixtures})
            run += 1
    assert run >= 40


def test_c110_the_worked_example():
    D = np.array([[1.0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0]])
    for X in (D, sp.csr_array(D)):
        svd = fastdr.TruncatedSVD(2).fit(X)
        np.testing.assert_allclose(svd.singular_values_, [2, 1.618034], atol=5e-7)
        Z = svd.transform(X)
        np.testing.assert_array_equal(Z[4], 0)
        np.testing.assert_allclose(np.linalg.norm(Z, axis=0), svd.singular_values_, rtol=1e-14)


@pytest.mark.parametrize("X", [np.zeros((6, 4)), sp.csr_array((6, 4))])
@pytest.mark.parametrize("algorithm", ["auto", "lanczos", "lapack"])
def test_c115_zeros_have_shares_of_zero(X, algorithm):
    svd = fastdr.TruncatedSVD(2, algorithm=algorithm).fit(X)
    for name in ("singular_values_", "explained_variance_", "explained_variance_ratio_",
                 "squared_ratio_"):
        np.testing.assert_array_equal(getattr(svd, name), 0)
    assert_orthonormal(svd.components_)


def test_c115_squared_shares_descend_where_variances_need_not(rng):
    X = np.abs(rng.standard_normal((300, 20))) + 3
    svd = fastdr.TruncatedSVD(5).fit(X)
    assert (np.diff(svd.squared_ratio_) <= 0).all()
    assert svd.explained_variance_ratio_[0] < svd.explained_variance_ratio_[1]


@pytest.mark.parametrize("size", [1e-200, 1e-100, 1e100, 1e200])
def test_c09_sizes_whose_squares_are_outside_float64(rng, size):
    S = decaying(rng, 100, 30)
    for X in (S, S.toarray()):
        plain, scaled = fastdr.TruncatedSVD(3).fit(X), fastdr.TruncatedSVD(3).fit(X * size)
        np.testing.assert_allclose(scaled.singular_values_, plain.singular_values_ * size,
                                   rtol=1e-12)
        np.testing.assert_allclose(scaled.explained_variance_ratio_,
                                   plain.explained_variance_ratio_, rtol=1e-9)
        np.testing.assert_allclose(scaled.certificate_.upper, plain.certificate_.upper * size,
                                   rtol=1e-9)
        with np.errstate(over="ignore"):  # as PCA, 0 or infinity where float64 ends
            expected = plain.explained_variance_ * size * size
        np.testing.assert_allclose(scaled.explained_variance_, expected, rtol=1e-9)


def test_fit_transform_is_fit_and_transform_for_any_number_of_threads(rng):
    for X in (decaying(rng, 3000, 500), decaying(rng, 3000, 500, "f4").toarray()):
        results = []
        for threads in (1, 2, 3):
            fastdr.set_num_threads(threads)
            svd = fastdr.TruncatedSVD(6, algorithm="lanczos")
            results.append((svd.fit_transform(X), svd.transform(X), svd.singular_values_))
        for Z, again, values in results:
            np.testing.assert_array_equal(Z, again)
            np.testing.assert_array_equal(Z, results[0][0])
            np.testing.assert_array_equal(values, results[0][2])


def test_models_in_files_and_other_programs(rng, tmp_path):
    S = decaying(rng, 100, 30)
    svd = fastdr.TruncatedSVD(3).fit(S)
    svd.model_.save(tmp_path / "svd.fdr")
    model = fastdr.load(tmp_path / "svd.fdr")
    assert isinstance(model, fastdr.SingularModel)
    Z = svd.transform(S)
    np.testing.assert_array_equal(model.transform(S), Z)
    np.testing.assert_array_equal(model.explained_variance_ratio, svd.explained_variance_ratio_)
    assert model.report == svd.model_.report
    limit = rounding(float, 30, np.abs(Z).max())
    np.testing.assert_allclose(model.projector()(S.toarray()[0]), Z[0], rtol=0, atol=limit)
    gaps = S.toarray() - svd.inverse_transform(Z)
    np.testing.assert_allclose(svd.reconstruction_error(S, per_row=True), (gaps**2).sum(axis=1),
                               rtol=1e-12)
    assert svd.reconstruction_error(S) == pytest.approx((gaps**2).sum() / 100)
    with pytest.raises(ValueError, match="has 3; pass scores"):
        model.inverse_transform(np.ones((2, 4)))


@pytest.mark.parametrize(("parameters", "words"), [
    ({"n_components": 0}, "n_components=0 is not allowed"),
    ({"n_components": 2.5}, "n_components=2.5"),
    ({"n_components": 31}, r"n_components=31 must be at most min\(n_samples=100, n_features=30\)"),
    ({"n_components": 30, "algorithm": "arpack"}, "must be less than"),
    ({"algorithm": "qr"}, "algorithm='qr' is not allowed"), ({"tol": -1}, "tol=-1"),
    ({"n_iter": -1}, "n_iter=-1"), ({"n_oversamples": 0}, "n_oversamples=0"),
    ({"power_iteration_normalizer": "no"}, "power_iteration_normalizer='no'")])
def test_parameters_are_refused_by_name(rng, parameters, words):
    X = decaying(rng, 100, 30)
    svd = fastdr.TruncatedSVD(2).fit(X)
    model = svd.model_
    with pytest.raises(ValueError, match=words):
        svd.set_params(**parameters).fit(X)
    assert svd.model_ is model


def test_rows_that_cannot_be_used_are_refused(rng):
    X = decaying(rng, 100, 30)
    svd = fastdr.TruncatedSVD(2).fit(X)
    bad = X.copy()
    bad.data[17] = np.nan
    for call in (svd.fit, svd.transform):
        with pytest.raises(ValueError, match="NaN at row"):
            call(bad)
    with pytest.raises(ValueError, match="29 features, but TruncatedSVD is expecting 30"):
        svd.transform(X[:, :29])
    with pytest.raises(ValueError, match="0 sample"):
        svd.fit(sp.csr_array((0, 30)))


def test_too_few_steps_are_told():
    """An iteration that cannot reach its tolerance says so."""
    from sklearn.exceptions import ConvergenceWarning

    from fastdr import topk

    X = sp.random_array((3000, 1000), density=0.01, rng=np.random.default_rng(0), format="csr")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setitem(topk.MAX_COLUMNS, "lanczos", 1)
        with pytest.raises(ConvergenceWarning, match="stopped after .* columns"):
            fastdr.TruncatedSVD(2).fit(X)
