"""Dask collections: the fit of their rows, in a tree of sums; lazy scores. Cases C82 to C86."""

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from tolerance import assert_orthonormal, eigenvalue_error, subspace_angle

import fastdr
from fastdr import (
    PCA,
    IncrementalPCA,
    LinearDiscriminantAnalysis,
    Moments,
    TruncatedSVD,
    open_rows,
)

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
dd = pytest.importorskip("dask.dataframe")
pd = pytest.importorskip("pandas")
ESTIMATORS = [PCA, IncrementalPCA]
EPS = np.finfo(float).eps


@pytest.fixture
def X(rng):
    return rng.standard_normal((1000, 5)) * [5, 4, 3, 2, 1] + 1e4


def frame(X, parts=4):
    return dd.from_pandas(pd.DataFrame(X, columns=list("pqrst")[:X.shape[1]]), npartitions=parts)


def assert_same(found, expected):
    bound = (eigenvalue_error(len(expected.mean_), expected.explained_variance_[0])
             + 8 * np.finfo(float).eps * 1e4 * np.sqrt(expected.explained_variance_[0]))
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=0,
                               atol=bound)
    assert found.n_samples_ == expected.n_samples_
    for value in vars(found).values():
        assert "dask" not in type(value).__module__
    assert isinstance(found.components_, np.ndarray)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("chunks", [(100, 5), (7, 5), (1000, 5), ((1, 998, 1), 5)], ids=str)
def test_a_dask_array_gives_what_its_rows_give(X, estimator, chunks):
    assert_same(estimator(3).fit(da.from_array(X, chunks=chunks)), PCA(3).fit(X))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_dask_frame_gives_what_its_rows_give(X, estimator):
    found = estimator(3).fit(frame(X))
    assert_same(found, PCA(3).fit(X))
    assert list(found.feature_names_in_) == list("pqrst")
    small = pd.DataFrame({"a": [1, 2, 4, 1], "b": [0.5, 1, 1, 7], "c": [True, False, True, True]})
    assert_same(estimator(2).fit(dd.from_pandas(small, npartitions=2)), PCA(2).fit(
        small.to_numpy(float)))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_c82_unknown_chunk_sizes(X, estimator):
    lazy = da.from_array(X, chunks=(100, 5))
    chosen, kept = lazy[lazy[:, 0] > 1e4], X[X[:, 0] > 1e4]
    assert np.isnan(chosen.shape[0])
    found = estimator(3).fit(chosen)
    assert_same(found, PCA(3).fit(kept))
    np.testing.assert_allclose(found.transform(chosen).compute(), found.transform(kept),
                               atol=1e-9)
    empty = lazy[lazy[:, 0] > X[:150, 0].max()]  # some chunks have no rows
    kept = X[X[:, 0] > X[:150, 0].max()]
    if len(kept) > 5:
        assert_same(estimator(2).fit(empty), PCA(2).fit(kept))
    values = frame(X)
    assert_same(estimator(3).fit(values[values.p > 1e4].values), PCA(3).fit(X[X[:, 0] > 1e4]))


@pytest.mark.parametrize(("shape", "chunks"), [((1000, 20), (100, 5)), ((100, 300), (100, 50)),
                                               ((50, 20), (7, 20))])
def test_c83_chunks_along_columns(rng, shape, chunks):
    X = rng.standard_normal(shape)
    lazy = da.from_array(X, chunks=chunks)
    if chunks[1] == shape[1]:
        found = PCA(3).fit(lazy)
    else:
        with pytest.warns(UserWarning, match=r"chunks along its columns.*chunks of \d+ MB"):
            found = PCA(3).fit(lazy)
        with pytest.warns(UserWarning, match="chunks along its columns"):
            scores = found.transform(lazy)
        np.testing.assert_allclose(scores.compute(), found.transform(X), atol=1e-12)
    np.testing.assert_allclose(found.explained_variance_, PCA(3).fit(X).explained_variance_,
                               rtol=1e-10)


def test_c84_flat_data_are_exact(rng):
    X = rng.random((1000, 300))
    np.testing.assert_allclose(PCA(5).fit(da.from_array(X, chunks=(100, 300))).explained_variance_,
                               np.linalg.eigvalsh(np.cov(X.T))[::-1][:5], rtol=1e-12)


@pytest.mark.parametrize("parameters", [{}, {"whiten": True}, {"whiten": "zca"}], ids=str)
def test_c85_scores_are_lazy_and_keep_the_chunks(X, parameters):
    lazy = da.from_array(X.astype("f4"), chunks=((300, 450, 250), 5))
    pca = PCA(3, **parameters).fit(X.astype("f4"))
    scores = pca.transform(lazy)
    assert isinstance(scores, da.Array)
    assert scores.chunks == ((300, 450, 250), (5 if parameters.get("whiten") == "zca" else 3,))
    assert scores.dtype == np.float32
    expected = pca.transform(X.astype("f4"))
    np.testing.assert_array_equal(scores.compute(), expected)
    back = pca.inverse_transform(scores)
    assert back.chunks == lazy.chunks
    np.testing.assert_array_equal(back.compute(), pca.inverse_transform(expected))
    both = PCA(2).fit_transform(lazy)
    assert isinstance(both, da.Array)
    assert both.shape == (1000, 2)


def test_frames_keep_their_index_and_get_names(X):
    table = pd.DataFrame(X, columns=list("pqrst"), index=np.arange(1000) * 3)
    lazy = dd.from_pandas(table, npartitions=4)
    pca = PCA(2).fit(lazy)
    scores = pca.transform(lazy)
    assert list(scores.columns) == ["pca0", "pca1"]
    found = scores.compute()
    assert (found.index == table.index).all()
    np.testing.assert_array_equal(found.to_numpy(), pca.transform(table))
    back = pca.inverse_transform(scores)
    assert list(back.columns) == list("pqrst")
    np.testing.assert_array_equal(back.compute().to_numpy(), pca.inverse_transform(found))


@pytest.mark.parametrize("container", ["pandas", "polars"])
@pytest.mark.parametrize("take", ["transform", "fit_transform"])
def test_frames_of_set_output_are_in_memory_and_keep_their_index(X, container, take):
    package = pytest.importorskip(container)
    table = pd.DataFrame(X, columns=list("pqrst"), index=np.arange(1000) * 3)
    lazy = dd.from_pandas(table, npartitions=4)
    pca = PCA(2).fit(lazy)
    expected = pca.transform(table)
    pca.set_output(transform=container)
    for rows in (lazy, da.from_array(X, chunks=(300, 5))):
        scores = getattr(pca, take)(rows)
        assert isinstance(scores, package.DataFrame)
        assert list(scores.columns) == ["pca0", "pca1"]
        np.testing.assert_allclose(scores.to_numpy(), expected, rtol=0, atol=1e4 * 1000 * EPS)
        if container == "pandas" and rows is lazy:
            assert (scores.index == table.index).all()


def test_c86_one_class_for_all(X):
    stream = IncrementalPCA(2).partial_fit(da.from_array(X[:400], chunks=(100, 5)))
    stream.partial_fit(X[400:700]).partial_fit(da.from_array(X[700:], chunks=(90, 5)))
    assert_same(stream, PCA(2).fit(X))
    forgetting = IncrementalPCA(2, forgetting=0.99).fit(da.from_array(X, chunks=(100, 5)))
    np.testing.assert_allclose(forgetting.explained_variance_, IncrementalPCA(
        2, forgetting=0.99).fit(X).explained_variance_, rtol=1e-10)
    with pytest.raises(TypeError, match=r"X.compute\(\)"):
        stream.score(da.from_array(X, chunks=(100, 5)))


@pytest.mark.parametrize("as_lazy", [lambda X: da.from_array(X, chunks=(70, 5)), frame])
def test_c117_weights(X, rng, as_lazy):
    weights = rng.integers(0, 3, 1000)
    weights[:250] = 0
    lazy = as_lazy(X)
    if as_lazy is frame:
        with pytest.raises(ValueError, match="knows its number of rows"):
            PCA(2).fit(lazy, sample_weight=weights)
        lazy = lazy.to_dask_array(lengths=True)
    for given in (weights, da.from_array(weights, chunks=130)):
        assert_same(PCA(2).fit(lazy, sample_weight=given), PCA(2).fit(np.repeat(X, weights, 0)))


@pytest.mark.parametrize("parameters", [{}, {"shrinkage": 0.1}, {
    "solver": "eigen", "priors": [0.2, 0.3, 0.5]}], ids=str)
@pytest.mark.parametrize("kind", ["array", "unknown", "frame"])
def test_discriminants(X, rng, parameters, kind):
    y = rng.integers(0, 3, 1000)
    X[:, 1] += 5 * y
    lazy = da.from_array(X, chunks=(70, 5))
    lazy = {"array": lazy, "unknown": lazy[lazy[:, 0] > 0], "frame": frame(X)}[kind]
    expected = LinearDiscriminantAnalysis(**parameters).fit(X, y)
    for labels in (y, da.from_array(y, chunks=130)):
        found = LinearDiscriminantAnalysis(**parameters).fit(lazy, labels)
        np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(np.asarray(found.transform(lazy)), expected.transform(X),
                                   atol=1e-8)
    np.testing.assert_allclose(LinearDiscriminantAnalysis().partial_fit(lazy, y).coef_,
                               LinearDiscriminantAnalysis().fit(X, y).coef_, rtol=1e-8, atol=1e-10)
    with pytest.raises(ValueError, match="900 labels or weights for 1000 rows|inconsistent"):
        LinearDiscriminantAnalysis().fit(lazy, y[:900])


def test_the_same_bits_whatever_computes_them(X):
    lazy = da.from_array(X, chunks=(30, 5))
    found = []
    for options in ({"scheduler": "synchronous"}, {"scheduler": "threads", "num_workers": 2},
                    {"scheduler": "threads", "num_workers": 5}):
        with dask.config.set(options):
            found.append(Moments.of_source(open_rows(lazy)))
    for other in found[1:]:
        for name in ("mean", "scatter", "rest", "weight"):
            np.testing.assert_array_equal(getattr(other, name), getattr(found[0], name))


def test_chunks_are_read_once_and_no_more_than_needed(X):
    seen = []

    def note(block):
        if len(block):
            seen.append(len(block))
        return block

    lazy = da.from_array(X, chunks=(100, 5)).map_blocks(note, dtype=X.dtype, meta=X[:0])
    seen.clear()
    PCA(2).fit(lazy)
    assert seen == [100] * 10
    PCA(2).fit(lazy).transform(lazy)
    assert len(seen) == 20


@pytest.mark.parametrize(("change", "words"), [
    (lambda lazy: lazy[:, 0], "Expected 2D array, got 1D Dask array"),
    (lambda lazy: lazy.astype(complex), "Complex data"),
    (lambda lazy: lazy.astype("M8[s]"), "dtype datetime64"),
    (lambda lazy: da.where(lazy == lazy[421, 3], np.nan, lazy),
     "chunk 4: Input X contains NaN at row 421, column 3"),
    (lambda lazy: da.where(lazy == lazy[421, 3], np.nan, lazy)[lazy[:, 0] > 0],
     r"chunk 4 \(rows are counted within it\): Input X contains NaN at row 21, column 3"),
    (lambda lazy: lazy[lazy[:, 0] > 1e9], "no rows"), (lambda lazy: lazy[:, :0], "number of feat"),
    (lambda lazy: lazy[:, lazy[0] > 0], "number of features must be known")])
def test_faults_are_named(X, change, words):
    lazy = change(da.from_array(X.round(9), chunks=(100, 5)))
    fitted = PCA(2).fit(X)
    before = dict(vars(fitted))
    with pytest.raises((ValueError, TypeError), match=words):
        fitted.fit(lazy)
    assert vars(fitted) == before
    with pytest.raises(ValueError, match="4 features, but PCA is expecting 5"):
        fitted.transform(da.from_array(X[:, :4], chunks=(100, 4)))


def test_faults_of_frames(X):
    table = frame(X)
    with pytest.raises(TypeError, match="column 'name' of X is not numeric"):
        PCA().fit(table.assign(name="x"))
    assert PCA().fit(open_rows(table.assign(name="x"), columns=["p", "q"])).n_components_ == 2
    with pytest.raises(ValueError, match="got a series"):
        PCA().fit(table.p)
    broken = table.assign(q=table.q.where(table.q != X[700, 1]))
    with pytest.raises(ValueError, match=r"chunk 2 .*NaN at row 200, column 1 \('q'\)"):
        PCA().fit(broken)
    with pytest.raises(ValueError, match="feature names"):
        PCA().fit(table).transform(table[list("qprst")])


def test_columns_that_are_numbered_have_no_names(X):
    table = pd.DataFrame(X)
    pca = PCA(2).fit(dd.from_pandas(table, npartitions=3))
    assert not hasattr(pca, "feature_names_in_")
    assert pca.transform(table).shape == pca.transform(X).shape  # without a warning
    parts = [table[:500], table[500:][[1, 0, 2, 3, 4]]]
    with pytest.raises(ValueError, match="partition has columns"):
        PCA(2).fit(dd.from_map(lambda index: parts[index], range(2), meta=table[:0]))


def test_columns_of_a_frame_may_have_the_same_name(X):
    table = dd.from_pandas(pd.DataFrame(X, columns=list("ppqrq")), npartitions=3)
    assert_same(PCA(2).fit(table), PCA(2).fit(X))


@pytest.mark.parametrize(("change", "words"), [
    (lambda part: part[list("tsrqp")], r"columns \['t', 's', .* says \['p', 'q', "),
    (lambda part: part.rename(columns={"p": "z"}), r"columns \['z', "),
    (lambda part: part.assign(u=1.0), r"columns \['p', .*'u'\]"),
    (lambda part: part[list("pqrs")], r"columns \['p', 'q', 'r', 's'\], but"),
    (lambda part: part.assign(q=pd.array([pd.NA] + [1] * (len(part) - 1), "Int64")),
     "NaN at row 0, column 1"),
    (lambda part: part.assign(q="x"), "not numbers: could not convert")])
def test_partitions_that_are_not_what_the_frame_says(X, change, words):
    parts = [pd.DataFrame(part, columns=list("pqrst")) for part in np.split(X, 4)]
    parts[2] = change(parts[2])
    table = dd.from_map(lambda index: parts[index], range(4), meta=parts[0][:0])
    fitted = PCA(2).fit(X)
    with pytest.raises(ValueError, match="chunk 2.*" + words):
        PCA(2).fit(table)
    with pytest.raises(ValueError, match=words):
        fitted.transform(table).compute()



def narrow(monkeypatch, most=10):
    """Let data of few features be too wide for a scatter, as data of many are."""
    monkeypatch.setattr("fastdr.dask_source.SCATTER", most)
    monkeypatch.setattr("fastdr.dask_source.SPARSE_SCATTER", most)


def spiked(rng, shape, spikes=6):
    """Rows with a few strong directions."""
    rows, features = shape
    strong = rng.standard_normal((rows, spikes)) * np.linspace(9, 4, spikes)
    return strong @ rng.standard_normal((spikes, features)) + rng.standard_normal(shape) + 3.0


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("parameters", [
    {}, {"standardize": True}, {"mean": np.full(60, 2.5)}, {"svd_solver": "power"},
    {"svd_solver": "randomized"}, {"whiten": True}], ids=str)
def test_rows_too_wide_for_a_scatter_are_multiplied_where_they_are(rng, monkeypatch, parameters,
                                                                   weighted):
    narrow(monkeypatch)
    X = spiked(rng, (500, 60))
    weights = rng.integers(0, 3, 500).astype(float) if weighted else None
    found = PCA(4, **parameters).fit(da.from_array(X, chunks=(60, 60)), sample_weight=weights)
    expected = PCA(4, **{**parameters, "svd_solver": "lapack"}).fit(X, sample_weight=weights)
    solver = parameters.get("svd_solver", "lanczos")
    assert found.report_["method"] == f"{solver}(rows)"
    assert "where the chunks are" in found.report_["reason"]
    residual = found.report_["residual"] * expected.explained_variance_[0]
    values = expected.explained_variance_
    np.testing.assert_allclose(found.explained_variance_, values, rtol=0, atol=(
        residual + eigenvalue_error(60, values[0])))
    np.testing.assert_allclose(found.total_variance_, expected.total_variance_, rtol=1e-12)
    assert subspace_angle(found.components_, expected.components_) <= max(
        1e-12, 4 * residual / (values[-1] - 0.5 * values[-1]))


@pytest.mark.parametrize("solver", ["svd", "lapack"])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_small_variances_are_found_where_the_rows_are(rng, monkeypatch, solver, offset):
    monkeypatch.setattr("fastdr.dask_source.DaskSource.blocks", None)
    turn = np.linalg.qr(rng.standard_normal((12, 12)))[0]
    X = (rng.standard_normal((700, 12)) * np.geomspace(1, 1e-7, 12)) @ turn + offset
    found = PCA(svd_solver=solver).fit(da.from_array(X, chunks=(100, 12)))
    expected = PCA(svd_solver=solver).fit(X)
    slip = 4 * np.finfo(float).eps * max(1.0, offset) * np.sqrt(12)
    np.testing.assert_allclose(np.sqrt(found.explained_variance_),
                               np.sqrt(expected.explained_variance_), rtol=1e-9, atol=slip)
    assert found.report_["method"] == expected.report_["method"]
    assert_orthonormal(found.components_)


def test_a_plan_computes_nothing():
    def refuse(block):
        raise AssertionError

    for shape, solver in (((10**6, 50), "lapack"), ((10**6, 5000), "lanczos"),
                          ((10**4, 10**5), "lanczos")):
        lazy = da.ones(shape, chunks=(10**3, shape[1])).map_blocks(refuse, meta=np.empty((0, 0)))
        assert PCA(10).plan(lazy).solver == solver
    assert PCA(2000).plan(lazy).on == "gram"


def test_no_chunk_is_brought_here_by_an_iteration(rng, monkeypatch):
    narrow(monkeypatch)
    monkeypatch.setattr("fastdr.dask_source.DaskSource.blocks", None)
    lazy = da.from_array(spiked(rng, (300, 60)), chunks=(60, 60))
    assert PCA(3).fit(lazy).report_["method"] == "lanczos(rows)"
    assert TruncatedSVD(3).fit(lazy).report_["method"] == "lanczos(rows)"
    monkeypatch.setattr("fastdr.dask_source.GATHER", 1000)
    wide = da.from_array(spiked(rng, (40, 60)), chunks=(9, 60))
    assert PCA(3).fit(wide).report_["method"] == "lanczos(rows)"


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_share_of_the_variance_of_wide_rows(rng, monkeypatch, share):
    narrow(monkeypatch)
    X = spiked(rng, (500, 60))
    found, expected = PCA(share).fit(da.from_array(X, chunks=(60, 60))), PCA(share).fit(X)
    assert found.n_components_ == expected.n_components_
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-9)


def test_more_axes_than_the_rank_of_wide_rows(rng, monkeypatch):
    narrow(monkeypatch)
    X = rng.standard_normal((200, 3)) @ rng.standard_normal((3, 60)) + 5.0
    found = PCA(8).fit(da.from_array(X, chunks=(60, 60)))
    assert found.rank_ == 3
    assert (found.explained_variance_[3:] == 0).all()
    assert_orthonormal(found.components_)
    np.testing.assert_allclose(found.explained_variance_[:3], PCA(3).fit(X).explained_variance_,
                               rtol=1e-9)
    with pytest.warns(UserWarning, match="All rows are equal"):
        assert PCA(2).fit(da.ones((200, 60), chunks=(60, 60))).rank_ == 0


def sparsely(rng, shape, offset=0.0):
    """Sparse rows, one column of which is full and far from 0, and the same in chunks."""
    X = rng.standard_normal(shape) * (rng.random(shape) < 0.15) * np.linspace(4, 1, shape[1])
    X[:, 2] = rng.standard_normal(shape[0]) + offset
    X[:, 5] = 0
    return X, da.from_array(X, chunks=(70, shape[1])).map_blocks(sp.csr_array)


@pytest.mark.parametrize("iterate", [False, True])
@pytest.mark.parametrize("estimator", [PCA(3), PCA(3, standardize=True), IncrementalPCA(3),
                                       TruncatedSVD(3)], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.filterwarnings("ignore:1 constant column")
def test_sparse_chunks_give_what_their_rows_give(rng, monkeypatch, estimator, iterate, offset):
    if iterate and not isinstance(estimator, IncrementalPCA):
        narrow(monkeypatch)
    X, lazy = sparsely(rng, (600, 40), offset)
    found = clone(estimator).fit(lazy)
    expected = clone(estimator).fit(X)
    size = 2 if isinstance(estimator, TruncatedSVD) else 1
    measure = "singular_values_" if size == 2 else "explained_variance_"
    values = getattr(expected, measure)
    np.testing.assert_allclose(getattr(found, measure), values, rtol=0, atol=1e-9 * values[0])
    assert subspace_angle(found.components_, expected.components_) < 1e-4
    scores = found.transform(lazy)
    assert isinstance(scores, da.Array)
    assert scores.chunks == ((70,) * 8 + (40,), (3,))
    np.testing.assert_allclose(scores.compute(), found.transform(X), rtol=0,
                               atol=1e-11 * (1 + offset))
    assert found.inverse_transform(scores).compute().shape == X.shape
    if iterate and size == 1 and not isinstance(estimator, IncrementalPCA):
        assert found.report_["method"] == "lanczos(rows)"


def test_sparse_chunks_of_unknown_size_weights_and_classes(rng):
    X, lazy = sparsely(rng, (600, 40))
    weights, y = rng.integers(0, 3, 600), rng.integers(0, 2, 600)
    np.testing.assert_allclose(PCA(3).fit(lazy, sample_weight=weights).explained_variance_,
                               PCA(3).fit(X, sample_weight=weights).explained_variance_,
                               rtol=1e-10)
    np.testing.assert_allclose(LinearDiscriminantAnalysis().fit(lazy, y).coef_,
                               LinearDiscriminantAnalysis().fit(X, y).coef_, rtol=1e-8, atol=1e-10)
    unknown = da.from_array(X, chunks=(70, 40))
    unknown = unknown[unknown[:, 2] > 0].map_blocks(sp.csr_array)
    for parameters in ({}, {"algorithm": "lanczos"}):
        np.testing.assert_allclose(
            TruncatedSVD(3, **parameters).fit(unknown).singular_values_,
            TruncatedSVD(3).fit(X[X[:, 2] > 0]).singular_values_, rtol=1e-10)
    X[:150, 2] = -1  # two chunks without rows
    empty = da.from_array(X, chunks=(70, 40))
    empty = empty[empty[:, 2] > 0].map_blocks(sp.csr_array)
    for estimator in (PCA(3), PCA(3, svd_solver="svd"), TruncatedSVD(3)):
        np.testing.assert_allclose(
            subspace_angle(estimator.fit(empty).components_,
                           clone(estimator).fit(X[X[:, 2] > 0]).components_), 0, atol=1e-6)
        assert estimator.transform(empty).compute().shape == ((X[:, 2] > 0).sum(), 3)
    X[421, 2] = np.nan
    bad = da.from_array(X, chunks=(70, 40)).map_blocks(sp.csr_array)
    for estimator in (PCA(2), TruncatedSVD(2)):
        with pytest.raises(ValueError, match=r"chunk 6 \(rows are counted within it\): Input X "
                                             "contains NaN at row 1, column 2"):
            estimator.fit(bad)


@pytest.mark.parametrize("as_lazy", [lambda X: da.from_array(X, chunks=(70, 5)), frame])
@pytest.mark.parametrize("parameters", [{}, {"algorithm": "lanczos"}, {"algorithm": "lapack"}],
                         ids=str)
def test_truncated_svd(X, as_lazy, parameters):
    found, expected = TruncatedSVD(3, **parameters).fit(as_lazy(X)), TruncatedSVD(3).fit(X)
    for name in ("singular_values_", "explained_variance_", "squared_ratio_"):
        values = getattr(expected, name)
        np.testing.assert_allclose(getattr(found, name), values, rtol=1e-7)
    np.testing.assert_allclose(found.singular_values_, np.linalg.svd(X)[1][:3], rtol=0,
                               atol=eigenvalue_error(5, expected.singular_values_[0]))
    assert isinstance(found.components_, np.ndarray)
    np.testing.assert_allclose(np.asarray(found.transform(as_lazy(X))), found.model_.transform(X),
                               rtol=1e-12)
    with pytest.raises(ValueError, match="at most min"):
        TruncatedSVD(6).fit(as_lazy(X))


def test_dask_ml_finds_the_same(rng):
    decomposition = pytest.importorskip("dask_ml.decomposition")
    X = spiked(rng, (2000, 30))
    lazy = da.from_array(X, chunks=(500, 30))
    theirs = decomposition.PCA(4, svd_solver="full").fit(lazy)
    found = PCA(4).fit(lazy)
    values = found.explained_variance_
    np.testing.assert_allclose(theirs.explained_variance_, values, rtol=0,
                               atol=2 * eigenvalue_error(2000, values[0]))
    assert subspace_angle(np.asarray(theirs.components_), found.components_) < 1e-10


def test_importing_fastdr_does_not_import_dask(run_python):
    run_python("import sys, fastdr; fastdr.PCA; assert 'dask' not in sys.modules")
    assert fastdr.open_rows


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("rows", [300, 6])
def test_a_known_mean_far_from_zero_costs_no_digits(rng, sparse, rows):
    A = rng.integers(-3000, 3000, (rows, 20)) / 1024
    X = da.from_array(A + 1e10, chunks=(rows // 3, 20))
    X = X.map_blocks(sp.csr_array) if sparse else X
    found = PCA(2, mean=np.full(20, 1e10)).fit(X)
    expected = np.linalg.svd(A, compute_uv=False)[:2]**2 / rows
    np.testing.assert_allclose(found.explained_variance_, expected, rtol=1e-12)
    assert found.total_variance_ == pytest.approx((A**2).sum() / rows, rel=1e-14)


@pytest.mark.parametrize("factor", [1e200, 1e-170])
@pytest.mark.parametrize("take", ["fit", "partial_fit"])
def test_moments_whose_squares_leave_float64_are_refused(rng, factor, take):
    X = da.from_array(rng.standard_normal((900, 2)) * factor, chunks=(300, 2))
    with pytest.raises(ValueError, match="leave the range of float64; multiply"):
        getattr(IncrementalPCA(1), take)(X)


@pytest.mark.parametrize(("cut", "shape"), [
    (np.s_[:, :4], r"\(250, 4\)"), (np.s_[:-1], r"\(249, 5\)"), (np.s_[:0], r"\(0, 5\)")],
    ids=["features", "rows", "no rows"])
@pytest.mark.parametrize(("estimator", "sparse"), [
    (fastdr.FastICA(2), False), *((each, sparse) for sparse in (False, True) for each in (
        PCA(2), IncrementalPCA(2), TruncatedSVD(2), LinearDiscriminantAnalysis()))], ids=str)
def test_chunks_of_another_shape_than_the_array_says_are_refused(X, estimator, cut, shape, sparse):
    meta = sp.csr_matrix((0, 0)) if sparse else np.empty((0, 0))
    rows = da.from_array(X - 1e4, chunks=(250, 5)).map_blocks(
        lambda block: (sp.csr_matrix if sparse else np.asarray)(block[cut]), dtype=float, meta=meta)
    with pytest.raises(ValueError, match=f"a chunk has shape {shape}, but the Dask collection says "
                                         "250 rows of 5 features"):
        clone(estimator).fit(rows, np.arange(1000) % 3)
    if cut == np.s_[:, :4]:
        with pytest.raises(ValueError, match="any number of rows of 5 features"):
            np.asarray(PCA(2).fit(X).transform(rows))
