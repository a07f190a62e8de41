"""Rows with missing cells: EM against its definition, what it refuses, what it goes with."""

import math
import pickle

import hypothesis
import numpy as np
import pytest
import reference
import scipy.sparse as sp
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from tolerance import assert_orthonormal, rounding, subspace_angle

import fastdr
from fastdr.latent import Block, Latent, grouped, inverted, posterior
from fastdr.likelihood import _Search, change, maximised, peak_bytes
from fastdr.missing import observed_rows
from fastdr.sources import ArraySource, BlockSource

EPS = np.finfo(float).eps
FIGURES = ("explained_variance_", "noise_variance_", "mean_", "singular_values_")


def mixture(rng, rows=200, features=8, axes=2, noise=0.1, gone=0.1):
    """Rows near `axes` axes of unlike variance, and the same with cells missing at random."""
    turn = np.linalg.qr(rng.standard_normal((features, axes)))[0]
    full = (rng.standard_normal((rows, axes)) * np.linspace(3, 1.5, axes) @ turn.T
            + noise * rng.standard_normal((rows, features)) + np.arange(features))
    X = np.where(rng.random(full.shape) < gone, np.nan, full)
    X[np.isnan(X).all(axis=1), 0] = full[np.isnan(X).all(axis=1), 0]
    return full, X


@pytest.fixture
def rows(rng):
    """Rows (200, 8) near a plane, a tenth of the cells missing."""
    return mixture(rng)[1]


def parameters(pca, weight=None):
    """Loadings, mean and noise of the maximum of the likelihood, which has divisor n."""
    weight = weight or pca.report_["weight"]
    share = pca.report_["divisor"] / weight
    sizes = np.sqrt((pca.explained_variance_ - pca.noise_variance_) * share)
    return pca.components_.T * sizes, pca.mean_, pca.noise_variance_ * share


# --- against the definition ---------------------------------------------------------------------

def test_small_matrices_are_inverted(rng):
    for size in (0, 1, 2, 5, 17):
        factors = rng.standard_normal((7, size, size + 2))
        matrices = np.moveaxis(factors @ np.swapaxes(factors, 1, 2), 0, -1)
        inverses, log_dets = inverted(matrices.copy())
        for i in range(7):
            matrix = matrices[:, :, i]
            bound = rounding(float, size + 1, np.linalg.cond(matrix) if size else 1.0)
            np.testing.assert_allclose(inverses[:, :, i] @ matrix, np.eye(size), atol=bound)
            np.testing.assert_allclose(log_dets[i], np.linalg.slogdet(matrix)[1], atol=bound)


@hypothesis.given(st.integers(1, 12), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_rows_are_grouped_by_what_is_missing(count, features, seed):
    missing = np.random.default_rng(seed).random((count, features)) < 0.3
    first, group, order, starts = grouped(missing)
    assert sorted(order) == list(range(count))
    assert (group[order[starts]] == np.arange(len(first))).all()
    assert (missing[first[group]] == missing).all()
    assert len(first) == len(np.unique(missing, axis=0))


def test_the_posterior_is_the_normal_one(rng):
    X = mixture(rng, 40, 6, 3, gone=0.4)[1]
    latent = Latent(rng.standard_normal((6, 3)), rng.standard_normal(6), 0.3)
    missing = np.isnan(X)
    told = posterior(latent, Block(np.where(missing, 0, X), missing, grouped(missing)))
    covariance = latent.loadings @ latent.loadings.T + 0.3 * np.eye(6)
    expected = reference.conditional_rows(X, covariance, latent.offset)
    bound = rounding(float, 6, np.linalg.cond(covariance) * np.nanmax(np.abs(X)))
    np.testing.assert_allclose(told.fitted()[missing], expected[missing], atol=bound)
    densities = reference.observed_log_likelihoods(X, latent.loadings, latent.offset, 0.3)
    found = told.log_densities(told.squares())
    np.testing.assert_allclose(found, densities, atol=bound * np.abs(densities).max())


@pytest.mark.parametrize("weighted", [False, True])
def test_the_maximum_is_where_plain_steps_of_em_end(rng, weighted):
    X = mixture(rng, 40, 5, 2, noise=0.3, gone=0.2)[1]
    weights = rng.uniform(0.5, 2, 40) if weighted else np.ones(40)
    pca = fastdr.PCA(2, missing="em", tol=1e-10).fit(X, sample_weight=weights)
    ours = weights @ reference.observed_log_likelihoods(X, *parameters(pca))
    slack = rounding(float, X.size, abs(ours))
    np.testing.assert_allclose(pca.report_["log_likelihood"], ours, rtol=0, atol=slack)
    for before, after in zip(parameters(pca), reference.expectation_step(
            X, *parameters(pca), weights), strict=True):
        np.testing.assert_allclose(after, before, rtol=0, atol=1e-8)
    other = rng.standard_normal((5, 2)), np.nanmean(X, axis=0), 1.0
    for _ in range(200):
        other = reference.expectation_step(X, *other, weights)
    best = weights @ reference.observed_log_likelihoods(X, *other)
    assert best <= ours + slack
    assert ours - best < 1e-2  # plain steps are slow
    assert pca.report_["gradient"] < 1e-8


@pytest.mark.parametrize("known", [False, True])
def test_no_step_lowers_the_likelihood(rng, known):
    X = mixture(rng, 150, 9, 3, noise=0.8, gone=0.5)[1]
    weights = rng.uniform(0, 2, 150)
    observed = observed_rows(ArraySource(X), weights, np.arange(9.0) if known else None, False)
    begin = Latent(rng.standard_normal((9, 3)), np.zeros(9), 4.0)
    found = maximised(observed, begin, 1e-9, 400)
    slack = rounding(float, 150, abs(found.likelihoods[0]), safety=1)
    assert found.converged
    assert (np.diff(found.likelihoods) >= -slack).all()
    here, search = begin, _Search(observed, begin)
    climbed = []
    for _ in range(20):
        step = search.step(here)
        climbed.append(step.likelihood)
        here = step.following
    assert (np.diff(climbed) >= -slack).all()
    assert len(found.likelihoods) <= found.steps


def test_few_missing_cells_hardly_turn_the_axes(rng):
    full, X = mixture(rng, 2000, 10, 3, gone=0.001)
    whole, partly = fastdr.PCA(3).fit(full), fastdr.PCA(3, missing="em").fit(X)
    lost = np.isnan(X).mean()
    assert lost > 0
    # n rows tell of axes to noise / (deviation sqrt(n)); a share `lost` of that is not told
    error = 0.1 / 1.5 * np.sqrt(10 * lost / 2000)
    assert subspace_angle(whole.components_, partly.components_) < 4 * error
    np.testing.assert_allclose(partly.explained_variance_, whole.explained_variance_, rtol=1e-3)
    np.testing.assert_allclose(partly.noise_variance_, whole.noise_variance_, rtol=1e-2)


def test_the_derivative_by_every_parameter_is_zero(rng):
    X = mixture(rng, 80, 6, 2, noise=0.4, gone=0.3)[1]
    pca = fastdr.PCA(2, missing="em", tol=1e-10).fit(X)
    best = parameters(pca)

    def likelihood(step):
        parts = [best[0] + step[:12].reshape(6, 2), best[1] + step[12:18], best[2] + step[18]]
        return reference.observed_log_likelihoods(X, *parts).sum()

    size = 1e-4
    for i in range(19):
        step = np.zeros(19)
        step[i] = size
        slope = (likelihood(step) - likelihood(-step)) / (2 * size)
        bend = (likelihood(step) + likelihood(-step) - 2 * likelihood(0 * step)) / size**2
        assert abs(slope / bend) < 1e-5  # so far away is the maximum


# --- cases --------------------------------------------------------------------------------------

def test_c119_missing_cells(rng):
    full, X = mixture(rng, 200, 8, 2, noise=1e-3, gone=0.1)
    pca = fastdr.PCA(2, missing="em").fit(X)
    assert subspace_angle(fastdr.PCA(2).fit(full).components_, pca.components_) < 1e-2
    assert_orthonormal(pca.components_)
    row = X[np.isnan(X).any(axis=1)][:1]
    seen = ~np.isnan(row[0])
    least = np.linalg.lstsq(pca.components_.T[seen], (row[0] - pca.mean_)[seen], rcond=None)[0]
    np.testing.assert_allclose(pca.transform(row)[0], least, atol=1e-5)  # noise is (1e-3)**2
    X[3] = np.nan
    with pytest.raises(ValueError, match=r"no cell is observed in row 3 \(.* % of all cells"):
        pca.fit(X)
    X[3], X[:, 5] = full[3], np.nan
    with pytest.raises(ValueError, match="no cell is observed in column 5 "):
        pca.fit(X)
    X[17, 5] = 1.0
    with pytest.raises(ValueError, match="one observed cell does not tell how column 5 varies"):
        pca.fit(X)
    assert fastdr.PCA(2, missing="em", mean=np.arange(8.0)).fit(X).n_components_ == 2


def test_c120_mostly_missing(rng):
    X = rng.integers(0, 3, (20, 100)).astype(float)
    X[3] = np.nan
    with pytest.raises(ValueError, match=r"row 3 \(5 % of all cells are missing\). Leave"):
        fastdr.PCA(2, missing="em").fit(X)
    X[3] = 1.0
    X[rng.random(X.shape) < 0.995] = np.nan
    with pytest.raises(ValueError, match=r"\d+ rows \d+, .*, \.\.\. \(99\.\d % of all cells"):
        fastdr.PCA(2, missing="em").fit(X)


def test_c121_the_likelihood_of_rows_left_out_tells_the_number_of_axes(rng):
    turn = np.linalg.qr(rng.standard_normal((12, 3)))[0]
    full = rng.standard_normal((100, 3)) @ turn.T + 0.1 * rng.standard_normal((100, 12))
    X = np.where(rng.random(full.shape) < 0.1, np.nan, full)
    from sklearn.model_selection import cross_val_score
    scores = [cross_val_score(fastdr.PCA(k, missing="em"), X, cv=4).mean() for k in range(1, 6)]
    assert int(np.argmax(scores)) + 1 == 3


def test_c61_the_default_names_the_first_cell_and_the_way_out(rows):
    with pytest.raises(ValueError, match=r"NaN at row \d+, column \d .* PCA\(missing='em'\) does"):
        fastdr.PCA(2).fit(rows)
    fitted = fastdr.PCA(2).fit(np.nan_to_num(rows))
    with pytest.raises(ValueError, match="NaN at row"):
        fitted.transform(rows)


def test_c61_infinity_is_an_error_always(rows):
    fitted = fastdr.PCA(2, missing="em").fit(rows)
    for value in (np.inf, -np.inf):
        bad = rows.copy()
        bad[77, 3] = value
        for call in (fitted.fit, fitted.transform, fitted.impute, fitted.score_samples):
            with pytest.raises(ValueError, match="contains infinity at row 77, column 3"):
                call(bad)


# --- what is no case of missing cells -----------------------------------------------------------

@pytest.mark.parametrize("given", [
    {}, {"whiten": True}, {"standardize": True}, {"n_components": 0.9}, {"n_components": None},
    {"svd_solver": "svd"}], ids=str)
def test_complete_rows_are_those_of_plain_pca(wine, floating, given):
    X = wine.astype(floating)
    given = {"n_components": 3, **given}
    plain, em = fastdr.PCA(**given).fit(X), fastdr.PCA(**given, missing="em").fit(X)
    assert {**plain.report_} == {**em.report_}
    for name in (*FIGURES, "components_", "total_variance_", "rank_"):
        np.testing.assert_array_equal(getattr(em, name), getattr(plain, name))
    np.testing.assert_array_equal(em.transform(X), plain.transform(X))
    np.testing.assert_array_equal(em.score_samples(X), plain.score_samples(X))
    assert em.n_iter_ == 1


def test_integers_have_no_missing_cells(rng):
    X = rng.integers(0, 200, (50, 4)).astype(np.uint8)
    np.testing.assert_array_equal(fastdr.PCA(2, missing="em").fit_transform(X),
                                  fastdr.PCA(2).fit_transform(X))


# --- scores and imputation ----------------------------------------------------------------------

@pytest.mark.parametrize("whiten", [False, "pca", "zca"])
@pytest.mark.parametrize("standardize", [False, True])
def test_scores_are_means_given_the_observed_cells(rows, whiten, standardize):
    pca = fastdr.PCA(2, missing="em", whiten=whiten, standardize=standardize).fit(rows)
    filled = reference.conditional_rows(rows, pca.get_covariance(), pca.mean_)
    bound = rounding(float, 8, np.linalg.cond(pca.get_covariance()) * np.nanmax(np.abs(rows)))
    imputed = pca.impute(rows)
    np.testing.assert_allclose(imputed, filled, atol=bound)
    np.testing.assert_array_equal(imputed[~np.isnan(rows)], rows[~np.isnan(rows)])
    scores = pca.transform(rows)
    np.testing.assert_array_equal(scores, pca.transform(imputed))
    np.testing.assert_array_equal(scores, pca.model_.transform(imputed))
    np.testing.assert_array_equal(scores, pca.fit_transform(rows))
    complete = ~np.isnan(rows).any(axis=1)
    np.testing.assert_array_equal(pca.transform(rows[complete]), scores[complete])
    for alone, row in zip(np.split(rows, len(rows)), imputed, strict=True):
        filled = pca.impute(alone)
        np.testing.assert_allclose(filled[0], row, atol=bound)
        np.testing.assert_array_equal(pca.transform(alone), pca.transform(filled))
    restored = pca.inverse_transform(scores)
    gaps = np.abs(restored - imputed)[np.isnan(rows)]
    assert gaps.max() < 3 * np.sqrt(pca.noise_variance_) * (pca.scale_.max() if standardize else 1)


def test_imputation_beats_the_mean_and_comes_near_the_noise(rng):
    full, X = mixture(rng, 500, 10, 3, noise=0.1, gone=0.15)
    gone = np.isnan(X)
    filled = fastdr.PCA(3, missing="em").fit(X).impute(X)
    error = np.sqrt(np.mean((filled - full)[gone] ** 2))
    assert error < 0.15  # the noise itself is 0.1 and cannot be foretold
    assert error < 0.2 * np.sqrt(np.mean((np.nanmean(X, axis=0) - full)[gone] ** 2))


def test_axes_of_complete_rows_fill_others(rng):
    full, X = mixture(rng)
    plain, em = fastdr.PCA(2).fit(full), fastdr.PCA(2, missing="em").fit(full)
    np.testing.assert_array_equal(plain.impute(X), em.impute(X))
    np.testing.assert_array_equal(plain.transform(plain.impute(X)), em.transform(X))
    assert plain.impute(full) is full


@pytest.mark.parametrize("axes", [0, 8])
def test_models_of_no_axis_and_of_all_impute(rng, axes):
    full, X = mixture(rng, noise=0.5)
    model = fastdr.PCA(axes).fit(full).model_
    expected = reference.conditional_rows(X, model.covariance(), model.mean)
    bound = rounding(float, 8, np.linalg.cond(model.covariance()) * np.nanmax(np.abs(X)))
    np.testing.assert_allclose(model.impute(X), expected, atol=bound)
    X[1:] = full[1:]
    X[0, 0] = np.nan
    np.testing.assert_allclose(model.log_likelihood_observed(X)[1:], model.log_likelihood(full)[1:],
                               rtol=1e-10)


def test_densities_of_observed_cells(rows):
    for standardize in (False, True):
        pca = fastdr.PCA(2, missing="em", standardize=standardize).fit(rows)
        expected = [multivariate(row, pca.mean_, pca.get_covariance()) for row in rows]
        np.testing.assert_allclose(pca.score_samples(rows), expected, rtol=1e-9)
        assert pca.score(rows) == pca.score_samples(rows).mean()


def multivariate(row, mean, covariance):
    from scipy.stats import multivariate_normal
    seen = ~np.isnan(row)
    return multivariate_normal(mean[seen], covariance[np.ix_(seen, seen)]).logpdf(row[seen])


def test_singular_models_fill_by_least_squares_and_have_no_density(rng):
    full = rng.standard_normal((50, 2)) @ rng.standard_normal((2, 6))
    pca = fastdr.PCA(2).fit(full)
    X = full.copy()
    X[:, [1, 4]] = np.nan
    loadings = pca.components_.T * pca.model_.deviations
    least, told = 1e-10 * pca.total_variance_, np.linalg.norm(loadings[[0, 2, 3, 5]], -2)
    farthest = np.linalg.norm(pca.transform(full) / pca.model_.deviations, axis=1).max()
    bound = least / told**2 * farthest * np.linalg.norm(loadings, 2)  # (W'W + s)^-1 W'W z - z
    np.testing.assert_allclose(pca.impute(X), full, rtol=0, atol=bound)
    X[:, [0, 2, 3]] = np.nan  # fewer cells than axes
    expected = reference.conditional_rows(X, np.cov(full, rowvar=False), pca.mean_)
    few = least / np.var(full[:, 5], ddof=1)
    slack = EPS / 1e-10  # of rounding, divided by the noise
    np.testing.assert_allclose(pca.impute(X), expected, rtol=0,
                               atol=10 * (few + slack) * np.abs(full).max())
    with pytest.warns(RuntimeWarning, match="singular"):
        assert (pca.model_.log_likelihood_observed(X) == -np.inf).all()


def test_rows_without_a_cell_are_refused(rows):
    pca = fastdr.PCA(2, missing="em").fit(rows)
    bad = rows.copy()
    bad[123] = np.nan
    for call in (pca.transform, pca.impute, pca.score_samples):
        with pytest.raises(ValueError, match="row 123 has no observed cell"):
            call(bad)
    stream = BlockSource(lambda: iter((bad[:100], bad[100:])), 8, 200)
    with pytest.raises(ValueError, match="row 123 has no observed cell"):
        pca.transform(stream)
    with pytest.raises(ValueError, match="8 features|expecting 8"):
        pca.impute(rows[:, :5])


# --- inputs -------------------------------------------------------------------------------------

def test_layout_and_order_change_nothing(rows, layout, stored):
    expected = fastdr.PCA(2, missing="em").fit(rows)
    found = fastdr.PCA(2, missing="em").fit(stored(rows, layout))
    for name in ("components_", *FIGURES):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_array_equal(found.impute(stored(rows, layout)), expected.impute(rows))


@pytest.mark.parametrize("kind", ["f4", "f2"])
def test_single_precision_is_computed_in_double(rows, kind):
    X = rows.astype(kind)
    single, double = (fastdr.PCA(2, missing="em").fit(each) for each in (X, X.astype(float)))
    assert single.components_.dtype == single.transform(X).dtype == single.impute(X).dtype == "f4"
    np.testing.assert_array_equal(single.explained_variance_, double.explained_variance_)
    np.testing.assert_array_equal(single.components_, double.components_.astype("f4"))


def test_rows_are_never_changed(rows):
    before = rows.copy()
    fastdr.PCA(2, missing="em", standardize=True).fit(rows).impute(rows)
    np.testing.assert_array_equal(rows, before)


def test_sources_and_batches_are_one_array(rows):
    expected = fastdr.PCA(2, missing="em").fit(rows)
    stream = BlockSource(lambda: iter(np.split(rows, 4)), 8, 200)
    batches = fastdr.open_rows(iter(np.split(rows, 4)))
    for source in (stream, batches):
        found = fastdr.PCA(2, missing="em").fit(source)
        np.testing.assert_array_equal(found.components_, expected.components_)
    np.testing.assert_array_equal(expected.transform(stream), expected.transform(rows))
    complete = np.nan_to_num(rows)
    for source in (BlockSource(lambda: iter(np.split(complete, 4)), 8, 200),
                   fastdr.open_rows(iter(np.split(complete, 4)))):
        assert fastdr.PCA(2, missing="em").fit(source).solver_used_ == "lapack"


def test_chunks_of_dask(rows):
    dask = pytest.importorskip("dask.array")
    lazy = dask.from_array(rows, chunks=(50, 8))
    expected = fastdr.PCA(2, missing="em").fit(rows)
    found = fastdr.PCA(2, missing="em").fit(lazy)
    np.testing.assert_array_equal(found.components_, expected.components_)
    np.testing.assert_allclose(found.transform(lazy).compute(), expected.transform(rows),
                               rtol=0, atol=rounding(float, 8, 10))


def test_na_of_pandas_is_a_missing_cell(rows):
    pandas = pytest.importorskip("pandas")
    expected = fastdr.PCA(2, missing="em").fit(rows)
    frame = pandas.DataFrame(rows, columns=list("abcdefgh"))
    nullable = frame.convert_dtypes()
    assert str(nullable.dtypes["a"]) == "Float64"
    for each in (frame, nullable):
        found = fastdr.PCA(2, missing="em").fit(each)
        np.testing.assert_array_equal(found.components_, expected.components_)
        np.testing.assert_array_equal(found.transform(each), expected.transform(rows))
        with pytest.raises(ValueError, match=r"NaN at row \d+, column \d \('[a-h]'\)"):
            fastdr.PCA(2).fit(each)
    frame["c"] = np.nan
    with pytest.raises(ValueError, match=r"column 2 \('c'\)"):
        fastdr.PCA(2, missing="em").fit(frame)


@pytest.mark.parametrize("wrap", [sp.csr_matrix, sp.csc_array])
def test_sparse_rows_are_refused(rows, wrap):
    pca = fastdr.PCA(2, missing="em")
    with pytest.raises(TypeError, match="sparse"):
        pca.fit(wrap(np.nan_to_num(rows)))
    from fastdr.sparse import SparseSource
    with pytest.raises(TypeError, match="not store are zeros, not missing"):
        pca.fit(SparseSource.of(sp.csr_array(np.nan_to_num(rows))))


@pytest.mark.parametrize("factor", [2.0**-560, 2.0**560, 2.0**-1010])
def test_cells_at_the_ends_of_the_range(rows, factor):
    expected = fastdr.PCA(2, missing="em", tol=1e-11).fit(rows)
    found = fastdr.PCA(2, missing="em", tol=1e-11).fit(rows * factor)
    np.testing.assert_allclose(found.explained_variance_ratio_,
                               expected.explained_variance_ratio_, rtol=1e-9)
    assert subspace_angle(found.components_, expected.components_) < 1e-9
    np.testing.assert_allclose(found.impute(rows * factor) / factor, expected.impute(rows),
                               rtol=1e-8)


@pytest.mark.parametrize("powers", [[-560, 560], [0, -700], [-1000, 0], [990, -900]])
def test_columns_that_are_scaled_have_units_of_their_own(rows, powers):
    """The squares of one column leave float64 in the units of another."""
    powers = np.where(np.arange(8) < 3, *powers)
    plain, scaled = (fastdr.PCA(2, missing="em", standardize=True).fit(np.ldexp(rows, exponents))
                     for exponents in (0 * powers, powers))
    np.testing.assert_array_equal(scaled.components_, plain.components_)
    np.testing.assert_array_equal(scaled.explained_variance_, plain.explained_variance_)
    np.testing.assert_allclose(scaled.impute(np.ldexp(rows, powers)),
                               np.ldexp(plain.impute(rows), powers), rtol=1e-9)
    cells = ~np.isnan(rows)
    np.testing.assert_allclose(scaled.score_samples(np.ldexp(rows, powers)),
                               plain.score_samples(rows) - math.log(2) * (cells @ powers),
                               rtol=0, atol=rounding(float, 8, math.log(2) * 8000))


@pytest.mark.parametrize("scale", [None, [1.0, 2.0, 1.0]])
def test_cells_beyond_the_range_are_refused_and_have_no_density(floating, scale):
    axis = np.array([[0.6, 0.8, 0.0]], floating)
    model = fastdr.LinearModel([1.0, 2.0, 0.0], axis, [4.0], noise_variance=0.01, scale=scale)
    far = np.array([[1.6, np.nan, 0], [np.finfo(floating).max, np.nan, 0]], floating)
    for fill in (model.impute, model.transform_observed):
        assert np.isfinite(fill(far[:1])).all()
        with pytest.raises(ValueError, match=f"row 1 lies so far .* leave {floating}"):
            fill(far)
    far[1] *= np.array([-1, 1, 1])
    assert np.isfinite(model.log_likelihood_observed(far[:1]))
    if floating.itemsize == 8:
        for lost in (far[1:], np.nan_to_num(far[1:])):
            assert model.log_likelihood_observed(lost)[0] == -np.inf


def test_an_offset_costs_only_its_own_digits(rows):
    expected = fastdr.PCA(2, missing="em").fit(rows)
    found = fastdr.PCA(2, missing="em").fit(rows + 1e8)
    lost = EPS * 1e8 / np.sqrt(expected.noise_variance_)  # of a cell, in deviations of the noise
    np.testing.assert_allclose(found.noise_variance_, expected.noise_variance_, rtol=10 * lost)
    assert subspace_angle(expected.components_, found.components_) < 10 * lost


# --- weights, order, threads --------------------------------------------------------------------

def test_weights_count_rows(rng, rows):
    weights = rng.integers(0, 4, 200)
    for given in ({}, {"standardize": True}, {"mean": np.arange(8.0)}):
        pca = fastdr.PCA(2, missing="em", tol=1e-11, **given)
        one = clone(pca).fit(rows, sample_weight=weights)
        other = clone(pca).fit(np.repeat(rows, weights, axis=0))
        for name in FIGURES:
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-8)
        assert subspace_angle(one.components_, other.components_) < 1e-8
        assert one.n_samples_ == other.n_samples_ == weights.sum()
        np.testing.assert_allclose(one.report_["log_likelihood"], other.report_["log_likelihood"],
                                   rtol=1e-10)


def test_rows_of_weight_zero_are_absent_whatever_they_hold(rows):
    weights = np.ones(200)
    weights[[0, 50, 199]] = 0
    others = rows.copy()
    others[0], others[50], others[199] = np.nan, 1e9, rows[0]
    kept = fastdr.PCA(2, missing="em", tol=1e-11).fit(rows[weights > 0])
    found = fastdr.PCA(2, missing="em", tol=1e-11).fit(others, sample_weight=weights)
    for name in FIGURES:
        np.testing.assert_allclose(getattr(found, name), getattr(kept, name), rtol=1e-8)
    assert found.report_["missing_cells"] == kept.report_["missing_cells"]
    assert found.n_samples_ == 197


def test_the_order_of_rows_is_no_matter(rng, rows):
    one = fastdr.PCA(2, missing="em", tol=1e-11).fit(rows)
    other = fastdr.PCA(2, missing="em", tol=1e-11).fit(rows[rng.permutation(200)])
    for name in FIGURES:
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-8)
    assert subspace_angle(one.components_, other.components_) < 1e-8


def test_any_number_of_threads_gives_the_same_bits(rng):
    X = mixture(rng, 3000, 100, 4, gone=0.2)[1]
    found = []
    for threads in (1, 2, 3, 8):
        with fastdr.num_threads(threads):
            pca = fastdr.PCA(4, missing="em", tol=1e-4).fit(X)
            found.append((pca.components_.tobytes(), pca.impute(X).tobytes(),
                          pca.score_samples(X).tobytes()))
    assert len(set(found)) == 1
    assert pca.n_iter_ > 2


def test_blocks_and_parts_are_one_sum(rng, monkeypatch):
    X = mixture(rng, 1000, 12, 3, gone=0.3)[1]
    X[::3] = np.where(np.arange(12) % 4 == 1, np.nan, np.nan_to_num(X[::3]))  # a common pattern
    observed = observed_rows(ArraySource(X), rng.uniform(0, 2, 1000), None, False)
    begin = Latent(rng.standard_normal((12, 3)), rng.standard_normal(12), 0.5)
    whole = _Search(observed, begin)
    monkeypatch.setattr("fastdr.latent.BLOCK", 1)
    many = _Search(observed, begin)
    assert (whole.parts, many.parts, len(many.edges)) == (1, 16, 64)
    one, other = whole.step(begin), many.step(begin)
    slack = rounding(float, 1000, 1.0)
    np.testing.assert_allclose(other.likelihood, one.likelihood, rtol=slack)
    np.testing.assert_allclose(other.following.loadings, one.following.loadings, rtol=0, atol=slack)
    np.testing.assert_allclose(other.following.noise, one.following.noise, rtol=slack)


def test_fewer_rows_than_features(rng):
    X = mixture(rng, 30, 120, 2, noise=0.3, gone=0.2)[1]
    pca = fastdr.PCA(2, missing="em").fit(X)
    expected = reference.observed_log_likelihoods(X, *parameters(pca)).sum()
    np.testing.assert_allclose(pca.report_["log_likelihood"], expected, rtol=1e-10)
    assert pca.report_["converged"]
    left_out = pca.total_variance_ - pca.explained_variance_.sum()
    np.testing.assert_allclose(left_out, 118 * pca.noise_variance_, rtol=1e-10)


# --- parameters, reports, files -----------------------------------------------------------------

def test_standardize_is_the_fit_of_scaled_columns(rows):
    scale = np.nanstd(rows, axis=0, ddof=1)
    ours = fastdr.PCA(2, missing="em", standardize=True, tol=1e-11).fit(rows)
    plain = fastdr.PCA(2, missing="em", tol=1e-11).fit(rows / scale)
    np.testing.assert_allclose(ours.scale_, scale, rtol=1e-13)
    np.testing.assert_allclose(ours.explained_variance_, plain.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(ours.mean_, plain.mean_ * scale, rtol=1e-9)
    np.testing.assert_allclose(ours.impute(rows), plain.impute(rows / scale) * scale, rtol=1e-7)
    rows[:, 2] = np.where(np.isnan(rows[:, 2]), np.nan, 0.1)
    with pytest.warns(UserWarning, match=r"1 constant column\(s\) \(2\)"):
        assert fastdr.PCA(2, missing="em", standardize=True).fit(rows).scale_[2] == 1.0


def test_a_known_mean_is_kept_and_has_divisor_n(rows):
    mean = np.arange(8.0)
    pca = fastdr.PCA(2, missing="em", mean=mean).fit(rows)
    np.testing.assert_array_equal(pca.mean_, mean)
    assert pca.report_["divisor"] == pca.report_["weight"] == 200
    expected = reference.observed_log_likelihoods(rows, *parameters(pca)).sum()
    np.testing.assert_allclose(pca.report_["log_likelihood"], expected, rtol=1e-10)


def test_without_convergence_the_warning_says_how_far(rng):
    X = mixture(rng, 100, 8, 3, noise=1.0, gone=0.5)[1]
    words = r"EM stopped after 4 step.*by \d\.\de[-+]\d\d, more than tol=1e-07; the last raised"
    with pytest.warns(ConvergenceWarning, match=words) as caught:
        pca = fastdr.PCA(3, missing="em", max_iter=4).fit(X)
    assert caught[0].filename == __file__
    assert pca.n_iter_ == pca.report_["iterations"] == 4
    assert pca.report_["converged"] is False
    assert f"{pca.report_['change']:.1e}" in str(caught[0].message)
    full = fastdr.PCA(3, missing="em").fit(X)
    assert full.report_["converged"]
    assert full.report_["change"] <= 1e-7
    assert full.report_["log_likelihood"] > pca.report_["log_likelihood"]


def test_a_looser_tolerance_takes_fewer_steps(rng):
    X = mixture(rng, 100, 8, 3, noise=1.0, gone=0.4)[1]
    steps = [fastdr.PCA(3, missing="em", tol=tol).fit(X).n_iter_ for tol in (1e-2, 1e-5, 1e-8)]
    assert steps == sorted(steps)
    assert steps[0] < steps[2]


def test_a_warm_start_is_at_the_end_already(rng):
    X = mixture(rng, 100, 8, 3, noise=1.0, gone=0.4)[1]
    for given in ({}, {"standardize": True}):
        pca = fastdr.PCA(3, missing="em", warm_start=True, **given).fit(X)
        first, before = pca.n_iter_, pca.components_
        pca.fit(X)
        assert pca.n_iter_ <= 3 < first
        assert subspace_angle(before, pca.components_) < 1e-5


def test_the_report(rows):
    pca = fastdr.PCA(2, missing="em").fit(rows)
    assert pca.solver_used_ == "em"
    assert pca.certificate_ is None
    assert pca.report_["missing_cells"] == np.isnan(rows).sum()
    assert "may have others" in pca.report_["reason"]
    assert all(len(line) <= 80 for line in str(pca.report_).splitlines())
    np.testing.assert_allclose(pca.total_variance_, np.trace(pca.get_covariance()), rtol=1e-12)
    assert not hasattr(fastdr.PCA(missing="em"), "n_iter_")


def test_models_in_files_and_pickles(rows, tmp_path):
    pca = fastdr.PCA(2, missing="em", standardize=True).fit(rows)
    pca.model_.save(tmp_path / "axes.fdr")
    model = fastdr.load(tmp_path / "axes.fdr")
    complete = pca.impute(rows)
    np.testing.assert_array_equal(model.transform(complete), pca.transform(complete))
    np.testing.assert_array_equal(model.transform_observed(rows), pca.transform(rows))
    np.testing.assert_array_equal(model.impute(rows), complete)
    assert {**model.report} == {**pca.report_}
    with pytest.raises(ValueError, match="NaN at row"):
        model.transform(rows)
    twin = pickle.loads(pickle.dumps(pca))
    np.testing.assert_array_equal(twin.transform(rows), pca.transform(rows))
    state = pca.__getstate__()
    older = fastdr.PCA.__new__(fastdr.PCA)
    older.__setstate__({name: value for name, value in state.items() if name != "missing"})
    assert older.missing is None


@pytest.mark.parametrize(("given", "words"), [
    ({"n_components": None}, "n_components=None is not allowed where cells are missing"),
    ({"n_components": 0.9}, r"n_components=0.9 .* from 1 to min\(n_samples, n_features - 1\)=7"),
    ({"n_components": "mle"}, "n_components='mle'"), ({"n_components": 0}, "n_components=0"),
    ({"n_components": 8}, "n_components=8"), ({"certificate": "proof"}, "certificate='proof'"),
    ({"certificate": True}, "nothing proves"), ({"missing": "mean"}, "None or 'em'"),
    ({"max_iter": 0}, "max_iter=0 is not allowed"), ({"tol": -1}, "tol=-1")], ids=str)
def test_refusals_leave_the_fit_as_it_was(rows, given, words):
    pca = fastdr.PCA(2, missing="em").fit(rows)
    before = pca.model_
    with pytest.raises(ValueError, match=words):
        pca.set_params(**given).fit(rows)
    assert pca.model_ is before


def test_more_unknowns_than_cells(rng):
    X = rng.standard_normal((8, 8))
    X[np.add.outer(3 * np.arange(8), np.arange(8)) % 8 < 4] = np.nan
    with pytest.raises(ValueError, match=r"n_components=5 makes 39 unknown numbers.*only \d+ of 64 "
                                         r"cells are observed; pass at most \d"):
        fastdr.PCA(5, missing="em").fit(X)


def test_rows_free_of_noise_are_completed(rng):
    full = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 9))
    X = np.where(rng.random(full.shape) < 0.2, np.nan, full)
    with pytest.warns(fastdr.AccuracyWarning, match="matched to the last"):
        pca = fastdr.PCA(2, missing="em", tol=1e-6).fit(X)
    np.testing.assert_allclose(pca.impute(X), full, atol=1e-4)


def test_equal_rows(rows):
    rows[...] = np.where(np.isnan(rows), np.nan, 0.1)
    with pytest.warns(UserWarning, match="All rows are equal") as caught:
        pca = fastdr.PCA(2, missing="em").fit(rows)
    assert len(caught) == 1
    np.testing.assert_array_equal(pca.explained_variance_, 0)
    np.testing.assert_array_equal(pca.mean_, 0.1)
    np.testing.assert_array_equal(pca.impute(rows), 0.1)


def test_the_change_of_a_step(rng):
    latent = Latent(rng.standard_normal((7, 2)), np.zeros(7), 1.0)
    turn = np.linalg.qr(rng.standard_normal((2, 2)))[0]
    turned = Latent(latent.loadings @ turn, latent.offset, 1.0)
    assert change(latent, turned) < rounding(float, 7, 1)
    assert change(latent, Latent(latent.loadings, latent.offset, 1.5)) == 0.5


def test_a_bar_is_shown(rows, capsys):
    fastdr.PCA(2, missing="em", progress=True).fit(rows)
    assert "step" in capsys.readouterr().err


def test_memory_is_kept_or_the_fit_refused_before_it_begins(rng):
    import tracemalloc
    X = mixture(rng, 4000, 60, 12, gone=0.3)[1]
    with pytest.raises(ValueError, match=r"EM does not fit in 1 MB beyond the data: 12 axes of 60"):
        fastdr.PCA(12, missing="em", max_memory="1MB").fit(X)
    for threads in (1, 4):
        with fastdr.num_threads(threads):
            tracemalloc.start()
            fastdr.PCA(12, missing="em", tol=1.0, max_memory="200MB").fit(X)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            bound = peak_bytes(*X.shape, 12)
        assert peak < bound
