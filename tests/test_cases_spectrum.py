"""Cases C19 to C43, C64, C67: rank, whitening, ties, bookkeeping, likelihood, wide data, signs."""

import tracemalloc
import warnings

import numpy as np
import pytest
from reference import log_likelihood, principal
from tolerance import assert_orthonormal, rounding, turned

import fastdr

SOLVERS = ["auto", "lapack", "svd", "full", "covariance_eigh", "lanczos", "randomized"]
EPS = np.finfo(float).eps


def with_singular_values(rng, rows, sizes, dtype=np.float64, offset=0.0):
    """Rows whose centred singular values are `sizes`, on random axes (returned too)."""
    left = rng.standard_normal((rows, len(sizes)))
    left, _ = np.linalg.qr(left - left.mean(axis=0))
    left, _ = np.linalg.qr(left - left.mean(axis=0))
    axes, _ = np.linalg.qr(rng.standard_normal((len(sizes), len(sizes))))
    return ((left * sizes) @ axes.T + offset).astype(dtype), axes.T


@pytest.mark.parametrize("whiten", [True, "pca", "zca"])
@pytest.mark.parametrize("weighted", [False, True])
def test_c19_whitening_never_blows_up_rounding(rng, solver, whiten, weighted):
    X, _ = with_singular_values(rng, 1000, 10.0 ** -np.arange(10.0) * (np.arange(10) < 9))
    model = fastdr.PCA(whiten=whiten, svd_solver=solver)
    model.fit(X, sample_weight=np.ones(1000) if weighted else None)
    Z = model.transform(X)
    assert np.isfinite(Z).all()
    assert np.abs(Z).max() <= np.sqrt(999) * (1 + 1e-9)
    moments = np.linalg.eigvalsh(Z.T @ Z / 999)
    rank = model.rank_
    assert rank == 9
    np.testing.assert_allclose(moments[-rank:], 1, atol=1e-5)
    np.testing.assert_allclose(moments[:-rank], 0, atol=1e-5)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6, 1e7, 1e9])
@pytest.mark.parametrize("rows", [300, 1100, 3000])
def test_c19_exact_dependence_is_seen_far_from_zero(rng, solver, offset, rows):
    """The mean is known to eps |mean| only; that must not pass for a fourth direction."""
    A = rng.integers(-50, 50, (rows, 3)).astype(float)
    X = np.column_stack([A, A[:, 0] + A[:, 1]]) + offset
    for standardize in (False, True):
        model = fastdr.PCA(whiten=True, svd_solver=solver, standardize=standardize).fit(X)
        assert model.rank_ == 3
        np.testing.assert_array_equal(model.transform(X)[:, 3], 0)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
def test_c19_repeated_rows_add_no_rank_far_from_zero(rng, solver, offset):
    X = np.repeat(rng.standard_normal((8, 24)) + offset, 2, axis=0)
    for standardize in (False, True):
        model = fastdr.PCA(whiten=True, svd_solver=solver, standardize=standardize).fit(X)
        assert model.rank_ == 7
        np.testing.assert_array_equal(model.transform(X)[:, 7:], 0)


def test_c19_float32(rng, solver):
    X, _ = with_singular_values(rng, 1000, [1, 0.5, 0.1, 0.01, 0.0], np.float32)
    Z = fastdr.PCA(whiten=True, svd_solver=solver).fit_transform(X)
    assert np.isfinite(Z).all()
    assert np.abs(Z).max() <= np.sqrt(999) * (1 + 1e-5)


def test_c19_the_report_that_started_it(solver):
    from sklearn.datasets import make_low_rank_matrix
    X = make_low_rank_matrix(1000, 10, effective_rank=2, tail_strength=0, random_state=0)
    Z = fastdr.PCA(whiten=True, svd_solver=solver).fit(X).transform(X)
    assert np.abs(Z).max() <= np.sqrt(999)
    value, axes = principal(X)
    keep = value > (1000 * EPS) ** 2 * value[0]
    true = (X - X.mean(axis=0)) @ axes[keep].T / np.sqrt(value[keep])
    big = value[keep] > 1e-16 * value[0]
    np.testing.assert_allclose(np.abs(Z[:, :keep.sum()][:, big]), np.abs(true[:, big]), atol=1e-4)


@pytest.mark.parametrize("whiten", ["pca", "zca"])
def test_c22_inverse_after_whitening(iris, solver, whiten):
    full = fastdr.PCA(whiten=whiten, svd_solver=solver).fit(iris)
    assert np.abs(full.inverse_transform(full.transform(iris)) - iris).max() <= 1e-12
    two = fastdr.PCA(2, whiten=whiten, svd_solver=solver).fit(iris)
    plain = fastdr.PCA(2, svd_solver=solver).fit(iris)
    expected = plain.inverse_transform(plain.transform(iris))
    assert np.abs(two.inverse_transform(two.transform(iris)) - expected).max() <= 1e-12
    np.testing.assert_allclose(two.reconstruction_error(iris), plain.reconstruction_error(iris),
                               rtol=1e-12)


def test_c22_a_direction_without_variance_reconstructs_to_the_mean(rng, solver):
    X, axes = with_singular_values(rng, 60, [3.0, 2.0, 0.0], offset=7.0)
    model = fastdr.PCA(whiten=True, svd_solver=solver).fit(X)
    back = model.inverse_transform(np.array([[0.0, 0.0, 5.0]]))
    np.testing.assert_allclose(back, [model.mean_], atol=1e-12)


@pytest.mark.parametrize("whiten", [False, True, "pca", "zca"])
@pytest.mark.parametrize(("k", "score"), [(4, -2.532808843783386), (2, -2.6997965106756623)])
def test_c23_the_likelihood_does_not_depend_on_whitening(iris, solver, whiten, k, score):
    model = fastdr.PCA(k, whiten=whiten, svd_solver=solver).fit(iris)
    assert model.score(iris) == pytest.approx(score, rel=1e-12)
    C = model.get_covariance()
    if k == 4:
        np.testing.assert_allclose(np.diagonal(C), [0.685694, 0.189979, 3.116278, 0.581006],
                                   atol=5e-7)
        np.testing.assert_allclose(C, np.cov(iris, rowvar=False), atol=1e-13)
    np.testing.assert_allclose(model.get_precision() @ C, np.eye(4), atol=1e-11)
    np.testing.assert_allclose(model.score_samples(iris), log_likelihood(iris, model.mean_, C),
                               rtol=1e-10)


@pytest.mark.parametrize("value", [1.0, 0.0, 0.1, 1e8 / 3])
def test_c24_identical_rows(solver, floating, value, layout, stored):
    X = stored(np.full((20, 4), value, floating), layout)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = fastdr.PCA(2, svd_solver=solver).fit(X)
        Z = model.transform(X)
    assert len(caught) <= 1
    assert_orthonormal(model.components_, floating)
    np.testing.assert_array_equal(model.explained_variance_, [0, 0])
    np.testing.assert_array_equal(model.explained_variance_ratio_, [0, 0])
    np.testing.assert_array_equal(Z, np.zeros((20, 2)))


@pytest.mark.parametrize("whiten", [True, "zca"])
def test_c24_identical_rows_whitened(solver, whiten):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Z = fastdr.PCA(whiten=whiten, svd_solver=solver).fit_transform(np.ones((20, 4)))
    np.testing.assert_array_equal(Z, np.zeros((20, 4)))


TIED = {"cycle": 1 - np.cos(2 * np.pi * np.arange(20) / 20), "block": np.array(
    [3, 2, 2, 2, 1, 0.5])**2, "equal": np.ones(8)}


@pytest.mark.parametrize("name", TIED)
def test_c27_tied_variances_keep_their_multiplicity(rng, solver, name):
    values = np.sort(TIED[name])[::-1]
    X, axes = with_singular_values(rng, 60, np.sqrt(values))
    for k in range(1, len(values) + 1):
        model = fastdr.PCA(k, svd_solver=solver).fit(X)
        np.testing.assert_allclose(model.explained_variance_ * 59, values[:k],
                                   atol=1e-13 * len(values) * values[0])
        assert np.abs(model.components_ @ model.components_.T - np.eye(k)).max() <= 1e-12
        again = fastdr.PCA(k, svd_solver=solver).fit(X)
        np.testing.assert_array_equal(again.components_, model.components_)
        # the span is defined where the cut does not divide a tie
        if k < len(values) and values[k - 1] - values[k] > 0.01:
            true = axes[:k].T @ axes[:k]
            np.testing.assert_allclose(model.components_.T @ model.components_, true, atol=1e-12)


@pytest.mark.parametrize("k", [None, 20, 5])
def test_c32_fewer_rows_than_features(rng, solver, k):
    X = rng.standard_normal((20, 500))
    tracemalloc.start()
    model = fastdr.PCA(k, svd_solver=solver).fit(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500 * 500 * 8  # never a features x features matrix
    assert model.n_components_ == (k or 20)
    assert model.rank_ == min(k or 20, 19)  # of the axes kept
    value, _ = principal(X)
    np.testing.assert_allclose(model.explained_variance_[:19], value[:min(k or 20, 19)], rtol=1e-10)
    assert_orthonormal(model.components_)
    if k != 5:
        assert model.explained_variance_[19] <= 1e-25 * model.explained_variance_[0]
        whitened = fastdr.PCA(k, whiten=True, svd_solver=solver).fit_transform(X)
        np.testing.assert_array_equal(whitened[:, 19], 0)
        assert np.abs(whitened).max() <= np.sqrt(19) * (1 + 1e-10)


@pytest.mark.parametrize("whiten", [False, "pca", "zca"])
@pytest.mark.parametrize("shape", [(300, 40), (40, 300), (7, 7)])
def test_c34_fit_transform_equals_fit_then_transform(rng, solver, whiten, shape, floating):
    X = rng.standard_normal(shape).astype(floating)
    model = fastdr.PCA(5, whiten=whiten, svd_solver=solver)
    together, apart = model.fit_transform(X), fastdr.PCA(5, whiten=whiten,
                                                         svd_solver=solver).fit(X).transform(X)
    assert together.dtype == apart.dtype == floating
    tight = 1e-10 if floating == "f8" else 1e-5
    np.testing.assert_allclose(together, apart, atol=tight * np.abs(apart).max())


def test_c34_equal_rows_get_equal_scores(solver, floating):
    X = np.eye(6)[[0, 1, 2, 1, 1]].astype(floating)
    Z = fastdr.PCA(3, svd_solver=solver).fit_transform(X)
    np.testing.assert_array_equal(Z[1], Z[3])
    np.testing.assert_array_equal(Z[1], Z[4])
    many = np.tile(X, (101, 7))
    Z = fastdr.PCA(3, svd_solver=solver).fit_transform(many)
    np.testing.assert_array_equal(Z, np.tile(Z[:5], (101, 1)))


DIAGONAL = np.array([[3.0, 0, 0], [0, 2, 0], [0, 0, 1], [-3, 0, 0], [0, -2, 0], [0, 0, -1]])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_c37_ratios_are_of_the_total(solver, k, weighted, floating):
    X = DIAGONAL.astype(floating)
    model = fastdr.PCA(k, svd_solver=solver).fit(X, sample_weight=np.ones(6) if weighted else None)
    tight = 1e-13 if floating == "f8" else 1e-6
    np.testing.assert_allclose(model.explained_variance_, [3.6, 1.6, 0.4][:k], rtol=tight)
    np.testing.assert_allclose(model.explained_variance_ratio_,
                               np.array([9, 4, 1])[:k] / 14, rtol=tight)
    assert model.total_variance_ == pytest.approx(5.6, rel=tight)


def test_c38_variances_have_divisor_n_minus_one(iris, solver):
    X = (iris - iris.mean(axis=0)) / iris.std(axis=0)
    model = fastdr.PCA(svd_solver=solver).fit(X)
    np.testing.assert_allclose(model.explained_variance_,
                               [2.93808505, 0.9201649, 0.14774182, 0.02085386], atol=1e-8)
    np.testing.assert_allclose(model.singular_values_**2 / 149, model.explained_variance_,
                               rtol=1e-14)


@pytest.mark.parametrize("weighted", [False, True])
def test_c39_noise_variance_is_the_mean_of_what_is_left(digits, solver, weighted):
    weight = np.ones(len(digits)) if weighted else None
    model = fastdr.PCA(30, svd_solver=solver).fit(digits, sample_weight=weight)
    assert model.noise_variance_ == pytest.approx(1.44662904941151, rel=1e-10)
    assert model.score(digits) == pytest.approx(-143.253321844242, rel=1e-10)


def test_c39_wide_data_divide_by_min_of_rows_and_features(rng, solver):
    X = rng.standard_normal((20, 100))
    value, _ = principal(X)
    model = fastdr.PCA(5, svd_solver=solver).fit(X)
    assert model.noise_variance_ == pytest.approx(value[5:].sum() / 15, rel=1e-10)


def test_c40_the_likelihood_up_to_the_rank(digits, solver):
    model = fastdr.PCA(60, svd_solver=solver).fit(digits)
    assert model.score(digits) == pytest.approx(-105.327509743592, rel=1e-10)
    assert model.rank_ == 60  # of the axes kept
    assert fastdr.PCA(svd_solver=solver).fit(digits).rank_ == 61


def refuses_or_warns(call, rank):
    """A singular model raises, or gives -inf or NaN after one warning naming the rank."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = call()
        except (ValueError, np.linalg.LinAlgError) as error:
            assert str(rank) in str(error), error  # noqa: PT017
            return
    assert len(caught) == 1
    assert str(rank) in str(caught[0].message)
    assert np.isnan(value) or value == -np.inf


@pytest.mark.parametrize("k", [61, 62, 63, 64])
@pytest.mark.parametrize("whiten", [False, True])
def test_c40_a_singular_model_has_no_likelihood(digits, solver, k, whiten):
    model = fastdr.PCA(k, svd_solver=solver, whiten=whiten).fit(digits)
    refuses_or_warns(lambda: model.score(digits), 61)


@pytest.mark.parametrize("whiten", [False, True])
def test_c40_all_components_of_tall_and_wide_data(rng, solver, whiten):
    tall = rng.standard_normal((100, 3))
    model = fastdr.PCA(svd_solver=solver, whiten=whiten).fit(tall)
    expected = log_likelihood(tall, tall.mean(axis=0), np.cov(tall, rowvar=False)).mean()
    assert model.score(tall) == pytest.approx(expected, rel=1e-12)
    wide = fastdr.PCA(svd_solver=solver, whiten=whiten).fit(tall.T.copy())
    refuses_or_warns(lambda: wide.score(tall.T.copy()), 2)


def test_c42_wide_data_never_make_a_square_of_the_features(rng):
    X = rng.standard_normal((50, 200_000), np.float32)
    fastdr.PCA(2).fit(X[:, :100])
    tracemalloc.start()
    model = fastdr.PCA(5).fit(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # 2 n n 8 + k p 8, vectors of p (mean, sums), and one block of a few megabytes
    assert peak <= 2 * 50 * 50 * 8 + 5 * 200_000 * 8 + 8 * 200_000 * 8 + (16 << 20)
    G = X.astype(float) - X.mean(axis=0, dtype=float)
    value, left = np.linalg.eigh(G @ G.T)
    np.testing.assert_allclose(model.explained_variance_, value[::-1][:5] / 49, rtol=1e-5)
    axes = (left[:, ::-1][:, :5].T @ G) / np.sqrt(value[::-1][:5])[:, None]
    np.testing.assert_allclose(np.abs((axes * model.components_).sum(axis=1)), 1, atol=1e-5)
    with pytest.raises((ValueError, MemoryError), match="200000|200 000|200,000"):
        model.get_covariance()


def test_c43_tall_data_take_the_covariance_route_without_a_copy(rng):
    X = rng.standard_normal((20_000, 100))
    fastdr.PCA(10).fit(X[:500])
    tracemalloc.start()
    model = fastdr.PCA(10).fit(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "covariance" in model.report_["method"]
    assert peak < X.nbytes / 4
    np.testing.assert_allclose(model.explained_variance_, principal(X, 10)[0],
                               rtol=rounding("f8", 10, 1))


@pytest.mark.parametrize("standardize", [False, True])
def test_c64_signs_follow_one_rule(wine, solver, floating, layout, stored, standardize):
    X = wine.astype(floating)
    model = fastdr.PCA(3, svd_solver=solver, standardize=standardize).fit(stored(X, layout))
    lead = np.argmax(np.abs(model.components_), axis=1)
    assert (model.components_[np.arange(3), lead] > 0).all()
    expected = fastdr.PCA(3, standardize=standardize).fit(wine).components_
    near = 1e-10 if floating == "f8" else 1e-3
    if solver == "power":
        near += turned(model, fastdr.PCA(standardize=standardize).fit(wine).explained_variance_)
    np.testing.assert_allclose(model.components_, expected, atol=near)


def test_c64_ties_go_to_the_lowest_index(solver, floating):
    for sign in (1, -1):
        X = np.array([[1, -1], [-1, 1], [2, -2], [-2, 2.0]], floating) * sign
        V = fastdr.PCA(svd_solver=solver).fit(X).components_
        np.testing.assert_allclose(V * np.sqrt(2), [[1, -1], [1, 1]], atol=1e-6)


def test_c64_signs_do_not_depend_on_the_order_of_rows(wine, solver, rng):
    one = fastdr.PCA(3, svd_solver=solver).fit(wine).components_
    other = fastdr.PCA(3, svd_solver=solver).fit(rng.permutation(wine)).components_
    np.testing.assert_allclose(other, one, atol=1e-10)


@pytest.mark.parametrize("shape", [(5000, 200), (300, 700)])
def test_c67_threads_and_repetition_do_not_change_a_bit(rng, solver, shape, floating):
    X = rng.standard_normal(shape).astype(floating)
    found = []
    for threads in (1, 2, 4, 2):
        with fastdr.num_threads(threads):
            model = fastdr.PCA(10, svd_solver=solver, random_state=0).fit(X)
            found.append((model.components_, model.explained_variance_, model.mean_,
                          model.transform(X)))
    for other in found[1:]:
        for value, expected in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(value, expected)
