"""IncrementalPCA: any batches give the axes of all rows at once. Cases C75 to C81, C117."""

import copy
import math
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator
from tolerance import assert_orthonormal, eigenvalue_error, product_error, subspace_angle

import fastdr
from fastdr import PCA, IncrementalPCA, Moments
from fastdr.sources import BlockSource

EPS = np.finfo(float).eps


def streamed(X, size, estimator=None, weights=None):
    estimator = IncrementalPCA() if estimator is None else estimator
    for start in range(0, len(X), size):
        part = slice(start, start + size)
        estimator.partial_fit(X[part], sample_weight=None if weights is None else weights[part])
    return estimator


def spread(rng, rows, features, offset=0.0):
    return rng.standard_normal((rows, features)) * np.linspace(features, 1, features) + offset


def assert_same(found, expected, X):
    """Variances agree to rounding of the covariance, axes to that over the gap below them."""
    largest = expected.explained_variance_[0]
    slip = 4 * EPS * np.linalg.norm(expected.mean_) * math.sqrt(largest)  # a mean in float64
    bound = eigenvalue_error(X.shape[1], largest) + slip
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=0,
                               atol=bound)
    np.testing.assert_allclose(found.mean_, expected.mean_, rtol=4 * EPS,
                               atol=32 * EPS * math.sqrt(largest))
    assert found.total_variance_ == pytest.approx(expected.total_variance_, abs=X.shape[1] * bound)
    assert found.noise_variance_ == pytest.approx(expected.noise_variance_, abs=X.shape[1] * bound)
    assert found.n_samples_ == expected.n_samples_
    assert_orthonormal(found.components_)
    every = np.append(expected.explained_variance_, expected.noise_variance_)
    for k in range(1, len(found.components_) + 1):
        gap = every[k - 1] - every[k]
        if gap > 0.05 * every[k - 1] and k < X.shape[1]:
            angle = subspace_angle(found.components_[:k], expected.components_[:k])
            assert angle <= 4 * bound / gap


@pytest.mark.parametrize("parameters", [
    {}, {"n_components": 2}, {"whiten": True}, {"standardize": True}, {"forgetting": 0.99},
    {"window": 50}], ids=str)
def test_scikit_learn_accepts_it(parameters):
    shuffling = {f"check_sample_weight_equivalence_on_{kind}_data": "it puts rows in another order"
                 for kind in ("dense", "sparse")} if "forgetting" in parameters else {}
    for result in check_estimator(IncrementalPCA(**parameters), on_skip=None,
                                  expected_failed_checks=shuffling):
        assert result["status"] in ("passed", "skipped", "xfail"), result


@example(size=3, features=4, k=1, offset=0.0, weighted=True)  # batches without any weight
@given(size=st.sampled_from([1, 3, 50, 299, 300, 1000]), features=st.sampled_from([4, 400]),
       k=st.sampled_from([1, 3, 0.9]), offset=st.sampled_from([0.0, 1e6]),
       weighted=st.booleans())
def test_c76_any_batches_are_one(size, features, k, offset, weighted):
    rng = np.random.default_rng(size)
    X = spread(rng, 450 if features == 4 else 60, features, offset)
    weights = rng.integers(size == 1, 3, len(X)).astype(float) if weighted else None
    expected = PCA(k).fit(X, sample_weight=weights)
    assert_same(streamed(X, size, IncrementalPCA(k), weights), expected, X)
    assert_same(IncrementalPCA(k).fit(X, sample_weight=weights), expected, X)


def test_a_batch_of_no_weight_is_no_batch(rng):
    X = spread(rng, 60, 4)
    plain, stream = streamed(X, 20, IncrementalPCA(2)), IncrementalPCA(2)
    for start in range(0, 60, 20):
        stream.partial_fit(X[start:start + 20])
        stream.partial_fit(np.full((3, 4), 1e9), sample_weight=np.zeros(3))
    for weights in ([0, 0, 0], [0, 1, 0]):  # but it must be one of numbers, as everywhere
        with pytest.raises(ValueError, match="NaN at row 2, column 0"):
            stream.partial_fit([[1.0] * 4, [2.0] * 4, [np.nan] * 4], sample_weight=weights)
    assert stream.n_samples_seen_ == 60
    np.testing.assert_array_equal(stream.components_, plain.components_)
    np.testing.assert_array_equal(stream.mean_, plain.mean_)


@pytest.mark.parametrize("order", ["reversed", "sorted", "shuffled"])
def test_order_does_not_matter(rng, order):
    X = spread(rng, 900, 5, 1e4)
    expected = streamed(X, 70)
    rows = {"reversed": np.arange(900)[::-1], "sorted": np.argsort(X[:, 0]),
            "shuffled": rng.permutation(900)}[order]
    assert_same(streamed(X[rows], 70), expected, X)


def test_c76_flat_spectra_are_not_truncated(rng):
    X = rng.standard_normal((5000, 50))
    found, expected = streamed(X, 20, IncrementalPCA(5)), PCA(5).fit(X)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_,
                               rtol=1e-10)


def test_c76_bytes(rng):
    X = rng.integers(0, 256, (2000, 9)).astype(np.uint8)
    found, expected = streamed(X, 7, IncrementalPCA(3)), PCA(3).fit(X.astype(float))
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_,
                               rtol=1e-10)


@pytest.mark.parametrize(("rows", "size", "k"), [(101, 10, 2), (51, 50, 2), (20, 2, 3),
                                                 (20, 1, 3)])
def test_c75_batches_of_fewer_rows_than_components(rng, rows, size, k):
    X = spread(rng, rows, 4)
    found = streamed(X, size, IncrementalPCA(k))
    assert found.n_samples_seen_ == rows
    assert_same(found, PCA(k).fit(X), X)


def test_c75_until_there_are_enough_rows(rng):
    X = spread(rng, 9, 6)
    stream = IncrementalPCA(3)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        stream.transform(X)
    for count in (1, 2):
        stream.partial_fit(X[count - 1:count])
        assert stream.n_samples_seen_ == count
        assert not hasattr(stream, "components_")
        with pytest.raises(NotFittedError, match="Call partial_fit again"):
            stream.transform(X)
    assert stream.partial_fit(X[2:3]).transform(X).shape == (9, 3)
    assert streamed(X, 1, IncrementalPCA("mle")).n_components_ == PCA("mle").fit(X).n_components_


def test_c77_fit_forgets_and_partial_fit_goes_on(iris):
    stream = IncrementalPCA(2, batch_size=50)
    first = stream.fit(iris).explained_variance_
    assert stream.fit(iris).n_samples_seen_ == 150
    np.testing.assert_array_equal(stream.explained_variance_, first)
    assert stream.batch_size_ == 50
    assert clone(stream).get_params() == stream.get_params()
    stream.partial_fit(iris[:30])
    assert stream.n_samples_seen_ == 180
    both = np.concatenate([iris, iris[:30]])
    assert_same(stream, PCA(2).fit(both), both)
    assert IncrementalPCA().fit(iris).batch_size_ == 20


@pytest.mark.parametrize("small", [False, True])
def test_c79_memory_of_a_wide_batch(rng, small):
    X = rng.standard_normal((100, 20_000)).astype("f4")
    stream = IncrementalPCA(3)
    tracemalloc.start()
    stream.partial_fit(X[:30] if small else X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 1.5 * X.nbytes  # scikit-learn: 4 times
    assert stream.components_.dtype == np.float32


def test_c81_estimators_add(rng):
    X = spread(rng, 3000, 10, 1e6)
    parts = [IncrementalPCA(4).fit(part) for part in np.array_split(X, 3)]
    a, b, c = parts
    expected = PCA(4).fit(X)
    sums = [(a + b) + c, a + (b + c), c + a + b]
    for both in sums:
        np.testing.assert_allclose(both.explained_variance_, expected.explained_variance_,
                                   rtol=1e-10)
        np.testing.assert_allclose(both.explained_variance_, sums[0].explained_variance_,
                                   rtol=1e-12)
        assert both.n_samples_seen_ == 3000
        assert both.n_components == 4
    assert a.n_samples_seen_ == 1000
    streams = [streamed(part, 90, IncrementalPCA(4)) for part in np.array_split(X, 3)]
    assert_same(streams[0] + streams[1] + streams[2], expected, X)
    moments = Moments.of(X[:1000]) + Moments.of(X[1000:])
    assert_same(IncrementalPCA(4).partial_fit(moments), expected, X)


def test_c81_what_does_not_add(rng):
    X = spread(rng, 300, 3)
    a = IncrementalPCA().fit(X)
    for other, words in ((IncrementalPCA(), "have seen rows"),
                         (IncrementalPCA().fit(X[:, :2]), "features differ.*3 and 2"),
                         (IncrementalPCA(window=9).fit(X), "without a window"),
                         (IncrementalPCA(forgetting=0.9).fit(X), "cannot be merged")):
        with pytest.raises(ValueError, match=words):
            a + other
    with pytest.raises(TypeError):
        a + PCA().fit(X)


def test_c117_weights_count_rows():
    X, weights = np.array([[0.0, 0], [2, 0], [0, 1]]), [1, 2, 3]
    for stream in (IncrementalPCA().fit(X, sample_weight=weights),
                   streamed(X, 1, weights=np.array(weights, float)),
                   IncrementalPCA().partial_fit(np.repeat(X, weights, axis=0))):
        np.testing.assert_allclose(stream.mean_, [2 / 3, 1 / 2], rtol=4 * EPS)
        np.testing.assert_allclose(stream.explained_variance_, [1.237359, 0.129308], atol=5e-7)
        assert stream.n_samples_ == 6
    for bad in ([1, -1, 1], [1, np.nan, 1], [0, 0, 0], [1, 2]):
        with pytest.raises(ValueError, match="sample_weight"):
            IncrementalPCA().partial_fit(X, sample_weight=bad)


@pytest.mark.parametrize("parameters", [{"whiten": True}, {"whiten": "zca"}, {"standardize": True},
                                        {"n_components": "mle"}, {"n_components": 0.5}], ids=str)
def test_parameters_mean_what_they_mean_in_pca(wine, parameters):
    expected = PCA(**parameters).fit(wine)
    for found in (streamed(wine, 20, IncrementalPCA(**parameters)),
                  IncrementalPCA(**parameters).fit(wine)):
        assert found.n_components_ == expected.n_components_
        np.testing.assert_allclose(found.transform(wine), expected.transform(wine), atol=1e-6)
        np.testing.assert_allclose(found.inverse_transform(found.transform(wine)),
                                   expected.inverse_transform(expected.transform(wine)),
                                   rtol=1e-9)


def test_scales_of_columns_cost_no_digits(rng):
    X = rng.standard_normal((900, 4)) @ rng.standard_normal((4, 4)) * [1e8, 1e4, 1, 1e-4]
    found, expected = streamed(X, 40), PCA().fit(X)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-9)
    assert found.report_["method"] == "jacobi(cholesky)"
    X[:, 3] = X[:, 2]  # no factor exists, and the rows are gone
    assert "uncertain" in streamed(X, 40).report_["method"]


@pytest.mark.parametrize("whiten", ["pca", "zca"])
@pytest.mark.parametrize("once", [False, True])
def test_c19_whitening_does_not_blow_up_what_is_rounding(rng, digits, whiten, once):
    low = rng.standard_normal((800, 2)) @ rng.standard_normal((2, 7))
    for X, rank in ((low, 2), (np.concatenate([low, low[:, :1]], axis=1), 2), (digits, 61)):
        if once:
            found = PCA(whiten=whiten).fit(iter(np.array_split(X, 9)))
        else:
            found = streamed(X, 90, IncrementalPCA(whiten=whiten))
        assert found.rank_ == rank
        scores = found.transform(X)
        assert np.abs(scores).max() < 2 * np.abs(PCA(whiten=whiten).fit_transform(X)).max()
        if whiten == "pca":
            assert not scores[:, rank:].any()


def test_fit_of_batches_that_are_read_once(rng):
    for X in (spread(rng, 30, 50), spread(rng, 900, 4)):
        found = IncrementalPCA(3).fit(iter(np.array_split(X, 4)))
        assert_same(found, PCA(3).fit(X), X)
        assert "read once" in found.report_["source"]


def test_features_have_variances(rng):
    X = spread(rng, 30, 40, 5.0)
    for rows in (X, X[:, :4]):
        found = streamed(rows, 7)
        np.testing.assert_allclose(found.var_, rows.var(axis=0), rtol=1e-12)
        np.testing.assert_allclose(found.moments_.covariance(), np.cov(rows, rowvar=False),
                                   atol=1e-10)


def test_solutions_are_found_when_asked_for(rng, monkeypatch):
    X, calls = spread(rng, 400, 3), []
    solve = IncrementalPCA._solved
    monkeypatch.setattr(IncrementalPCA, "_solved",
                        lambda self, *args: calls.append(1) or solve(self, *args))
    stream = streamed(X, 10)
    assert not calls
    stream.transform(X)
    assert stream.components_.shape == (3, 3)
    assert len(calls) == 1


def test_forgetting_is_the_unbiased_weighted_covariance(rng):
    pandas = pytest.importorskip("pandas")
    X = spread(rng, 500, 3, 100.0)
    frame = pandas.DataFrame(X).ewm(alpha=0.02).cov()
    expected = np.linalg.eigvalsh(frame.iloc[-3:].to_numpy())[::-1]
    for size in (1, 40, 500):
        found = streamed(X, size, IncrementalPCA(forgetting=0.98))
        np.testing.assert_allclose(found.explained_variance_, expected, rtol=1e-9)
        assert found.n_samples_seen_ == 500


@pytest.mark.parametrize("size", [1e-120, 1e-160, 1e-300])
@pytest.mark.parametrize("estimator", [PCA, IncrementalPCA])
def test_columns_without_squares_are_not_taken_for_constant(rng, estimator, size):
    """Their deviations would be 0, or of a digit or two; not scaled they are no matter."""
    X = spread(rng, 60, 4)
    plain = estimator(2).partial_fit(X * [1, size, 1, 0])
    assert np.isfinite(plain.explained_variance_).all()
    scaled = estimator(2, standardize=True).partial_fit(X * [1, size, 1, 0])
    if size > 1e-130:
        with pytest.warns(UserWarning, match=r"1 constant column\(s\) \(3\)"):
            assert scaled.scale_[1] == pytest.approx(size * X[:, 1].std(ddof=1))
    else:
        with pytest.raises(ValueError, match=r"squares of column\(s\) 1 leave the range"):
            _ = scaled.scale_


@pytest.mark.parametrize(("features", "window"), [(3, 2), (3, 100), (3, 700), (50, 20)])
def test_a_window_is_the_fit_of_its_rows(rng, features, window):
    X = spread(rng, 1000, features, 10.0) * np.linspace(1, 100, 1000)[:, None]
    expected = PCA(2 if window > 2 else 1).fit(X[-window:])
    parameters = {"n_components": 2 if window > 2 else 1, "window": window}
    assert_same(streamed(X, 33, IncrementalPCA(**parameters)), expected, X)
    assert_same(IncrementalPCA(**parameters).fit(X), expected, X)


def test_drift_tells_a_change_from_none(rng):
    X = rng.standard_normal((3000, 4)) * [9, 3, 1, 1] @ np.linalg.qr(rng.standard_normal((4, 4)))[0]
    heard = []
    stream = IncrementalPCA(2, drift=heard.append)
    streamed(X[:2000], 500, stream)
    assert math.isnan(heard[0].angle)
    assert all(report.angle < 0.1 for report in heard[1:])
    assert all(abs(report.residual - report.expected) < 0.02 for report in heard[1:])
    turned = X[2000:] @ np.linalg.qr(rng.standard_normal((4, 4)))[0]
    before = stream.components_
    stream.partial_fit(turned)
    assert heard[-1] is stream.drift_
    assert heard[-1].residual > 2 * heard[-1].expected
    assert math.sin(heard[-1].angle) == pytest.approx(subspace_angle(before, stream.components_),
                                                      abs=64 * EPS)
    plain = PCA(2).fit(X[:2000])
    loss = plain.reconstruction_error(turned) * len(turned)
    assert heard[-1].residual == pytest.approx(loss / ((turned - plain.mean_)**2).sum(), rel=1e-9)
    again = streamed(X[:2000], 500, IncrementalPCA(2, drift=True)).partial_fit(Moments.of(turned))
    assert again.drift_.residual == pytest.approx(heard[-1].residual, rel=1e-9)
    assert again.drift_.rows == 1000


def test_pickles_go_on(rng):
    X = spread(rng, 700, 4)
    for parameters in ({}, {"window": 300}, {"forgetting": 0.9}):
        stream = streamed(X[:400], 30, IncrementalPCA(**parameters))
        copied = pickle.loads(pickle.dumps(stream))
        for each in (stream, copied):
            streamed(X[400:], 30, each)
        np.testing.assert_array_equal(copied.components_, stream.components_)
        assert copied.n_samples_seen_ == 700


def test_a_failed_batch_changes_nothing(rng):
    X = spread(rng, 300, 3)
    stream = streamed(X, 40, IncrementalPCA(2, drift=True))
    before, state = dict(vars(stream)), copy.deepcopy(vars(stream)["_state"])

    def blocks():
        yield X
        yield X * np.nan

    def fail(drift):
        raise RuntimeError("stop")

    for bad, words in (
            (X[:, :2], "X has 2 features, but IncrementalPCA is expecting 3"),
            (np.where(np.arange(900).reshape(300, 3) == 7, np.nan, X), "NaN at row 2, column 1"),
            (BlockSource(blocks, 3), "NaN at row 300, column 0"),
            (X[:0], "0 sample"), (Moments.of(X[:, :2]), "2 features"),
            (X.astype(complex), "Complex")):
        with pytest.raises(ValueError, match=words):
            stream.partial_fit(bad)
        assert vars(stream) == before
    with pytest.raises(TypeError, match="dtype"):
        stream.partial_fit(X.astype("M8[s]"))
    stream.set_params(drift=fail)
    with pytest.raises(RuntimeError, match="stop"):
        stream.partial_fit(X)
    stream.set_params(forgetting=0.5)
    with pytest.raises(ValueError, match="fit anew"):
        stream.partial_fit(X)
    np.testing.assert_array_equal(stream.moments_.scatter, state.total().scatter)


@pytest.mark.parametrize(("parameters", "words"), [
    ({"n_components": 4}, "n_components=4 invalid for n_features=3"),
    ({"n_components": -1}, "n_components=-1"), ({"batch_size": 0}, "batch_size=0"),
    ({"whiten": "yes"}, "whiten='yes'"), ({"forgetting": 0}, "forgetting=0"),
    ({"forgetting": 1e-15}, "forgetting=1e-15 is not allowed; it must be a number from 0.0001"),
    ({"forgetting": 1.5}, "forgetting=1.5"), ({"window": 1}, "window=1"),
    ({"window": 9, "forgetting": 0.5}, "give one of them"), ({"drift": "yes"}, "drift='yes'")],
    ids=str)
def test_parameters_are_judged_before_rows(parameters, words):
    X = np.arange(30.0).reshape(10, 3) ** 2
    for call in (IncrementalPCA.fit, IncrementalPCA.partial_fit):
        with pytest.raises(ValueError, match=words):
            call(IncrementalPCA(**parameters), X)


def test_fit_with_too_few_rows(rng):
    with pytest.raises(ValueError, match="n_components=3 must be between"):
        IncrementalPCA(3).fit(rng.standard_normal((2, 5)))
    with pytest.raises(ValueError, match="1 sample"):
        IncrementalPCA(1).fit(rng.standard_normal((1, 5)))


def test_sparse_rows_are_dense_rows(rng):
    X = np.where(rng.random((200, 6)) < 0.3, spread(rng, 200, 6), 0.0)
    sparse, expected = csr_array(X), PCA(2).fit(X)
    limit = product_error("f8", 6, np.linalg.norm(X, axis=1).max(), 1.0)
    for found in (IncrementalPCA(2, batch_size=7).fit(sparse),
                  IncrementalPCA(2).partial_fit(sparse[:90]).partial_fit(sparse[90:])):
        assert_same(found, expected, X)
        np.testing.assert_allclose(found.transform(sparse), found.transform(X), atol=limit)
    scores = IncrementalPCA(2, batch_size=7).fit_transform(sparse)
    np.testing.assert_allclose(scores, expected.transform(X), atol=1e-12)


def test_names_of_frames_must_agree(rng):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(spread(rng, 50, 2), columns=["p", "q"])
    stream = IncrementalPCA(1).partial_fit(frame).partial_fit(frame)
    assert stream.model_.feature_names == ("p", "q")
    with pytest.raises(ValueError, match="names"):
        stream.partial_fit(frame[["q", "p"]])
    assert stream.n_samples_seen_ == 100


@pytest.mark.parametrize("estimator", [fastdr.PCA(1), IncrementalPCA(1),
                                       fastdr.LinearDiscriminantAnalysis()], ids=str)
@pytest.mark.parametrize("kind", [np.asarray, csr_array])
def test_batches_without_names_are_warned_of_as_new_rows_are(rng, estimator, kind):
    """By scikit-learn's words: they join those with names, whose names stay, and the reverse."""
    pandas = pytest.importorskip("pandas")
    X, y = spread(rng, 50, 2), np.arange(50) % 2
    frame, more = pandas.DataFrame(X, columns=["p", "q"]), kind(X)
    lead = (y,) if "priors" in estimator.get_params() else ()
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        named = clone(estimator).partial_fit(frame, *lead).partial_fit(more, *lead)
    assert named.feature_names_in_.tolist() == ["p", "q"]
    with pytest.warns(UserWarning, match="X has feature names"):
        plain = clone(estimator).partial_fit(more, *lead).partial_fit(frame, *lead)
    assert not hasattr(plain, "feature_names_in_")
    np.testing.assert_allclose(named.transform(frame), plain.transform(more), atol=1e-12)



@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_do_not_change_a_bit(rng, threads):
    X = spread(rng, 3000, 40)
    with fastdr.num_threads(1):
        expected = streamed(X, 700).components_
    with fastdr.num_threads(threads):
        np.testing.assert_array_equal(streamed(X, 700).components_, expected)
