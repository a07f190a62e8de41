"""Rows with too many features for a square matrix: what is kept, and bounds on what is not."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import random_array
from tolerance import assert_orthonormal, subspace_angle

import fastdr
from fastdr import PCA, IncrementalPCA, LowRankMoments, Moments
from fastdr.streams import Stream

EPS = np.finfo(float).eps


@pytest.fixture
def few_features(monkeypatch):
    """Let 30 features be too many."""
    monkeypatch.setattr("fastdr.batches.LARGEST_SQUARE", 30)


def spectrum_of(rows, weights=None):
    """Eigenvalues of the scatter, descending, and the scatter, of rows in long double."""
    weights = np.ones(len(rows)) if weights is None else weights
    rows = rows.astype(np.longdouble)
    centred = rows - weights @ rows / weights.sum()
    scatter = ((centred.T * weights) @ centred).astype(float)
    return np.linalg.eigvalsh(scatter)[::-1], scatter


def test_a_known_mean_far_from_zero_costs_no_digits(rng, few_features):
    A = rng.integers(-3000, 3000, (60, 40)) / 1024
    expected = np.linalg.svd(A, compute_uv=False)[:30]**2 / 60
    found = PCA(30, mean=np.full(40, 1e10))
    for start in range(0, 60, 20):
        found.partial_fit(A[start:start + 20] + 1e10)
    np.testing.assert_allclose(found.explained_variance_, expected, rtol=1e-12)
    assert found.total_variance_ == pytest.approx((A**2).sum() / 60, rel=1e-14)


def slip(values, steps):
    """What rounding may add in each of so many truncations."""
    return 64 * EPS * (steps + 4) * np.sqrt(len(values)) * values[0]


def rows_of(kind, rng, count=300, features=40):
    X = rng.standard_normal((count, features)) * np.arange(1, features + 1) ** -0.5
    if kind == "sorted":
        return X[np.argsort(X[:, 0])] + 5
    if kind == "spikes last":
        X[-3:] *= 40
    if kind == "drift":
        X += np.linspace(0, 100, count)[:, None] * rng.standard_normal(features)
    return X + (1e6 if kind == "offset" else 0)


@given(kind=st.sampled_from(["plain", "sorted", "spikes last", "drift", "offset"]),
       rank=st.sampled_from([1, 5, 20]), size=st.sampled_from([1, 33, 64, 300]),
       forgetting=st.sampled_from([1.0, 0.99]), weighted=st.booleans())
def test_what_is_kept_bounds_the_scatter(kind, rank, size, forgetting, weighted):
    rng = np.random.default_rng(rank)
    X = rows_of(kind, rng)
    weights = rng.integers(0, 3, len(X)).astype(float) if weighted else None
    stream = Stream(X.shape[1], forgetting, rank=rank)
    for start in range(0, len(X), size):
        part = slice(start, start + size)
        stream = stream.add(X[part], None if weights is None else weights[part])
    total = stream.total()
    own = np.ones(len(X), int) if weights is None else weights.astype(int)
    after = np.cumsum(own[::-1])[::-1] - own
    faded = np.array([sum(forgetting ** np.arange(a, a + n)) for a, n in zip(after, own,
                                                                           strict=True)])
    values, scatter = spectrum_of(X, faded)
    error = slip(values, 300 / 33) + len(X) * EPS * np.abs(X).max() * np.sqrt(values[0])
    left = np.linalg.eigvalsh(scatter - total.factor.T @ total.factor)
    assert left[0] >= -error
    assert left[-1] <= total.bound + error
    assert total.error <= error
    assert total.bound < values.sum()
    np.testing.assert_allclose(total.squares, np.diagonal(scatter), atol=error)
    assert len(total.factor) <= rank + stream.least + 1 + (len(X) - 1) % stream.least
    assert total.weight == pytest.approx(faded.sum(), rel=300 * EPS)
    assert total.square_weight == pytest.approx(stream.total().square_weight)


def test_rows_of_low_rank_lose_nothing(rng):
    X = rng.standard_normal((500, 7)) @ rng.standard_normal((7, 60)) + 3
    stream = Stream(60, rank=8)  # the mean is a direction of its own
    for part in np.array_split(X, 31):
        stream = stream.add(part)
    values, scatter = spectrum_of(X)
    total = stream.total()
    assert total.bound <= slip(values, 31)
    np.testing.assert_allclose(total.factor.T @ total.factor, scatter, atol=slip(values, 31))


def test_merging_adds_bounds(rng):
    X = rows_of("plain", rng)
    parts = [LowRankMoments.of(part).truncated(10) for part in np.array_split(X, 3)]
    for both in ((parts[0] + parts[1]) + parts[2], parts[2] + (parts[1] + parts[0])):
        assert both.bound == pytest.approx(sum(part.bound for part in parts))
        values, scatter = spectrum_of(X)
        least = both.truncated(10)
        assert least.bound > both.bound
        for found in (both, least):
            left = np.linalg.eigvalsh(scatter - found.factor.T @ found.factor)
            assert -slip(values, 4) <= left[0] <= left[-1] <= found.bound + slip(values, 4)
        np.testing.assert_allclose(least.mean, X.mean(axis=0), atol=4 * EPS)
        np.testing.assert_allclose(least.variances(), X.var(axis=0, ddof=1), rtol=1e-12)
    with pytest.raises(ValueError, match="40 and 39 features"):
        parts[0] + LowRankMoments.of(X[:, 1:])


def assert_certified(found, expected, k):
    """True variances lie in the intervals, which are no wider than what was left out says."""
    told = found.certificate_
    assert told.method == "tracked"
    true = expected.explained_variance_[:k]
    assert (told.lower <= true).all()
    assert (true <= told.upper).all()
    width = (told.upper - told.lower).max()
    left = found.report_["left_by_truncation"]
    assert left <= width
    if found.scale_ is None:
        assert width <= left + 1e-10 * true[0]
    angle = subspace_angle(found.components_, expected.components_[:k])
    assert angle <= told.angle + 1e-12
    assert_orthonormal(found.components_)
    assert found.total_variance_ == pytest.approx(expected.total_variance_, rel=1e-10)
    assert found.explained_variance_.sum() + (min(found.n_samples_, found.n_features_in_) - k) * (
        found.noise_variance_) == pytest.approx(found.total_variance_)
    return width


OPTIONS = [{}, {"whiten": True}, {"whiten": "zca"}, {"standardize": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", ["plain", "spikes last", "drift", "offset"])
@pytest.mark.parametrize("estimator", [PCA, IncrementalPCA])
def test_variances_are_certified(rng, few_features, estimator, kind, options):
    X = rows_of(kind, rng, 700)
    found = estimator(3, **options)
    for part in np.array_split(X, 23):
        found.partial_fit(part)
    expected = PCA(3, **options).fit(X)
    width = assert_certified(found, expected, 3)
    if "standardize" not in options:  # which stretches what was left out
        assert width < expected.explained_variance_[0]
    assert found.report_["method"] == "incremental svd"
    assert isinstance(found.moments_, LowRankMoments)
    np.testing.assert_allclose(found.var_, X.var(axis=0), rtol=1e-9)
    scores = found.transform(X)
    if options.get("whiten") is True:
        np.testing.assert_allclose(scores.std(axis=0, ddof=1), 1, rtol=0.1)
    assert found.inverse_transform(scores).shape == X.shape


@pytest.mark.parametrize("power", [-380, 350])
def test_bounds_do_not_depend_on_the_unit(rng, few_features, power):
    X = rows_of("plain", rng, 700)
    plain, scaled = IncrementalPCA(3), IncrementalPCA(3)
    for part in np.array_split(X, 23):
        plain.partial_fit(part)
        scaled.partial_fit(np.ldexp(part, power))
    one, other = plain.certificate_, scaled.certificate_
    np.testing.assert_allclose(scaled.explained_variance_,
                               np.ldexp(plain.explained_variance_, 2 * power), rtol=1e-12)
    np.testing.assert_allclose(other.upper, np.ldexp(one.upper, 2 * power), rtol=1e-12)
    assert other.angle == pytest.approx(one.angle, rel=1e-6)


def test_options_beyond_the_limit(rng, few_features):
    X, weights = rows_of("drift", rng, 700), rng.integers(0, 3, 700).astype(float)
    centre = X.mean(axis=0) + 0.5
    known = PCA(3, mean=centre)
    weighted = IncrementalPCA(3)
    for part in np.array_split(np.arange(700), 9):
        known.partial_fit(X[part])
        weighted.partial_fit(X[part], sample_weight=weights[part])
    assert_certified(known, PCA(3, mean=centre).fit(X), 3)
    assert_certified(weighted, PCA(3).fit(X, sample_weight=weights), 3)
    assert weighted.n_samples_ == weights.sum()
    faded = IncrementalPCA(3, forgetting=0.995).fit(X)
    ages = 0.995 ** np.arange(700.0)[::-1]
    values, _ = spectrum_of(X, ages)
    true = values[:3] / (ages.sum() - (ages**2).sum() / ages.sum())
    assert (faded.certificate_.lower <= true).all()
    assert (true <= faded.certificate_.upper).all()
    more = [IncrementalPCA(3, n_oversamples=spare).fit(X).report_["left_by_truncation"]
            for spare in (0, 5, 20, 37)]
    assert sorted(more, reverse=True) == more
    assert more[-1] <= 1e-12 * values[0]
    wider = IncrementalPCA(3, drift=True).partial_fit(X[:400]).partial_fit(X[400:])
    again = IncrementalPCA(3, drift=True).partial_fit(X[:400]).partial_fit(
        LowRankMoments.of(X[400:]))
    assert again.drift_.residual == pytest.approx(wider.drift_.residual, rel=1e-9)


def test_states_add_save_load_and_go_on(rng, few_features, tmp_path):
    X = rows_of("spikes last", rng, 600)
    whole = IncrementalPCA(3)
    for part in np.array_split(X, 6):
        whole.partial_fit(part)
        whole.moments_.save(tmp_path / "m.fdr")  # as a long job would, now and then
        other = IncrementalPCA(3).partial_fit(fastdr.load(tmp_path / "m.fdr"))
        copied = pickle.loads(pickle.dumps(whole))
    expected = PCA(3).fit(X)
    for found in (whole, other, copied):
        assert_certified(found, expected, 3)
    resumed = IncrementalPCA(3)
    resumed.partial_fit(X[:200]).moments_.save(tmp_path / "m.fdr")
    resumed = PCA(3).partial_fit(fastdr.load(tmp_path / "m.fdr")).partial_fit(X[200:])
    assert_certified(resumed, expected, 3)
    assert resumed.n_samples_seen_ == 600
    parts = [IncrementalPCA(3).fit(part) for part in np.array_split(X, 3)]
    for joint in (parts[0] + parts[1] + parts[2], parts[2] + (parts[0] + parts[1])):
        assert_certified(joint, expected, 3)


@pytest.mark.parametrize(("change", "words"), [
    ({"bound": -1.0}, "not negative"), ({"error": np.inf}, "finite"), ({"count": 0}, "count 0"),
    ({"factor": np.ones((2, 3))}, "factor"), ({"squares": -np.ones(4)}, "negative"),
    ({"rest": np.zeros(3)}, "must be")], ids=str)
def test_impossible_moments_are_refused(rng, tmp_path, change, words):
    names = ("count", "weight", "square_weight", "mean", "rest", "squares", "factor")
    moments = LowRankMoments.of(rng.standard_normal((5, 4)))
    LowRankMoments(**{name: getattr(moments, name) for name in names} | change).save(
        tmp_path / "m.fdr")
    with pytest.raises(ValueError, match=words):
        fastdr.load(tmp_path / "m.fdr")


def test_what_cannot_be_kept_is_refused(rng, few_features):
    X = rows_of("plain", rng)
    stream = IncrementalPCA(3).partial_fit(X)
    with pytest.raises(ValueError, match="kept as LowRankMoments"):
        stream.partial_fit(Moments.of(X))
    with pytest.raises(ValueError, match="cannot change"):
        stream.set_params(n_components=30).partial_fit(X)
    with pytest.raises(ValueError, match="kept as Moments"):
        IncrementalPCA(0.5).partial_fit(LowRankMoments.of(X))
    with pytest.raises(ValueError, match="n_oversamples=-1"):
        IncrementalPCA(3, n_oversamples=-1).partial_fit(X)
    for bad, error in ((X * 1e200, ValueError), (X * np.nan, ValueError)):
        with pytest.raises(error):
            IncrementalPCA(3).partial_fit(bad)
    with pytest.raises(ValueError, match="cannot be merged"):
        stream.set_params(n_components=3) + IncrementalPCA(4).partial_fit(X)


@pytest.mark.parametrize("estimator", [PCA, IncrementalPCA])
def test_beyond_32768_features(rng, estimator):
    features = 33_000
    axes = rng.standard_normal((6, features))
    found, dense = estimator(4), []
    for _ in range(3):
        dense.append((rng.standard_normal((70, 6)) * [9, 7, 5, 3, 2, 1] @ axes).astype("f4"))
        found.partial_fit(dense[-1])
    X = np.concatenate(dense)
    expected = PCA(4, certificate=False).fit(X.astype("f8"))
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_,
                               rtol=1e-10)
    assert found.components_.dtype == np.float32
    assert found.report_["left_by_truncation"] < 1e-6  # the rounding of float32 rows
    with pytest.raises(ValueError, match="make it smaller"):
        IncrementalPCA(4, window=40_000).partial_fit(X)


def test_sparse_rows_beyond_32768_features(rng):
    X = random_array((150, 33_000), density=0.001, format="csr", rng=rng)
    expected = PCA(4).fit(X)
    few = IncrementalPCA(4).partial_fit(X[:30]).partial_fit(X[30:60])  # they wait, and are sparse
    np.testing.assert_allclose(few.explained_variance_, PCA(4).fit(X[:60]).explained_variance_,
                               rtol=1e-9)
    cut = IncrementalPCA(4)
    for start in range(0, 150, 25):
        cut.partial_fit(X[start:start + 25])
    assert (cut.certificate_.lower <= expected.explained_variance_).all()
    assert (expected.explained_variance_ <= cut.certificate_.upper).all()
