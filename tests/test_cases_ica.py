"""Cases C104 to C107: unit variance, rank, honest convergence, order and signs of sources."""

import numpy as np
import pytest
from reference import amari
from sklearn.exceptions import ConvergenceWarning

import fastdr


def three_sources(rows=2000):
    """Sine, square and saw-tooth waves, mixed."""
    t = np.linspace(0, 8, rows)
    S = np.column_stack([np.sin(2 * t), np.sign(np.sin(3 * t)), 2 * (t % 1) - 1])
    S += 0.1 * np.random.default_rng(0).standard_normal(S.shape)
    return S @ np.array([[1.0, 1.0, 1.0], [0.5, 2.0, 1.0], [1.5, 1.0, 2.0]]).T


def test_c104_sources_have_unit_variance():
    X = three_sources()
    ica = fastdr.FastICA().fit(X)
    Y = ica.transform(X)
    np.testing.assert_allclose(Y.var(axis=0), 1.0, rtol=0, atol=1e-12)
    np.testing.assert_allclose(Y @ ica.mixing_.T + ica.mean_, X, rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match="whiten=True .* 'unit-variance'"):
        fastdr.FastICA(whiten=True).fit(X)


@pytest.mark.parametrize("solver", ["auto", "eigh", "svd"])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_c105_a_duplicated_channel_is_one_channel(solver, offset):
    X = three_sources()
    X = np.column_stack([X, X[:, 0]]) + offset
    with pytest.warns(UserWarning, match="rank 3") as caught:
        ica = fastdr.FastICA(whiten_solver=solver).fit(X)
    assert len(caught) == 1
    assert ica.components_.shape == (3, 4)
    back = ica.inverse_transform(ica.transform(X))
    np.testing.assert_allclose(back, X, rtol=0, atol=1e-10 + 4e-16 * offset)


@pytest.mark.parametrize("k", [None, 10])
@pytest.mark.parametrize("solver", ["eigh", "svd"])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_c105_an_average_reference_takes_one_rank(k, solver, dtype, rng):
    X = rng.laplace(size=(5000, 10)) @ rng.standard_normal((10, 10))
    X = (X - X.mean(axis=1, keepdims=True)).astype(dtype)
    with pytest.warns(UserWarning, match="rank 9") as caught:
        ica = fastdr.FastICA(k, whiten_solver=solver).fit(X)
    assert len(caught) == 1
    assert ica.components_.shape == (9, 10)
    tolerance = 1e-10 if dtype == "f8" else 1e-4
    np.testing.assert_allclose(ica.inverse_transform(ica.transform(X)), X, rtol=0, atol=tolerance)


@pytest.mark.parametrize("solver", ["eigh", "svd"])
@pytest.mark.parametrize(("dtype", "offset", "size"), [
    ("f4", 1e5, 1e-2), ("f4", 1e5, 1e-4), ("f8", 1e12, 1e-4), ("f8", -1e13, 1e-4)])
def test_c105_a_channel_far_from_zero_hides_no_others(solver, dtype, offset, size, rng):
    """Rounding of an axis is that of the columns it is made of."""
    S = rng.laplace(size=(3000, 3))
    X = np.column_stack([S @ [100, 30, 0] + offset, size * S[:, 1:]]).astype(dtype)
    ica = fastdr.FastICA(whiten_solver=solver).fit(X)
    assert ica.components_.shape == (3, 3)
    mixing = np.array([[100, 30, 0], [0, size, 0], [0, 0, size]])
    assert amari(ica.components_ @ mixing) < 0.1
    X[:, 0] = rng.choice(np.spacing(X[0, 0]) * np.arange(2), 3000) + X[0, 0]  # nothing but rounding
    with pytest.warns(UserWarning, match="rank 2 in their first 3 axes"):
        ica = fastdr.FastICA(whiten_solver=solver).fit(X)
    assert ica.components_.shape == (2, 3)


def test_c105_equal_rows_are_refused():
    with pytest.raises(ValueError, match="nothing to unmix"):
        fastdr.FastICA().fit(np.full((20, 3), 7.0))


@pytest.mark.filterwarnings("ignore::fastdr.AccuracyWarning",
                            "ignore::sklearn.exceptions.ConvergenceWarning")  # too few to tell
@pytest.mark.parametrize("n", [2, 3, 6])
def test_c105_fewer_rows_than_features(n, rng):
    X = rng.laplace(size=(n, 6))
    ica = fastdr.FastICA().fit(X)
    assert ica.components_.shape == (n - 1, 6)
    np.testing.assert_allclose(ica.inverse_transform(ica.transform(X)), X, atol=1e-12)


def test_c106_the_waves_take_few_steps():
    ica = fastdr.FastICA(tol=1e-7).fit(three_sources())
    assert ica.certificate_["gradient"] <= 1e-7
    assert ica.n_iter_ < 50


def test_c106_a_warning_says_what_was_reached():
    with pytest.warns(ConvergenceWarning, match=r"gradient is .* after 1 step.* tol=1e-07"):
        ica = fastdr.FastICA(max_iter=1).fit(three_sources())
    assert ica.n_iter_ == 1


@pytest.mark.parametrize("fun", ["logcosh", "exp", "cube"])
@pytest.mark.parametrize("columns", [2, 3, 8])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_c106_normal_data_are_called_so(fun, columns, seed):
    X = np.random.default_rng(seed).standard_normal((2000, columns))
    with pytest.warns(fastdr.AccuracyWarning, match="as near to normal as chance"):
        ica = fastdr.FastICA(fun=fun, tol=1e-5, max_iter=1000).fit(X)
    assert len(ica.certificate_["nearly_normal"]) > 1


def test_c106_two_normal_sources_among_others_are_named(rng):
    S = np.column_stack([rng.laplace(size=(20_000, 3)) * [9, 5, 3],
                         rng.standard_normal((20_000, 2))])
    with pytest.warns(fastdr.AccuracyWarning, match="Sources 3, 4 are"):
        ica = fastdr.FastICA().fit(S + 5)
    assert ica.certificate_["nearly_normal"] == [3, 4]


@pytest.mark.slow
def test_c106_heavy_tails(rng):
    X = rng.standard_t(1.5, size=(20_000, 16)) @ rng.standard_normal((16, 16))
    ica = fastdr.FastICA().fit(X)
    assert ica.certificate_["converged"]


def test_c107_order_and_signs_do_not_depend_on_the_seed():
    X = three_sources()
    first = fastdr.FastICA(random_state=0).fit(X)
    for seed in (1, 2, 3, None):
        again = fastdr.FastICA(random_state=seed).fit(X)
        np.testing.assert_allclose(again.transform(X), first.transform(X), rtol=0, atol=1e-5)
        np.testing.assert_allclose(again.components_, first.components_, rtol=0,
                                   atol=1e-6 * np.abs(first.components_).max())
    variances = (first.mixing_**2).sum(axis=0)
    assert (np.diff(variances) < 0).all()
    largest = np.take_along_axis(first.mixing_, np.abs(first.mixing_).argmax(axis=0)[None], 0)
    assert (largest > 0).all()


def test_c107_sources_of_equal_variance_are_ordered_by_distance_from_normal(rng):
    S = np.column_stack([rng.uniform(size=50_000), rng.laplace(size=50_000)])
    white = fastdr.PCA(whiten=True).fit_transform(S)
    found = [fastdr.FastICA(whiten=False, random_state=seed).fit(white) for seed in range(4)]
    for one in found[1:]:
        np.testing.assert_allclose(one.components_, found[0].components_, atol=1e-6)
