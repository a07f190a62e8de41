"""Class moments: against long double, merged in any way, for any distance between classes."""

import numpy as np
import pytest
from conftest import DTYPES, LAYOUTS
from hypothesis import given
from hypothesis import strategies as st
from reference import column_mean, scatter, weights_of, wide
from tolerance import rounding, scatter_error

import fastdr
from fastdr import ClassMoments
from fastdr._dense import centre_classes
from fastdr.class_statistics import TINY, class_columns, encoded
from fastdr.sources import BlockSource


def reference_of(X, y, weight=None):
    """Means of the classes and the sum of their scatters, in long double."""
    weight = weights_of(X, weight)
    classes = np.unique(np.asarray(y)[np.asarray(weight) > 0])
    parts = [(X[y == c], weight[y == c]) for c in classes]
    means = np.array([column_mean(rows, w) for rows, w in parts])
    return classes, means, sum(scatter(rows, w) for rows, w in parts)


def check(found, X, y, weight=None, dtype=np.float64, safety=1):
    classes, means, within = reference_of(X, y, weight)
    np.testing.assert_array_equal(found.classes, classes)
    bound = safety * scatter_error(dtype, len(X), within.astype(float))
    assert (np.abs(found.within - within) <= bound).all()
    deviation = np.sqrt(np.diagonal(within).astype(float) / found.weights.sum())
    error = wide(found.means) + wide(found.rests) - means
    size = rounding(float, len(X), deviation) + 4 * np.finfo(float).eps ** 2 * np.abs(X).max()
    assert (np.abs(error) <= safety * size).all()
    assert (np.abs(found.means - means) <= np.abs(means) * np.finfo(float).eps + size).all()
    np.testing.assert_array_equal(found.within, found.within.T)


def test_kernel_centres_and_sums(rng):
    X, codes = rng.standard_normal((40, 7)), rng.integers(0, 3, 40)
    centres, weight = rng.standard_normal((3, 7)), rng.uniform(0, 2, 40)
    for w in (None, weight):
        sums, out = np.ones((3, 7)), np.empty_like(X)
        centre_classes(X, codes, centres, w, sums, out)
        np.testing.assert_array_equal(out, X - centres[codes])
        expected = 1 + (codes == np.arange(3)[:, None]) * weights_of(X, w) @ wide(out)
        np.testing.assert_allclose(sums, expected.astype(float), atol=rounding(float, 40, 4))
        inplace = X.copy()
        centre_classes(inplace, codes, centres, w, np.zeros((3, 7)), inplace)
        np.testing.assert_array_equal(inplace, out)
    centre_classes(np.empty((3, 0)), codes[:3], np.empty((3, 0)), None, np.empty((3, 0)),
                   np.empty((3, 0)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_dtype_and_layout(rng, stored, dtype, layout):
    X = (rng.standard_normal((60, 5)) * 20 + 60).clip(0, 120).astype(dtype)
    y = rng.integers(0, 4, 60)
    found = ClassMoments.of(stored(X, layout), y)
    check(found, X.astype(float), y)
    weight = rng.integers(0, 3, 60)
    check(ClassMoments.of(stored(X, layout), y, weight), X.astype(float), y, weight)


@pytest.mark.parametrize("shape", [(700, 3), (3000, 40), (300, 520)])
@pytest.mark.parametrize("classes", [2, 150])
@pytest.mark.parametrize(("apart", "offset"), [(1.0, 1e8), (1e8, 0.0), (1e8, -1e8)])
def test_distances_between_classes_and_offsets_cost_nothing(rng, shape, classes, apart, offset):
    y = rng.integers(0, classes, shape[0])
    X = rng.standard_normal(shape) + apart * rng.standard_normal((classes, shape[1]))[y] + offset
    check(ClassMoments.of(X, y), X, y)


def test_sorted_rows_that_drift_are_read_again(rng):
    X = rng.standard_normal((4000, 6)) + np.linspace(0, 1e6, 4000)[:, None]
    X[2000:] -= X[2000:].mean(0)
    y = (np.arange(4000) >= 2000).astype(int)
    X[y == 0] = np.sort(X[y == 0], axis=0)
    check(ClassMoments.of(X, y), X, y, safety=4)


def test_float32_rows_are_multiplied_in_float32(rng):
    X = (rng.standard_normal((6000, 8)) + 100).astype("f4")
    y = rng.integers(0, 3, 6000)
    single, double = ClassMoments.of(X, y), ClassMoments.of(X, y, precision="double")
    check(single, X.astype(float), y, dtype="f4")
    check(double, X.astype(float), y)
    assert not np.array_equal(single.within, double.within)
    tiny = X * np.float32(1e-18)  # squares leave the range of float32
    check(ClassMoments.of(tiny, y), tiny.astype(float), y)


@given(cuts=st.lists(st.integers(1, 149), min_size=1, max_size=6, unique=True),
       seed=st.integers(0, 99), weighted=st.booleans(),
       offset=st.sampled_from([0.0, 1e3, -1e8]))
def test_merged_parts_are_the_whole(cuts, seed, weighted, offset):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((150, 4)) + offset + rng.integers(0, 3, 150)[:, None]
    y = rng.choice(["a", "bb", "c", "dddd"], 150)
    weight = rng.uniform(0.5, 2, 150) if weighted else None
    edges = [0, *sorted(cuts), 150]
    parts = [ClassMoments.of(X[a:b], y[a:b], None if weight is None else weight[a:b])
             for a, b in zip(edges[:-1], edges[1:], strict=True)]
    rng.shuffle(parts)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    check(total, X, y, weight, safety=4)
    np.testing.assert_array_equal(total.counts, np.unique(y, return_counts=True)[1])


@pytest.mark.parametrize("scale", [1e-200, 1e-140, 1e140])
def test_weights_of_any_size_merge(rng, scale):
    X, y = rng.standard_normal((40, 3)), np.arange(40) % 2
    weight = scale * rng.uniform(0.5, 2, 40)
    whole = ClassMoments.of(X, y, weight)
    both = (ClassMoments.of(X[:20] + 5, y[:20], weight[:20])
            + ClassMoments.of(X[20:] + 5, y[20:], weight[20:]))
    np.testing.assert_allclose(both.within / scale, whole.within / scale, rtol=0,
                               atol=rounding(float, 40, 40 * 25))


def test_streams_and_arrays_agree(rng):
    X, y = rng.standard_normal((500, 6)) + 1e6, rng.integers(-2, 3, 500)
    weight = rng.integers(0, 3, 500)
    weight[100:200] = 0
    source = BlockSource(lambda: (X[i:i + 100] for i in range(0, 500, 100)), 6)
    check(ClassMoments.of_source(source, y), X, y, safety=4)
    check(ClassMoments.of_source(source, y, weight), X, y, weight, safety=4)
    for wrong in (y[:-1], np.append(y, 0)):
        with pytest.raises(ValueError, match=f"y has {len(wrong)} labels, but X has"):
            ClassMoments.of_source(source, wrong)
    with pytest.raises(ValueError, match="Found no rows"):
        ClassMoments.of_source(BlockSource(lambda: iter(()), 6), [])
    X[150, 2] = np.nan
    with pytest.raises(ValueError, match="NaN at row 50, column 2"):
        ClassMoments.of_source(source, y, weight)


@pytest.mark.parametrize("features", [30, 600])
def test_threads_do_not_change_a_bit(rng, features):
    X, y = rng.standard_normal((2500, features)), rng.integers(0, 90, 2500)
    results = []
    for threads in (1, 2, 3, 8):
        with fastdr.num_threads(threads):
            results.append(ClassMoments.of(X, y))
    for other in results[1:]:
        for name in ("within", "means", "rests"):
            np.testing.assert_array_equal(getattr(other, name), getattr(results[0], name))


@pytest.mark.parametrize("labels", [
    np.array([3, 1, 2, 1]), np.array([True, False, True, True]), np.array(["b", "a", "b", "c"]),
    np.array([0.5, -1e300, 0.5, 2.0]), np.array([2**63 - 1, -(2**63), 0, 0]),
    np.array([200, 0, 255, 0], np.uint8), np.array([-128, 127, 0, 0], np.int8),
    np.array(["x", "y", "x", "z"], object), np.array([2**64 - 1, 2**64 - 3, 2**64 - 3, 2**64 - 1],
                                                     np.uint64)])
def test_labels_of_any_kind(labels):
    expected = np.unique(labels, return_inverse=True)
    classes, codes = encoded(labels)
    np.testing.assert_array_equal(classes, expected[0])
    np.testing.assert_array_equal(codes, expected[1])
    assert classes.dtype == labels.dtype
    weight = np.array([1, 0, 1, 1.0])
    classes, codes = encoded(labels, weight)
    np.testing.assert_array_equal(classes, np.unique(labels[[0, 2, 3]]))
    np.testing.assert_array_equal(classes[codes[[0, 2, 3]]], labels[[0, 2, 3]])
    assert codes.max() < len(classes)


@pytest.mark.parametrize(("dtype", "rows"), [("i1", 300), ("i2", 70000), (">i2", 70000)])
def test_labels_as_far_apart_as_their_dtype_allows(dtype, rows):
    span = np.iinfo(dtype)
    labels = (span.min + np.arange(rows) % (span.max - span.min + 1)).astype(dtype)
    classes, codes = encoded(labels)
    np.testing.assert_array_equal(classes, np.arange(span.min, span.max + 1))
    np.testing.assert_array_equal(classes[codes], labels)


def test_squares_that_vanish_are_told_from_none(rng):
    """Of arrays, merged parts of a row a class, and fewer rows than features."""
    y, weight = np.arange(60) % 3, np.repeat([1.0, 0.0], 30)
    X = rng.standard_normal((60, 4)) * [1, 1e-170, 5e-324, 0]
    whole = ClassMoments.of(X, y)
    parts = [ClassMoments.of(X[i:i + 3], y[:3]) for i in range(0, 60, 3)]
    for found in (whole, sum(parts[1:], parts[0])):
        assert ((np.diagonal(found.within) == TINY) == [False, True, True, False]).all()
    X[:30, 1] = 1e-170
    assert np.diagonal(ClassMoments.of(X, y, weight).within)[1] == 0
    X = np.tile(X, 20)
    squares = class_columns(X, y, None, 3)[2]
    assert ((squares == TINY) == np.tile([False, True, True, False], 20)).all()
    assert (class_columns(X, y, weight, 3)[2][1::4] == 0).all()


def test_columns_of_few_rows(rng):
    X = rng.standard_normal((20, 3000)) * 10.0 ** rng.integers(-3, 3, 3000) + 1e6
    y = rng.integers(0, 4, 20)
    X[:, 7] = 3.3
    for weight in (None, rng.uniform(0.5, 2, 20)):
        means, rests, squares = class_columns(X, y, weight, 4)
        _, exact, _ = reference_of(X[:, :0], y, weight)
        exact = np.array([column_mean(X[y == c], None if weight is None else weight[y == c])
                          for c in range(4)])
        within = (weights_of(X, weight)[:, None] * (wide(X) - exact[y]) ** 2).sum(0)
        np.testing.assert_allclose(squares, within.astype(float), rtol=rounding(float, 20, 1.0))
        error = np.abs(wide(means) + wide(rests) - exact)
        size = rounding(float, 20, np.sqrt(within.astype(float)))
        assert (error <= size + rounding(np.longdouble, 2, np.abs(X).max())).all()
        assert squares[7] == 0
    X[3, 1500] = np.inf
    with pytest.raises(ValueError, match="infinity at row 3, column 1500"):
        class_columns(X, y, None, 4)


@pytest.mark.parametrize(("X", "y", "error", "words"), [
    ([[1.0], [2.0]], [1], ValueError, "y has 1 labels, but X has 2 rows"),
    ([[1.0], [2.0]], [[1], [2]], ValueError, r"y has shape \(2, 1\)"),
    ([[1.0], [2.0]], None, ValueError, "y is None"),
    ([[1.0], [2.0]], [1.0, np.nan], ValueError, "y contains NaN at row 1"),
    ([[1.0], [2.0]], ["a", None], TypeError, "y mixes strings and other labels"),
    ([[1.0], [2.0]], [1j, 2], TypeError, "y has dtype complex128"),
    ([[1.0], [np.inf]], [1, 2], ValueError, "infinity at row 1"),
    ([[1e200], [-1e200], [1]], [1, 1, 2], ValueError, "squares of the rows overflow")])
def test_useless_input_is_refused(X, y, error, words):
    with pytest.raises(error, match=words):
        ClassMoments.of(X, y)


def test_moments_that_do_not_fit_are_not_merged():
    one = ClassMoments.of([[1.0], [2.0]], ["a", "b"])
    with pytest.raises(TypeError, match="cannot merge labels of dtype <U1 and int64"):
        one + ClassMoments.of([[1.0]], [1])
    whole = ClassMoments.of([[1.0], [2.0]], [2**60, 2**60 + 1])
    for label in (0.5, np.uint64(2**63)):
        with pytest.raises(TypeError, match="cannot merge labels .* that holds all of them"):
            whole + ClassMoments.of([[1.0]], np.array([label]))
    assert (whole + ClassMoments.of([[1.0]], [True])).classes.tolist() == [1, 2**60, 2**60 + 1]
    with pytest.raises(ValueError, match="1 and 2 features"):
        one + ClassMoments.of([[1.0, 2.0]], ["a"])
