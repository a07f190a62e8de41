"""Iterations for a few axes: every input, honest failures, warm starts, and their certificate."""

import math

import numpy as np
import pytest
from scipy.linalg import eigh
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits
from tolerance import PANEL, assert_orthonormal, eigenvalue_error, rounding, subspace_angle

import fastdr
from fastdr import topk
from fastdr.actions import MatrixAction
from fastdr.centring import centred_rows
from fastdr.dask_source import dask_source
from fastdr.lanczos import LATE, lanczos
from fastdr.scatter import SINGLE_RTOL
from fastdr.sources import BlockSource, as_source
from fastdr.topk import RowsAction

METHODS = ["lanczos", "power", "randomized"]


def decaying(rng, rows, features, rate=0.7, offset=3.0):
    """Rows whose deviations fall by `rate` from axis to axis, far from zero."""
    strength = 10 * rate ** np.arange(min(rows, features))
    basis = np.linalg.qr(rng.standard_normal((features, len(strength))))[0]
    return rng.standard_normal((rows, len(strength))) * strength @ basis.T + offset


def variances_of(X, weights=None, mean=None, standardize=False):
    """All variances by NumPy, float64, descending."""
    X = np.asarray(X, np.float64)
    weights = np.ones(len(X)) if weights is None else np.asarray(weights, np.float64)
    centre = np.average(X, axis=0, weights=weights) if mean is None else mean
    A = (X - centre) * np.sqrt(weights)[:, None]
    divisor = weights.sum() - (mean is None)
    if standardize:
        size = np.sqrt((A**2).sum(0) / divisor)
        A /= np.where(size > 0, size, 1.0)
    with threadpool_limits(1):
        return np.linalg.svd(A, compute_uv=False)**2 / divisor


@pytest.mark.parametrize("solver", METHODS)
@pytest.mark.parametrize("shape", [(300, 120), (120, 300)])
@pytest.mark.parametrize("options", [{}, {"standardize": True}, {"mean": 2.5}], ids=str)
def test_every_form_finds_the_variances(rng, solver, shape, options, floating, monkeypatch):
    X = decaying(rng, *shape).astype(floating)
    if "mean" in options:
        options = {"mean": np.full(shape[1], options["mean"])}
    true = variances_of(X, mean=options.get("mean"), standardize="standardize" in options)
    for worth in (False, True):  # on the scatter or the Gram matrix, then on the rows
        monkeypatch.setattr("fastdr.plan._worth_reading", lambda task, worth=worth: worth)
        monkeypatch.setattr("fastdr.plan.CLEAR", 1e-9 if worth else 1.0)
        monkeypatch.setattr("fastdr.sparse_plan.plan", fastdr.plan.plan.__wrapped__)
        model = fastdr.PCA(5, svd_solver=solver, iterated_power=12, **options).fit(X)
        assert model.report_["solver"] == solver
        assert ("rows" in model.report_["method"]) is worth
        near = eigenvalue_error(max(shape), true[0])
        if floating == "f4":  # of the rows in float32, or of a scatter summed in float32
            near += 1e-6 * true.sum()
        np.testing.assert_allclose(model.explained_variance_, true[:5], rtol=0, atol=near)
        assert_orthonormal(model.components_, floating)
        assert model.report_["residual"] <= (1e-4 if solver == "randomized" else 1e-5)


@pytest.mark.parametrize("way", ["array", "blocks", "weights", "chunks", "sparse chunks"])
@pytest.mark.parametrize("standardize", [False, True])
def test_what_rounding_took_from_a_mean_is_no_variance(rng, way, standardize):
    N = rng.integers(-64, 64, (600, 20)) * np.r_[4, 2, np.ones(18)] / 16
    X, weights = N + 1e12, np.ones(600) if way == "weights" else None
    if way == "blocks":
        X = BlockSource(lambda: iter([N[:400] + 1e12, N[400:] + 1e12]), 20, 600)
    if "chunks" in way:
        X = pytest.importorskip("dask.array").from_array(X, chunks=(200, 20))
        X = X.map_blocks(csr_array) if way == "sparse chunks" else X
    source = dask_source(X) if "chunks" in way else as_source(X)
    rows = centred_rows(source, weights, standardize=standardize, scatter=False)
    A = N - N.mean(axis=0)
    A = A / A.std(axis=0, ddof=1) if standardize else A
    action = RowsAction(rows, np.dtype(np.float64))
    images = np.ldexp(action(np.eye(20)), action.exponent)
    np.testing.assert_allclose(images, A.T @ A, rtol=0, atol=1e-13 * (A**2).sum(axis=0).max())


@pytest.mark.parametrize("solver", METHODS)
def test_weights_and_streams(rng, solver):
    X = decaying(rng, 700, 30)
    weights = rng.integers(0, 3, 700).astype(float)
    true = variances_of(X, weights)
    source = BlockSource(lambda: (X[i:i + 100] for i in range(0, 700, 100)), 30, 700)
    near = eigenvalue_error(30, true[0])
    for rows in (X, source):
        model = fastdr.PCA(4, svd_solver=solver).fit(rows, sample_weight=weights)
        np.testing.assert_allclose(model.explained_variance_, true[:4], rtol=0, atol=near)


def test_weighted_rows_are_read_as_often_as_needed(rng):
    X = decaying(rng, 300, 420)
    weights = rng.uniform(0.5, 2, 300)
    rows = fastdr.centring.centred_rows(fastdr.sources.ArraySource(X), weights, scatter=False)
    found = topk.iterative(rows, 3, topk.Iteration(rng), read=True)
    true = variances_of(X, weights) * (weights.sum() - 1)
    np.testing.assert_allclose(found.values, true[:3], rtol=1e-11)
    assert found.passes >= 3


@pytest.mark.parametrize("solver", METHODS)
@pytest.mark.parametrize("rows", [5, 60])
def test_every_number_of_axes_of_deficient_rows(rng, solver, rows):
    X = rng.standard_normal((rows, 3)) @ rng.standard_normal((3, 8))
    X[:, 2] = 7.0
    true = variances_of(X)
    for k in range(1, min(rows, 8) + 1):
        model = fastdr.PCA(k, svd_solver=solver).fit(X)
        np.testing.assert_allclose(model.explained_variance_, true[:k], rtol=0,
                                   atol=eigenvalue_error(60, true[0]))
        assert_orthonormal(model.components_)
        assert model.rank_ == min(k, 3)


@pytest.mark.parametrize("solver", METHODS)
def test_zero_and_constant_rows(solver):
    with pytest.warns(UserWarning, match="All rows are equal"):
        model = fastdr.PCA(2, svd_solver=solver).fit(np.ones((6, 4)))
    np.testing.assert_array_equal(model.explained_variance_, 0)
    assert_orthonormal(model.components_)
    assert model.certificate_ is None


def test_c28_equal_variances_do_not_break_the_iteration(rng):
    Q = np.linalg.qr(rng.standard_normal((600, 450)) - 0.0)[0]
    Q -= Q.mean(0)
    Q = np.linalg.qr(Q)[0]
    for seed in range(5):
        model = fastdr.PCA(6, svd_solver="lanczos", random_state=seed).fit(Q * np.sqrt(599))
        np.testing.assert_allclose(model.explained_variance_, 1, atol=1e-13)
        assert_orthonormal(model.components_)
        assert model.certificate_.clusters == ((0, 5),)


@pytest.mark.parametrize(("data", "k"), [
    ((2000, 200), 1), ((2000, 200), 10), ((700, 600), 5), ((100_000, 20), 1)])
@pytest.mark.parametrize("solver", ["auto", "lanczos"])
def test_c33_flat_spectra_are_exact(data, k, solver):
    draw = np.random.RandomState(12345)
    X = draw.uniform(size=data) if data == (700, 600) else draw.standard_normal(data)
    model = fastdr.PCA(k, svd_solver=solver).fit(X)
    values, vectors = eigh(np.cov(X, rowvar=False))
    true, axes = values[::-1], vectors[:, ::-1].T
    np.testing.assert_allclose(model.explained_variance_, true[:k], rtol=1e-12)
    for row, axis in enumerate(axes[:k]):
        assert abs(axis @ model.components_[row]) >= 1 - 1e-12
    told = model.certificate_
    assert told.proved or "rows" in model.report_["method"]  # there is no scatter to prove it on
    assert (told.lower <= true[:k] * (1 + 1e-12)).all()
    assert (true[:k] <= told.upper * (1 + 1e-12)).all()


def test_randomized_warns_when_it_misses(rng):
    X = rng.standard_normal((2000, 200))
    with pytest.warns(ConvergenceWarning, match="randomized stopped after .* residual"):
        model = fastdr.PCA(10, svd_solver="randomized").fit(X)
    assert not model.report_["converged"]
    true = variances_of(X)
    assert (model.explained_variance_ <= true[:10] * (1 + 1e-12)).all()  # lower bounds
    assert not model.certificate_.proved or (
        model.certificate_.upper >= true[:10] * (1 - 1e-12)).all()
    with pytest.warns(ConvergenceWarning):
        more = fastdr.PCA(10, svd_solver="randomized", n_oversamples=40, iterated_power=9).fit(X)
    assert more.explained_variance_.sum() > model.explained_variance_.sum()


def test_an_iteration_that_stops_early_says_so(rng, monkeypatch):
    monkeypatch.setitem(topk.MAX_COLUMNS, "power", 5)
    X = rng.standard_normal((500, 100))
    with pytest.warns(ConvergenceWarning, match="power stopped"):
        model = fastdr.PCA(3, svd_solver="power").fit(X)
    assert model.report_["residual"] > 1e-10
    true = variances_of(X)[:3]
    told = model.certificate_
    assert (told.lower <= true).all()
    assert (told.upper >= true).all()


def test_lapack_takes_over_where_the_race_is_lost(rng):
    X = rng.standard_normal((1200, 700))
    task = fastdr.PCA(4)
    way = task.plan(X)
    assert way.solver == "lanczos"
    rows = fastdr.centring.centred_rows(fastdr.sources.ArraySource(X))
    found = topk.iterative(rows, 4, topk.Iteration(rng, budget=40))
    assert found.solver == "lapack"
    assert "did not converge" in found.reason
    np.testing.assert_allclose(found.values / 1199, variances_of(X)[:4], rtol=1e-12)


def test_a_race_that_will_be_lost_is_given_up_early(rng):
    noise, easy = np.cov(rng.standard_normal((2000, 600)).T), np.diag(1.0 / np.arange(1, 601))
    for matrix, hopeless in ((noise, True), (easy, False)):
        action = MatrixAction(matrix, np.dtype(float))
        found = lanczos(action, 5, tol=1e-10, rng=rng, budget=150, race=True)
        assert found.converged is not hopeless
        assert found.columns <= LATE * 150 + 24      # the easy one needs no more
    whole = lanczos(MatrixAction(noise, np.dtype(float)), 5, tol=1e-10, rng=rng, budget=150)
    assert whole.columns > 130                      # no race: all of the budget


def test_small_variances_are_as_accurate_as_by_lapack(rng):
    deviations = 10.0 ** -np.arange(12)
    basis = np.linalg.qr(rng.standard_normal((420, 12)))[0]
    A = np.linalg.qr(rng.standard_normal((900, 12)) - 0)[0]
    A = np.linalg.qr(A - A.mean(0))[0]
    X = A * deviations @ basis.T
    for k in (2, 3, 4, 9):
        model = fastdr.PCA(k, svd_solver="lanczos", mean=np.zeros(420)).fit(X)
        np.testing.assert_allclose(model.singular_values_, deviations[:k], rtol=1e-6)
    assert model.report_["solver"] == "lapack"
    assert "rounding of the scatter" in model.report_["reason"]


@pytest.mark.parametrize("share", [0.3, 0.95, 0.999])
@pytest.mark.parametrize("shape", [(700, 420), (420, 700)])
def test_a_share_of_the_variance_needs_no_full_decomposition(rng, share, shape):
    X = decaying(rng, *shape, rate=0.8)
    model = fastdr.PCA(share).fit(X)
    true = variances_of(X)
    kept = int(np.searchsorted(np.cumsum(true) / true.sum(), share, side="right")) + 1
    assert model.n_components_ == kept
    if share < 0.99:
        assert model.report_["solver"] == "lanczos"
    np.testing.assert_allclose(model.explained_variance_, true[:kept], rtol=1e-11)
    np.testing.assert_allclose(model.noise_variance_, true[kept:].sum() / (min(shape) - kept),
                               rtol=1e-9)
    assert model.certificate_.proved


def test_a_share_that_needs_many_axes_goes_to_lapack(rng):
    X = rng.standard_normal((600, 450))
    model = fastdr.PCA(0.9).fit(X)
    assert model.report_["solver"] == "lapack"
    assert model.n_components_ == fastdr.PCA(0.9, svd_solver="lapack").fit(X).n_components_


def test_a_share_at_a_tie_is_decided_by_all_variances(rng):
    Q = np.linalg.qr(rng.standard_normal((500, 5)))[0]
    Q = np.linalg.qr(Q - Q.mean(0))[0]
    X = Q * np.sqrt([4.0, 3, 2, 1, 0]) @ np.eye(5, 450)
    for share in (0.4, 0.7, 0.9):  # equal to the sum of one, two, three shares but for rounding
        model, exact = (fastdr.PCA(share, svd_solver=s).fit(X) for s in ("lanczos", "lapack"))
        assert model.n_components_ == exact.n_components_


def test_warm_start_begins_with_the_earlier_axes(rng):
    X = decaying(rng, 3000, 600, rate=0.95)
    model = fastdr.PCA(20, svd_solver="lanczos", warm_start=True).fit(X)
    first = model.report_["columns"]
    again = model.fit(X).report_["columns"]
    assert again < first / 2
    model.n_components = 40
    more = model.fit(X)
    cold = fastdr.PCA(40, svd_solver="lanczos").fit(X)
    assert more.report_["columns"] < cold.report_["columns"]
    np.testing.assert_allclose(more.explained_variance_, cold.explained_variance_, rtol=1e-11)
    assert model.fit(X[:, :500]).components_.shape == (40, 500)  # of no use: other features


@pytest.mark.parametrize("seed", [None, 3, np.random.RandomState(3), np.random.default_rng(3)])
def test_seeds(rng, seed):
    X = decaying(rng, 900, 450)
    one = fastdr.PCA(3, svd_solver="lanczos", random_state=seed).fit(X).components_
    other = fastdr.PCA(3, svd_solver="lanczos").fit(X).components_
    assert subspace_angle(one, other) <= 1e-7
    if seed is None:
        np.testing.assert_array_equal(one, other)


def test_threads_do_not_change_a_bit_on_rows(rng, floating):
    X = decaying(rng, 1000, 1000).astype(floating)
    found = []
    for threads in (1, 2, 3):
        with fastdr.num_threads(threads):
            model = fastdr.PCA(4, svd_solver="lanczos").fit(X)
            found.append((model.components_, model.explained_variance_))
    assert "rows" in model.report_["method"]
    for one in found[1:]:
        for value, expected in zip(one, found[0], strict=True):
            np.testing.assert_array_equal(value, expected)


def test_an_interrupted_fit_changes_nothing(rng, monkeypatch):
    X = decaying(rng, 900, 450)
    model = fastdr.PCA(3, svd_solver="lanczos").fit(X)
    before = dict(vars(model))

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("fastdr.topk.RowsAction.__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(2 * X)
    assert vars(model) == before


def test_progress_shows_the_residual(rng, capsys):
    X = decaying(rng, 900, 450)
    fastdr.PCA(3, svd_solver="lanczos", progress=True).fit(X)
    out, err = capsys.readouterr()
    assert out == ""
    assert "lanczos" in err
    assert "residual=" in err


@pytest.mark.parametrize("certificate", ["auto", True, "proof", "residual", False])
@pytest.mark.parametrize("solver", ["lapack", "svd", "lanczos"])
@pytest.mark.parametrize("shape", [(300, 120), (60, 200), (200, 20)])
def test_certificates_bound_every_variance(rng, certificate, solver, shape, tmp_path):
    X = decaying(rng, *shape, rate=0.8)
    model = fastdr.PCA(6, svd_solver=solver, certificate=certificate).fit(X)
    told = model.certificate_
    if certificate is False:
        assert told is None
        assert "certificate" not in model.report_
        return
    assert told.proved is (certificate != "residual")
    assert str(told) == model.report_["certificate"]
    true = variances_of(X)[:6]
    slack = 1e-15 * len(X) * true[0]
    assert (told.lower <= true + slack).all()
    assert (told.lower >= true - 1e-9 * true[0]).all()
    if told.proved:
        assert (true <= told.upper + slack).all()
        order, longest = min(shape), max(shape)
        terms = PANEL + 20
        if solver == "svd":  # reflections, by BLAS
            terms += 4 * math.sqrt(order) * (longest + order + 32)
        formed = rounding("f8", terms, variances_of(X).sum(), safety=1)  # on either side
        assert (told.upper - told.lower <= formed + rounding("f8", shape[1], true[0])).all()
        assert told.angle < 1e-8
    model.model_.save(tmp_path / "axes.fdr")
    loaded = fastdr.load(tmp_path / "axes.fdr").certificate
    np.testing.assert_array_equal(loaded.upper, told.upper)
    np.testing.assert_array_equal(loaded.lower, told.lower)
    assert loaded.method == told.method


def test_certificates_of_float32_cover_the_rounding_of_the_scatter(rng):
    X = decaying(rng, 6000, 60).astype("f4")
    model = fastdr.PCA(5).fit(X)
    true = variances_of(X)[:5]
    assert (model.certificate_.lower <= true).all()
    assert (true <= model.certificate_.upper).all()
    assert math.isclose(model.explained_variance_[0], true[0], rel_tol=1e-6)


def test_a_tampered_certificate_is_refused(iris, tmp_path):
    path = tmp_path / "axes.fdr"
    fastdr.PCA(2).fit(iris).model_.save(path)
    data = path.read_bytes()
    for old, new in ((b'"complete', b'"complexe'), (b'"angle', b'"ankle')):
        changed = data.replace(old, new).replace(b'\\' + old, b'\\' + new)
        assert changed != data
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="not a valid fastdr model"):
            fastdr.load(path)


@pytest.mark.parametrize("scale", [1e-40, 1e-36, 1e-25, 1e20, 1e35])
@pytest.mark.parametrize("standardize", [False, True])
def test_float32_rows_are_iterated_on_at_any_scale(rng, standardize, scale):
    X = (decaying(rng, 5000, 600) * scale).astype("f4")
    found = fastdr.PCA(3, svd_solver="lanczos", standardize=standardize).fit(X)
    assert found.report_["method"] == "lanczos(rows)"
    expected = fastdr.PCA(3, svd_solver="lapack", standardize=standardize).fit(X.astype(float))
    np.testing.assert_allclose(found.explained_variance_ratio_,
                               expected.explained_variance_ratio_, rtol=1e-6)


@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-5, 1e-4])
@pytest.mark.parametrize("shape", [(60, 90), (4200, 12)])
def test_what_float32_axes_are_off_does_not_pass_for_noise(rng, shape, noise):
    """Axes off by 1e-7 leave 1e-14 of the largest variance, more than there may be in all."""
    signal = rng.integers(-50, 50, (shape[0], 3)) * [1, 0.25, 0.125] @ rng.integers(
        -8, 8, (3, shape[1]))
    X = (signal + noise * signal.std() * rng.standard_normal(shape)).astype(np.float32)
    exact = variances_of(X)
    noises = exact[3:].sum() if noise else 0.0
    nothing = (max(shape) * np.finfo(float).eps) ** 2 * exact[0]
    rows = centred_rows(as_source(X))
    models = [fastdr.PCA(3, svd_solver=solver).fit(X)
              for solver in ("lapack", "lanczos", "power", "randomized")]
    left = [model.model_.left_out for model in models]
    left += [topk.iterative(rows, 3, topk.Iteration(rng), read=read).left_out / rows.divisor
             for read in (True, False)]
    assert np.abs(np.array(left) - noises).max() <= SINGLE_RTOL * noises + len(exact) * nothing
    for model in models:
        if noise == 0:
            with pytest.warns(RuntimeWarning, match="singular"):
                assert (model.score_samples(X) == -np.inf).all()
        else:
            assert np.isfinite(model.score_samples(X)).all()
