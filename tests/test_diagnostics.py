"""T², SPE, contributions and cos² against their definitions; limits against the distributions."""

import tracemalloc

import numpy as np
import pytest
from scipy.stats import chi2, norm
from scipy.stats import t as student
from tolerance import rounding

import fastdr
from fastdr import diagnostics, limits

FITS = {
    "plain": {}, "whitened": {"whiten": True}, "zca": {"whiten": "zca"},
    "standardized": {"standardize": True}, "both": {"standardize": True, "whiten": True},
}


@pytest.fixture(params=FITS)
def fitted(request, wine):
    """A model of all components, of rows whose columns differ in scale by four decades."""
    return fastdr.PCA(**FITS[request.param]).fit(wine)


def about_the_mean(pca, X):
    """Rows in the units of the variances."""
    return (X - pca.mean_) / (1 if pca.scale_ is None else pca.scale_)


@pytest.mark.parametrize("k", [1, 5, 13, None])
def test_definitions(fitted, wine, k):
    """Slow and obvious: scores in long double, reconstructions as whole matrices."""
    rows = about_the_mean(fitted, wine)
    axes, variances = fitted.components_[:k], fitted.explained_variance_[:k]
    scores = rows.astype(np.longdouble) @ axes.T.astype(np.longdouble)
    t_squared = (scores**2 / variances).sum(axis=1)
    residual = rows - rows @ axes.T @ axes
    # a score errs by eps |row|, which the least deviation divides
    size = np.linalg.norm(rows, axis=1) / np.sqrt(variances[-1])
    bound = rounding(float, 13, size * np.sqrt(t_squared) + size**2 * 1e-15)
    found = diagnostics.t_squared(fitted, wine, k)
    assert (np.abs(found - t_squared) <= bound).all()
    shares = diagnostics.t_squared_contributions(fitted, wine, k)
    assert shares.shape == wine.shape
    assert (shares >= 0).all()
    assert (np.abs(shares.sum(axis=1) - t_squared) <= bound).all()
    length = np.linalg.norm(rows, axis=1)
    bound = rounding(float, 13, length[:, None] * (np.abs(residual) + 1e-15 * length[:, None]))
    shares = diagnostics.spe_contributions(fitted, wine, k)
    assert (np.abs(shares - residual**2) <= bound).all()
    found = diagnostics.spe(fitted.model_, wine, k)
    assert (np.abs(found - (residual**2).sum(axis=1)) <= bound.sum(axis=1)).all()


def test_t_squared_on_all_axes_is_the_distance_of_mahalanobis(wine):
    pca = fastdr.PCA(standardize=True).fit(wine)
    gaps = wine - wine.mean(axis=0)
    wanted = np.einsum("ij,jk,ik->i", gaps, np.linalg.inv(np.cov(wine, rowvar=False)), gaps)
    condition = np.linalg.cond(np.cov(wine, rowvar=False))
    np.testing.assert_allclose(diagnostics.t_squared(pca, wine), wanted,
                               rtol=rounding(float, 13, condition))


def test_contributions_to_t_squared_are_those_of_whitened_rows(wine):
    """Complete decomposition: the square root of the quadratic form is ZCA whitening."""
    plain, white = fastdr.PCA().fit(wine), fastdr.PCA(whiten="zca").fit(wine)
    size = np.linalg.norm(wine - plain.mean_, axis=1).max() / plain.model_.deviations[-1]
    np.testing.assert_allclose(diagnostics.t_squared_contributions(plain, wine),
                               white.transform(wine) ** 2, rtol=0, atol=rounding(float, 13, size))


def test_cosines_of_rows(fitted, wine):
    rows = about_the_mean(fitted, wine)
    wanted = (rows @ fitted.components_.T) ** 2 / (rows**2).sum(axis=1, keepdims=True)
    found = diagnostics.cos_squared(fitted, wine)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=rounding(float, 13, 1))
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=0, atol=rounding(float, 13, 1))


def test_cosines_of_features_are_squared_correlations_with_scores(fitted, wine):
    scores = about_the_mean(fitted, wine) @ fitted.components_.T
    wanted = np.corrcoef(scores, wine, rowvar=False)[:13, 13:] ** 2
    found = diagnostics.feature_cos_squared(fitted)
    deviations = np.sqrt(fitted.explained_variance_)
    # an axis errs by eps times the largest deviation over its own
    np.testing.assert_allclose(found, wanted, rtol=0,
                               atol=rounding(float, 13, deviations[0] / deviations[-1]))
    np.testing.assert_allclose(found.sum(axis=0), 1, rtol=0, atol=rounding(float, 13, 1))


def test_cosines_of_features_with_components_left_out(wine):
    whole = fastdr.PCA(standardize=True).fit(wine)
    part = fastdr.PCA(4, standardize=True).fit(wine)
    np.testing.assert_allclose(diagnostics.feature_cos_squared(part),
                               diagnostics.feature_cos_squared(whole)[:4], rtol=0,
                               atol=rounding(float, 13, 10))  # gaps of the first variances
    with pytest.raises(ValueError, match="does not know the variances of the features"):
        diagnostics.feature_cos_squared(fastdr.PCA(4).fit(wine))


def test_axes_beyond_the_rank_and_constant_columns_add_nothing(digits):
    pca = fastdr.PCA().fit(digits)
    assert pca.rank_ == 61
    inside = diagnostics.t_squared(pca, digits, 61)
    np.testing.assert_array_equal(diagnostics.t_squared(pca, digits), inside)
    # each axis adds n - 1 to the sum; the least deviation errs by eps times the largest
    spread = pca.model_.deviations[0] / pca.model_.deviations[60]
    np.testing.assert_allclose(inside.sum(), 61 * (len(digits) - 1),
                               rtol=rounding(float, 64, spread))
    constant = np.flatnonzero(np.ptp(digits, axis=0) == 0)
    assert not diagnostics.feature_cos_squared(pca)[:, constant].any()
    assert limits.t_squared_limit(pca) == limits.t_squared_limit(pca, 61)
    assert limits.spe_limit(pca, 61) == limits.spe_limit(pca) == 0


def test_c122_old_rows_keep_their_figures_when_new_ones_arrive(rng):
    X, new = rng.standard_normal((100, 5)), rng.standard_normal((10, 5)) * 3
    pca = fastdr.PCA(2).fit(X)
    t_squared, error = diagnostics.t_squared(pca, X), diagnostics.spe(pca, X)
    both = np.concatenate([X, new])
    np.testing.assert_array_equal(diagnostics.t_squared(pca, both)[:100], t_squared)
    np.testing.assert_array_equal(diagnostics.spe(pca, both)[:100], error)
    gaps = new - pca.inverse_transform(pca.transform(new))
    np.testing.assert_allclose(diagnostics.spe(pca, new), (gaps**2).sum(axis=1), rtol=1e-13)


@pytest.mark.parametrize("exponent", [-600, 0, 500])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i2"])
def test_dtypes_and_scales(rng, dtype, exponent):
    if dtype != "f8" and exponent:
        return
    X = np.ldexp(np.round(rng.standard_normal((60, 6)) * [900, 500, 90, 50, 9, 5]), exponent)
    reference = fastdr.PCA().fit(np.ldexp(X, -exponent))
    pca = fastdr.PCA().fit(X.astype(dtype))
    eps = np.finfo(pca.components_.dtype).eps
    wanted = diagnostics.t_squared(reference, np.ldexp(X, -exponent), 3)
    found = diagnostics.t_squared(pca, X.astype(dtype), 3)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=64 * eps * 100 * wanted.max())
    if exponent != 500:  # squares would exceed float64
        wanted = np.ldexp(diagnostics.spe(reference, np.ldexp(X, -exponent), 5), 2 * exponent)
        found = diagnostics.spe(pca, X.astype(dtype), 5)
        assert found.dtype == np.float64
        if dtype != "i2":
            np.testing.assert_allclose(found, wanted, rtol=0, atol=3000 * eps * np.max(wanted))
            return
        # Sums of whole numbers round otherwise than those of `reference`, and an eigen-solver
        # turns the last axis towards each other one by d eps l_1 / (l_j - l_d), in both of them.
        scores, variances = np.abs(reference.transform(X)), reference.explained_variance_
        turned = scores[:, :5] @ (variances[0] / (variances[:5] - variances[5]))
        score = 2 * rounding(float, 6, turned, safety=1)
        assert (np.abs(found - wanted) <= score * (2 * scores[:, 5] + score)).all()


def test_known_values_on_an_ellipse():
    """T² is constant on ellipses of the covariance, SPE on lines along the axis."""
    model = fastdr.LinearModel(mean=[5.0, -5.0], components=np.eye(2), variances=[9.0, 4.0])
    angle = np.linspace(0, 6, 50)
    ellipse = np.column_stack([3 * np.cos(angle), 2 * np.sin(angle)]) + [5, -5]
    np.testing.assert_allclose(diagnostics.t_squared(model, ellipse), 1, rtol=1e-14)
    np.testing.assert_allclose(diagnostics.spe(model, ellipse, 1), 4 * np.sin(angle) ** 2,
                               rtol=0, atol=1e-14)


@pytest.mark.parametrize("measure", [
    diagnostics.t_squared, diagnostics.t_squared_contributions, diagnostics.spe,
    diagnostics.spe_contributions, diagnostics.cos_squared])
def test_rows_are_read_in_blocks(rng, monkeypatch, measure):
    X = rng.standard_normal((4000, 100))
    pca = fastdr.PCA(3).fit(X)
    whole = measure(pca, X)
    monkeypatch.setattr(diagnostics, "block_rows", lambda features: 130)
    tracemalloc.start()
    found = measure(pca, X)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < found.nbytes + 8 * 130 * 100 * 8  # eight blocks
    np.testing.assert_allclose(found, whole, rtol=0, atol=rounding(float, 100, whole.max()))
    X[2717, 31] = np.nan
    with pytest.raises(ValueError, match="NaN at row 2717, column 31"):
        measure(pca, X)


def test_threads_do_not_change_a_bit(rng):
    X = rng.standard_normal((20000, 30)).astype("f4")
    pca = fastdr.PCA(10, standardize=True).fit(X)
    found = []
    for threads in (1, 2, 3):
        with fastdr.num_threads(threads):
            found.append(np.column_stack([diagnostics.t_squared(pca, X), diagnostics.spe(pca, X)]))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_limit_of_t_squared_is_students_for_one_axis():
    """On one axis, the mean of n rows included: |t| of n - 1 degrees of freedom."""
    for count in (3, 10, 1000):
        model = fastdr.LinearModel([0.0], [[1.0]], [1.0], count=count)
        wanted = (1 + 1 / count) * student.ppf(0.995, count - 1) ** 2
        assert limits.t_squared_limit(model, confidence=0.99) == pytest.approx(wanted, rel=1e-10)
    model = fastdr.LinearModel(np.zeros(4), np.eye(4), [4.0, 3, 2, 1])
    assert limits.t_squared_limit(model, 3) == pytest.approx(chi2.ppf(0.95, 3), rel=1e-12)


def test_limit_of_t_squared_covers_new_rows(rng):
    """All axes of few rows, many times over: the share of new rows below is as stated."""
    covered = []
    for _ in range(400):
        pca = fastdr.PCA().fit(rng.standard_normal((12, 3)))
        new = diagnostics.t_squared(pca, rng.standard_normal((50, 3)))
        covered.append(np.mean(new <= limits.t_squared_limit(pca, confidence=0.9)))
    assert abs(np.mean(covered) - 0.9) < 4 * np.std(covered) / 20


SPECTRA = {
    "one": [2.0], "equal": [3.0] * 5, "geometric": list(0.5 ** np.arange(10)),
    "harmonic": list(1 / np.arange(1.0, 50)), "a spike over many": [1.0, *[0.005] * 1000],
    "one and one tiny": [1.0, 1e-12],
}


def of_spectrum(variances, k=1):
    """A model whose first `k` axes are kept and whose other variances are these."""
    size = len(variances) + k
    return fastdr.LinearModel(np.zeros(size), np.eye(size), [1000.0] * k + list(variances))


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_limit_of_spe_is_the_quantile(rng, name, confidence):
    draws = 40_000
    errors, variances = np.zeros(draws), SPECTRA[name]
    for variance in set(variances):
        errors += variance * rng.chisquare(variances.count(variance), draws)
    above = np.mean(errors > limits.spe_limit(of_spectrum(SPECTRA[name]), 1, confidence))
    sampling = 4 * np.sqrt(confidence * (1 - confidence) / draws)
    assert abs(above - (1 - confidence)) < 0.07 * (1 - confidence) + sampling


@pytest.mark.parametrize("freedom", [1, 2, 5, 50, 1000])
def test_limits_of_equal_variances_are_chi_squared(freedom):
    model = of_spectrum([0.25] * freedom)
    for confidence in (0.5, 0.6, 0.683, 0.95, 0.999):
        limit = limits.spe_limit(model, 1, confidence) / 0.25
        assert chi2.sf(limit, freedom) == pytest.approx(1 - confidence, rel=0.07)
        # there the formula is the cube root of Wilson and Hilferty (1931)
        part = 2 / (9 * freedom)
        cube = freedom * (1 - part + norm.ppf(confidence) * np.sqrt(part)) ** 3
        assert limits.spe_limit_jackson_mudholkar(model, 1, confidence) / 0.25 == pytest.approx(
            cube, rel=1e-9)


def test_the_formula_of_jackson_and_mudholkar_by_hand():
    rest = np.array([2.0, 1.0, 0.5])
    first, second, third = rest.sum(), (rest**2).sum(), (rest**3).sum()
    h = 1 - 2 * first * third / (3 * second**2)
    wanted = first * (norm.ppf(0.99) * np.sqrt(2 * second * h**2) / first + 1
                      + second * h * (h - 1) / first**2) ** (1 / h)
    assert h > 0
    found = limits.spe_limit_jackson_mudholkar(of_spectrum(rest), 1, 0.99)
    assert found == pytest.approx(wanted, rel=1e-12)
    with pytest.raises(ValueError, match=r"has no value .* at confidence=0\.99; use spe_limit"):
        limits.spe_limit_jackson_mudholkar(of_spectrum(SPECTRA["a spike over many"]), 1, 0.99)


def test_limits_scale_with_the_data(rng):
    X = rng.standard_normal((50, 6))
    limit = limits.spe_limit(fastdr.PCA().fit(X), 2)
    for exponent in (-500, 30):
        scaled = fastdr.PCA().fit(np.ldexp(X, exponent))
        assert np.ldexp(limits.spe_limit(scaled, 2), -2 * exponent) == pytest.approx(limit, 1e-10)
    errors = diagnostics.spe(fastdr.PCA(2).fit(X), rng.standard_normal((4000, 6)))
    assert limits.spe_limit_of(7 * errors) == pytest.approx(7 * limits.spe_limit_of(errors))
    assert abs(np.mean(errors > limits.spe_limit_of(errors)) - 0.05) < 0.02


def test_refusals(wine):
    pca, few = fastdr.PCA().fit(wine), fastdr.PCA(3).fit(wine[:10])
    with pytest.raises(ValueError, match=r"k=14 is not a whole number from 1 to the 13 comp"):
        diagnostics.t_squared(pca, wine, 14)
    with pytest.raises(ValueError, match=r"k=0 "):
        diagnostics.spe(pca, wine, 0)
    with pytest.raises(ValueError, match=r"k=1\.5 "):
        limits.spe_limit(pca, 1.5)
    with pytest.raises(ValueError, match="X has 12 features, but this model takes rows of 13"):
        diagnostics.spe(pca, wine[:, :12])
    with pytest.raises(ValueError, match="has only their sum. Fit all components and pass k"):
        limits.spe_limit(few, 2)
    for confidence in (0.49, 1.0, "0.9", np.nan):
        with pytest.raises(ValueError, match="is not a share of at least 0.5, below 1"):
            limits.t_squared_limit(few, confidence=confidence)
    with pytest.raises(ValueError, match="fitted to 3 rows; limits of T² on 3 axes need more"):
        limits.t_squared_limit(fastdr.LinearModel([0.0] * 3, np.eye(3), [3.0, 2, 1], count=3))
    with pytest.raises(ValueError, match="no axis of positive variance"):
        diagnostics.t_squared(fastdr.LinearModel([0.0], [[1.0]], [0.0]), [[1.0]])
    for errors in ([1.0], [1.0, -1.0], [[1.0, 2.0]], [1.0, np.nan]):
        with pytest.raises(ValueError, match="a vector of at least two finite numbers"):
            limits.spe_limit_of(errors)
    with pytest.raises(ValueError, match="errors are all equal"):
        limits.spe_limit_of([2.0, 2.0])
    with pytest.raises(TypeError, match="expected a fitted PCA .*, got PCA that is not fitted"):
        diagnostics.spe(fastdr.PCA(), wine)
