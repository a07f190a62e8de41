"""PCA.partial_fit: any batches in any order give the fit of all rows. Cases C75, C76, C77, C117."""

import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array
from sklearn.exceptions import NotFittedError
from tolerance import assert_orthonormal, eigenvalue_error, product_error, subspace_angle, turned

from fastdr import PCA, IncrementalPCA, Moments, open_rows

EPS = np.finfo(float).eps
MEAN = np.arange(1.0, 7.0)
OPTIONS = [
    {}, {"n_components": 2}, {"n_components": 2, "whiten": True}, {"whiten": "zca"},
    {"standardize": True, "n_components": 3}, {"n_components": 0.8}, {"n_components": "mle"},
    {"n_components": "gavish-donoho"}, {"mean": MEAN}, {"mean": MEAN, "standardize": True},
    {"n_components": 2, "svd_solver": "lanczos"}, {"n_components": 2, "svd_solver": "power"},
    {"n_components": 2, "svd_solver": "randomized"}, {"certificate": True, "n_components": 3},
    {"svd_solver": "covariance_eigh"}, {"n_components": 2, "svd_solver": "arpack"}]


def data(rng, rows=400, features=6, offset=3.0):
    return rng.standard_normal((rows, features)) * np.linspace(features, 1, features) + offset


def streamed(estimator, X, size, weights=None):
    for start in range(0, X.shape[0], size):
        part = slice(start, start + size)
        estimator.partial_fit(X[part], sample_weight=None if weights is None else weights[part])
    return estimator


def assert_same(found, expected):
    """All that is fitted agrees to rounding of the covariance."""
    largest = expected.explained_variance_[0]
    bound = eigenvalue_error(found.n_features_in_, largest) * (1 + expected.n_samples_ / 256)
    bound += 4 * EPS * np.linalg.norm(expected.mean_) * np.sqrt(largest)
    assert found.n_components_ == expected.n_components_
    assert found.n_samples_ == expected.n_samples_
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=0,
                               atol=bound)
    for name in ("total_variance_", "noise_variance_"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=6 * bound)
    np.testing.assert_allclose(found.mean_, expected.mean_, rtol=8 * EPS,
                               atol=32 * EPS * np.sqrt(largest))
    assert_orthonormal(found.components_)
    spectrum = np.append(expected.explained_variance_, expected.noise_variance_)
    gap = spectrum[found.n_components_ - 1] - spectrum[-1]
    if found.n_components_ < found.n_features_in_:
        angle = subspace_angle(found.components_, expected.components_)
        slip = turned(expected, spectrum) + turned(found, spectrum)
        assert angle <= 8 * bound / gap + slip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("size", [1, 37, 400])
def test_every_option_that_makes_sense(rng, options, size):
    X = data(rng)
    expected, found = PCA(**options).fit(X), streamed(PCA(**options), X, size)
    assert_same(found, expected)
    assert found.n_samples_seen_ == len(X)
    assert found.report_["rows_seen"] == len(X)
    for name in ("scale_", "certificate_"):
        assert (getattr(found, name) is None) == (getattr(expected, name) is None)
    scale = np.abs(expected.transform(X)).max()
    np.testing.assert_allclose(np.abs(found.transform(X)), np.abs(expected.transform(X)), rtol=0,
                               atol=1e-3 * scale if "power" in str(options) else 1e-8 * scale)


@given(size=st.sampled_from([1, 2, 29, 300]), features=st.sampled_from([3, 90]),
       weighted=st.booleans(), known=st.booleans(), order=st.randoms())
def test_batches_weights_and_order(size, features, weighted, known, order):
    rng = np.random.default_rng(size)
    X = data(rng, 70, features, 1e4)
    rows = list(range(70))
    order.shuffle(rows)
    weights = rng.integers(1, 4, 70).astype(float) if weighted else None
    options = {"n_components": 2, "mean": np.full(features, 1e4) if known else None}
    found = streamed(PCA(**options), X[rows], size, None if weights is None else weights[rows])
    assert_same(found, PCA(**options).fit(X, sample_weight=weights))


def test_what_reads_the_rows_twice_is_refused(rng):
    X = data(rng)
    for options, words in (({"svd_solver": "svd"}, "reads the rows twice"),
                           ({"svd_solver": "full"}, "svd_solver='full' reads the rows twice"),
                           ({"n_components": "parallel"}, "reads the rows again"),
                           ({"missing": "em"}, "reads the rows many times")):
        with pytest.raises(AttributeError, match="no attribute 'partial_fit'") as caught:
            PCA(**options).partial_fit(X)
        assert words in str(caught.value.__cause__)
    for options, words in (({"n_components": 7}, "invalid for n_features=6"),
                           ({"mean": np.ones(3)}, r"mean has shape \(3,\)"),
                           ({"whiten": "yes"}, "whiten='yes'")):
        pca = PCA(**options)
        with pytest.raises(ValueError, match=words):
            pca.partial_fit(X)
        assert set(vars(pca)) == set(vars(PCA()))
    assert not hasattr(IncrementalPCA("parallel"), "partial_fit")


def test_a_failed_batch_changes_nothing(rng):
    X = data(rng)
    pca = PCA(2).partial_fit(X[:300])
    components, before = pca.components_, dict(vars(pca))
    for bad, words in ((X[:, :3], "X has 3 features, but PCA is expecting 6"),
                       (np.where(X == X[7, 2], np.nan, X), "NaN at row 7, column 2"),
                       (X[:0], "0 sample"), (Moments.of(X[:, :2]), "2 features")):
        with pytest.raises(ValueError, match=words):
            pca.partial_fit(bad)
        assert vars(pca) == before
    with pytest.raises(ValueError, match="sample_weight cannot be given"):
        pca.partial_fit(Moments.of(X), sample_weight=np.ones(400))
    np.testing.assert_array_equal(pca.components_, components)


def test_fit_and_partial_fit_do_not_mix(rng):
    X, Y = data(rng), data(rng, 300, 4)
    pca = PCA(2).fit(Y)
    assert not hasattr(pca, "moments_")
    assert_same(pca.partial_fit(X[:250]).partial_fit(X[250:]), PCA(2).fit(X))
    assert_same(pca.fit(Y), PCA(2).fit(Y))
    assert not hasattr(pca, "n_samples_seen_")
    assert_same(pca.partial_fit(X), PCA(2).fit(X))
    with pytest.raises(ValueError, match="NaN"):
        pca.fit(Y * np.nan)
    assert pca.n_samples_seen_ == 400


@pytest.mark.parametrize("kind", [np.array, np.asfortranarray, Moments.of])
def test_what_was_added_may_change_afterwards(rng, kind):
    rows, more = data(rng), data(rng)
    batch = kind(rows)
    changed, expected = IncrementalPCA(2).partial_fit(batch), IncrementalPCA(2).partial_fit(rows)
    for array in (batch.mean, batch.scatter) if isinstance(batch, Moments) else (batch,):
        array *= 4
    np.testing.assert_array_equal(changed.partial_fit(more).explained_variance_,
                                  expected.partial_fit(more).explained_variance_)


def test_until_there_are_enough_rows(rng):
    X = data(rng)
    pca = PCA(3)
    with pytest.raises(NotFittedError):
        pca.transform(X)
    for row in range(2):
        pca.partial_fit(X[row:row + 1])
        with pytest.raises(NotFittedError, match="Call partial_fit again"):
            pca.transform(X)
    assert pca.partial_fit(X[2:3]).transform(X).shape == (400, 3)
    assert PCA(1, mean=MEAN).partial_fit(X[:1]).n_components_ == 1  # a mean needs no second row


def test_solved_when_asked_for_and_warm(rng, monkeypatch):
    X, starts = data(rng, 2000, 450), []
    solve = PCA._earlier
    monkeypatch.setattr(PCA, "_earlier",
                        lambda self, d: starts.append(solve(self, d)) or starts[-1])
    pca = PCA(3, svd_solver="lanczos", warm_start=True)
    streamed(pca, X[:1000], 250)
    assert not starts
    first = pca.components_
    pca.partial_fit(X[1000:])
    assert_same(pca, PCA(3).fit(X))
    assert starts[0] is None
    np.testing.assert_array_equal(starts[-1], first)


def test_moments_sources_frames_and_pickles(rng, tmp_path):
    pandas = pytest.importorskip("pandas")
    X = data(rng)
    np.save(tmp_path / "x.npy", X[:200])
    pca = PCA(2).partial_fit(open_rows(tmp_path / "x.npy")).partial_fit(Moments.of(X[200:300]))
    pca = pickle.loads(pickle.dumps(pca)).partial_fit(iter([X[300:350], X[350:]]))
    assert_same(pca, PCA(2).fit(X))
    np.testing.assert_allclose(pca.moments_.mean, X.mean(axis=0), rtol=8 * EPS)
    frame = pandas.DataFrame(X, columns=list("abcdef"))
    named = PCA(2).partial_fit(frame[:100]).partial_fit(frame[100:])
    assert named.model_.feature_names == tuple("abcdef")
    with pytest.raises(ValueError, match="feature names"):
        named.partial_fit(frame[list("fedcba")])


@pytest.mark.parametrize("kind", [PCA, IncrementalPCA])
@pytest.mark.parametrize(("rows", "features", "density"), [(500, 30, 0.05), (500, 30, 0.9),
                                                           (60, 200, 0.1), (330, 300, 0.02)])
@pytest.mark.parametrize("weighted", [False, True])
def test_sparse_batches(rng, kind, rows, features, density, weighted):
    X = random_array((rows, features), density=density, format="csr", rng=rng)
    X.data -= 0.3
    dense, weights = X.toarray(), rng.integers(1, 4, rows).astype(float) if weighted else None
    expected = PCA(4).fit(dense, sample_weight=weights)
    for size in (1, 50, rows):
        if size == 1 and rows > 100:
            continue
        found = streamed(kind(4), X, size, weights)
        assert_same(found, expected)
        bound = product_error("f8", features, np.linalg.norm(dense, axis=1).max(), 1.0)
        np.testing.assert_allclose(found.transform(X), found.transform(dense), atol=bound)
        total = rows if weights is None else weights.sum()
        centred = dense - np.average(dense, axis=0, weights=weights)
        own = (centred**2 * (1 if weights is None else weights[:, None])).sum(axis=0) / total
        np.testing.assert_allclose(found.var_, own, atol=EPS * rows)
    assert_same(kind(4).fit(X, sample_weight=weights), expected)


def test_sparse_and_dense_batches_mix(rng):
    X = random_array((300, 350), density=0.05, format="csr", rng=rng)
    dense = X.toarray()
    for parts in ((X[:50], dense[50:]), (dense[:50], X[50:]), (X[:200], dense[200:])):
        found = PCA(3).partial_fit(parts[0]).partial_fit(parts[1])
        assert_same(found, PCA(3).fit(dense))
    stream = IncrementalPCA(3, forgetting=0.99)
    assert_same(streamed(stream, X, 90), streamed(IncrementalPCA(3, forgetting=0.99), dense, 90))
    window = streamed(IncrementalPCA(3, window=200, drift=True), X, 90)
    assert_same(window, PCA(3).fit(dense[-200:]))
    X.data[5] = np.nan
    with pytest.raises(ValueError, match="NaN at row"):
        stream.partial_fit(X)
    X.data[:] = 1e200
    with pytest.raises(ValueError, match="leave the range of float64"):
        PCA(3).partial_fit(X).partial_fit(csr_array(dense))


def test_sparse_batches_are_never_dense(rng):
    X = random_array((40_000, 300), density=0.01, format="csr", rng=rng)  # 96 MB if dense
    PCA(2).partial_fit(X[:400])
    tracemalloc.start()
    streamed(PCA(2), X, 10_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6 + 2 * (X.data.nbytes + X.indices.nbytes)
