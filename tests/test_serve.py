"""Projector: one row at a time, against the definition in long double, and against batches."""

import copy
import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tolerance import product_error

import fastdr
from fastdr import LinearModel

WHITEN = [False, "pca", "zca"]


def model_of(features, axes, *, whiten=False, scaled=False, offset=3.0, dtype="f8", rank=None,
             seed=0):
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((features, axes)))[0].T
    return LinearModel(
        mean=offset * rng.standard_normal(features), components=basis.astype(dtype),
        variances=np.linspace(4.0, 0.5, axes), whiten=whiten, rank=axes if rank is None else rank,
        scale=rng.uniform(0.5, 2.0, features) if scaled else None)


def rows_near(model, count, dtype="f8", seed=1):
    noise = np.random.default_rng(seed).standard_normal((count, model.mean.size))
    return (model.mean + noise).astype(dtype)


def expected(model, x):
    """Scores, reconstruction and squared distance of one row, by definition in long double."""
    wide = np.longdouble
    scale = wide(1) if model.scale is None else model.scale.astype(wide)
    axes = model.components.astype(wide)
    t = axes @ ((x.astype(wide) - model.mean) / scale)
    back = (t @ axes) * scale + model.mean
    z = t / model.divisors if model.whiten else t
    return z @ axes if model.whiten == "zca" else z, back, ((x.astype(wide) - back) ** 2).sum()


def bounds(model, x, dtype):
    """Bounds on the errors of scores, reconstruction and squared distance of a row.

    The rounding of inputs to `dtype` counts: a float32 row of float32 results is x (1 + eps).
    """
    scale = 1.0 if model.scale is None else model.scale
    size = float(np.linalg.norm((x - model.mean) / scale))
    score = product_error(dtype, model.mean.size, size, 1.0)
    if model.whiten:
        score /= model.deviations.min()
    spread = float(np.max(scale))
    back = spread * product_error(dtype, model.mean.size + len(model.components), size, 1.0)
    back += np.finfo(dtype).eps * float(np.abs(model.mean).max())
    return score, back, 2 * back * spread * size * np.sqrt(model.mean.size)


@pytest.mark.parametrize("whiten", WHITEN)
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("components", ["f8", "f4"])
@pytest.mark.parametrize("features", [5, 64, 300, 513])
def test_a_row_is_what_the_definition_says(floating, components, whiten, scaled, features):
    model = model_of(features, 5, whiten=whiten, scaled=scaled, dtype=components)
    p = model.projector()
    for x in rows_near(model, 3, floating):
        z, back, error = expected(model, x)
        score_bound, back_bound, error_bound = bounds(model, x, floating)
        found = p(x)
        assert found.dtype == floating
        assert found.shape == (p.n_outputs,) == (model.n_outputs,)
        np.testing.assert_allclose(found, z.astype("f8"), rtol=0, atol=score_bound)
        back_found = p.inverse(found)
        assert back_found.dtype == floating
        if whiten == "zca" and components == "f4":  # turned back by axes orthonormal to float32
            back_bound = bounds(model, x, np.float32)[1]
        np.testing.assert_allclose(back_found, back.astype("f8"), rtol=0, atol=3 * back_bound)
        assert abs(p.error(x) - error) <= error_bound


@pytest.mark.parametrize("whiten", WHITEN)
def test_large_batches_are_the_models_to_the_bit(floating, whiten):
    model = model_of(40, 6, whiten=whiten, scaled=True, dtype=floating)
    p, X = model.projector(), rows_near(model, 300, floating)
    Z, out = p(X), np.empty((300, model.n_outputs), floating)
    np.testing.assert_array_equal(Z, model.transform(X))
    assert p.into(X, out) is out
    np.testing.assert_array_equal(out, Z)
    np.testing.assert_array_equal(p.error(X), model.reconstruction_error(X, per_row=True))
    np.testing.assert_array_equal(p.inverse(Z), model.inverse_transform(Z))


@pytest.mark.parametrize("whiten", WHITEN)
@pytest.mark.parametrize("rows", [1, 2, 17])
def test_small_batches_are_rows_one_after_the_other(floating, whiten, rows):
    model = model_of(40, 6, whiten=whiten, scaled=True, dtype=floating)
    p, X = model.projector(), rows_near(model, rows, floating)
    Z, out = p(X), np.empty((rows, model.n_outputs), floating)
    assert Z.dtype == floating
    assert p.into(X, out) is out
    np.testing.assert_array_equal(out, Z)
    np.testing.assert_array_equal(Z, [p(x) for x in X])
    np.testing.assert_array_equal(p.inverse(Z), [p.inverse(z) for z in Z])
    np.testing.assert_array_equal(p.error(X), [p.error(x) for x in X])
    score, back, distance = (max(bound) for bound in zip(*(
        bounds(model, x, floating) for x in X), strict=True))
    np.testing.assert_allclose(Z, model.transform(X), rtol=0, atol=2 * score)
    np.testing.assert_allclose(p.inverse(Z), model.inverse_transform(Z), rtol=0, atol=2 * back)
    np.testing.assert_allclose(p.error(X), model.reconstruction_error(X, per_row=True), rtol=0,
                               atol=2 * distance)
    X[rows - 1, 3] = np.nan
    for call in (p, p.error, lambda x: p.into(x, out)):
        with pytest.raises(ValueError, match=f"contains NaN at row {rows - 1}, column 3"):
            call(X)


@pytest.mark.parametrize("layout_of_batch", ["F", "strided", "reversed", "swapped", "unaligned"])
def test_small_batches_of_any_layout(stored, layout_of_batch, floating):
    model = model_of(40, 6, dtype=floating)
    X = rows_near(model, 9, floating)
    found = model.projector()(stored(X, layout_of_batch))
    np.testing.assert_array_equal(found, model.transform(X))


def test_an_empty_batch_is_refused_like_everywhere():
    with pytest.raises(ValueError, match="0 sample"):
        model_of(4, 2).projector()(np.empty((0, 4)))


@given(features=st.integers(1, 40), share=st.floats(0, 1), whiten=st.sampled_from(WHITEN),
       scaled=st.booleans(), step=st.sampled_from([-3, -1, 1, 2]), seed=st.integers(0, 99))
def test_any_shape_and_stride(features, share, whiten, scaled, step, seed):
    model = model_of(features, round(share * features), whiten=whiten, scaled=scaled, seed=seed)
    p, room = model.projector(), np.zeros(features * abs(step))
    x = room[::step]
    x[:] = rows_near(model, 1, seed=seed)[0]
    z, back, _ = expected(model, x)
    score, back_bound, _ = bounds(model, x, "f8") if len(model.components) else (0, 1e-30, 0)
    np.testing.assert_allclose(p(x), z.astype("f8"), rtol=0, atol=score)
    if len(model.components):
        np.testing.assert_allclose(p.inverse(p(x)), back.astype("f8"), rtol=0, atol=3 * back_bound)


def test_more_axes_than_fit_on_the_stack_and_long_rows():
    model = model_of(700, 500, whiten="pca")
    x = rows_near(model, 1)[0]
    np.testing.assert_allclose(model.projector()(x), expected(model, x)[0].astype("f8"), rtol=0,
                               atol=bounds(model, x, "f8")[0])


def test_float32_rows_far_from_zero_lose_nothing():
    model = model_of(4, 2, offset=1e5, dtype="f4")
    x = rows_near(model, 1, "f4")[0]
    found = model.projector()(x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected(model, x)[0].astype("f8"), rtol=0,
                               atol=bounds(model, x, "f4")[0])


def test_a_small_error_keeps_its_digits():
    model = model_of(30, 10)
    inside = model.mean + 1e4 * model.components[0]
    outside = inside + 1e-6 * np.linalg.svd(model.components)[2][-1]
    error = model.projector().error(outside)
    assert abs(error - expected(model, outside)[2]) <= 1e-3 * 1e-12


@pytest.mark.parametrize("whiten", ["pca", "zca"])
def test_axes_beyond_the_rank_count_in_the_error_only(whiten):
    model = model_of(6, 4, whiten=whiten, rank=2)
    p, x = model.projector(), rows_near(model, 1)[0]
    np.testing.assert_allclose(p(x), model.transform(x[None])[0], rtol=0,
                               atol=bounds(model, x, "f8")[0])
    if whiten == "pca":
        np.testing.assert_array_equal(p(x)[2:], 0)
    back = p.inverse(p(x))
    np.testing.assert_allclose((back - model.mean) @ model.components[2:].T, 0, atol=1e-14)
    np.testing.assert_allclose(p.error(x), model.reconstruction_error(x[None]), rtol=1e-12)


@pytest.mark.parametrize("given", [
    [1, 2, 3], (1.0, 2.0, 3.0), np.array([1, 2, 3], "u1"), np.array([1.0, 2, 3], "f2"),
    np.array([1.0, 2, 3], ">f8"), np.array([1, 2, 3], object),
    np.ma.masked_array([1.0, 2, 3], [False] * 3)])
def test_other_kinds_of_rows_are_converted(given):
    model = model_of(3, 2)
    p = model.projector()
    row = np.array([1.0, 2.0, 3.0])
    dtype = np.float32 if getattr(given, "dtype", None) == np.float16 else np.float64
    assert p(given).dtype == dtype
    np.testing.assert_array_equal(p(given), p(row.astype(dtype)))
    np.testing.assert_array_equal(p.error(given), p.error(row.astype(dtype)))


def test_read_only_unaligned_and_mapped_rows(stored, layout, floating):
    model = model_of(7, 3, dtype=floating)
    p, X = model.projector(), rows_near(model, 4, floating)
    kept = stored(X, layout)
    for x, row in zip(X, kept, strict=True):
        np.testing.assert_array_equal(p(row), p(x))
        np.testing.assert_array_equal(p.into(row, np.empty(3, floating)), p(x))
        assert p.error(row) == p.error(x)


@pytest.mark.parametrize(("given", "error", "words"), [
    (np.zeros(4), ValueError, "x has 4 entries, but this model takes rows of 5"),
    (np.zeros((2, 4)), ValueError, "X has 4 features, but this model takes rows of 5"),
    (3.0, ValueError, "Expected 2D array, got scalar"),
    (np.zeros((1, 2, 5)), ValueError, "dim 3"),
    (np.zeros(5, complex), ValueError, "Complex"),
    (["a"] * 5, TypeError, "dtype"),
    (np.zeros(5, "M8[s]"), TypeError, "dtype"),
    (np.ma.masked_array(np.zeros(5), [True] + [False] * 4), ValueError, "masked"),
    (np.array([0, np.nan, 0, 0, 0.0]), ValueError, "x contains NaN at row 0, column 1"),
    (np.array([0, 0, 0, 0, -np.inf]), ValueError, "x contains infinity at row 0, column 4"),
])
def test_unusable_rows_are_refused_in_words(given, error, words):
    p = model_of(5, 2).projector()
    for call in (p, p.error, lambda x: p.into(x, np.empty(2))):
        with pytest.raises(error, match=words):
            call(given)


def test_unusable_scores_are_refused_in_words():
    p = model_of(5, 2).projector()
    with pytest.raises(ValueError, match="z has 5 entries, but this model takes rows of 2"):
        p.inverse(np.zeros(5))
    with pytest.raises(ValueError, match="z contains NaN"):
        p.inverse(np.array([0.0, np.nan]))


@pytest.mark.parametrize("out", [
    np.empty(3), np.empty(2, "f4"), np.empty((1, 2)), np.empty(4)[::2], [0.0, 0.0],
    np.empty(2, ">f8"), np.empty((3, 2)), np.empty((2, 2), order="F")])
def test_unusable_outputs_are_refused_in_words(out):
    p, x = model_of(5, 2).projector(), np.zeros(5)
    for rows in (x, np.zeros((2, 5))):
        with pytest.raises(ValueError, match="out "):
            p.into(rows, out)
    frozen = np.empty(2)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="writeable"):
        p.into(x, frozen)


def test_it_is_frozen_and_copies_are_equal():
    model = model_of(9, 4, whiten="zca", scaled=True)
    p, x = model.projector(), rows_near(model, 1)[0]
    assert repr(p) == "Projector(9 -> 9, float64)"
    with pytest.raises(AttributeError):
        p.model = None
    with pytest.raises(AttributeError):
        p.extra = 1
    for twin in (pickle.loads(pickle.dumps(p)), copy.copy(p), copy.deepcopy(p)):
        np.testing.assert_array_equal(twin(x), p(x))
        assert twin.n_features == 9


def test_it_keeps_what_it_needs():
    p = model_of(50, 5).projector()
    x = np.ones(50)
    before = p(x)
    junk = [np.full(250, np.nan) for _ in range(100)]
    np.testing.assert_array_equal(p(x), before)
    del junk


def test_the_input_and_the_output_may_be_one():
    model = model_of(6, 6)
    p, x = model.projector(), rows_near(model, 1)[0]
    before = p(x)
    np.testing.assert_array_equal(p.into(x, x), before)


def test_scores_that_float32_does_not_hold_are_refused():
    p = LinearModel(np.zeros(2), np.array([[0.8, 0.6]], "f4"), np.ones(1)).projector()
    x = np.full(2, 3e38, "f4")
    for rows, call in ((x, p), (x[None], p), (x, lambda x: p.into(x, np.empty(1, "f4")))):
        with pytest.raises(ValueError, match="X has row 0, whose result leaves the range of f"):
            call(rows)
    np.testing.assert_allclose(p.error(x), p.model.reconstruction_error(x[None]), rtol=1e-5)


@pytest.mark.parametrize(("call", "whiten", "scale"), [
    ("inverse", False, [1e10, 1.0]), ("inverse", "pca", [1e10, 1.0]),
    ("inverse", "zca", [1e10, 1.0]), ("__call__", "zca", None)])
def test_results_beyond_the_range_are_refused(floating, call, whiten, scale):
    axes, largest = np.array([[0.6, 0.8], [0.8, -0.6]], floating), np.finfo(floating).max
    p = LinearModel(np.zeros(2), axes, [0.25, 0.25], scale=scale, whiten=whiten).projector()
    x = np.array([0.63 * largest, 0.09 * largest], floating)  # scores of "zca" are 0.9 * largest
    for rows in (x, x[::-1][::-1], x[None], np.tile(x, (3, 1))):
        with pytest.raises(ValueError, match="has row 0, whose result leaves the range of f"):
            getattr(p, call)(rows)


def test_rows_that_overflow_on_the_way_back_are_put_together():
    p = LinearModel([1.0, 2.0], np.array([[0.6, 0.8], [0.8, -0.6]], "f4"), np.ones(2),
                    scale=[1e-38, 1e-38]).projector()
    z = np.full(2, 3e38, "f4")  # of rows (1.4, 0.2) 3e38, beyond float32 before they are scaled
    np.testing.assert_allclose(p.inverse(z), [1 + 4.2, 2 + 0.6], rtol=1e-6)


def test_rows_that_overflow_on_the_way_are_scored():
    p = LinearModel([-3e38, 3e38], np.array([[0.8, 0.6]], "f4"), np.ones(1)).projector()
    x = np.array([3e38, -3e38], "f4")
    np.testing.assert_allclose(p(x), [1.2e38], rtol=1e-5)


@pytest.mark.parametrize("whiten", WHITEN)
def test_a_model_without_axes_is_the_mean_and_refuses_nan(rng, floating, whiten):
    X = rng.standard_normal((20, 3)).astype(floating)
    pca = fastdr.PCA(0, whiten=whiten).fit(X)
    p, Z = pca.projector(), pca.transform(X)
    assert Z.shape == (20, 3 if whiten == "zca" else 0)
    assert not Z.any()
    for found in (pca.inverse_transform(Z), p.inverse(Z)):
        assert found.dtype == floating
        np.testing.assert_array_equal(found, np.tile(pca.mean_.astype(floating), (20, 1)))
    np.testing.assert_array_equal(p(X[0]), Z[0])
    np.testing.assert_array_equal(p.inverse(Z[0]), pca.mean_.astype(floating))
    assert p.error(X[0]) == pca.reconstruction_error(X[:1])
    X[1, 2] = np.nan
    for call in (p, p.error):
        with pytest.raises(ValueError, match="x contains NaN at row 0, column 2"):
            call(X[1])


@pytest.mark.parametrize(("part", "words"), [
    *((part, "out shares memory with an operand") for part in ("mean", "components", "scale")),
    ("divisors", "out must be .* writeable")])
def test_an_output_that_is_part_of_the_model_is_refused(part, words):
    parts = {"mean": np.ones(3), "components": np.eye(3), "scale": np.full(3, 2.0)}
    model = LinearModel(**parts, variances=np.ones(3), whiten="zca")
    out = parts.get(part, model.divisors).ravel()[:3]
    with pytest.raises(ValueError, match=words):
        model.projector().into(np.zeros(3), out)


def test_an_output_that_is_part_of_a_batch_is_refused():
    batch = np.zeros((4, 3))
    with pytest.raises(ValueError, match="out shares memory with an operand"):
        model_of(3, 3).projector().into(batch[:2], batch[1:3])


def test_into_allocates_nothing():
    p = model_of(64, 8).projector()
    x, out = np.ones(64), np.empty(8)
    p.into(x, out)

    def peak(call):
        tracemalloc.start()
        try:
            for _ in range(1000):
                call(x, out)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(p.into) <= peak(np.shares_memory)


def test_from_an_estimator(digits):
    pca = fastdr.PCA(8, whiten=True).fit(digits)
    np.testing.assert_allclose(pca.projector()(digits[3]), pca.transform(digits[3:4])[0],
                               rtol=0, atol=bounds(pca.model_, digits[3], "f8")[0])
    with pytest.raises(ValueError, match="not fitted"):
        fastdr.PCA().projector()
