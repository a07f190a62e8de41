"""Project, reconstruct, row errors, Gram and Gram-apply against their long-double twins."""

import numpy as np
import pytest
import reference
from scipy import sparse
from tolerance import PANEL, arithmetic, product_error, rounding

import fastdr
from fastdr.operators import (
    gram,
    gram_apply,
    multiply_symmetric,
    project,
    reconstruct,
    reconstruction_error,
)

SHAPES = [(1, 1, 1), (2, 3, 2), (7, 5, 5), (65, 8, 3), (130, 17, 9), (255, 64, 10), (33, 129, 16)]


def axes(rng, k, features):
    """Return k orthonormal rows."""
    basis, _ = np.linalg.qr(rng.standard_normal((features, k)))
    return np.ascontiguousarray(basis.T)


def problem(rng, shape, dtype="f8", offset=0.0):
    rows, features, k = shape
    X = (rng.standard_normal((rows, features)) * 3 + offset).astype(dtype)
    return X, axes(rng, k, features), np.full(features, offset) + rng.standard_normal(features)


def bound(X, mean, scale=None, dtype=None):
    """Rounding of one row times one unit factor, worst row."""
    size = float(np.linalg.norm(reference.centred(X, mean, scale).astype(float), axis=1).max())
    return product_error(arithmetic(X.dtype if dtype is None else dtype), X.shape[1], size, 1.0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scaled", [False, True])
def test_project_equals_the_formula(rng, shape, scaled, floating):
    X, V, mean = problem(rng, shape, floating)
    V = V.astype(floating)
    scale = rng.uniform(0.5, 4, shape[1]) if scaled else None
    Z = project(X, V, mean, scale)
    assert Z.dtype == floating
    assert Z.shape == (shape[0], shape[2])
    error = np.abs(Z - reference.project(X, V, mean, scale)).max()
    assert error <= bound(X, mean, scale)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scaled", [False, True])
def test_reconstruct_equals_the_formula(rng, shape, scaled, floating):
    rows, features, k = shape
    Z = rng.standard_normal((rows, k)).astype(floating)
    V, mean = axes(rng, k, features).astype(floating), rng.standard_normal(features) * 10
    scale = rng.uniform(0.5, 4, features) if scaled else None
    X = reconstruct(Z, V, mean, scale)
    assert X.dtype == floating
    size = 4 * np.linalg.norm(Z, axis=1).max() + np.abs(mean).max()
    error = np.abs(X - reference.reconstruct(Z, V, mean, scale)).max()
    assert error <= product_error(floating, k, size, 1.0)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scaled", [False, True])
def test_row_errors_equal_the_formula(rng, shape, scaled, floating):
    X, V, mean = problem(rng, shape, floating)
    scale = rng.uniform(0.5, 4, shape[1]) if scaled else None
    found = reconstruction_error(X, V, mean, scale)
    assert found.dtype == np.float64
    assert (found >= 0).all()
    true = reference.row_errors(X, V, mean, scale)
    stretch = 1.0 if scale is None else scale.max() / scale.min()
    slip = bound(X, mean) * stretch  # error of one residual entry, of features entries
    size = np.sqrt(np.asarray(true, float))
    allowed = 2 * size * slip * np.sqrt(shape[1]) + shape[1] * slip**2
    assert (np.abs(found - true) <= allowed + rounding(floating, 2, size**2)).all()


def test_row_error_of_a_row_in_the_subspace_is_rounding_not_cancellation(rng):
    V = axes(rng, 3, 40)
    X = (rng.standard_normal((50, 3)) * 1e6) @ V
    # ||x||^2 - ||z||^2 would leave eps ||x||^2 = 1e-3; the residual itself leaves (eps ||x||)^2
    assert reconstruction_error(X, V).max() <= 40 * rounding("f8", np.sqrt(40), 1e7) ** 2


def test_every_dtype_and_layout(rng, dtype, layout, stored):
    top = 2 if dtype.kind == "b" else 101
    X = stored(rng.integers(0, top, (133, 21)).astype(dtype), layout)
    V, mean = axes(rng, 5, 21), rng.uniform(0, 50, 21)
    result = arithmetic(dtype)
    stored_axes = V.astype(result)
    Z = project(X, V, mean)
    assert Z.dtype == result
    slip = bound(X, mean)
    assert np.abs(Z - reference.project(X, stored_axes, mean)).max() <= slip
    errors = reconstruction_error(X, V, mean)
    true = np.asarray(reference.row_errors(X, V, mean), float)
    assert (np.abs(errors - true) <= 2 * np.sqrt(true) * slip * np.sqrt(21) + 21 * slip**2).all()


def test_layouts_agree_to_the_last_bit(rng, floating, layout, stored):
    X = (rng.standard_normal((300, 33)) + 5).astype(floating)
    V, mean = axes(rng, 7, 33), X.mean(axis=0, dtype=float)
    same = stored(X, layout)
    np.testing.assert_array_equal(project(same, V, mean), project(X, V, mean))
    np.testing.assert_array_equal(reconstruction_error(same, V, mean),
                                  reconstruction_error(X, V, mean))


@pytest.mark.parametrize("offset", [1e3, 1e5])
def test_far_from_zero_the_difference_is_taken_first(rng, offset):
    X, V, mean = problem(rng, (400, 12, 4), "f4", offset)
    assert np.abs(project(X, V, mean) - reference.project(X, V.astype("f4"), mean)).max() <= (
        bound(X, mean) + rounding("f4", 1, 20, safety=2))


@pytest.mark.parametrize("shape", [(5, 9), (20, 500), (64, 70), (130, 257)])
@pytest.mark.parametrize(("kind", "single"), [("f8", False), ("f4", False), ("f4", True)])
def test_gram_equals_the_formula_and_is_symmetric(rng, shape, kind, single):
    X = (rng.standard_normal(shape) + 100).astype(kind)
    mean, scale = X.mean(axis=0, dtype=float), rng.uniform(0.5, 4, shape[1])
    for given in (None, scale):
        G = gram(X, mean, given, single=single)
        assert G.dtype == np.float64
        np.testing.assert_array_equal(G, G.T)
        true = np.asarray(reference.gram(X, mean, given), float)
        size = np.sqrt(np.diagonal(true))
        relative = product_error("f4" if single else "f8", min(shape[1], PANEL), 1.0, 1.0)
        assert (np.abs(G - true) <= relative * np.outer(size, size)).all()


@pytest.mark.parametrize("shape", [(1, 3), (50, 9), (300, 64), (257, 130)])
@pytest.mark.parametrize("columns", [1, 3, 8, 16, 20])
def test_gram_apply_equals_the_formula(rng, shape, columns, floating):
    X = (rng.standard_normal(shape) + 100).astype(floating)
    V, mean = rng.standard_normal((shape[1], columns)), X.mean(axis=0, dtype=float)
    scale = rng.uniform(0.5, 2, shape[1])
    Y = gram_apply(X, V, mean, scale)
    true = np.asarray(reference.gram_apply(X, V, mean, scale), float)
    A = np.asarray(reference.centred(X, mean, scale), float)
    size = np.linalg.norm(A, 2) ** 2 * np.linalg.norm(V, axis=0).max()
    assert np.abs(Y - true).max() <= rounding(floating, np.sqrt(shape[1]) + 2, size, safety=4)


@pytest.mark.parametrize("far", [0.0, 1.0, 1e3])
def test_means_that_come_off_apart_cost_digits_as_they_are_far(rng, floating, far):
    X = (rng.standard_normal((700, 37)) + far).astype(floating)
    V, mean = rng.standard_normal((37, 9)).astype(floating), X.mean(axis=0, dtype=float)
    true = np.asarray(reference.gram_apply(X, V, mean), float)
    A = np.asarray(reference.centred(X, mean), float)
    size = np.linalg.norm(A, 2) * np.linalg.norm(V, axis=0).max()
    lost = np.sqrt(len(X)) * np.linalg.norm(mean) / np.linalg.norm(A, 2)
    off = np.abs(gram_apply(X, V, mean, apart=True) - true).max()
    assert off <= rounding(floating, np.sqrt(37) + 2, size * np.linalg.norm(A, 2), 4) * (1 + lost)


@pytest.mark.parametrize("order", [1, 5, 47, 48, 49, 300, 701])
@pytest.mark.parametrize("columns", [1, 8, 19])
def test_multiply_symmetric_reads_little_below_the_diagonal(rng, floating, order, columns):
    C = rng.standard_normal((order, order)).astype(floating)
    C += C.T
    V = rng.standard_normal((order, columns)).astype(floating)
    true = C.astype(np.longdouble) @ V
    size = np.linalg.norm(C.astype(float), 2) * np.linalg.norm(V, axis=0).max()
    C[np.tril_indices(order, -100)] = np.nan  # where no square on the diagonal reaches
    off = np.abs(multiply_symmetric(C, V) - true).max()
    assert off <= rounding(floating, np.sqrt(order) + 2, size, safety=4)


def test_multiply_symmetric_layouts_and_threads(rng, layout, stored):
    C = rng.standard_normal((1801, 1801))  # three parts, an odd number of rows
    C += C.T
    V = rng.standard_normal((1801, 11))
    one = multiply_symmetric(C, V)
    given = stored(C, layout)
    given = given if given.dtype.isnative else given.astype(float)  # as eigsh does
    for threads in (1, 2, 3, 8):
        with fastdr.num_threads(threads):
            np.testing.assert_array_equal(multiply_symmetric(given, V), one)
    assert multiply_symmetric(given, V[:, :0]).shape == (1801, 0)


def test_gram_apply_layouts(rng, layout, stored):
    X = rng.standard_normal((90, 14))
    V = rng.standard_normal((14, 8))
    np.testing.assert_array_equal(gram_apply(stored(X, layout), V), gram_apply(X, V))


@pytest.mark.parametrize("function", [project, reconstruction_error])
def test_out_is_filled_and_returned(rng, function, floating):
    X, V, mean = problem(rng, (70, 12, 3), floating)
    expected = function(X, V, mean)
    out = np.full_like(expected, np.nan)
    assert function(X, V, mean, out=out) is out
    np.testing.assert_array_equal(out, expected)


def test_reconstruct_fills_out(rng, floating):
    Z, V = rng.standard_normal((70, 3)).astype(floating), axes(rng, 3, 12)
    expected = reconstruct(Z, V, np.ones(12))
    out = np.full_like(expected, np.nan)
    assert reconstruct(Z, V, np.ones(12), out=out) is out
    np.testing.assert_array_equal(out, expected)


def test_equal_rows_get_equal_scores_wherever_they_stand(rng, floating):
    for features in (3, 8, 17, 64):
        for k in (1, 4, 9, 17):
            row = rng.standard_normal((1, features)).astype(floating)
            X = np.repeat(row, 301, axis=0)
            V = rng.standard_normal((k, features))
            Z = project(X, V, np.ones(features))
            assert (Z == Z[0]).all(), (features, k)
            errors = reconstruction_error(X, V[:1] / np.linalg.norm(V[0]), np.ones(features))
            assert (errors == errors[0]).all(), (features, k)


def test_a_row_alone_scores_as_it_does_among_others(rng, floating):
    X, V, mean = problem(rng, (200, 31, 6), floating)
    Z = project(X, V, mean)
    for row in (0, 1, 63, 64, 199):
        np.testing.assert_array_equal(project(X[row:row + 1], V, mean)[0], Z[row])


def test_components_may_be_any_layout_and_dtype(rng):
    X, V, mean = problem(rng, (40, 10, 4))
    expected = project(X, V, mean)
    np.testing.assert_array_equal(project(X, np.asfortranarray(V), mean), expected)
    np.testing.assert_array_equal(project(X, V[::-1].copy()[::-1], mean), expected)
    np.testing.assert_array_equal(project(X.tolist(), V.tolist(), mean.tolist()), expected)
    frozen = V.copy()
    frozen.setflags(write=False)
    np.testing.assert_array_equal(project(X, frozen, mean), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [(0, 0), (0, 16), (199, 0), (199, 16), (100, 8), (196, 15)])
def test_a_value_that_is_not_finite_is_found(rng, bad, where, floating):
    X, V, mean = problem(rng, (200, 17, 3), floating)
    X[where] = bad
    word = "NaN" if np.isnan(bad) else "infinity"
    for function in (project, reconstruction_error):
        with pytest.raises(ValueError, match=rf"X contains {word} at row {where[0]}, "
                                             rf"column {where[1]}\b"):
            function(X, V, mean)
    with pytest.raises(ValueError, match=rf"contains {word} at row {where[0]}"):
        gram_apply(X, np.ones((17, 2)), mean)


def test_reconstruct_finds_values_that_are_not_finite(rng):
    Z = rng.standard_normal((9, 2))
    Z[4, 1] = np.nan
    with pytest.raises(ValueError, match="Z contains NaN at row 4, column 1"):
        reconstruct(Z, axes(rng, 2, 5))


def test_rows_are_refused_if_they_are_not_finite_though_nothing_is_asked_of_them():
    for rows in ([[0.0, np.nan]], [[0.0, np.inf]]):
        with pytest.raises(ValueError, match="X contains (NaN|infinity) at row 0, column 1"):
            project(rows, np.zeros((0, 2)))


@pytest.mark.parametrize(("given", "expected"), [
    ((np.array([[3e38, -3e38]], "f4"), [[1.0, 1.0]], [-3e38, 3e38]), 0.0),
    ((np.array([[3e38, 3e38]], "f4"), [[0.5, 0.25]], [-3e38, 3e38]), 3e38),
    (([[1.7e308, -1.7e308]], [[1.0, 1.0]], [-1.7e308, 1.7e308]), 0.0),
    (([[0.0, 1e-310]], [[1.0, 0.0]], None, [1e-310, 1e-310]), 0.0),
    (([[0.0, 1e-310]], [[0.0, 1.0]], None, [1e-310, 1e-310]), 1.0),
    ((np.array([[0.0, 1e-40]], "f4"), [[0.0, 3.0]], None, [1e-40, 1e-40]), 3.0),
])
def test_scores_in_range_do_not_overflow_on_the_way(given, expected):
    for rows in (given[0], sparse.csr_array(given[0])):
        found = project(rows, *given[1:])
        np.testing.assert_allclose(found, [[expected]], rtol=1e-5)
        assert found.dtype == np.asarray(given[0]).dtype


@pytest.mark.parametrize(("given", "expected"), [
    ((np.array([[3e38, 3e38]], "f4"), [[1.0], [-1.0]]), 0.0),
    ((np.array([[1e-30]], "f4"), [[1.0]], None, [1e60]), 1e30),
    (([[1.7e308]], [[1.0]], [-1.7e308], [1.9]), 1.53e308),
])
def test_rows_in_range_do_not_overflow_on_the_way(given, expected):
    np.testing.assert_allclose(reconstruct(*given), [[expected]], rtol=1e-5)


@pytest.mark.parametrize("call", [
    lambda: project([[1.0, 0], [1.5e308, 1.5e308]], [[0.8, 0.8]]),
    lambda: project(np.array([[1, 0], [3e38, 3e38]], "f4"), [[0.8, 0.8]]),
    lambda: project(sparse.csr_array([[1.0, 0], [1.5e308, 1.5e308]]), [[0.8, 0.8]]),
    lambda: reconstruct(np.array([[1], [3e38]], "f4"), [[2.0]]),
    lambda: reconstruct(np.array([[1], [3e38]], "f4"), [[1.0]], [3e38]),
])
def test_results_out_of_range_are_refused(call):
    with pytest.raises(ValueError, match="(X|Z) has row [01], whose result leaves the range of "
                                         "float.*are allowed. Scale the rows"):
        call()


def test_a_row_that_is_done_again_leaves_the_others_as_they_are(rng):
    X, V, mean = problem(rng, (200, 31, 6), "f4")
    X[70, :3], V[:, :3], others = 3e38, [1, 1, -1], np.arange(200) != 70
    np.testing.assert_array_equal(project(X, V, mean)[others], project(X[others], V, mean))
    errors = reconstruction_error(X, V, mean)
    assert errors[70] > 1e74
    np.testing.assert_array_equal(errors[others], reconstruction_error(X[others], V, mean))


@pytest.mark.parametrize("power", [-45, -38, -30, -20, -15, 0, 15, 19, 25, 37])
@pytest.mark.parametrize("centred", [False, True])
def test_errors_of_float32_rows_have_the_range_of_float64(rng, power, centred):
    X, V, _ = problem(rng, (50, 7, 2), "f4")
    X = (X * 10.0**power).astype("f4")
    mean = np.full(7, 0.5 * 10.0**power) if centred else None
    true = reference.row_errors(X, V, mean, None)
    np.testing.assert_allclose(reconstruction_error(X, V, mean), true.astype("f8"), rtol=1e-5)


def test_errors_of_zero_and_of_huge_rows(rng):
    V = axes(rng, 2, 5)
    np.testing.assert_array_equal(reconstruction_error(np.zeros((3, 5), "f4"), V), 0)
    np.testing.assert_array_equal(reconstruction_error(np.ones((3, 5), "f4"), V, np.ones(5)), 0)
    assert reconstruction_error([[1e200, 0.0]], [[0.0, 1.0]])[0] == np.inf
    assert reconstruction_error([[1.5e308, 1.5e308]], [[1.0, 0.0]])[0] == np.inf
    assert reconstruction_error([[1.7e308, 0.0]], [[1.0, 0.0]])[0] == 0
    assert reconstruction_error([[1.7e308, 0]], [[1.0, 0]], [-1.7e308, 0])[0] == 0


def test_no_input_is_modified(rng, floating):
    X, V, mean = problem(rng, (60, 11, 4), floating)
    scale = rng.uniform(1, 2, 11)
    kept = [a.copy() for a in (X, V, mean, scale)]
    Z = project(X, V, mean, scale)
    saved = Z.copy()
    reconstruct(Z, V, mean, scale)
    reconstruction_error(X, V, mean, scale)
    gram(X, mean, scale)
    gram_apply(X, V.T.copy(), mean, scale)
    for now, before in zip((X, V, mean, scale, Z), [*kept, saved], strict=True):
        np.testing.assert_array_equal(now, before)
