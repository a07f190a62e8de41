"""Refusals: what was given, what is allowed, what to do; and nothing is left half done."""

import re
import warnings
from datetime import datetime, timedelta

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone

import fastdr
from fastdr.limits import spe_limit_of
from fastdr.validation import (
    as_matrix,
    as_numbers,
    as_vector,
    as_weights,
    output,
    raise_not_finite,
    working_dtype,
)

X = np.random.default_rng(5).standard_normal((30, 4))
V = np.eye(4)[:2]


def unaligned(array):
    """Return an equal array that begins between two numbers."""
    moved = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


@pytest.mark.parametrize(("given", "result"), [
    ("f8", "f8"), ("f4", "f4"), ("f2", "f4"), ("?", "f8"), ("u1", "f8"), ("i8", "f8"),
    (">f4", "f4"), (">f8", "f8"), ("u8", "f8")])
def test_one_dtype_policy(given, result):
    assert working_dtype(given) == np.dtype(result)
    Z = fastdr.PCA(2).fit((X * 9).astype(given) if given != "?" else X > 0)
    assert Z.components_.dtype == np.dtype(result)
    assert Z.mean_.dtype == np.float64
    rows = (X * 9).astype(given) if given != "?" else X > 0
    assert Z.transform(rows).dtype == np.dtype(result)
    assert Z.transform(rows).dtype.isnative


@pytest.mark.parametrize("array", [X, X[::2, ::-1], np.asfortranarray(X), X.astype(">f4")])
def test_an_array_is_never_copied(array):
    assert np.shares_memory(as_matrix(array), array)


def test_lists_are_read():
    np.testing.assert_array_equal(as_matrix([[1, 2], [3, 4]]), [[1, 2], [3, 4]])
    assert as_matrix([[1, 2.5], [3, 4]]).dtype == np.float64


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil"])
@pytest.mark.parametrize("array", ["matrix", "array"])
def test_sparse_input_is_refused_by_name(kind, array):
    sparse = getattr(scipy.sparse, f"{kind}_{array}")(np.eye(4))
    for call in (fastdr.covariance, fastdr.moments, fastdr.FastICA(2).fit,
                 lambda S: fastdr.reconstruct(S, V)):
        with pytest.raises(TypeError, match=r"sparse.*dense.*toarray\(\)"):
            call(sparse)


def test_matrix_objects_are_arrays():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        table = np.matrix(X)
    np.testing.assert_array_equal(fastdr.covariance(table), fastdr.covariance(X))
    np.testing.assert_array_equal(fastdr.project(table, V), fastdr.project(X, V))
    model = fastdr.PCA(2)
    np.testing.assert_array_equal(model.fit_transform(table), model.fit_transform(X))


def test_masked_values_are_not_read_as_data():
    masked = np.ma.masked_array(X, mask=X > 1)
    for call in (fastdr.covariance, fastdr.PCA(2).fit, lambda A: fastdr.project(A, V)):
        with pytest.raises((ValueError, TypeError), match="mask"):
            call(masked)
    np.testing.assert_array_equal(fastdr.covariance(np.ma.masked_array(X)), fastdr.covariance(X))


BAD_DTYPES = [
    (np.ones((3, 4), complex), ValueError, "Complex data not supported"),
    (np.ones((3, 4), "c8"), ValueError, "Complex data not supported"),
    (np.full((3, 4), "a"), TypeError, r"dtype <U1; allowed are float64.*convert with"),
    (np.full((3, 4), b"a"), TypeError, r"dtype \|S1; allowed are"),
    (np.zeros((3, 4), "M8[s]"), TypeError, r"datetime64\[s\]; allowed are .* numeric columns"),
    (np.zeros((3, 4), "m8[s]"), TypeError, r"timedelta64\[s\]; allowed are"),
    (np.ones((3, 4), np.longdouble), TypeError, r"(float128|longdouble); allowed are"),
    (np.zeros((3, 4), [("a", "f8")]), TypeError, r"allowed are"),
    (np.array([["a", 1]], dtype=object), (TypeError, ValueError),
     "dtype object; allowed are|could not convert string"),
    ([["a", 1.5, None, 2]], (TypeError, ValueError), "numbers|dtype"),
    ([[1j, 1, 2, 3]], ValueError, "Complex data not supported"),
]


@pytest.mark.parametrize(("array", "error", "words"), BAD_DTYPES)
def test_dtypes_are_refused_by_name(array, error, words):
    for call in (fastdr.covariance, fastdr.moments, fastdr.PCA().fit,
                 lambda A: fastdr.project(A, V), lambda A: fastdr.reconstruction_error(A, V),
                 lambda A: fastdr.reconstruct(A, np.eye(4))):
        with pytest.raises(error, match=words):
            call(array)


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("column", [["x", "y"], [None, "y"], [datetime(2020, 1, 1)] * 2,
                                    [timedelta(1)] * 2], ids=["strings", "None", "dates", "times"])
def test_columns_without_numbers_are_named(library, column):
    frames = pytest.importorskip(library)
    frame = frames.DataFrame({"p": [1.0, 2.0], "q": [True, False], "r": column, "s": [1, 2]})
    for call in (fastdr.covariance, fastdr.PCA().fit):
        with pytest.raises((TypeError, ValueError), match=r"\(column 'r'; pick the numeric col"):
            call(frame)


@pytest.mark.parametrize(("weights", "error", "words"), [
    (np.ones(29), ValueError, r"sample_weight has shape \(29,\); expected \(30,\)"),
    (np.ones((30, 1)), ValueError, r"sample_weight has shape \(30, 1\); expected \(30,\)"),
    (np.r_[np.ones(29), -2], ValueError, "sample_weight must not be negative; row 29 has -2"),
    (np.r_[np.nan, np.ones(29)], ValueError, "sample_weight contains NaN or infinity at index 0"),
    (np.r_[np.ones(29), np.inf], ValueError, "sample_weight contains NaN or infinity at index 29"),
    (np.zeros(30), ValueError, "sample_weight is zero for every row; give at least one"),
    (["a"] * 30, (ValueError, TypeError), "sample_weight|could not convert"),
    (np.ones(30) * 1j, (ValueError, TypeError), "sample_weight|[Cc]omplex"),
])
def test_weights(weights, error, words):
    for call in (fastdr.moments, fastdr.PCA(2).fit,
                 lambda A, sample_weight: fastdr.covariance(A, sample_weight=sample_weight)):
        with pytest.raises(error, match=words):
            call(X, sample_weight=weights)


def test_weights_accept_lists_integers_and_none():
    assert as_weights(None, 3) is None
    np.testing.assert_array_equal(as_weights([1, 2, 3], 3), [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(as_weights(2, 3), [2.0, 2.0, 2.0])


def test_known_means():
    for call in (lambda m: fastdr.covariance(X, mean=m), lambda m: fastdr.project(X, V, m),
                 lambda m: fastdr.PCA(2, mean=m).fit(X),
                 lambda m: fastdr.reconstruction_error(X, V, m)):
        with pytest.raises(ValueError, match=r"mean has shape \(3,\); expected \(4,\)"):
            call(np.ones(3))
        with pytest.raises(ValueError, match="mean contains NaN or infinity at index 1"):
            call([0, np.nan, 0, 0])


def test_factors_and_scales():
    for function in (fastdr.project, fastdr.reconstruction_error):
        with pytest.raises(ValueError, match=r"components has shape \(2, 3\); expected \(k, 4\)"):
            function(X, np.ones((2, 3)))
        with pytest.raises(ValueError, match=r"components has shape \(4,\); expected"):
            function(X, np.ones(4))
        with pytest.raises(ValueError, match="scale must be positive; entry 2 is 0"):
            function(X, V, scale=[1, 1, 0, 1])
        with pytest.raises(ValueError, match="components contains NaN|components .*finite"):
            function(X, np.full((1, 4), np.nan))
    with pytest.raises(ValueError, match="3 column.*2"):
        fastdr.reconstruct(np.ones((5, 3)), V)


PARTS = [
    (lambda V: fastdr.project(X, V), V, "components"),
    (lambda V: fastdr.reconstruct(X[:, :2], V), V, "components"),
    (lambda V: fastdr.reconstruction_error(X, V), V, "components"),
    (lambda m: fastdr.project(X, V, m), np.ones(4), "mean"),
    (lambda m: fastdr.reconstruct(X[:, :2], V, m), np.ones(4), "mean"),
    (lambda m: fastdr.reconstruction_error(X, V, m), np.ones(4), "mean"),
    (lambda m: fastdr.covariance(X, mean=m), np.ones(4), "mean"),
    (lambda m: fastdr.moments(X).covariance(mean=m), np.ones(4), "mean"),
    (lambda m: fastdr.PCA(2, mean=m).fit(X), np.ones(4), "mean"),
    (lambda s: fastdr.project(X, V, scale=s), np.ones(4), "scale"),
    (lambda s: fastdr.reconstruct(X[:, :2], V, scale=s), np.ones(4), "scale"),
    (lambda s: fastdr.reconstruction_error(X, V, scale=s), np.ones(4), "scale"),
    (lambda w: fastdr.moments(X, w), np.ones(30), "sample_weight"),
    (lambda w: fastdr.covariance(X, sample_weight=w), np.ones(30), "sample_weight"),
    (lambda w: fastdr.PCA(2).fit(X, sample_weight=w), np.ones(30), "sample_weight"),
    (lambda w: fastdr.IncrementalPCA(2).partial_fit(X, sample_weight=w), np.ones(30),
     "sample_weight"),
    (lambda w: fastdr.Moments.of_source(fastdr.open_rows(X, block_rows=9), w), np.ones(30),
     "sample_weight"),
    (lambda V: fastdr.LinearModel(np.zeros(4), V, np.ones(2)), V, "components"),
    (lambda m: fastdr.LinearModel(m, V, np.ones(2)), np.ones(4), "mean"),
    (lambda s: fastdr.LinearModel(np.zeros(4), V, np.ones(2), scale=s), np.ones(4), "scale"),
    (lambda V: fastdr.SingularModel(V, np.ones(2), np.ones(2)), V, "components"),
    (lambda V: fastdr.UnmixingModel(np.zeros(4), V, np.eye(4, 2)), V, "components"),
    (lambda V: fastdr.UnmixingModel(np.zeros(4), np.eye(2, 4), V.T), V, "mixing"),
    (lambda V: fastdr.DiscriminantModel([0, 1], [0.5, 0.5], np.zeros(4), np.zeros((2, 4)), V,
                                        [1, 1]), V, "directions"),
    (lambda V: fastdr.NetworkModel.from_weights([V, V.T], [[0, 0], [0] * 4], ["identity"] * 2), V,
     "weights"),
    (lambda V: fastdr.certify(np.diag([4.0, 3, 2, 1]), V.T), V, "vectors"),
    (lambda V: fastdr.eigsh(np.eye(4), 1, start=V.T), V, "start"),
    (lambda w: fastdr.FastICA(2, w_init=w).fit(X), np.eye(2), "w_init"),
    (lambda p: fastdr.LinearDiscriminantAnalysis(priors=p).fit(X, X[:, 0] > 0),
     np.full(2, 0.5), "priors"),
    (spe_limit_of, np.arange(4.0), "errors"),
]


@pytest.mark.parametrize(("call", "part", "name"), PARTS)
@pytest.mark.filterwarnings("ignore:Sources 0, 1 are as near to normal")
def test_what_goes_with_rows_is_refused_where_rows_are(call, part, name):
    call(part)
    mask = np.arange(part.size).reshape(part.shape) == 1
    with pytest.raises(ValueError, match=f"{name} has masked values; fill them"):
        call(np.ma.masked_array(part, mask))
    with pytest.raises(TypeError, match=f"{name} has dtype complex128; expected real numbers"):
        call(part + 1j)
    with pytest.raises(TypeError, match=f"{name} has dtype <U.*; expected real numbers"):
        call(part.astype(str))


@pytest.mark.parametrize("call", [
    fastdr.covariance, fastdr.PCA(2).fit, lambda rows: fastdr.project(np.eye(4), rows),
    lambda rows: fastdr.project(rows, V)])
def test_masks_in_lists_of_rows_are_seen(call):
    rows = list(np.ma.masked_array(X[:4], mask=np.eye(4)))
    with pytest.raises(ValueError, match="(X|components) has masked values"):
        call(rows)


def test_masked_labels_and_points_are_refused():
    with pytest.raises(ValueError, match="y has masked values"):
        fastdr.ClassMoments.of(X, np.ma.masked_array(np.arange(30) % 2, np.arange(30) == 3))
    point = np.ma.masked_array(np.ones(4), [0, 0, 1, 0])
    with pytest.raises(ValueError, match="X has masked values"):
        fastdr.Subspace(V.T).project(point)
    with pytest.raises(ValueError, match="basis has masked values"):
        fastdr.Subspace([point])


@pytest.mark.parametrize("weight", ["2", 2j, [None] * 30])
def test_weights_that_are_no_numbers(weight):
    with pytest.raises(TypeError, match="sample_weight has dtype .*; expected real numbers"):
        fastdr.moments(X, weight)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_components_that_are_not_finite_are_refused(bad):
    for call in (fastdr.project, fastdr.reconstruction_error, fastdr.reconstruct):
        with pytest.raises(ValueError, match="components contains NaN or infinity"):
            call([[1.0, 0.0]], [[bad, 1.0], [0.0, 1.0]])


@pytest.mark.parametrize(("make", "words"), [
    (lambda: np.empty((30, 3)), r"out is float64 of shape \(30, 3\); expected a float64 array of "
                                r"shape \(30, 2\)"),
    (lambda: np.empty((30, 2), "f4"), "out is float32"),
    (lambda: np.empty((2, 30)).T, "C-contiguous"),
    (lambda: np.empty((30, 4))[:, :2], "C-contiguous"),
    (lambda: unaligned(np.empty((30, 2))), "aligned"),
    (lambda: [[0.0, 0.0]] * 30, "out is list"),
    (lambda: np.empty((30, 2), ">f8"), "out is >f8"),
])
def test_out_arrays(make, words):
    with pytest.raises((ValueError, TypeError), match=words):
        fastdr.project(X, V, out=make())


def test_what_goes_with_rows_is_aligned():
    for given in (np.arange(3.0), np.arange(3, dtype="f4"), np.eye(3)):
        taken = as_numbers(unaligned(given), "mean")
        assert taken.flags.aligned
        np.testing.assert_array_equal(taken, given)
    C = np.diag(np.arange(30.0))
    np.testing.assert_array_equal(fastdr.eigsh(unaligned(C), 2).values, fastdr.eigsh(C, 2).values)


def test_out_that_is_read_only_or_overlaps():
    frozen = np.empty((30, 2))
    frozen.setflags(write=False)
    with pytest.raises(ValueError, match="writeable"):
        fastdr.project(X, V, out=frozen)
    room = np.random.default_rng(0).standard_normal((30, 6))
    with pytest.raises(ValueError, match="shares memory"):
        fastdr.project(np.ascontiguousarray(room).reshape(60, 3)[:20], np.eye(3),
                       out=room.reshape(60, 3)[10:30])
    with pytest.raises(ValueError, match=r"\(4, 4\)"):
        fastdr.covariance(X, out=np.empty((3, 3)))
    square = np.random.default_rng(0).standard_normal((4, 4))
    with pytest.raises(ValueError, match="shares memory"):
        fastdr.covariance(square, out=square)


SQUARE = np.random.default_rng(1).standard_normal((4, 4))
LINE = np.abs(SQUARE[:, 0])


@pytest.mark.parametrize("call", [
    lambda S, m: fastdr.project(X[:4], S, out=S),
    lambda S, m: fastdr.project(X[:4], S[:1], m, out=m.reshape(4, 1)),
    lambda S, m: fastdr.project(X[:4], S[:1], scale=m, out=m.reshape(4, 1)),
    lambda S, m: fastdr.project(scipy.sparse.csr_array(X[:4]), S, out=S),
    lambda S, m: fastdr.reconstruct(X[:4], S, out=S),
    lambda S, m: fastdr.reconstruct(X[:4], SQUARE, S[1], out=S),
    lambda S, m: fastdr.reconstruct(X[:4], SQUARE, scale=np.abs(S, out=S)[1], out=S),
    lambda S, m: fastdr.reconstruction_error(X[:4], S[:1], out=S[0]),
    lambda S, m: fastdr.reconstruction_error(X[:4], SQUARE[:1], m, out=m),
    lambda S, m: fastdr.reconstruction_error(X[:4], SQUARE[:1], scale=m, out=m),
    lambda S, m: fastdr.reconstruction_error(scipy.sparse.csr_array(X[:4]), SQUARE[:1], m, out=m),
    lambda S, m: fastdr.covariance(X, mean=S[2], out=S),
    lambda S, m: fastdr.covariance(X[:4], sample_weight=np.abs(S, out=S)[2], out=S),
])
def test_out_that_is_an_operand(call):
    square, line = SQUARE.copy(), LINE.copy()
    with pytest.raises(ValueError, match="out shares memory with an operand.*pass a separate"):
        call(square, line)


@pytest.mark.parametrize("whiten", [False, "pca", "zca"])
def test_out_that_is_part_of_a_model_or_its_input(whiten):
    axes, mean, room = np.linalg.qr(SQUARE)[0].copy(), LINE.copy(), SQUARE.copy()
    model = fastdr.LinearModel(mean, axes, LINE, whiten=whiten)
    for method in (model.transform, model.inverse_transform):
        for given, out in ((X[:4], axes), (X[:1], mean[None]), (room, room)):
            with pytest.raises(ValueError, match="out shares memory with an operand"):
                method(given, out=out)
    np.testing.assert_array_equal(room, SQUARE)


@pytest.mark.parametrize(("model", "method", "part"), [
    (fastdr.SingularModel(SQUARE.copy(), LINE, LINE), "transform", "components"),
    (fastdr.SingularModel(SQUARE.copy(), LINE, LINE), "inverse_transform", "components"),
    (fastdr.UnmixingModel(LINE, SQUARE.copy(), SQUARE), "transform", "components"),
    (fastdr.UnmixingModel(LINE, SQUARE, SQUARE.copy()), "inverse_transform", "mixing"),
    (fastdr.DiscriminantModel(["a", "b"], [0.5, 0.5], LINE, np.zeros((2, 4)), SQUARE.copy(), LINE),
     "inverse_transform", "directions"),
    (fastdr.NetworkModel.from_weights([SQUARE, SQUARE], [LINE, LINE], ["identity"] * 2),
     "reconstruct", "parameters"),
])
def test_out_that_is_part_of_another_model(model, method, part):
    out = getattr(model, part).base.ravel()[:16].reshape(4, 4)
    out.flags.writeable = True
    with pytest.raises(ValueError, match="out shares memory with an operand"):
        getattr(model, method)(X[:4], out=out)


def test_output_allocates_or_returns_what_it_was_given():
    assert output(None, (2, 3), "f4").dtype == np.float32
    room = np.empty((2, 3))
    assert output(room, (2, 3), "f8") is room


def test_vectors():
    np.testing.assert_array_equal(as_vector([1, 2], 2, "v"), [1.0, 2.0])
    with pytest.raises(ValueError, match=r"v has shape \(3,\); expected \(2,\)"):
        as_vector([1, 2, 3], 2, "v")


def test_too_few_rows_for_the_divisor():
    with pytest.raises(ValueError, match=r"ddof=1 leaves no degree of freedom.*1 row"):
        fastdr.covariance(X[:1])
    with pytest.raises(ValueError, match=r"ddof=30.*30 row"):
        fastdr.covariance(X, ddof=30)
    with pytest.raises(ValueError, match="ddof"):
        fastdr.covariance(X, ddof=np.nan)
    with pytest.raises(ValueError, match=r"kind='other'; allowed are"):
        fastdr.moments(X).covariance(kind="other")


def test_values_that_are_not_finite_are_located_in_blocks():
    big = np.zeros((200_000, 12), "f4")
    raise_not_finite(big)
    big[150_000, 7] = np.inf
    big[199_999, 11] = np.nan
    with pytest.raises(ValueError, match=re.escape(
            "Input X contains infinity at row 150000, column 7 (2 non-finite values in all). "
            "Remove or impute such values first.")):
        raise_not_finite(big)
    with pytest.raises(ValueError, match=r"Input Z contains infinity .* column 7 \('h'\)"):
        raise_not_finite(big, "Z", columns=list("abcdefghijkl"))
    raise_not_finite(np.full((3, 3), 7))


PARAMETERS = [
    ({"svd_solver": "magic"}, r"svd_solver='magic' .*auto.*lapack.*svd"),
    ({"svd_solver": None}, "svd_solver"), ({"whiten": "both"}, r"whiten='both'.*'pca'.*'zca'"),
    ({"whiten": None}, "whiten"), ({"whiten": 2}, "whiten"),
    ({"tol": -1.0}, "tol=-1.0"), ({"tol": "small"}, "tol='small'"),
    ({"n_oversamples": 0}, "n_oversamples=0"), ({"n_oversamples": 1.5}, "n_oversamples"),
    ({"iterated_power": -1}, "iterated_power=-1"),
    ({"power_iteration_normalizer": "RQ"}, "power_iteration_normalizer='RQ'"),
    ({"n_components": "most"}, "n_components='most'"),
]


@pytest.mark.parametrize(("parameters", "words"), PARAMETERS)
def test_parameters_are_refused_by_name_when_fitting(parameters, words):
    with pytest.raises((ValueError, TypeError), match=words):
        fastdr.PCA(**parameters).fit(X)


def state(model):
    return {name: (value.copy() if isinstance(value, np.ndarray) else value)
            for name, value in vars(model).items()}


@pytest.mark.parametrize("bad", [
    np.full((30, 4), np.nan), X[:0], np.ones((5, 4), complex), np.ones(4), X[:1],
    scipy.sparse.csr_array(np.where(X > 0, np.nan, 0)),
    np.where(np.arange(120).reshape(30, 4) == 119, np.inf, X), np.full((6, 9), np.nan)])
@pytest.mark.parametrize("solver", ["auto", "svd"])
@pytest.mark.parametrize("standardize", [False, True])
def test_a_failed_fit_leaves_the_fitted_state_as_it_was(bad, solver, standardize):
    model = fastdr.PCA(2, svd_solver=solver, standardize=standardize).fit(X)
    before, scores = state(model), model.transform(X)
    for call in (model.fit, model.fit_transform):
        with pytest.raises((ValueError, TypeError)):
            call(bad)
        assert state(model).keys() == before.keys()
        assert model.model_ is before["model_"]
        assert model.n_features_in_ == 4
        np.testing.assert_array_equal(model.transform(X), scores)
    model.n_components = 99
    with pytest.raises(ValueError, match="n_components=99"):
        model.fit(X)
    np.testing.assert_array_equal(model.transform(X), scores)


def test_a_failed_first_fit_leaves_no_state():
    model = fastdr.PCA(2)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.full((30, 4), np.nan))
    assert not [name for name in vars(model) if name.endswith("_")]


def test_no_input_is_modified(rng):
    rows, weight = rng.standard_normal((50, 4)) + 3, rng.random(50)
    mean, scores = rows.mean(axis=0), rng.standard_normal((5, 2))
    kept = [a.copy() for a in (rows, weight, mean, scores)]
    fastdr.covariance(rows, sample_weight=weight, mean=mean)
    for whiten in (False, "pca", "zca"):
        for solver in ("lapack", "svd"):
            model = fastdr.PCA(2, whiten=whiten, svd_solver=solver, standardize=True, mean=mean)
            model.fit(rows, sample_weight=weight)
            model.fit_transform(rows, sample_weight=weight)
            model.score_samples(rows)
            model.reconstruction_error(rows)
            model.inverse_transform(model.transform(rows))
    fastdr.reconstruct(scores, V)
    for now, then in zip((rows, weight, mean, scores), kept, strict=True):
        np.testing.assert_array_equal(now, then)


def test_results_do_not_alias_the_input_or_the_model(rng):
    rows = rng.standard_normal((20, 3))
    model = fastdr.PCA().fit(rows)
    scores = model.transform(rows)
    rows[...] = 0
    np.testing.assert_array_equal(model.mean_ == 0, False)
    fastdr.project(np.eye(3), model.components_)
    scores[...] = 7
    assert np.abs(model.components_).max() <= 1


SEEDED = [fastdr.PCA(2, svd_solver="lanczos"), fastdr.TruncatedSVD(2, algorithm="lanczos"),
          fastdr.LSI(2)]


@pytest.mark.parametrize("seed", [-1, 1.5, True, "7", [1]])
@pytest.mark.parametrize("estimator", SEEDED, ids=lambda each: type(each).__name__)
def test_random_states_that_are_none_are_refused_by_name(rng, estimator, seed):
    with pytest.raises(ValueError, match="random_state=.* it must be an integer of at least 0"):
        clone(estimator).set_params(random_state=seed).fit(rng.random((30, 8)))


@pytest.mark.parametrize("estimator", SEEDED, ids=lambda each: type(each).__name__)
def test_every_random_state_is_taken(rng, estimator):
    X = rng.random((30, 8))
    found = [clone(estimator).set_params(random_state=seed).fit(X).singular_values_
             for seed in (None, np.int32(7), np.random.default_rng(7), np.random.RandomState(7))]
    for values in found[1:]:
        np.testing.assert_allclose(values, found[0], rtol=1e-9)
