"""LDA: Fisher's formula, the generalised eigenproblem, scikit-learn's contract, streams, files."""

import copy
import inspect
import pickle
from pathlib import Path

import mpmath
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from reference import column_mean, scatter, wide
from sklearn.base import clone
from sklearn.covariance import OAS
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis as ScikitLDA
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted
from tolerance import rounding

import fastdr
from fastdr import LinearDiscriminantAnalysis as LDA
from fastdr.certificate import slack
from fastdr.solvers import RTOL
from fastdr.sources import BlockSource

SOLVERS = ["auto", "svd", "lsqr", "eigen"]
DATA = {"iris": load_iris, "wine": load_wine, "digits": load_digits}


def made(rng, rows, features, classes, spread=1.0, offset=0.0, condition=1.0):
    """Rows of classes that share a covariance of the given condition."""
    y = np.concatenate([np.arange(classes), rng.integers(0, classes, rows - classes)])
    mix = np.linalg.qr(rng.standard_normal((features, features)))[0]
    mix *= np.geomspace(1, condition**-0.5, features)
    X = rng.standard_normal((rows, features)) @ mix
    return X + spread * rng.standard_normal((classes, features))[y] + offset, y


def covariances(X, y, weight=None):
    """Class means, S_B and S_W (divisor n), in long double."""
    weight = np.ones(len(X)) if weight is None else weight
    X = wide(X) - wide(X[0])  # exact, so that long double has digits to spare
    classes = np.unique(y)
    share = np.array([weight[y == c].sum() for c in classes]) / weight.sum()
    means = np.array([column_mean(X[y == c], weight[y == c]) for c in classes])
    within = sum(scatter(X[y == c], weight[y == c]) for c in classes) / weight.sum()
    apart = means - means[0]
    apart = apart - share @ apart
    return means, (share[:, None] * apart).T @ apart, within


def condition(within):
    size = np.sqrt(np.diagonal(within).astype(float))
    return np.linalg.cond((within / size / size[:, None]).astype(float))


def solved(within, vector):
    """S_W⁻¹ vector in 60 digits."""
    with mpmath.workdps(60):
        found = mpmath.lu_solve(mpmath.matrix(within.astype(str).tolist()),
                                mpmath.matrix(vector.astype(str).tolist()))
        return np.array([float(value) for value in found])


def sine(first, second, scale):
    """Sine of the angle between two directions in columns of unit deviation."""
    first, second = first * scale, second * scale
    first, second = first / np.linalg.norm(first), second / np.linalg.norm(second)
    return np.linalg.norm(first - (first @ second) * second)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("spread", "offset"), [(1.0, 0.0), (1e8, 0.0), (1.0, 1e8), (1e8, -1e8),
                                                (1e-8, 0.0)])
@pytest.mark.parametrize("cond", [1.0, 1e6])
def test_two_classes_give_fishers_formula(rng, solver, spread, offset, cond):
    X, y = made(rng, 60, 5, 2, spread, offset, cond)
    X *= 10.0 ** np.arange(-2, 3)  # units of the features are their own business
    lda = LDA(solver).fit(X, y)
    means, _, within = covariances(X, y)
    w = solved(within, means[1] - means[0])
    scale = np.sqrt(np.diagonal(within).astype(float))
    bound = rounding(float, 5, condition(within))
    # a difference of means is a difference of rows, known to rounding of the deviation within
    bound *= max(1.0, np.linalg.norm(1 / scale) / np.linalg.norm(
        (means[1] - means[0]).astype(float) / scale) * np.abs(scale).max())
    assert sine(lda.coef_[0], w, scale) <= bound
    assert sine(lda.scalings_[:, 0], w, scale) <= bound
    np.testing.assert_allclose(np.linalg.norm(lda.coef_ * scale), np.linalg.norm(w * scale),
                               rtol=2 * bound)


@given(features=st.integers(1, 8), classes=st.integers(2, 9), seed=st.integers(0, 999),
       spread=st.sampled_from([0.1, 1.0, 1e4]), cond=st.sampled_from([1.0, 1e3, 1e7]))
def test_the_generalised_eigenproblem_is_solved(features, classes, seed, spread, cond):
    X, y = made(np.random.default_rng(seed), 60, features, classes, spread, 0.0, cond)
    lda = LDA().fit(X, y)
    _, between, within = covariances(X, y)
    scale = np.sqrt(np.diagonal(within).astype(float))
    Sb, Sw = ((S / scale / scale[:, None]).astype(float) for S in (between, within))
    bound = rounding(float, features + classes, condition(within))
    values = scipy.linalg.eigh(Sb, Sw, eigvals_only=True)[::-1][:min(classes - 1, features)]
    assert np.abs(lda.separations_ - values).max() <= bound * values[0]
    W = lda.scalings_ * scale[:, None]
    assert np.abs(W.T @ Sw @ W - np.eye(W.shape[1])).max() <= bound
    residual = Sb @ W - Sw @ W * lda.separations_
    size = np.linalg.norm(Sb, 2) + np.linalg.norm(Sw, 2) * values[0]
    assert (np.linalg.norm(residual, axis=0) <= bound * size * np.linalg.norm(W, axis=0)).all()
    np.testing.assert_allclose(lda.explained_variance_ratio_.sum(), 1, rtol=rounding(float, 9, 1))


@pytest.mark.parametrize("rows", [25, 39])
@pytest.mark.parametrize("shrinkage", [None, 1e-3, 0.5, 1.0, "auto"])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_fewer_rows_than_features_are_the_same_problem(rng, rows, shrinkage, offset):
    X, y = made(rng, rows, 40, 3, 2.0, offset)
    wide_, tall = LDA(shrinkage=shrinkage).fit(X, y), LDA(shrinkage=shrinkage)
    assert wide_.report_["rank"] == (rows - 3 if shrinkage is None else 40)
    # the same covariance, solved as a matrix: every row three times
    tall.fit(np.repeat(X, 3, axis=0), np.repeat(y, 3))
    if shrinkage == "auto":  # more rows are shrunk less
        sk = ScikitLDA("lsqr", shrinkage="auto").fit(X - offset, y)
        _same_decisions(wide_.decision_function(X), sk.decision_function(X - offset), 1e-7)
        return
    assert wide_.report_["method"] != tall.report_["method"]
    np.testing.assert_allclose(wide_.separations_, tall.separations_, rtol=1e-9)
    _same_decisions(wide_.decision_function(X), tall.decision_function(X), 1e-9)
    np.testing.assert_allclose(wide_.transform(X), tall.transform(X), atol=1e-8)


def _same_decisions(first, second, tolerance):
    """Decisions agree up to a number for each row."""
    if first.ndim == 2:
        first = first - first.mean(axis=1, keepdims=True)
        second = second - second.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(first, second, rtol=0, atol=tolerance * np.abs(second).max())


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("parameters", [
    {}, {"solver": "svd", "store_covariance": True}, {"solver": "eigen"}, {"solver": "lsqr"},
    {"solver": "eigen", "shrinkage": 0.3}, {"solver": "lsqr", "shrinkage": 0.0},
    {"solver": "lsqr", "shrinkage": "auto"}, {"solver": "eigen", "shrinkage": "auto"},
    {"solver": "lsqr", "covariance_estimator": OAS()}, {"priors": True},
    {"solver": "lsqr", "shrinkage": 0.1, "priors": True},
    {"solver": "eigen", "shrinkage": "auto", "priors": True}, {"n_components": 1}], ids=str)
def test_numbers_are_scikit_learns(name, parameters):
    X, y = DATA[name](return_X_y=True)
    if "priors" in parameters:
        priors = np.arange(1.0, 1 + len(np.unique(y)))
        parameters = {**parameters, "priors": priors / priors.sum()}
    theirs = ScikitLDA(**parameters)
    if name == "digits" and theirs.solver == "eigen" and theirs.shrinkage is None:
        with pytest.raises(np.linalg.LinAlgError):  # three columns are constant
            theirs.fit(X, y)
        assert LDA(**parameters).fit(X, y).score(X, y) > 0.96
        return
    ours, theirs = LDA(**parameters).fit(X, y), theirs.fit(X, y)
    # scikit-learn's normal equations square the condition of S_W, 2e5 for digits
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-10)
    _same_decisions(ours.decision_function(X), theirs.decision_function(X), 1e-11)
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    for part in ("means_", "priors_", "covariance_", "classes_"):
        assert hasattr(ours, part) == hasattr(theirs, part)
        if hasattr(theirs, part):
            np.testing.assert_allclose(getattr(ours, part), getattr(theirs, part), rtol=1e-10,
                                       atol=1e-12)
    if theirs.solver == "svd":
        np.testing.assert_allclose(ours.xbar_, theirs.xbar_, rtol=1e-12)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-7, atol=1e-10)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-9)
        np.testing.assert_allclose(np.abs(ours.transform(X)), np.abs(theirs.transform(X)),
                                   atol=1e-10)
        np.testing.assert_allclose(ours.explained_variance_ratio_,
                                   theirs.explained_variance_ratio_, rtol=1e-10)
        np.testing.assert_array_equal(ours.get_feature_names_out(), [
            f"lineardiscriminantanalysis{i}" for i in range(theirs.transform(X).shape[1])])


def test_decisions_are_those_of_the_coefficients(wine):
    y = load_wine().target
    for target in (y, (y > 0).astype(int)):
        lda = LDA().fit(wine, target)
        plain = wine @ lda.coef_.T + lda.intercept_
        np.testing.assert_allclose(lda.decision_function(wine), plain.squeeze(), rtol=1e-9,
                                   atol=1e-9)
        proba = lda.predict_proba(wine)
        np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-14)
        np.testing.assert_allclose(np.log(proba), lda.predict_log_proba(wine), rtol=1e-9,
                                   atol=1e-14)
        np.testing.assert_array_equal(lda.classes_[proba.argmax(axis=1)], lda.predict(wine))


@pytest.mark.parametrize("solver", SOLVERS)
def test_close_classes_are_told_apart_beside_a_distant_one(rng, solver):
    y = rng.integers(0, 3, 600)
    X = rng.standard_normal((600, 3)) + np.array([[1e8, 0, 0], [0, 0, 0], [0, 8, 0]])[y]
    lda = LDA(solver).fit(X, y)
    assert lda.score(X, y) == 1.0
    assert (lda.predict_proba(X).max(axis=1) > 0.6).mean() > 0.99


@pytest.mark.parametrize("parameters", [
    {}, {"shrinkage": 0.1}, {"shrinkage": "auto"}, {"solver": "eigen", "priors": [0.2, 0.3, 0.5]}],
    ids=str)
@pytest.mark.parametrize("shape", [(60, 4), (20, 30)])
@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array])
def test_scales_change_nothing_or_are_refused(rng, parameters, shape, kind):
    """Variances from 1e-290 are held with all their digits; smaller and infinite ones are not."""
    X, y = made(rng, *shape, 3)
    lda = LDA(**parameters).fit(kind(X), y)
    for exponent in (-400, 400):
        scaled = kind(np.ldexp(X, exponent))
        other = LDA(**parameters).fit(scaled, y)
        np.testing.assert_array_equal(other.separations_, lda.separations_)
        np.testing.assert_array_equal(other.predict_proba(scaled), lda.predict_proba(kind(X)))
    for exponent in (-1060, -540, -520, 515, 1000):
        with pytest.raises(ValueError, match=r"(hold the|overflow|vanish)[\s\S]* a power of ten"):
            LDA(**parameters).fit(kind(np.ldexp(X, exponent)), y)
    X[:, 0] *= 1e-170  # one column alone
    if parameters == {"shrinkage": 0.1}:
        plain = LDA(**parameters).fit(kind(X * ([0.0] + [1.0] * (shape[1] - 1))), y)
        np.testing.assert_array_equal(LDA(**parameters).fit(kind(X), y).separations_,
                                      plain.separations_)
        return
    with pytest.raises(ValueError, match="column 0 varies so little"):
        LDA(**parameters).fit(kind(X), y)


def test_squares_that_vanish_in_batches_are_refused(rng):
    X, y = made(rng, 60, 4, 3)
    lda = LDA().partial_fit(X, y)
    model = lda.model_
    lda = LDA().partial_fit(X[:3] * 1e-170, y[:3])  # a row a class: nothing varies yet
    with pytest.raises(ValueError, match="column 0 varies so little"):
        lda.partial_fit(X[3:6] * 1e-170, y[3:6])
    assert lda.moments_.counts.sum() == 3
    assert model.count == 60


def test_what_float32_does_not_hold_is_refused_or_wider(rng):
    X, y = made(rng, 60, 4, 3)
    X = X.astype(np.float32)
    lda, small = LDA().fit(X, y), np.ldexp(X, -123)
    other = LDA().fit(small, y)
    np.testing.assert_array_equal(other.predict(small), lda.predict(X))
    assert np.isfinite(other.coef_).all()
    with pytest.raises(ValueError, match="the largest of directions is .* float32 does not hold"):
        LDA().fit(np.ldexp(X, -130), y)


def exact_covariances(X, y, shrinkage):
    """Class means apart, times roots of priors, and S_W, in the digits of mpmath."""
    rows = [mpmath.matrix(row.tolist()) for row in X]
    members = [[row for row, code in zip(rows, y, strict=True) if code == c] for c in np.unique(y)]
    means = [mpmath.matrix([mpmath.fsum(column) / len(part) for column in zip(*part, strict=True)])
             for part in members]
    away = [row - mean for part, mean in zip(members, means, strict=True) for row in part]
    within = sum((z * z.T for z in away), mpmath.zeros(X.shape[1])) / len(X)
    trace = mpmath.fsum(within[i, i] for i in range(len(within)))
    within = (1 - mpmath.mpf(shrinkage)) * within + (
        mpmath.mpf(shrinkage) * trace / len(within)) * mpmath.eye(len(within))
    sizes = [len(part) for part in members]
    mean = sum((size * each for size, each in zip(sizes, means, strict=True)),
               0 * means[0]) / len(X)
    return [mpmath.sqrt(mpmath.mpf(size) / len(X)) * (each - mean)
            for size, each in zip(sizes, means, strict=True)], within


@pytest.mark.parametrize("shape", [(40, 4), (8, 10)])
@pytest.mark.parametrize("shrinkage", [0.0, 1e-10, 1e-6, 1e-3, 0.5])
@pytest.mark.parametrize("thin", [1.0, 1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize(("kind", "apart"), [
    (np.asarray, 10), (scipy.sparse.csr_array, 10), (scipy.sparse.csr_array, 1e5)])
@pytest.mark.filterwarnings("ignore:Columns nearly depend on each other")  # and it is so large
@mpmath.workdps(60)
def test_the_relative_error_is_true(rng, shape, shrinkage, thin, kind, apart):
    """Whatever the condition and the way, also of axes that a covariance takes for rounding."""
    rows, features = shape
    y = np.arange(rows) % 3
    X = rng.standard_normal((rows, min(shape))) @ np.diag(np.geomspace(1, thin, min(shape)))
    X = X @ rng.standard_normal((min(shape), features)) * np.geomspace(1e-3, 1e3, features)
    X += apart * X.std(axis=0) * rng.standard_normal((3, features))[y]
    lda = LDA(tol=0.0, shrinkage=shrinkage).fit(kind(X), y)
    error = lda.report_["relative_error"]
    means, within = exact_covariances(X, y, shrinkage)
    W = mpmath.matrix(lda.model_.directions.tolist())
    assert mpmath.norm(W * within * W.T - mpmath.eye(W.rows), mpmath.inf) <= 4 * error
    if features < rows or shrinkage:
        M = mpmath.matrix([list(mean) for mean in means])
        values = mpmath.eigsy(M * within**-1 * M.T, eigvals_only=True)
        exact = np.sqrt(np.array(sorted(map(float, values))[::-1][:2]))
        assert lda.report_["rank"] == features
        assert len(lda.separations_) == 2
        assert np.abs(np.sqrt(lda.separations_) - exact).max() <= error * max(1.0, exact[0])


@mpmath.workdps(60)
def log_posteriors(X, y, rows):
    """Logarithms of the posteriors of `rows`, from moments in long double."""
    means, _, within = covariances(X, y)
    inverse = mpmath.matrix(within.astype(object).tolist()) ** -1
    priors = [mpmath.log(mpmath.mpf(int(count)) / len(y)) for count in np.bincount(y)]
    centres = [mpmath.matrix(mean.astype(object)) + mpmath.matrix(X[0].tolist()) for mean in means]
    found = []
    for row in rows:
        away = [mpmath.matrix(row.tolist()) - centre for centre in centres]
        scores = [prior - (z.T * inverse * z)[0] / 2
                  for prior, z in zip(priors, away, strict=True)]
        total = max(scores) + mpmath.log(sum(mpmath.exp(each - max(scores)) for each in scores))
        found.append([float(score - total) for score in scores])
    return np.array(found)


@pytest.mark.parametrize(("dtype", "offset", "far"), [
    ("f8", 0.0, 3.0), ("f8", 1e9, 3.0), ("f8", 1e9, 1e5),
    ("f4", 0.0, 3.0), ("f4", 1e3, 3.0), ("f4", 0.0, 1e5)])
def test_posteriors_owe_nothing_to_offsets_and_far_classes(rng, dtype, offset, far):
    """Rounding of the mean and of the directions, as they are kept, goes into the centres."""
    y, turn = np.arange(90) % 3, np.linalg.qr(rng.standard_normal((3, 3)))[0]
    X = rng.standard_normal((90, 3)) + np.array([[0, 0, 0], [0, 0, 3], [far, 0, 0]])[y]
    X = (X @ turn + offset).astype(dtype)
    exact = log_posteriors(X, y, X[:20])
    error = np.abs(LDA().fit(X, y).predict_log_proba(X[:20]) - exact)
    bound = rounding(dtype, 3, 1 + np.abs(exact)) + rounding(float, 3, far)  # of scores so large
    assert (error <= bound).all()


@pytest.mark.parametrize(("dtype", "far"), [("f8", 3.0), ("f8", 1e6), ("f4", 3.0), ("f4", 1e5)])
@pytest.mark.parametrize("scale", [1e8, 1e20])
@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array])
def test_rows_far_from_all_classes_are_told_apart(rng, dtype, far, scale, kind):
    y = np.arange(90) % 3
    X = rng.standard_normal((90, 3)) + np.array([[0, 0, 0], [0, 0, 3], [far, 0, 0]])[y]
    X, rows = X.astype(dtype), (scale * rng.standard_normal((20, 3))).astype(dtype)
    exact, lda = log_posteriors(X, y, rows), LDA().fit(X, y)
    error = np.abs(lda.predict_log_proba(kind(rows)) - exact)
    size = np.abs(lda.model_.centres).max() * np.abs(lda.transform(rows)).max()
    assert error.max() <= rounding(dtype, 3, size)
    np.testing.assert_array_equal(lda.predict(kind(rows)), exact.argmax(axis=1))
    if dtype == "f8":
        with pytest.raises(ValueError, match="range of float64.* Scale the rows"):
            lda.predict(kind(np.full((1, 3), 1.7e308)))


@pytest.mark.parametrize("parameters", [
    {}, {"solver": "svd", "n_components": 1}, {"solver": "eigen", "shrinkage": 0.1},
    {"shrinkage": "auto", "store_covariance": True}], ids=str)
@pytest.mark.filterwarnings("ignore:.*constant within every class")
def test_scikit_learn_finds_an_estimator_of_its_own_kind(parameters):
    for result in check_estimator(LDA(**parameters), on_skip=None):
        skipped = result["check_name"] == "check_array_api_input"  # needs SCIPY_ARRAY_API=1
        assert result["status"] == "passed" or skipped


def test_scikit_learns_own_tests_pass(monkeypatch):
    discriminant = pytest.importorskip("sklearn.discriminant_analysis")
    tests = pytest.importorskip("sklearn.tests.test_discriminant_analysis")
    monkeypatch.setattr(tests, "LinearDiscriminantAnalysis", LDA)
    assert discriminant.LinearDiscriminantAnalysis is ScikitLDA
    run = 0
    for name, test in list(vars(tests).items()):
        if not name.startswith("test_lda") or not inspect.isfunction(test):
            continue
        for arguments in cases_of(test):
            test(**arguments)
            run += 1
    assert run >= 20


def cases_of(test):
    """Every combination of arguments that a test is parametrised with."""
    cases = [{}]
    for mark in getattr(test, "pytestmark", []):
        names = [name.strip() for name in mark.args[0].split(",")]
        values = [value if len(names) > 1 else (value,) for value in mark.args[1]]
        cases = [{**case, **dict(zip(names, value, strict=True))}
                 for case in cases for value in values]
    return cases


@pytest.mark.parametrize("labels", [
    ["z", "a", "m"], [True, False, True], [2.5, -1.0, 0.0], [3, -7, 100],
    np.array(["b", "a", "c"], object), np.array([200, 1, 0], np.uint8)], ids=str)
def test_labels_of_any_kind_come_back_in_order(iris, labels):
    labels = np.asarray(labels)
    y = labels[load_iris().target]
    if labels.dtype.kind == "f":
        with pytest.raises(ValueError, match="Unknown label type: continuous"):
            LDA().fit(iris, y)
        y = y * 2
    lda = LDA().fit(iris, y)
    np.testing.assert_array_equal(lda.classes_, np.unique(y))
    assert lda.predict(iris).dtype == lda.classes_.dtype == y.dtype
    plain = LDA().fit(iris, np.unique(y, return_inverse=True)[1])
    np.testing.assert_array_equal(lda.classes_[plain.predict(iris)], lda.predict(iris))
    for shift, label in enumerate(lda.classes_[:1]):
        np.testing.assert_allclose(lda.means_[shift], iris[y == label].mean(0), rtol=1e-14)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("parameters", [
    {}, {"shrinkage": 0.2}, {"shrinkage": "auto"}, {"solver": "lsqr", "priors": [0.5, 0.3, 0.2]}],
    ids=str)
def test_weights_stand_for_rows(rng, wide, parameters):
    X, y = made(rng, 40, 70 if wide else 5, 3)
    weight = rng.integers(0, 4, 40).astype(float)
    one = LDA(**parameters).fit(X, y, weight)
    other = LDA(**parameters).fit(np.repeat(X, weight.astype(int), axis=0),
                                  np.repeat(y, weight.astype(int)))
    np.testing.assert_allclose(one.priors_, other.priors_, rtol=1e-14)
    np.testing.assert_allclose(one.predict_proba(X), other.predict_proba(X), atol=1e-10)
    np.testing.assert_allclose(one.transform(X) if one.solver != "lsqr" else 0,
                               other.transform(X) if one.solver != "lsqr" else 0, atol=1e-8)
    half = LDA(**parameters).fit(X, y, np.where(y == 2, 0, weight)) if (
        "priors" not in parameters) else one
    assert "priors" in parameters or list(half.classes_) == [0, 1]
    if parameters == {}:
        scaled = LDA().fit(X, y, 7.5 * weight)
        np.testing.assert_allclose(scaled.coef_, one.coef_, rtol=1e-9, atol=1e-10)


def test_rows_from_anywhere_give_one_answer(rng, stored, dtype, layout):
    X, y = made(rng, 90, 6, 3, spread=4.0)
    X = (X * 8 + 50).clip(0, 120).astype(dtype)
    if np.dtype(dtype) == bool:
        X = np.asarray(rng.random((90, 6)) < 0.3 + 0.2 * y[:, None])
    plain = LDA().fit(X.astype(float), y)
    lda = LDA().fit(stored(X, layout), y)
    single = np.dtype(dtype).kind == "f" and np.dtype(dtype).itemsize < 8
    assert lda.coef_.dtype == lda.scalings_.dtype == ("f4" if single else "f8")
    bound = rounding("f4" if single else "f8", 6, 4 * np.abs(plain.coef_).max())
    np.testing.assert_allclose(lda.coef_, plain.coef_, atol=bound)
    np.testing.assert_array_equal(lda.predict(stored(X, layout)), plain.predict(X))
    assert lda.transform(X).dtype == ("f4" if single else "f8")


@pytest.mark.parametrize("features", [5, 200])
def test_streams_give_the_answer_of_the_array(rng, features):
    X, y = made(rng, 120, features, 4, offset=1e5)
    source = BlockSource(lambda: (X[i:i + 50] for i in range(0, 120, 50)), features, 120)
    once = iter([X[:70], X[70:]])
    single_use = BlockSource(lambda: once, features, rereadable=False)
    plain = LDA(shrinkage=0.1).fit(X, y)
    for each in (source, single_use):
        lda = LDA(shrinkage=0.1).fit(each, y)
        np.testing.assert_allclose(lda.transform(X), plain.transform(X), atol=1e-8)
    for parameters in ({"shrinkage": "auto"}, {"covariance_estimator": OAS()}):
        if features < 120:
            with pytest.raises(ValueError, match="needs an array"):
                LDA(**parameters).fit(source, y)
    with pytest.raises(ValueError, match="120"):
        LDA().fit(source, y[:-1])


def test_partial_fit_is_fit_and_takes_new_classes(rng):
    X, y = made(rng, 200, 6, 4, offset=1e6)
    order = np.argsort(y, kind="stable")
    X, y = X[order], np.array(["ape", "bee", "cat", "dog"])[y[order]]
    lda = LDA(shrinkage=0.01, priors=None)
    seen = 0
    for start in range(0, 200, 30):
        part = slice(start, start + 30)
        lda.partial_fit(X[part], y[part], classes=["ape", "bee", "cat", "dog"])
        seen = len(np.unique(y[:start + 30]))
        assert hasattr(lda, "model_") == (seen > 1)
        if seen > 1:
            assert len(lda.classes_) == seen
    plain = LDA(shrinkage=0.01).fit(X, y)
    np.testing.assert_allclose(lda.predict_proba(X), plain.predict_proba(X), atol=1e-11)
    np.testing.assert_allclose(lda.scalings_, plain.scalings_, atol=1e-9)
    merged = fastdr.ClassMoments.of(X[:90], y[:90]) + fastdr.ClassMoments.of(X[90:], y[90:])
    np.testing.assert_allclose(lda.moments_.within, merged.within, rtol=1e-9, atol=1e-9)
    before = copy.deepcopy(vars(lda))
    for args, words in (((X[:5, :3], y[:5]), "X has 3 features, but LinearDisc"),
                        ((X[:5], ["eel"] * 5, ["ape"]), "'eel'.*not in classes"),
                        ((X[:5], y[:4]), "inconsistent"), ((X * np.nan, y), "NaN at row 0")):
        with pytest.raises(ValueError, match=words):
            lda.partial_fit(*args)
        assert lda.model_ is not None
        assert list(vars(lda)) == list(before)
        assert lda.moments_.counts.sum() == 200
    lda.fit(X, y)
    assert not hasattr(lda, "moments_")
    assert not hasattr(LDA(shrinkage="auto"), "partial_fit")
    waiting = LDA(n_components=3).partial_fit(X[:80], y[:80])
    assert not hasattr(waiting, "model_")
    assert waiting.partial_fit(X[80:], y[80:]).n_components_ == 3


@pytest.mark.parametrize("features", [6, 100])
def test_threads_do_not_change_a_bit(rng, features):
    X, y = made(rng, 80, features, 5)
    results = []
    for threads in (1, 2, 3, 8):
        with fastdr.num_threads(threads):
            results.append(LDA().fit(X, y).scalings_)
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize("labels", [[2**60, 2**60 + 1, -3], [True, False, True]], ids=str)
def test_whole_numbers_in_objects_and_nullable_columns_are_labels_as_they_are(iris, labels):
    pandas = pytest.importorskip("pandas")
    y = np.asarray(labels)[load_iris().target]
    expected = LDA().fit(iris, y)
    nullable = "boolean" if y.dtype == bool else "Int64"
    for target in (y.astype(object), pandas.Series(y, dtype=nullable), y.tolist()):
        lda = LDA().fit(iris, target)
        assert lda.classes_.dtype == y.dtype
        np.testing.assert_array_equal(lda.classes_, expected.classes_)
        np.testing.assert_array_equal(lda.scalings_, expected.scalings_)
    for missing in (None, pandas.NA, np.nan):
        target = pandas.Series([missing, *y[1:]], dtype=nullable)
        with pytest.raises(ValueError, match="y contains NaN at row 0"):
            LDA().fit(iris, target)


def test_rows_of_one_class_do_not_make_it_fitted(iris):
    lda = LDA().partial_fit(iris[:5], ["a"] * 5)
    for call in (lda.predict, lda.transform, lda.predict_proba, lda.inverse_transform):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            call(iris)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        lda.projector()
    check_is_fitted(lda.partial_fit(iris[60:65], ["b"] * 5))


@pytest.mark.parametrize("labels", [
    ["b", "a", "ö"], [1, -5, 2**60], [True, False], [0.1, 1e-300, -3.5],
    np.array(["x", "y"], object), np.array([7, 8], np.uint8)], ids=str)
def test_saved_models_come_back_to_the_bit(rng, tmp_path, labels):
    labels = np.asarray(labels)
    X, y = made(rng, 50, 4, len(labels))
    lda = LDA(store_covariance=True).fit(X, y)
    model = fastdr.DiscriminantModel(labels, **{
        name: getattr(lda.model_, name) for name in (
            "priors", "mean", "means", "directions", "separations", "n_components", "centres",
            "count", "covariance", "report")}, feature_names=("p", "q", "r", "s"))
    model.save(tmp_path / "m.fdr")
    loaded = fastdr.load(tmp_path / "m.fdr")
    assert loaded.classes.dtype == labels.dtype
    for name in ("classes", "priors", "mean", "means", "directions", "separations", "centres",
                 "covariance"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(model, name))
    assert (loaded.n_components, loaded.count) == (model.n_components, 50)
    assert (loaded.report, loaded.feature_names) == (model.report, ("p", "q", "r", "s"))
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    np.testing.assert_array_equal(loaded.probabilities(X), lda.predict_proba(X))
    assert not loaded.directions.flags.writeable


@pytest.mark.parametrize(("part", "value", "words"), [
    ("priors", [1.0], r"priors has shape \(1,\); expected \(2,\)"),
    ("means", np.zeros((2, 3)), r"means has shape \(2, 3\); expected \(2, 2\)"),
    ("directions", np.zeros((1, 3)), "directions has shape"),
    ("separations", [1.0, 2.0], "separations has shape"),
    ("centres", np.zeros((2, 2)), "centres has shape"),
    ("covariance", np.eye(3), "covariance has shape"), ("classes", ["a"], "expected"),
    ("priors", [1.5, -0.5], "probabilities of sum 1"), ("priors", [0.5, 0.6], "of sum 1"),
    ("priors", [0.5, np.nan], "priors contains NaN")])
def test_parts_of_a_model_must_agree(part, value, words):
    parts = {"classes": ["a", "b"], "priors": [0.5, 0.5], "mean": [0.0, 0.0],
             "means": [[-1.0, 0.0], [1.0, 0.0]], "directions": [[2.0, 0.0]], "separations": [4.0]}
    model = fastdr.DiscriminantModel(**parts)
    assert model.n_components == 1
    np.testing.assert_array_equal(model.centres, [[-2.0], [2.0]])
    np.testing.assert_allclose(model.decisions([[0.5, 9.0]]), [4.0])
    with pytest.raises(ValueError, match=words):
        fastdr.DiscriminantModel(**{**parts, part: value})


def test_a_file_of_format_1_can_be_read():
    loaded = fastdr.load(Path(__file__).parent / "data" / "discriminant_model_1.fdr")
    np.testing.assert_array_equal(loaded.classes, ["ape", "bee", "ç"])
    np.testing.assert_array_equal(loaded.priors, [0.25, 0.25, 0.5])
    np.testing.assert_array_equal(loaded.mean, [1.0, 2.0])
    np.testing.assert_array_equal(loaded.means, [[0.0, 2.0], [1.0, 4.0], [1.5, 1.0]])
    np.testing.assert_array_equal(loaded.directions, [[2.0, 0.0], [0.0, 0.5]])
    np.testing.assert_array_equal(loaded.separations, [4.0, 0.25])
    np.testing.assert_array_equal(loaded.centres, [[-2.0, 0.0], [0.0, 1.0], [1.0, -0.5]])
    np.testing.assert_array_equal(loaded.covariance, [[0.25, 0.0], [0.0, 4.0]])
    assert (loaded.n_components, loaded.count) == (1, 10)
    assert (loaded.feature_names, loaded.report) == (("x", "y"), {"method": "cholesky"})
    np.testing.assert_array_equal(loaded.transform([[2.0, 0.0]]), [[2.0]])
    np.testing.assert_array_equal(loaded.predict([[1.0, 4.0], [1.5, 1.0]]), ["bee", "ç"])


def test_commands_for_components_refuse_discriminants(iris, tmp_path):
    testing = pytest.importorskip("typer.testing")
    from fastdr.cli import application

    LDA().fit(iris, load_iris().target).model_.save(tmp_path / "m.fdr")
    outcome = testing.CliRunner().invoke(application(), ["info", str(tmp_path / "m.fdr")])
    assert outcome.exit_code == 1
    assert "holds a DiscriminantModel, which has no principal axes" in outcome.output


def test_a_tiny_ridge_still_gives_the_exact_answer(rng):
    X, y = made(rng, 12, 20, 3)
    X *= np.geomspace(1, 1e-3, 20)
    share = np.bincount(y) / 12
    with mpmath.workdps(60):  # long double would lose the ridge
        rows = [mpmath.matrix(row) for row in X.tolist()]
        means = [sum((rows[i] for i in np.flatnonzero(y == c)), mpmath.zeros(20, 1))
                 / int((y == c).sum()) for c in range(3)]
        centred = [rows[i] - means[y[i]] for i in range(12)]
        within = sum((z * z.T for z in centred), mpmath.zeros(20)) / 12
        level = sum(within[i, i] for i in range(20)) / 20
        middle = sum(rows, mpmath.zeros(20, 1)) / 12
        for strength in (0.5, 1e-4, 1e-9, 1e-13):
            whole = (1 - mpmath.mpf(strength)) * within + strength * level * mpmath.eye(20)
            exact = np.array([[float(value) for value in mpmath.lu_solve(whole, mean - middle)]
                              for mean in means])
            lda = LDA(shrinkage=strength).fit(X, y)
            np.testing.assert_allclose(lda.priors_, share)
            error = np.linalg.norm(lda.coef_ - exact) / np.linalg.norm(exact)
            gram = slack(20) * 20 / strength  # rounding of the Gram matrix in units of the ridge
            assert error <= (4 * gram if gram <= RTOL else rounding(float, 20, 4.0))


def test_files_that_lie_and_labels_that_cannot_be_written_are_refused(rng, tmp_path):
    X, y = made(rng, 50, 4, 2)
    model = LDA().fit(X, y).model_
    model.save(tmp_path / "m.fdr")
    text = (tmp_path / "m.fdr").read_bytes()
    for old, new in ((rb'\"classes\": [0, 1]', rb'\"classes\": [1, 1]'),
                     (rb'\"n_components\": 1', rb'\"n_components\": 9'),
                     (rb"<i8", rb"<c8"), (rb"DiscriminantModel", rb"XiscriminantModel")):
        assert text.count(old) == 1
        (tmp_path / "bad.fdr").write_bytes(text.replace(old, new))
        with pytest.raises(ValueError, match="is not a valid fastdr model"):
            fastdr.load(tmp_path / "bad.fdr")
    labels = np.array([{1}, {2}])
    odd = fastdr.DiscriminantModel(labels, model.priors, model.mean, model.means,
                                   model.directions, model.separations)
    with pytest.raises(TypeError, match="only labels that are strings, numbers or bool"):
        odd.save(tmp_path / "odd.fdr")


def test_clones_pickles_and_pipelines(iris):
    y = load_iris().target
    lda = LDA(n_components=1, shrinkage=0.1).fit(iris, y)
    again = pickle.loads(pickle.dumps(lda))
    np.testing.assert_array_equal(again.transform(iris), lda.transform(iris))
    assert clone(lda).get_params() == lda.get_params()
    assert cross_val_score(LDA(), iris, y).mean() > 0.97
    pipeline = make_pipeline(fastdr.PCA(3), LDA())
    assert pipeline.fit(iris, y).score(iris, y) > 0.97
    np.testing.assert_array_equal(LDA().fit_transform(iris, y), LDA().fit(iris, y).transform(iris))
    assert "method" in str(lda.report_)


def test_inverse_transform_has_the_scores(wine):
    lda = LDA().fit(wine, load_wine().target)
    Z = lda.transform(wine)
    np.testing.assert_allclose(lda.transform(lda.inverse_transform(Z)), Z, atol=1e-9)
    np.testing.assert_allclose(lda.inverse_transform(np.zeros((1, 2)))[0], lda.xbar_, rtol=1e-14)
    with pytest.raises(ValueError, match="Z has 3 columns, but this model has 2"):
        lda.inverse_transform(np.zeros((1, 3)))


@pytest.mark.parametrize(("parameters", "words"), [
    ({"solver": "cholesky"}, "solver='cholesky' is not allowed; it must be one of auto, svd"),
    ({"shrinkage": 1.5}, "shrinkage=1.5 is not allowed"),
    ({"shrinkage": "oas"}, "shrinkage='oas' is not allowed"),
    ({"tol": -1}, "tol=-1 is not allowed"), ({"tol": np.inf}, "tol=inf is"),
    ({"n_components": 0}, "n_components=0 is not"),
    ({"n_components": 1.5}, "n_components=1.5 is not"),
    ({"n_components": 3}, "n_components cannot be larger than min.* pass at most 2"),
    ({"store_covariance": "yes"}, "store_covariance='yes' is not"),
    ({"covariance_estimator": 3}, "covariance_estimator=3 is not"),
    ({"priors": [0.5, 0.5]}, r"priors has shape \(2,\); expected \(3,\)"),
    ({"priors": [0.5, -0.5, 1]}, "priors must be non-negative; got -0.5"),
    ({"priors": [0, 0, 0]}, "priors must have a positive sum"),
    ({"priors": [1e308] * 3}, "and a finite one; it is inf"),
    ({"tol": 99.0}, "No direction varies within classes by more than tol=99"),
    ({"shrinkage": 0.1, "covariance_estimator": OAS()}, "Only one of the two can be set"),
    ({"covariance_estimator": fastdr.PCA()}, "PCA does not have a covariance_ attribute")], ids=str)
def test_parameters_out_of_range_are_named(iris, parameters, words):
    y = load_iris().target
    lda = LDA().fit(iris, y)
    model = lda.model_
    with pytest.raises(ValueError, match=words):
        lda.set_params(**parameters).fit(iris, y)
    assert lda.model_ is model


@pytest.mark.parametrize(("found", "error", "words"), [
    (np.eye(3), ValueError, r"has shape \(3, 3\); expected \(4, 4\)"),
    (1j * np.eye(4), TypeError, "covariance_ of Fixed has dtype complex128"),
    (np.full((4, 4), np.nan), ValueError, "is no covariance"),
    (-np.eye(4), ValueError, "is no covariance"),
    (np.eye(4) + 2 * np.eye(4)[::-1], ValueError, "no negative variance along any direction"),
    (np.eye(4)[::-1] * 1e9 + np.diag([1e18, 1e18, 1, 0]), ValueError, "is no covariance"),
    (np.eye(4) + np.eye(4, k=1) / 2, ValueError, "it must be finite and symmetric")])
def test_what_an_estimator_finds_must_be_a_covariance(iris, found, error, words):
    class Fixed:
        def fit(self, X):
            self.covariance_ = found

    with pytest.raises(error, match=words), np.errstate(invalid="ignore"):
        LDA(covariance_estimator=Fixed()).fit(iris, load_iris().target)


def test_priors_are_normalised_and_may_be_zero(iris):
    y = load_iris().target
    with pytest.warns(UserWarning, match="priors do not sum to 1") as caught:
        lda = LDA(priors=[1, 1, 2]).fit(iris, y)
    assert caught[0].filename == __file__
    np.testing.assert_allclose(lda.priors_, [0.25, 0.25, 0.5])
    for solver in ("auto", "lsqr"):
        never = LDA(solver, priors=[0, 0.5, 0.5]).fit(iris, y)
        assert set(never.predict(iris)) == {1, 2}
        np.testing.assert_allclose(never.means_[0], iris[y == 0].mean(0))
        assert never.predict_proba(iris)[:, 0].max() == 0


@pytest.mark.parametrize("parameters", [
    {"shrinkage": "auto"}, {"solver": "eigen", "priors": [0, 0.5, 0.5]}], ids=str)
@pytest.mark.parametrize("scale", [1e-300, 1e-100, 1e100])
def test_a_class_of_hardly_any_weight_still_has_a_mean(iris, parameters, scale):
    y = load_iris().target
    lda = LDA(**parameters).fit(iris, y, sample_weight=np.where(y == 0, scale, 1.0))
    np.testing.assert_allclose(lda.means_, [iris[y == c].mean(0) for c in range(3)],
                               rtol=rounding(float, 50, 1.0))


@pytest.mark.parametrize("solver", ["auto", "eigen"])
def test_weights_whose_sum_vanishes_are_refused(iris, solver):
    y, weight = load_iris().target, np.full(150, 1e-200)
    lda = LDA(solver)
    for fit in (lda.fit, lda.partial_fit):
        with pytest.raises(ValueError, match="sample_weight has sum 1.5e-198; at least 1e-150"):
            fit(iris, y, sample_weight=weight)
        assert not hasattr(lda, "moments_")


def test_labels_that_are_masked_or_missing_are_refused(iris):
    pandas = pytest.importorskip("pandas")
    y = load_iris().target
    words = pandas.Series(load_iris().target_names[y], dtype="string")
    for labels, message in ((np.ma.array(y, mask=y == 1), "y has masked values"),
                            (words.where(y != 1), "y contains NaN at row 50")):
        with pytest.raises(ValueError, match=message):
            LDA().fit(iris, labels)


@pytest.mark.parametrize("kind", [list, set, tuple, iter, np.array])
def test_classes_to_come_may_be_any_iterable(iris, kind):
    y = load_iris().target
    assert LDA().partial_fit(iris, y, kind([0, 1, 2, 3])).classes_.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"y has label .*2.*, which is not in classes"):
        LDA().partial_fit(iris, y, kind([0, 1]))
    with pytest.raises(TypeError, match="classes=2 is not allowed"):
        LDA().partial_fit(iris, y, 2)


def test_sparse_rows_are_refused_by_name(iris):
    """Where an estimator of others gets the rows of each class; see test_discriminant_sparse.py."""
    with pytest.raises(TypeError, match="X is sparse"):
        LDA("lsqr", covariance_estimator=OAS()).fit(scipy.sparse.csr_array(iris),
                                                           load_iris().target)


def test_wide_products_agree_with_plain_ones(rng):
    from fastdr.within import ClassColumns

    X, y = made(rng, 30, 500, 3, offset=1e6)
    means = np.array([column_mean(X[y == c]) for c in range(3)])
    near = means.astype(float)
    columns = ClassColumns(X, y, near, (means - near).astype(float), np.ones(500))
    Z = (wide(X) - means[y]).astype(float)
    bound = rounding(float, 500, np.abs(Z).max() ** 2)
    np.testing.assert_allclose(columns.block(slice(3, 9)), Z[:, 3:9], atol=bound)
    factor, right = rng.uniform(0.5, 2, 500), rng.standard_normal((2, 500))
    np.testing.assert_allclose(columns.gram(factor), (Z * factor) @ (Z * factor).T, atol=8 * bound)
    np.testing.assert_allclose(columns.inner(right), right @ Z.T, atol=bound)
    np.testing.assert_allclose(columns.product(Z[:, :4].T), Z[:, :4].T @ Z, atol=bound)
