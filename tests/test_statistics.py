"""Moments and covariance: values, divisors, weights, known means, merging, accuracy."""

import tracemalloc

import numpy as np
import pytest
from reference import column_mean, integer_scatter, scatter
from tolerance import merge_error, rounding, scatter_error

import fastdr
from fastdr.column_statistics import column_moments
from fastdr.sources import ArraySource, BlockSource
from fastdr.statistics import Moments


def small_integers(rng, rows, features, dtype=np.float64):
    """Values 0..100 (0..1 for bool), exact in every dtype."""
    top = 2 if np.dtype(dtype).kind == "b" else 101
    return rng.integers(0, top, (rows, features)).astype(dtype)


def assert_scatter(found, true, dtype, rows, more=0.0):
    true = np.asarray(true, np.float64)
    excess = np.abs(found - true) - scatter_error(dtype, rows, true) - more
    assert (excess <= 0).all(), f"off by {np.abs(found - true).max()} beyond the bound"


def test_covariance_of_two_rows_by_hand():
    np.testing.assert_array_equal(fastdr.covariance([[0.0, 1.0], [2.0, 5.0]]), [[2, 4], [4, 8]])


def test_covariance_equals_numpy(rng):
    X = rng.standard_normal((300, 7)) @ rng.standard_normal((7, 7)) + 3
    C = fastdr.covariance(X)
    assert (np.abs(C - np.cov(X, rowvar=False)) <= 2 * scatter_error("f8", 300, C)).all()


def test_every_dtype_and_layout_has_the_exact_scatter(rng, dtype, layout, stored):
    X = stored(small_integers(rng, 517, 19, dtype), layout)
    found = fastdr.moments(X)
    assert found.count == 517
    assert found.weight == 517.0
    assert found.mean.dtype == found.scatter.dtype == np.float64
    np.testing.assert_allclose(found.mean, X.astype(float).mean(axis=0), rtol=1e-14)
    assert_scatter(found.scatter, integer_scatter(X), dtype, 517)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6, 1e10])
def test_scatter_is_as_accurate_far_from_zero(rng, offset):
    X = rng.standard_normal((700, 6)) * [5, 3, 2, 1, 0.5, 0.1] + offset
    assert_scatter(fastdr.moments(X).scatter, scatter(X), "f8", 700)


@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4])
def test_float32_scatter_has_only_panel_rounding(rng, offset):
    X = (rng.standard_normal((5000, 6)) * [5, 3, 2, 1, 0.5, 0.1] + offset).astype("f4")
    assert_scatter(fastdr.moments(X).scatter, scatter(X), "f4", 5000)


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e5])
def test_float32_scatter_reaches_1e_8_of_the_trace(offset):
    rng = np.random.default_rng(24)
    X = (rng.standard_normal((200_000, 24)) + offset).astype("f4")
    wide = X.astype(np.float64)
    wide -= wide.mean(axis=0)
    true = wide.T @ wide
    error = np.linalg.norm(fastdr.moments(X).scatter - true, 2)
    assert error <= 1e-8 * np.trace(true)


def test_double_precision_on_request_for_float32(rng):
    X = (rng.standard_normal((3000, 5)) + 50).astype("f4")
    found = Moments.of(X, precision="double")
    assert_scatter(found.scatter, scatter(X), "f8", 3000)


def test_scatter_is_exactly_symmetric_and_covariance_too(rng, floating):
    X = rng.standard_normal((400, 67)).astype(floating)
    S = fastdr.moments(X).scatter
    np.testing.assert_array_equal(S, S.T)
    C = fastdr.covariance(X, mean=np.full(67, 0.25))
    np.testing.assert_array_equal(C, C.T)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e10 / 7, 1e-300, 16777217.0, 3e38, -0.7])
def test_constant_column_has_zero_variance_and_its_own_value_as_mean(value, weighted, floating,
                                                                     rng):
    X = rng.standard_normal((3001, 3)).astype(floating)
    X[:, 1] = value
    weight = rng.random(3001) if weighted else None
    found = fastdr.moments(X, weight)
    assert found.mean[1] == float(X[0, 1])
    assert found.scatter[1, 1] == 0.0
    assert (found.scatter[1] == 0.0).all()
    mean, squares, _ = column_moments(X, weight)
    assert mean[1] == float(X[0, 1])
    assert squares[1] == 0.0


@pytest.mark.parametrize("jump", [1e3, 1e6])
def test_rows_sorted_by_class_with_distant_means(rng, jump, floating):
    rows = np.repeat(np.arange(10), 300)
    X = rng.standard_normal((3000, 5))
    X[:, 0] += rows * jump
    X[:, 2] -= rows**2 * jump
    X = X.astype(floating)
    found, true = fastdr.moments(X), scatter(X)
    # within a panel the float32 shift may be off by the whole spread of the column
    assert_scatter(found.scatter, true, floating, 3000)
    spread = np.asarray(X.max(axis=0) - X.min(axis=0), np.float64)
    assert (np.abs(found.mean - np.asarray(column_mean(X), np.float64))
            <= rounding(floating, 4, spread)).all()


def test_first_rows_far_from_all_others(rng):
    X = rng.standard_normal((4000, 3))
    X[0] = 1e7
    assert_scatter(fastdr.moments(X).scatter, scatter(X), "f8", 4000)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_rows(rows):
    X = np.array([[1.0, 5.0], [3.0, 2.0], [4.0, 9.0]])[:rows]
    found = fastdr.moments(X)
    np.testing.assert_allclose(found.scatter, np.asarray(scatter(X), float), atol=1e-14)


def test_one_row_has_no_unbiased_covariance():
    with pytest.raises(ValueError, match=r"ddof|rows"):
        fastdr.covariance([[1.0, 2.0]])
    np.testing.assert_array_equal(fastdr.covariance([[1.0, 2.0]], ddof=0), np.zeros((2, 2)))


def test_known_mean_has_divisor_n(rng):
    X, mean = rng.standard_normal((50, 3)) + 2, np.array([2.0, 2.0, 1.5])
    true = np.asarray(scatter(X, mean=mean), float)
    np.testing.assert_allclose(fastdr.covariance(X, mean=mean), true / 50, rtol=1e-13)
    np.testing.assert_allclose(fastdr.covariance(X, mean=mean, ddof=1), true / 49, rtol=1e-13)
    np.testing.assert_allclose(fastdr.moments(X).about(mean), true, rtol=1e-13)


@pytest.mark.parametrize("ddof", [-np.inf, np.inf, np.nan, "1", True, 1j])
def test_divisors_that_are_no_numbers(ddof):
    found = fastdr.moments(np.eye(3))
    for call in (lambda ddof: fastdr.covariance(np.eye(3), ddof=ddof), found.covariance,
                 found.variances, lambda ddof: found.covariance(ddof, kind="reliability")):
        with pytest.raises(ValueError, match=f"ddof={ddof!r} is not allowed; it must be a finite"):
            call(ddof)


@pytest.mark.parametrize("ddof", [0, 1, 2, 1.5])
def test_any_divisor(rng, ddof):
    X = rng.standard_normal((20, 3))
    true = np.asarray(scatter(X), float) / (20 - ddof)
    np.testing.assert_allclose(fastdr.covariance(X, ddof=ddof), true, atol=1e-14)
    np.testing.assert_allclose(fastdr.moments(X).variances(ddof), np.diagonal(true), atol=1e-14)


def test_integer_weights_repeat_rows_and_zero_removes_one(rng, dtype):
    X = small_integers(rng, 90, 4, dtype)
    weight = rng.integers(0, 4, 90)
    found, repeated = fastdr.moments(X, weight), fastdr.moments(np.repeat(X, weight, axis=0))
    assert found.weight == weight.sum()
    assert found.square_weight == (weight**2).sum()
    assert found.count == (weight > 0).sum()
    np.testing.assert_allclose(found.mean, repeated.mean, rtol=1e-13)
    assert_scatter(found.scatter, integer_scatter(X, weight), dtype, int(weight.sum()))


def test_weighted_example_by_hand():
    X = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    found = fastdr.moments(X, [1, 2, 3])
    np.testing.assert_allclose(found.mean, [2 / 3, 1 / 2], rtol=1e-15)
    np.testing.assert_allclose(found.covariance(), [[16 / 15, -0.4], [-0.4, 0.3]], rtol=1e-14)
    np.testing.assert_allclose(fastdr.covariance(X, sample_weight=[1, 2, 3]),
                               [[16 / 15, -0.4], [-0.4, 0.3]], rtol=1e-14)


def test_reliability_weights_do_not_depend_on_their_scale(rng):
    X, weight = rng.standard_normal((40, 3)), rng.random(40)
    one = fastdr.moments(X, weight).covariance(kind="reliability")
    ten = fastdr.moments(X, 10 * weight).covariance(kind="reliability")
    np.testing.assert_allclose(one, ten, rtol=1e-13)
    divisor = weight.sum() - (weight**2).sum() / weight.sum()
    np.testing.assert_allclose(one, np.asarray(scatter(X, weight), float) / divisor, rtol=1e-13)
    with pytest.raises(ValueError, match="squares of these weights, 0 in sum"):
        fastdr.moments(X, 1e-170 * weight).covariance(kind="reliability")


@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_real_weights_match_the_formula(rng, offset):
    X, weight = rng.standard_normal((600, 5)) + offset, rng.random(600) * 10
    weight[::7] = 0
    assert_scatter(fastdr.moments(X, weight).scatter, scatter(X, weight), "f8", 600)


def test_weights_of_widely_different_size(rng):
    X, weight = rng.standard_normal((500, 4)), 10.0 ** rng.uniform(-12, 12, 500)
    assert_scatter(fastdr.moments(X, weight).scatter, scatter(X, weight), "f8", 500)


def test_merge_and_plus_are_the_same_and_keep_counts(rng):
    X, weight = rng.standard_normal((100, 3)) + 1e6, rng.random(100)
    left, right = Moments.of(X[:33], weight[:33]), Moments.of(X[33:], weight[33:])
    both, total = left + right, Moments.of(X, weight)
    np.testing.assert_array_equal(both.scatter, left.merge(right).scatter)
    assert both.count == total.count
    assert both.weight == pytest.approx(total.weight, rel=1e-14)
    assert both.square_weight == pytest.approx(total.square_weight, rel=1e-14)
    assert_scatter(both.scatter, scatter(X, weight), "f8", 100, merge_error(both))


def test_merge_leaves_both_sides_as_they_were(rng):
    left, right = Moments.of(rng.standard_normal((9, 2))), Moments.of(rng.standard_normal((5, 2)))
    before = left.mean.copy(), left.scatter.copy(), right.mean.copy(), right.scatter.copy()
    left.merge(right)
    for now, then in zip((left.mean, left.scatter, right.mean, right.scatter), before,
                         strict=True):
        np.testing.assert_array_equal(now, then)


def test_merge_of_different_widths_is_refused(rng):
    narrow, broad = Moments.of(np.ones((3, 2))), Moments.of(np.ones((3, 4)))
    with pytest.raises(ValueError, match=r"2.*4|4.*2"):
        narrow.merge(broad)


def test_moments_are_frozen(rng):
    found = fastdr.moments(rng.standard_normal((5, 2)))
    with pytest.raises(AttributeError):
        found.count = 3


@pytest.mark.parametrize("step", [1, 7, 256, 10_000])
def test_source_in_blocks_of_any_size(rng, step):
    X = rng.standard_normal((1000, 4)) + 1e6
    weight = rng.random(1000)
    source = BlockSource(lambda: (X[i:i + step] for i in range(0, 1000, step)), 4)
    for given in (None, weight):
        found = Moments.of_source(source, given)
        assert_scatter(found.scatter, scatter(X, given), "f8", 1000, merge_error(found, 1000))
    assert_scatter(Moments.of_source(ArraySource(X)).scatter, scatter(X), "f8", 1000)


def test_column_moments_are_the_diagonal(rng, dtype, layout, stored):
    X = stored(small_integers(rng, 300, 5, dtype), layout)
    mean, squares, _ = column_moments(X)
    np.testing.assert_allclose(mean, X.astype(float).mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(squares, np.diagonal(integer_scatter(X)), rtol=1e-13)


def test_column_moments_weighted_and_far_from_zero(rng):
    X, w = rng.standard_normal((800, 3)) * [1, 5, 0.1] + 1e8, rng.random(800)
    mean, squares, _ = column_moments(X, w)
    true = np.diagonal(np.asarray(scatter(X, w), float))
    np.testing.assert_allclose(mean, np.asarray(column_mean(X, w), float), rtol=1e-15)
    np.testing.assert_allclose(squares, true, rtol=2 * 16 * 2.3e-16 + 1e-14)


@pytest.mark.parametrize("features", [1, 7, 64, 130, 300])
@pytest.mark.parametrize(("kind", "rows"), [("f4", 5000), ("f2", 5000), ("u1", 300), ("f4", 300),
                                            ("f8", 300)])
def test_a_float32_result_is_that_of_float64_rounded(features, kind, rows, rng):
    X = 30 * rng.random((rows, features))
    X[rows // 2:] += 100  # panels that lie apart
    X = X.astype(kind)
    weights = rng.random(rows).astype("f4") + 0.5
    for given in ({}, {"ddof": 0}, {"sample_weight": weights}, {"mean": np.full(features, 20.0)}):
        wanted = fastdr.covariance(X, **given).astype("f4")
        found = fastdr.covariance(X, dtype="f4", **given)
        np.testing.assert_array_equal(found, wanted)
        out = np.empty_like(wanted)
        assert fastdr.covariance(X, out=out, **given) is out
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("features", [60, 300])
def test_a_float32_result_does_not_depend_on_threads(features, rng):
    X = rng.standard_normal((9000, features)).astype("f4")
    found = fastdr.covariance(X, dtype="f4")
    for threads in (1, 3, 8):
        with fastdr.num_threads(threads):
            np.testing.assert_array_equal(fastdr.covariance(X, dtype="f4"), found)


def test_a_float32_result_takes_half_the_memory(rng):
    X = rng.standard_normal((4200, 900)).astype("f4")
    tracemalloc.start()
    fastdr.covariance(X, dtype=np.float32)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.1 * 4 * 900**2 + 2**20


@pytest.mark.parametrize("scale", [1e-25, 1e25])
@pytest.mark.parametrize("rows", [300, 5000])
@pytest.mark.parametrize("kind", ["f8", "f4"])
def test_variances_that_float32_cannot_hold_are_refused(scale, rows, kind, rng):
    X = (scale * rng.standard_normal((rows, 3))).astype(kind)
    X[:, 1] = 1
    with pytest.raises(ValueError, match="which float32 cannot hold: leave out dtype"):
        fastdr.covariance(X, dtype="f4")
    assert fastdr.covariance(X)[0, 0] == pytest.approx(scale**2, rel=0.5)


@pytest.mark.parametrize("dtype", ["f2", "i8", "complex", "numbers"])
def test_other_types_of_a_covariance_are_refused(dtype):
    with pytest.raises(ValueError, match=f"dtype='{dtype}'; allowed are float64 and float32"):
        fastdr.covariance(np.eye(3), dtype=dtype)
    with pytest.raises(ValueError, match="out is float64 .* expected a float32 array"):
        fastdr.covariance(np.eye(3), dtype="f4", out=np.empty((3, 3)))


def test_out_receives_the_covariance(rng):
    X, out = rng.standard_normal((30, 4)), np.full((4, 4), np.nan)
    assert fastdr.covariance(X, out=out) is out
    np.testing.assert_array_equal(out, fastdr.covariance(X))


@pytest.mark.parametrize("features", [200, 513, 1100])
@pytest.mark.parametrize("kind", ["f8", "f4", "u1"])
def test_many_features(rng, features, kind):
    X = small_integers(rng, 333, features, kind)
    found = fastdr.moments(X)
    assert_scatter(found.scatter, integer_scatter(X), kind, 333)
    np.testing.assert_array_equal(found.scatter, found.scatter.T)


@pytest.mark.parametrize("tiny", [0.0, 1e-30])
@pytest.mark.parametrize("rows", [300, 6000])
def test_outliers_of_no_weight_cost_no_digits(rng, floating, tiny, rows):
    X = rng.standard_normal((rows, 3)).astype(floating)
    X[:, 1] = 0.3
    weight = rng.integers(1, 4, rows).astype(float)
    for place in (0, rows // 2, slice(0, rows, 50)):
        bad, weighted = X.copy(), weight.copy()
        bad[place], weighted[place] = 1e7, tiny
        keep = weighted > tiny
        found = fastdr.moments(bad, weighted)
        true = scatter(X[keep], weight[keep])
        assert_scatter(found.scatter, true, floating, rows, more=1e18 * tiny)
        if tiny == 0:
            assert (found.scatter[1] == 0).all()
            assert found.mean[1] == float(X[0, 1])


@pytest.mark.parametrize("rows", [3, 1000, 5000])
def test_covariance_about_a_known_mean_far_away_overflows_only_where_it_must(rows):
    """Sums of squares do from 1e308, covariances of as many rows later, and no warning is left."""
    X = np.column_stack([np.full(rows, 1e153), np.arange(rows) % 2, np.full(rows, -1e200)])
    with np.errstate(all="raise", under="ignore"):
        found = fastdr.covariance(X, mean=[0.0, 0.0, 0.0])
        apart = fastdr.Moments.of(X).about([0.0, 0.0, 0.0])
        divided = fastdr.covariance([[1.2e154], [0.0]], ddof=1.9)  # 7.2e307 / 0.1
    half = X[:, 1].mean()
    error = rounding(float, rows + 192, 1.0)
    np.testing.assert_allclose(found[:2, :2], [[1e306, 1e153 * half], [1e153 * half, half]],
                               rtol=error)
    np.testing.assert_allclose(found[:2, 2], [-np.inf, -1e200 * half], rtol=error)
    assert found[2, 2] == apart[2, 2] == np.inf
    assert divided == np.inf
