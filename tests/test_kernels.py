"""Compiled kernels at every size, dtype and position where a tile, panel or thread edge may lie.

Data are small integers, so that sums, products and (for signed unit axes) residuals are exact
in float64, and references need no tolerance or one rounding.
"""

import os

import numpy as np
import pytest
from reference import gram_apply as slow_gram_apply
from reference import integer_scatter, scatter
from tolerance import arithmetic, scatter_error

import fastdr
from fastdr import _dense
from fastdr.column_statistics import column_moments
from fastdr.operators import gram, gram_apply, project, reconstruct, reconstruction_error
from fastdr.scatter import ScatterSum

FEATURES = [*range(1, 41), 63, 64, 65, 127, 128, 129, 130, 131]
MANY_FEATURES = [511, 512, 513, 514, 767, 1100]
ROWS = [1, 2, 3, 255, 256, 257, 258, 1000]


def integers(shape, dtype, seed=0):
    """Values 0..100 of every dtype, 0 and 1 for bool."""
    top = 2 if np.dtype(dtype).kind == "b" else 101
    return np.random.default_rng(seed).integers(0, top, shape).astype(dtype)


def signed_axes(k, features, seed=0):
    """k rows of a signed permutation: orthonormal and integral."""
    rng = np.random.default_rng(seed)
    axes = np.zeros((k, features))
    axes[np.arange(k), rng.permutation(features)[:k]] = rng.choice([-1, 1], k)
    return axes


def assert_scatter(found, true, dtype, rows):
    assert (found.scatter == found.scatter.T).all()
    assert (np.diagonal(found.scatter) >= 0).all()
    excess = np.abs(found.scatter - true) - scatter_error(dtype, rows, true)
    assert (excess <= 0).all(), np.argwhere(excess > 0)[:5]


@pytest.mark.parametrize("rows", ROWS)
def test_scatter_of_every_size(rows, dtype):
    for features in FEATURES:
        X = integers((rows, features), dtype, features)
        found = fastdr.moments(X)
        assert_scatter(found, integer_scatter(X), dtype, rows)
        np.testing.assert_allclose(found.mean, X.sum(axis=0, dtype=float) / rows, rtol=1e-15 * 8,
                                   err_msg=str(features))


@pytest.mark.parametrize("features", MANY_FEATURES)
@pytest.mark.parametrize("kind", ["f8", "f4", "u1", "i2"])
@pytest.mark.parametrize("rows", [1, 3, 257, 1300])
def test_scatter_of_many_features(features, kind, rows):
    X = integers((rows, features), kind, features)
    assert_scatter(fastdr.moments(X), integer_scatter(X), kind, rows)
    weight = np.random.default_rng(1).integers(0, 3, rows) + (np.arange(rows) == 0)
    assert_scatter(fastdr.moments(X, weight), integer_scatter(X, weight), kind, rows)
    assert_scatter(fastdr.moments(np.asfortranarray(X)), integer_scatter(X), kind, rows)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", ["f8", "f4", "f2", "u1", "i4"])
def test_weighted_scatter_of_every_size(rows, kind):
    rng = np.random.default_rng(rows)
    for features in FEATURES[::3]:
        X = integers((rows, features), kind, features)
        weight = rng.integers(0, 3, rows)
        weight[rng.integers(rows)] = 1
        found = fastdr.moments(X, weight)
        assert_scatter(found, integer_scatter(X, weight), kind, rows)
        mean, squares, _ = column_moments(X, weight.astype(float))
        np.testing.assert_allclose(squares, np.diagonal(integer_scatter(X, weight)), rtol=1e-12,
                                   atol=1e-9)
        np.testing.assert_allclose(mean, found.mean, rtol=1e-14)


BYTES = {"u1": (0, 255), "i1": (-128, 127), "?": (0, 1)}


def extremes(shape, kind):
    """The two ends of the range of a byte in random order, so that no product could be larger."""
    return np.random.default_rng(1).choice(BYTES[kind], shape).astype(kind)


def exact_products(X, shift):
    """(X - shift)ᵀ(X - shift) of bytes: every sum is an integer below 2^53, so exact in float64."""
    centred = X.astype(np.float64) - shift
    return centred.T @ centred


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kind", BYTES)
def test_products_of_bytes_are_exact(rows, kind):
    for features in [*FEATURES, *MANY_FEATURES[:3]]:
        X = extremes((rows, features), kind)
        for shift in (*BYTES[kind], sum(BYTES[kind]) // 2):
            at = np.full(features, float(shift))
            total = ScatterSum(features, at, np.int16)
            assert total.add(X)
            offset, products = total.finish(centred=False)
            np.testing.assert_array_equal(products, exact_products(X, at), err_msg=str(features))
            assert not offset.any()


@pytest.mark.parametrize("features", [1, 7, 64, 65, 129, 520])
@pytest.mark.parametrize("kind", BYTES)
def test_products_of_bytes_are_exact_in_every_layout(kind, features, layout, stored):
    X = extremes((771, features), kind)
    at = np.full(features, float(BYTES[kind][1]))
    total = ScatterSum(features, at, np.int16)
    for part in (slice(None), slice(257), slice(257, 258), slice(258, None)):
        assert total.add(stored(X, layout)[part])
    products = total.finish(centred=False)[1]
    np.testing.assert_array_equal(products, 2 * exact_products(X, at))


@pytest.mark.parametrize("features", [3, 40, 530])
@pytest.mark.parametrize("kind", ["u1", "i1"])
def test_bytes_far_from_the_first_rows(kind, features):
    """The shift is one end of the range, and nearly all rows lie at the other."""
    rng, (low, high) = np.random.default_rng(0), BYTES[kind]
    X = rng.integers(high - 2, high + 1, (6000, features)).astype(kind)
    X[:1024] = low
    X[:, 1] = high
    found, true = fastdr.moments(X), integer_scatter(X)
    # exact but for moving 6000 products of at most 255² to the mean, in float64
    assert np.abs(found.scatter - true).max() <= 8 * 2.0**-53 * 6000 * 255**2
    sums = X.sum(axis=0, dtype=np.int64)
    np.testing.assert_allclose(found.mean, sums / 6000, rtol=4 * 2.0**-53)
    whole = 6000 * (found.mean + found.rest.astype(np.longdouble))
    assert np.abs(whole - sums).max() <= 6000 * 255 * 2.0**-53
    assert found.mean[1] == high
    assert (found.scatter[1] == 0).all()


@pytest.mark.parametrize("features", [40, 600])
@pytest.mark.parametrize("kind", BYTES)
def test_bytes_do_not_depend_on_threads_or_layout(kind, features):
    X = extremes((5003, features), kind)
    results = []
    for threads, rows in ((1, X), (2, X), (3, np.asfortranarray(X)), (8, X[::-1].copy()[::-1])):
        fastdr.set_num_threads(threads)
        results.append(fastdr.moments(rows))
    for found in results[1:]:
        np.testing.assert_array_equal(found.scatter, results[0].scatter)
        np.testing.assert_array_equal(found.mean, results[0].mean)


def jumping(rows, features, jump, kind, rng):
    """Rows whose mean jumps, so that some panels are packed and some are not."""
    jumped = np.arange(rows) // 3000 % 3 == 1
    return (40 * (rng.random((rows, features)) + jump * jumped[:, None])).astype(kind)


@pytest.mark.parametrize("kind", ["f8", "f4", "f2", "i4"])
@pytest.mark.parametrize("jump", [0, 9])
def test_few_features_do_not_depend_on_layout(kind, jump, rng):
    for features in (*range(1, 10), 12, 15, 16, 17):
        rows = 20_001 + features
        X = jumping(rows, features, jump, kind, rng)
        wide = np.zeros((rows, features + 3), kind)
        wide[:, 1:-2] = X
        found = fastdr.moments(X)
        assert_scatter(found, scatter(X), kind, rows)
        for layout in (np.asfortranarray(X), wide[:, 1:-2], X[:, ::-1].copy()[:, ::-1],
                       X.astype(X.dtype.newbyteorder())):
            other = fastdr.moments(layout)
            assert (other.scatter == found.scatter).all()
            assert (other.mean == found.mean).all()


@pytest.mark.parametrize("kind", ["f8", "f4"])
@pytest.mark.parametrize("features", [8, 16])
def test_few_features_do_not_depend_on_threads(kind, features, rng):
    X = jumping(300_001, features, 9, kind, rng)  # several groups of rows
    found = fastdr.moments(X)
    for threads in (1, 3, 8):
        with fastdr.num_threads(threads):
            assert (fastdr.moments(X).scatter == found.scatter).all()


@pytest.mark.parametrize("scale", [1e-38, 1e-23, 1e-14, 1e19, 3e37])
@pytest.mark.parametrize("features", [1, 8, 9, 16, 17, 130])
def test_products_that_leave_the_range_of_float32_are_seen(features, scale, rng):
    """A twin in float64 tells; without the double pass variances would be 0 or infinite."""
    normal = rng.standard_normal((9000, features))
    rare = np.where(rng.random(normal.shape) < 0.01, normal, 0)
    some = normal * np.where(np.arange(features) % 2, 1.0, scale)
    for rows in (scale * normal, scale * rare, some):
        X = rows.astype("f4")
        found, twin = fastdr.moments(X).scatter, fastdr.moments(X.astype(float)).scatter
        size = np.sqrt(np.outer(np.diag(twin), np.diag(twin)))
        assert (np.abs(found - twin) <= 1e-6 * size).all()  # as scatter.single_error reckons


def test_rows_of_weight_zero_do_not_count_at_panel_edges():
    X = integers((700, 9), "f8")
    for kept in ([0], [699], [255, 256], [0, 255, 256, 511, 512, 699]):
        weight = np.zeros(700)
        weight[kept] = 1
        found = fastdr.moments(X, weight)
        np.testing.assert_allclose(found.mean, X[kept].mean(axis=0), rtol=1e-14)
        np.testing.assert_allclose(found.scatter, integer_scatter(X[kept]), atol=1e-9)
        assert found.count == len(kept)


@pytest.mark.parametrize("kind", ["f8", "f4"])
@pytest.mark.parametrize("shift", range(0, 64, 7))
def test_bases_that_are_not_aligned(kind, shift):
    X = integers((300, 33), kind)
    buffer = np.zeros(X.nbytes + 64, np.uint8)
    same = buffer[shift:shift + X.nbytes].view(kind).reshape(X.shape)
    same[...] = X
    np.testing.assert_array_equal(fastdr.covariance(same), fastdr.covariance(X))
    V = signed_axes(5, 33)
    np.testing.assert_array_equal(project(same, V), project(X, V))
    np.testing.assert_array_equal(reconstruction_error(same, V), reconstruction_error(X, V))
    np.testing.assert_array_equal(gram_apply(same, V.T.copy()), gram_apply(X, V.T.copy()))
    np.testing.assert_array_equal(gram(same[:40], np.ones(33)), gram(X[:40], np.ones(33)))


@pytest.mark.parametrize("kind", ["f8", "f4", "f2", "u1", "i8"])
def test_zero_strides_need_no_memory(kind):
    row = integers((1, 8), kind)
    same = np.broadcast_to(row, (1 << 20, 8))
    found = fastdr.moments(same)
    np.testing.assert_array_equal(found.mean, row[0])
    np.testing.assert_array_equal(found.scatter, np.zeros((8, 8)))
    column = integers((1000, 1), kind, 1)
    wide = fastdr.moments(np.broadcast_to(column, (1000, 70)))
    one = fastdr.moments(column)
    np.testing.assert_allclose(wide.scatter, np.full((70, 70), one.scatter[0, 0]), rtol=1e-6)
    assert_scatter(wide, integer_scatter(np.repeat(column, 70, axis=1)), kind, 1000)


@pytest.mark.slow
def test_more_elements_than_32_bits_can_count_without_memory():
    row = np.arange(16, dtype="f4")[None] + 1
    X = np.lib.stride_tricks.as_strided(row, ((1 << 27) + 5, 16), (0, 4), writeable=False)
    assert X.size > 2**31
    mean, squares, _ = column_moments(X)
    np.testing.assert_array_equal(mean, row[0])
    np.testing.assert_array_equal(squares, np.zeros(16))


def test_overlapping_windows():
    signal = integers(2000, "f8")
    X = np.lib.stride_tricks.sliding_window_view(signal, 37)
    assert_scatter(fastdr.moments(X), integer_scatter(X.copy()), "f8", len(X))
    np.testing.assert_array_equal(project(X, signed_axes(4, 37)),
                                  X.copy() @ signed_axes(4, 37).T)


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 63, 64, 65, 257])
@pytest.mark.parametrize("k", [1, 2, 7, 8, 9, 15, 16, 17, 33])
def test_project_and_reconstruct_of_every_size(rows, k, dtype):
    rng = np.random.default_rng(k)
    for features in (1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 33, 64, 65, 129, 514):
        X = integers((rows, features), dtype, features)
        V = rng.integers(-3, 4, (k, features)).astype(float)
        mean = rng.integers(0, 9, features).astype(float)
        Z = project(X, V, mean)
        np.testing.assert_array_equal(Z, (X.astype(float) - mean) @ V.T, err_msg=str(features))
        small = integers((rows, k), dtype, 3)
        np.testing.assert_array_equal(reconstruct(small, V, mean),
                                      small.astype(float) @ V + mean, err_msg=str(features))


@pytest.mark.parametrize("rows", [1, 63, 65, 130])
def test_products_with_matrices_that_pass_by_many_rows_at_a_time(rows, dtype):
    X, mean = integers((rows, 1000), dtype, 1), np.arange(1000) % 5.0
    V = signed_axes(300, 1000, 2)  # more than FD_PASSING of tile_rows.h, in float32, too
    A = X.astype(float) - mean
    Z, residual = A @ V.T, A - (A @ V.T) @ V
    np.testing.assert_array_equal(project(X, V, mean), Z)
    np.testing.assert_array_equal(project(X, V), X.astype(float) @ V.T)
    np.testing.assert_allclose(reconstruction_error(X, V, mean), (residual ** 2).sum(axis=1),
                               atol=0, rtol=0 if arithmetic(dtype) == "f8" else 1e-6)


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 65, 257])
@pytest.mark.parametrize("k", [1, 2, 8, 9, 16, 17])
def test_row_errors_of_every_size(rows, k, dtype):
    for features in (1, 2, 3, 7, 8, 9, 16, 17, 24, 33, 64, 65, 129, 514):
        if k > features:
            continue
        X = integers((rows, features), dtype, features)
        V, mean = signed_axes(k, features, rows), np.arange(features) % 5.0
        A = X.astype(float) - mean
        true = ((A - (A @ V.T) @ V) ** 2).sum(axis=1)
        found = reconstruction_error(X, V, mean)
        # residuals are exact integers; float32 sums of their squares may round
        np.testing.assert_allclose(found, true, atol=0,
                                   rtol=0 if arithmetic(dtype) == "f8" else 1e-6)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 9, 31, 65, 256, 257])
def test_gram_of_every_size(rows, dtype):
    for features in (1, 2, 3, 8, 9, 17, 64, 65, 257, 513):
        X = integers((rows, features), dtype, features)
        mean = np.arange(features) % 5.0
        A = X.astype(float) - mean
        G = gram(X, mean)
        np.testing.assert_array_equal(G, G.T)
        size = np.linalg.norm(A, axis=1)
        exact = arithmetic(dtype) == "f8"
        slack = np.outer(size, size) * (0 if exact else 2e-6)
        assert (np.abs(G - A @ A.T) <= slack).all(), features


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 9, 13, 255, 257, 1000])
@pytest.mark.parametrize("columns", [1, 2, 7, 8, 9, 16, 17])
@pytest.mark.parametrize("kind", ["f8", "f4", "u1", "i4"])
def test_gram_action_of_every_size(rows, columns, kind):
    rng = np.random.default_rng(columns)
    for features in (1, 2, 3, 7, 8, 9, 17, 33, 64, 129, 514):
        X = integers((rows, features), kind, features)
        V = rng.integers(-3, 4, (features, columns)).astype(float)
        mean = rng.integers(0, 9, features).astype(float)
        A = X.astype(float) - mean
        true, found = A.T @ (A @ V), gram_apply(X, V, mean)
        assert found.shape == true.shape
        if arithmetic(kind) == "f8":
            np.testing.assert_array_equal(found, true, err_msg=str(features))
        else:
            size = np.linalg.norm(A, 2) ** 2 * np.linalg.norm(V, axis=0).max()
            assert np.abs(found - true).max() <= 4e-6 * size, features


def test_gram_action_of_real_data_far_from_zero(rng):
    X, V = rng.standard_normal((500, 40)) + 1e6, rng.standard_normal((40, 8))
    mean = X.mean(axis=0)
    true = np.asarray(slow_gram_apply(X, V, mean), float)
    assert np.abs(gram_apply(X, V, mean) - true).max() <= 1e-12 * np.abs(true).max() + 1e-4 * 1e-6


BAD = [np.nan, np.inf, -np.inf]


@pytest.mark.parametrize("kind", ["f8", "f4", "f2"])
def test_a_bad_value_is_found_at_every_position_of_a_small_matrix(kind):
    X = integers((11, 9), kind)
    V = signed_axes(3, 9)
    for row in range(11):
        for column in range(9):
            bad = X.copy()
            bad[row, column] = BAD[(row + column) % 3]
            place = rf"at row {row}, column {column}\b"
            for call in (fastdr.moments, column_moments, fastdr.covariance,
                         lambda A: project(A, V), lambda A: reconstruction_error(A, V),
                         lambda A: gram(A, np.zeros(9)), lambda A: gram_apply(A, V.T)):
                with pytest.raises(ValueError, match=place):
                    call(bad)


@pytest.mark.parametrize("kind", ["f8", "f4", "f2"])
@pytest.mark.parametrize("shape", [(259, 19), (1000, 64), (513, 65), (256, 130), (300, 600)])
@pytest.mark.parametrize("value", BAD)
def test_a_bad_value_is_found_at_the_edges(kind, shape, value, layout, stored):
    rows, features = shape
    X = integers(shape, kind)
    for row in {0, 255, 256, rows - 1} & set(range(rows)):
        for column in (0, features // 2, features - 1):
            kept, X[row, column] = X[row, column], value
            bad = stored(X, layout)
            word = "NaN" if np.isnan(value) else "infinity"
            for call in (fastdr.covariance, column_moments):
                with pytest.raises(ValueError, match=rf"{word} at row {row}, column {column}\b"):
                    call(bad)
            X[row, column] = kept


def test_several_bad_values_are_counted_and_the_first_is_named(floating):
    X = integers((900, 12), floating)
    X[700, 3], X[300, 11], X[300, 2] = np.nan, np.inf, np.nan
    with pytest.raises(ValueError, match=r"NaN at row 300, column 2 \(3 non-finite values"):
        fastdr.covariance(X)
    with pytest.raises(ValueError, match=r"infinity at row 300, column 11 \(1 non-finite value "):
        fastdr.covariance(np.where(np.isnan(X), 0, X))


def test_bad_values_cancelling_in_sums_are_still_found(floating):
    X = integers((64, 8), floating)
    X[3, 1], X[9, 1] = np.inf, -np.inf
    with pytest.raises(ValueError, match="infinity at row 3, column 1"):
        fastdr.covariance(X)


def test_huge_finite_values_are_not_called_infinite():
    X = np.array([[1e308, 1.0], [-1e308, 2.0], [1.5e308, 3.0], [-1.7e308, 5.0]] * 100)
    fastdr.project(X, np.eye(2))
    with np.errstate(all="ignore"):
        found = fastdr.moments(X)
    assert found.scatter[1, 1] == pytest.approx(float(scatter(X[:, 1:])[0, 0]), rel=1e-12)


@pytest.mark.parametrize("jump", [1e3, 1e6])
@pytest.mark.parametrize("rows", [255, 256, 300, 1024, 1500])
def test_means_that_drift_between_panels(jump, rows):
    rng = np.random.default_rng(rows)
    X = rng.standard_normal((4 * rows, 20))
    X[:, ::3] += np.repeat(np.arange(4), rows)[:, None] * jump
    X[:, 1] = 0.1
    found, true = fastdr.moments(X), np.asarray(scatter(X), float)
    assert_scatter(found, true, "f8", 4 * rows)
    assert (found.scatter[1] == 0).all()
    half = fastdr.moments(X.astype("f4"))
    assert_scatter(half, np.asarray(scatter(X.astype("f4")), float), "f4", 4 * rows)
    assert (half.scatter[1] == 0).all()


@pytest.mark.parametrize("kind", ["f8", "f4"])
def test_alternating_signs_of_a_large_offset(kind):
    """Each panel's mean is the shift, yet no row is near it."""
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((2000, 5)) + 1e4 * (-1.0) ** np.arange(2000)[:, None]).astype(kind)
    assert_scatter(fastdr.moments(X), np.asarray(scatter(X), float), kind, 2000)


def test_subnormal_and_tiny_values():
    X = integers((300, 5), "f8") * 2.0**-1070
    np.testing.assert_array_equal(fastdr.moments(X).scatter, np.zeros((5, 5)))
    Z = project(X, signed_axes(2, 5))
    np.testing.assert_array_equal(Z, X @ signed_axes(2, 5).T)


@pytest.mark.parametrize("name", _dense.available_isas())
def test_every_instruction_set_of_this_machine(run_python, name):
    out = run_python(f"""
import numpy as np, fastdr
from fastdr import _dense
assert _dense.isa() == {name!r}
rng = np.random.default_rng(0)
for kind in ("f8", "f4", "u1"):
    for shape in ((1, 1), (257, 31), (300, 64), (40, 530)):
        X = rng.integers(0, 101, shape).astype(kind); A = X.astype(float)
        S = (len(A) * A.T @ A - np.outer(A.sum(0), A.sum(0))) / len(A)
        size = np.sqrt(np.outer(np.diagonal(S), np.diagonal(S)))
        assert (abs(fastdr.moments(X).scatter - S) <= 4e-6 * size).all(), (kind, shape)
        V = rng.integers(-3, 4, (3, shape[1])).astype(float)
        assert (fastdr.project(X, V) == A @ V.T).all()
print("right")
""", env={**os.environ, "FASTDR_ISA": name})
    assert "right" in out


def test_an_unknown_instruction_set_is_refused(run_python):
    out = run_python("""
try:
    from fastdr import _dense
except ImportError as error:
    print(error)
""", env={**os.environ, "FASTDR_ISA": "abacus"})
    assert "FASTDR_ISA='abacus'" in out
    assert "base" in out
