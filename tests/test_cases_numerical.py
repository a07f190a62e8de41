"""Cases C01 to C17: centring, cancellation, precision, range, integer and half input, size.

Each case is run over its family: every route to the variances, every layout, every dtype.
"""

import tracemalloc
from functools import cache

import numpy as np
import pytest
import scipy.linalg
from reference import exact_spectrum, principal, project, wide
from scipy.sparse import csr_array
from tolerance import assert_orthonormal, merge_error, rounding, subspace_angle

import fastdr
from fastdr import solvers
from fastdr.column_statistics import column_moments
from fastdr.sources import BlockSource
from fastdr.statistics import Moments

SOLVERS = ["auto", "lapack", "svd", "full", "covariance_eigh", "lanczos", "randomized"]
ROUTES = ["covariance", "moments", "weights", "merged", "stream", "stream svd", *SOLVERS,
          "weighted auto"]


def variances(X, route):
    """All variances of X, descending, by one of the library's routes."""
    weights = np.full(len(X), 1.0)
    if route == "covariance":
        C = fastdr.covariance(X)
    elif route == "moments":
        C = fastdr.moments(X).covariance()
    elif route == "weights":
        C = fastdr.covariance(X, sample_weight=weights)
    elif route == "merged":
        cut = len(X) // 3
        C = (Moments.of(X[:cut]) + Moments.of(X[cut:])).covariance()
    elif route.startswith("stream"):
        source = BlockSource(lambda: (X[i:i + 70] for i in range(0, len(X), 70)), X.shape[1],
                             len(X), X.dtype)
        if route == "stream svd":
            return fastdr.PCA(svd_solver="svd").fit(source).explained_variance_
        C = Moments.of_source(source).covariance()
    elif route == "weighted auto":
        model = fastdr.PCA().fit(X, sample_weight=weights)
        return np.asarray(model.explained_variance_, np.float64)
    else:
        return np.asarray(fastdr.PCA(svd_solver=route).fit(X).explained_variance_, np.float64)
    return np.linalg.eigvalsh(C)[::-1]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("kind", "offset"), [
    ("f4", 0), ("f4", 1e3), ("f4", 1e4), ("f4", 1e5), ("f4", 1e7), ("f8", 0), ("f8", 1e7),
    ("f8", 1e12), ("f8", 1e15), ("f2", 0), ("f2", 1e3), ("i4", 1e7), ("u1", 200), ("i8", 1e12)])
def test_c01_two_rows_far_from_zero_keep_their_variance(route, kind, offset):
    X = np.array([[1 + offset, offset], [offset, 1 + offset]], kind)
    if route == "merged":
        pytest.skip("two rows cannot be cut in three")
    np.testing.assert_allclose(variances(X, route), [1, 0], atol=1e-6)


@pytest.mark.parametrize(("kind", "offset"), [("f4", 0), ("f4", 1e4), ("f4", 1e7), ("f8", 1e15)])
def test_c01_the_axis_is_the_diagonal(solver, layout, stored, kind, offset):
    X = stored(np.array([[1 + offset, offset], [offset, 1 + offset]], kind), layout)
    model = fastdr.PCA(svd_solver=solver).fit(X)
    np.testing.assert_allclose(model.components_[0], np.array([1, -1]) / np.sqrt(2), atol=1e-6)
    np.testing.assert_allclose(model.mean_, [offset + 0.5] * 2, rtol=1e-15)
    for scores in (model.transform(X), fastdr.PCA(svd_solver=solver).fit_transform(X)):
        np.testing.assert_allclose(scores, [[np.sqrt(0.5), 0], [-np.sqrt(0.5), 0]], atol=1e-6)
    np.testing.assert_array_equal(fastdr.covariance(X), [[0.5, -0.5], [-0.5, 0.5]])


C02_LIMIT = {1e3: 1e-12, 1e6: 1e-12, 1e8: 1e-10, 1e10: 1e-7}


@cache
def offset_rows(offset):
    X = np.random.default_rng(2).standard_normal((2000, 5)) * [5, 3, 2, 1, 0.5] + offset
    return X, exact_spectrum(X, digits=40) / 1999


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("offset", C02_LIMIT)
def test_c02_offset_never_spoils_variances(route, offset):
    X, true = offset_rows(offset)
    slack = 0.0
    if route == "merged":  # two means are known to eps |mean| each, not to eps deviations
        slack = np.linalg.norm(merge_error(fastdr.moments(X)), 2) / 1999
    np.testing.assert_allclose(variances(X, route), true, rtol=C02_LIMIT[offset], atol=slack)


@pytest.mark.parametrize("offset", [1e6, 1e10])
@pytest.mark.parametrize("route", ["covariance", "auto", "svd"])
def test_c02_in_every_layout(rng, route, offset, layout, stored):
    X = rng.standard_normal((500, 4)) * [5, 3, 2, 1] + offset
    expected = variances(X, route)
    np.testing.assert_allclose(expected, principal(X)[0], rtol=C02_LIMIT[offset])
    np.testing.assert_array_equal(variances(stored(X, layout), route), expected)


@pytest.mark.parametrize("offset", C02_LIMIT)
@pytest.mark.parametrize("standardize", [False, True])
def test_c02_scores_errors_and_reconstructions(rng, solver, offset, standardize):
    X = rng.standard_normal((600, 5)) * [5, 3, 2, 1, 0.5] + offset
    model = fastdr.PCA(3, svd_solver=solver, standardize=standardize).fit(X)
    slip = rounding("f8", 10, 20) + 8 * np.finfo(float).eps * offset
    scale = None if model.model_.scale is None else model.model_.scale
    true = np.asarray(project(X, model.components_, X.astype(np.longdouble).mean(0), scale), float)
    assert np.abs(model.transform(X) - true).max() <= slip
    assert np.abs(fastdr.PCA(3, svd_solver=solver, standardize=standardize).fit_transform(X)
                  - true).max() <= slip
    back = model.inverse_transform(model.transform(X))
    plain = ((X - back).astype(np.longdouble)**2).sum(axis=1)
    found = model.reconstruction_error(X, per_row=True)
    assert np.abs(found - plain.astype(float)).max() <= 2 * 4 * slip * 3


@pytest.mark.parametrize("solver", ["auto", "svd"])
@pytest.mark.parametrize("offset", C02_LIMIT)
def test_c02_standardised_variances(rng, solver, offset):
    X = rng.standard_normal((800, 4)) @ (np.eye(4) + 0.3 * rng.standard_normal((4, 4))) + offset
    A = wide(X) - wide(X).mean(axis=0)
    A = np.asarray(A / np.sqrt((A**2).sum(axis=0) / 799), float)
    true = np.linalg.svd(A, compute_uv=False)**2 / 799
    model = fastdr.PCA(standardize=True, svd_solver=solver).fit(X)
    np.testing.assert_allclose(model.explained_variance_, true, rtol=C02_LIMIT[offset])


C03_LIMIT = {1e2: 1e-5, 1e3: 1e-5, 1e4: 1e-5, 1e5: 2e-3}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("offset", C03_LIMIT)
def test_c03_float32_offset_never_spoils_variances(rng, route, offset):
    X = (rng.standard_normal((2000, 5)) * [5, 3, 2, 1, 0.5] + offset).astype("f4")
    np.testing.assert_allclose(variances(X, route), principal(X)[0], rtol=C03_LIMIT[offset])


@pytest.mark.parametrize("route", ["covariance", "auto", "svd"])
def test_c03_a_million_float32_rows(route):
    X = np.random.default_rng(3).standard_normal((1_000_000, 3), np.float32)
    X = X * np.float32([3, 2, 1]) + np.float32([100, 150, 200])
    wide_rows = X.astype(float)
    true = np.linalg.eigvalsh(np.cov(wide_rows - wide_rows[0], rowvar=False))[::-1]
    np.testing.assert_allclose(variances(X, route), true, rtol=1e-5)


@pytest.mark.parametrize("solver", ["auto", "svd", "lapack"])
def test_c04_one_colour_has_its_exact_mean_and_no_variance(solver):
    X = np.empty((1_000_000, 2), "f4")
    X[:] = (180, 241)
    with pytest.warns(UserWarning, match="All rows are equal"):
        model = fastdr.PCA(svd_solver=solver).fit(X)
    np.testing.assert_array_equal(model.mean_, [180, 241])
    np.testing.assert_array_equal(model.explained_variance_, [0, 0])
    np.testing.assert_array_equal(fastdr.covariance(X), np.zeros((2, 2)))


def test_c04_twenty_million_ones_average_to_one():
    X = np.broadcast_to(np.float32(1), (20_000_000, 1))
    assert fastdr.moments(X).mean[0] == 1.0
    assert column_moments(X)[0][0] == 1.0


@pytest.mark.parametrize("rows", [1000, 70_000])
@pytest.mark.parametrize("value", [0.1, 180.3, 1e7 + 1, 1 / 3])
def test_c04_constant_beside_varying_columns(rng, rows, value, floating, layout, stored):
    X = rng.standard_normal((rows, 3)).astype(floating)
    X[:, 1] = value
    found = fastdr.moments(stored(X, layout))
    assert found.mean[1] == float(X[0, 1])
    assert found.scatter[1, 1] == 0


@pytest.mark.parametrize(("kind", "limit"), [("f8", 1e-20), ("f4", 1e-9)])
@pytest.mark.parametrize("value", [100.0, 100.1])
def test_c06_weighted_variance_of_a_constant_column(rng, kind, limit, value):
    X, weight = np.full((100, 1), value, kind), rng.random(100)
    mean, squares, _ = column_moments(X, weight)
    assert 0 <= squares[0] / weight.sum() <= limit
    assert mean[0] == pytest.approx(float(X[0, 0]), rel=1e-15)
    assert 0 <= fastdr.covariance(X, sample_weight=weight, ddof=0)[0, 0] <= limit


def test_c06_blocked_equals_unblocked(rng, floating):
    X = rng.integers(0, 2001, (5000, 50)).astype(floating)
    parts = [Moments.of(X[i:i + 500], precision="double") for i in range(0, 5000, 500)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    whole = Moments.of(X, precision="double")
    size = np.sqrt(np.outer(np.diagonal(whole.scatter), np.diagonal(whole.scatter)))
    assert (np.abs(total.scatter - whole.scatter) <= 1e-12 * size).all()
    np.testing.assert_allclose(np.diagonal(whole.scatter), column_moments(X)[1], rtol=1e-12)
    np.testing.assert_allclose(total.mean, X.mean(axis=0, dtype=float), rtol=1e-14)


def test_c08_float32_scores_far_from_zero(rng, solver, layout, stored):
    X = (rng.standard_normal((1000, 4)) * [4, 3, 2, 1] + 1e5).astype("f4")
    model = fastdr.PCA(svd_solver=solver).fit(X)
    assert model.mean_.dtype == np.float64
    true = (X.astype(float) - model.mean_) @ model.components_.astype(float).T
    same = stored(X, layout)
    assert np.abs(model.transform(same) - true).max() <= 1e-4
    assert np.abs(fastdr.PCA(svd_solver=solver).fit_transform(same) - true).max() <= 1e-4
    assert np.abs(fastdr.project(same, model.components_, model.mean_) - true).max() <= 1e-4


@pytest.mark.parametrize(("kind", "scale"), [("f8", 1e-170), ("f8", 1e-160), ("f8", 1e155),
                                         ("f8", 1e300), ("f4", 1e-25), ("f4", 1e25),
                                         ("f4", 1e-36), ("f4", 1e36)])
@pytest.mark.parametrize("shape", [(50, 3), (6, 20)])
def test_c09_any_range_gives_the_same_shape_of_data(rng, solver, kind, scale, shape):
    power = 2.0 ** np.round(np.log2(scale))  # exact: the scaled data are the same bits
    X = (rng.standard_normal(shape) * np.linspace(3, 1, shape[1])).astype(kind)
    plain, model = (fastdr.PCA(svd_solver=solver).fit(A) for A in (X, (X * power).astype(kind)))
    tight = 1e-12 if kind == "f8" else 1e-5
    rank = min(shape[0] - 1, shape[1])
    np.testing.assert_allclose(model.explained_variance_ratio_, plain.explained_variance_ratio_,
                               rtol=tight, atol=tight)
    np.testing.assert_allclose(model.components_[:rank], plain.components_[:rank], atol=10 * tight)
    np.testing.assert_allclose(np.asarray(model.singular_values_[:rank], float) / power,
                               plain.singular_values_[:rank], rtol=tight)
    scores = np.asarray(model.transform((X * power).astype(kind)), float) / power
    np.testing.assert_allclose(scores, plain.transform(X), atol=100 * tight)


def in_blocks(X, rereadable=True):
    return BlockSource(lambda: iter([X[:20], X[20:]]), X.shape[1], len(X), X.dtype,
                       rereadable=rereadable)


C09_ROWS = {
    "array": lambda X, **options: fastdr.PCA(2, **options).fit(X),
    "wide": lambda X, **options: fastdr.PCA(2, **options).fit(X.T),
    "weighted": lambda X, **options: fastdr.PCA(2, **options).fit(
        X, sample_weight=np.arange(len(X)) % 3),
    "known mean": lambda X, **options: fastdr.PCA(2, mean=X[0], **options).fit(X),
    "blocks": lambda X, **options: fastdr.PCA(2, **options).fit(in_blocks(X)),
    "blocks read once": lambda X, **options: fastdr.PCA(2, **options).fit(in_blocks(X, False)),
    "share": lambda X, **options: fastdr.PCA(0.3, **options).fit(X),
    "sparse": lambda X, **options: fastdr.PCA(2, **options).fit(csr_array(X * (abs(X) > X[0]))),
}


@pytest.mark.parametrize("power", [-500, -300, 1, 300, 500])
@pytest.mark.parametrize("kind", C09_ROWS)
@pytest.mark.parametrize("solver", ["auto", "lapack", "svd", "lanczos", "power", "randomized"])
@pytest.mark.filterwarnings("ignore:randomized stopped")
def test_c09_a_power_of_two_changes_no_bit(rng, solver, kind, power):
    if (solver, kind) in {("svd", "blocks read once"), ("svd", "sparse")} or (
            kind == "sparse" and solver in {"power", "randomized"}):
        pytest.skip("not taken")
    if kind == "blocks read once" and abs(power) == 500:
        pytest.skip("refused: sums of squares lose digits, and nobody can look again")
    X = np.round(rng.standard_normal((60, 20)) * np.linspace(3, 1, 20), 3)
    plain, scaled = (C09_ROWS[kind](np.ldexp(X, k), svd_solver=solver, certificate="proof")
                     for k in (0, power))
    one, other = plain.certificate_, scaled.certificate_
    np.testing.assert_array_equal(scaled.components_, plain.components_)
    np.testing.assert_array_equal(scaled.explained_variance_ratio_,
                                  plain.explained_variance_ratio_)
    np.testing.assert_array_equal(scaled.singular_values_, np.ldexp(plain.singular_values_, power))
    assert (other.method, other.angle, other.clusters) == (one.method, one.angle, one.clusters)
    assert one.proved
    for found, told in [(scaled.explained_variance_, plain.explained_variance_),
                        (scaled.noise_variance_, plain.noise_variance_),
                        (scaled.report_["variance_error"], plain.report_["variance_error"]),
                        (other.lower, one.lower), (other.upper, one.upper),
                        (other.residuals, one.residuals)]:
        np.testing.assert_array_equal(found, np.ldexp(told, 2 * power))  # also where both underflow


@pytest.mark.parametrize("scale", [1e76, 1e78, 1e100, 1e140, 1e-78, 1e-140])
@pytest.mark.parametrize("solver", ["auto", "lapack", "svd", "lanczos", "power"])
def test_c09_bounds_stay_tight_at_any_scale(rng, solver, scale):
    X = rng.standard_normal((100, 20)) * np.linspace(3, 1, 20) * scale
    told = fastdr.PCA(5, svd_solver=solver).fit(X).certificate_
    assert told.proved
    np.testing.assert_allclose(told.upper, told.lower, rtol=1e-9)


@pytest.mark.parametrize("power", [2.0**-560, 2.0**510, 2.0**990])
def test_c09_whitened_scores_do_not_depend_on_the_unit(rng, solver, power):
    X = rng.standard_normal((50, 3)) * [3, 2, 1]
    plain = fastdr.PCA(whiten=True, svd_solver=solver).fit_transform(X)
    scaled = fastdr.PCA(whiten=True, svd_solver=solver).fit_transform(X * power)
    np.testing.assert_allclose(scaled, plain, atol=1e-11)


@pytest.mark.parametrize("power", [2.0**-560, 2.0**500, 2.0**1000])
def test_c09_covariance_does_as_ieee_dictates(rng, power):
    X = rng.standard_normal((50, 3)) * [3, 2, 1]
    with np.errstate(over="ignore", under="ignore"):
        expected = fastdr.covariance(X) * power * power
    found = fastdr.covariance(X * power)
    assert not np.isnan(np.diagonal(found)).any()
    np.testing.assert_allclose(np.diagonal(found), np.diagonal(expected), rtol=1e-12,
                               atol=3e-322)


@pytest.mark.parametrize(("rows", "scales", "weight"), [
    (5000, [3e153, 3e153, 3e153], None), (50, [2e150, 1e149, 1e150], 1e9),
    (5000, [3e153, 1, 1e-140], None), (50, [1e100, 1e-10, 1e2], 1e120)])
@pytest.mark.parametrize("known", [False, True])
def test_c09_a_covariance_that_fits_is_finite(rng, rows, scales, weight, known):
    X, scales = rng.standard_normal((rows, 3)), np.array(scales)
    weights = None if weight is None else np.full(rows, weight)
    share = 1 if weight is None or known else (rows - 1) / rows  # of the divisor that rows have
    mean = np.ones(3) if known else None
    expected = share * fastdr.covariance(X, mean=mean) * scales * scales[:, None]
    found = fastdr.covariance(X * scales, sample_weight=weights,
                              mean=scales if known else None)
    size = np.sqrt(np.diagonal(expected))
    assert np.isfinite(size).all()
    np.testing.assert_allclose(found / size / size[:, None], expected / size / size[:, None],
                               atol=1e-12)


@pytest.mark.parametrize("scales", [[1e8, 1, 1e-8], [1e-8, 1, 1e8], [1e4, 1, 1e-4]])
def test_c11_columns_of_very_different_scale(rng, solver, scales):
    X = rng.standard_normal((500, 3)) * scales
    true = exact_spectrum(X) / 499
    np.testing.assert_allclose(fastdr.PCA(svd_solver=solver).fit(X).explained_variance_, true,
                               rtol=1e-6)


@pytest.mark.parametrize("scales", [[1, 1e-170, 1], [1e160, 1, 1], [1e160, 1e-170, 1],
                                    [1e-161, 1e-155, 1], [1e300, 1e-300, 1e-309]])
@pytest.mark.parametrize("wide", [False, True])
def test_c11_standardised_columns_of_any_scales(rng, solver, wide, scales):
    X = rng.standard_normal((5, 3) if wide else (50, 3)) @ (np.eye(3) + 0.5)
    X = np.tile(X, (1, 4)) + 0.1 * rng.standard_normal((len(X), 12)) if wide else X
    scales = np.resize(scales, X.shape[1])
    plain, found = (fastdr.PCA(2, standardize=True, svd_solver=solver).fit(A)
                    for A in (X, X * scales))
    np.testing.assert_allclose(found.explained_variance_ratio_, plain.explained_variance_ratio_,
                               rtol=1e-10)
    np.testing.assert_allclose(found.components_, plain.components_, atol=1e-8)
    np.testing.assert_allclose(found.scale_, plain.scale_ * scales, rtol=1e-12)
    np.testing.assert_allclose(found.certificate_.upper, plain.certificate_.upper, rtol=1e-10)


def test_c11_standardised_densities_count_every_scale(rng):
    X, scales = rng.standard_normal((50, 3)), np.array([1e160, 1, 1e-170])
    plain, found = (fastdr.PCA(1, standardize=True).fit(A).score(A) for A in (X, X * scales))
    assert found == pytest.approx(plain - np.log(scales).sum(), abs=1e-9)


def test_c11_standardised_rows_at_the_end_of_the_range(rng):
    signs = np.where(rng.random((40, 3)) < 0.5, 1.0, -1.0)
    plain, found = (fastdr.PCA(standardize=True).fit(A) for A in (signs, 1.7e308 * signs))
    np.testing.assert_allclose(found.explained_variance_, plain.explained_variance_, rtol=1e-12)


def test_c11_zero_and_constant_columns_stay_constant(rng):
    X = np.column_stack([rng.standard_normal((50, 2)), np.zeros(50), np.full(50, 3.0)])
    with pytest.warns(UserWarning, match=r"2 constant column\(s\) \(2, 3\)"):
        found = fastdr.PCA(standardize=True).fit(X)
    np.testing.assert_array_equal(found.scale_[2:], 1.0)


INTEGERS = {
    "u1": lambda rng: rng.integers(0, 256, (5000, 6)).astype("u1"),
    "i1": lambda rng: rng.integers(-128, 128, (900, 5)).astype("i1"),
    "i2": lambda rng: rng.integers(-32768, 32768, (900, 5)).astype("i2"),
    "u2": lambda rng: rng.integers(60_000, 65_536, (900, 5)).astype("u2"),
    "i4": lambda rng: (50_000 + rng.integers(0, 9, (900, 5))).astype("i4"),
    "u4": lambda rng: rng.integers(2**31, 2**32, (900, 5)).astype("u4"),
    "i8": lambda rng: (4_000_000_000 + rng.integers(0, 9, (900, 5))).astype("i8"),
    "u8": lambda rng: (2**63 + 4096 * rng.integers(0, 99, (900, 5)).astype("u8")).astype("u8"),
    "bool": lambda rng: rng.random((900, 5)) < 0.3,
    "<u4": lambda rng: rng.integers(0, 2**32, (900, 5)).astype("<u4"),
    ">i2": lambda rng: rng.integers(-32768, 32768, (900, 5)).astype(">i2"),
}


@pytest.mark.parametrize("kind", INTEGERS)
def test_c13_integers_give_what_their_float64_values_give(rng, kind, solver):
    X = INTEGERS[kind](rng)
    kept = X.copy()
    found = fastdr.PCA(svd_solver=solver).fit(X)
    true = fastdr.PCA(svd_solver=solver).fit(X.astype(np.float64))
    for name in ("components_", "mean_", "explained_variance_", "explained_variance_ratio_"):
        value = getattr(found, name)
        assert value.dtype == np.float64, name
        np.testing.assert_allclose(value, getattr(true, name), rtol=1e-12, atol=1e-12)
    size = np.abs(true.transform(X.astype(np.float64))).max()
    np.testing.assert_allclose(found.transform(X), true.transform(X.astype(np.float64)),
                               atol=1e-12 * size)
    np.testing.assert_allclose(fastdr.covariance(X), fastdr.covariance(X.astype(float)),
                               rtol=1e-12, atol=1e-12 * true.explained_variance_[0])
    np.testing.assert_array_equal(X, kept)


def test_c14_half_precision_equals_its_float64_values(rng, solver, layout, stored):
    X = rng.integers(0, 256, (5000, 6)).astype("f2")
    model = fastdr.PCA(svd_solver=solver).fit(stored(X, layout))
    assert model.components_.dtype == np.float32
    value, axes = principal(X)
    np.testing.assert_allclose(model.explained_variance_, value, rtol=1e-6)
    # the six variances are 1 % apart: the axes turn by at most error / gap
    gap = np.abs(np.diff(value)).min() / value[0]
    for row, axis in zip(model.components_, axes, strict=True):
        assert abs(abs(float(row @ axis)) - 1) <= (1e-6 / gap) ** 2 + 1e-6


def test_c14_half_precision_memmap_is_converted_by_blocks(tmp_path, rng):
    writer = np.memmap(tmp_path / "half.bin", "f2", "w+", shape=(20_000, 64))
    writer[:] = rng.integers(0, 256, writer.shape)
    writer.flush()
    X = np.memmap(tmp_path / "half.bin", "f2", "r", shape=(20_000, 64))
    fastdr.PCA(5).fit(X[:500])
    tracemalloc.start()
    model = fastdr.PCA(5).fit(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < X.nbytes  # its float64 copy would be four times as much
    assert_orthonormal(model.components_, np.float32)
    value, axes = principal(np.asarray(X), 64)
    np.testing.assert_allclose(model.explained_variance_, value[:5], rtol=1e-6)


def test_c16_offsets_beyond_two_to_the_31(tmp_path, rng):
    path = tmp_path / "sparse.bin"
    with path.open("wb") as file:
        file.truncate(5 << 30)
    X = np.memmap(path, "f8", "r+", shape=(5, 1 << 27))[:, ::1 << 25][:, :4]
    assert X.strides == (1 << 30, 1 << 28)
    X[...] = rng.standard_normal((5, 4))
    plain = np.array(X)
    for rows in (X, X.T, X[::-1], X[:, ::-1]):
        same = np.array(rows)
        np.testing.assert_array_equal(fastdr.covariance(rows), fastdr.covariance(same))
        np.testing.assert_array_equal(column_moments(rows)[1], column_moments(same)[1])
        V = np.eye(rows.shape[1])[:2]
        np.testing.assert_array_equal(fastdr.project(rows, V), fastdr.project(same, V))
        np.testing.assert_array_equal(fastdr.reconstruction_error(rows, V),
                                      fastdr.reconstruction_error(same, V))
    np.testing.assert_allclose(fastdr.PCA(2).fit_transform(X), fastdr.PCA(2).fit_transform(plain))


@pytest.mark.slow
def test_c16_more_than_two_to_the_31_elements(tmp_path):
    rows = (1 << 25) + 3
    with (tmp_path / "many.bin").open("wb") as file:
        file.truncate(rows * 64)
    X = np.memmap(tmp_path / "many.bin", "u1", "r+", shape=(rows, 64))
    some = np.random.default_rng(16).integers(0, 256, (3, 64))
    X[[0, rows // 2, rows - 1]] = some
    found = fastdr.moments(X)
    assert found.count == rows
    np.testing.assert_allclose(found.mean, some.sum(axis=0) / rows, rtol=1e-13)
    true = some.T @ some - np.outer(some.sum(axis=0), some.sum(axis=0)) / rows
    np.testing.assert_allclose(found.scatter, true, rtol=1e-12)


@pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
def test_c17_a_failing_divide_and_conquer_driver_is_replaced(rng, monkeypatch, solver, shape):
    X = rng.standard_normal(shape)
    expected = fastdr.PCA(3, svd_solver=solver).fit(X)
    svd = scipy.linalg.svd

    def failing(*args, lapack_driver="gesdd", **options):
        if lapack_driver == "gesdd":
            raise np.linalg.LinAlgError("SVD did not converge")
        return svd(*args, lapack_driver=lapack_driver, **options)

    def broken(*_, **__):
        raise np.linalg.LinAlgError("SVD did not converge")

    monkeypatch.setattr(scipy.linalg, "svd", failing)
    monkeypatch.setattr(np.linalg, "svd", broken)
    monkeypatch.setattr(solvers, "svd", failing)
    if "svd" in expected.report_["method"]:
        with pytest.warns(RuntimeWarning, match="gesvd|did not converge"):
            found = fastdr.PCA(3, svd_solver=solver).fit(X)
    else:
        found = fastdr.PCA(3, svd_solver=solver).fit(X)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-12)
    assert subspace_angle(found.components_, expected.components_) <= 1e-12


@pytest.mark.parametrize(("bad", "word"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_c17_bad_values_are_named_as_such(rng, solver, bad, word):
    X = rng.standard_normal((40, 6))
    X[7, 2] = bad
    with pytest.raises(ValueError, match=rf"contains {word} at row 7, column 2"):
        fastdr.PCA(svd_solver=solver).fit(X)
