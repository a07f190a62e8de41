"""Subspaces: the worked examples, projections on any basis, complements, angles, degeneracy."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tolerance import assert_orthonormal, rounding

import fastdr

EPS = np.finfo(float).eps
shapes = st.tuples(st.integers(1, 12), st.integers(0, 12), st.integers(0, 1000))


def made(shape):
    """A random subspace of R^n with at most n columns, and its basis."""
    features, columns, seed = shape
    basis = np.random.default_rng(seed).standard_normal((features, min(columns, features)))
    return fastdr.Subspace(basis), basis


def condition(basis):
    return np.linalg.cond(basis) if basis.size else 1.0


def test_example_1_8_projection_on_a_line():
    line = fastdr.Subspace([1, 2, 2])
    np.testing.assert_allclose(line.project([1, 1, 1]), np.array([5, 10, 10]) / 9,
                               atol=rounding(float, 3, 1.0))
    np.testing.assert_allclose(line.coordinates([1, 1, 1]), [5 / 9], atol=rounding(float, 3, 1.0))
    np.testing.assert_allclose(line.projector(), np.outer([1, 2, 2], [1, 2, 2]) / 9,
                               atol=rounding(float, 3, 1.0))


def test_example_1_9_coordinates_and_projection():
    plane = fastdr.Subspace([[1, 0], [1, 1], [1, 2]])
    bound = rounding(float, 3, 6.0 * condition(plane.basis))
    np.testing.assert_allclose(plane.coordinates([6, 0, 0]), [5, -3], atol=bound)
    np.testing.assert_allclose(plane.project([6, 0, 0]), [5, 2, -1], atol=bound)
    np.testing.assert_allclose(plane.distance([6, 0, 0]), math.sqrt(6), atol=bound)
    inside, outside = plane.decompose([6, 0, 0])
    np.testing.assert_allclose(inside + outside, [6, 0, 0], atol=bound)
    np.testing.assert_allclose(outside, [1, -2, 1], atol=bound)


@given(shape=shapes)
def test_a_point_is_the_sum_of_two_orthogonal_parts(shape):
    space, basis = made(shape)
    rng = np.random.default_rng(shape[2] + 1)
    X = rng.standard_normal((5, shape[0])) * 10.0 ** rng.integers(-8, 8, (5, 1))
    size = np.linalg.norm(X, axis=1, keepdims=True)
    inside, outside = space.decompose(X)
    bound = rounding(float, shape[0], size)
    assert (np.abs(inside + outside - X) <= bound).all()
    assert (np.abs(inside @ outside.T).diagonal() <= (bound * size)[:, 0]).all()
    assert (np.abs(outside @ space.orthonormal) <= rounding(
        float, shape[0], np.linalg.norm(outside, axis=1, keepdims=True) + EPS * size)).all()
    np.testing.assert_allclose(space.distance(X), np.linalg.norm(outside, axis=1),
                               rtol=rounding(float, 2, 1.0))
    assert (np.abs(space.project(X) - inside) <= bound).all()
    assert (np.abs(space.project(inside) - inside) <= bound).all()  # P² = P
    if basis.size:
        back = space.coordinates(X) @ basis.T
        assert (np.abs(back - inside) <= bound * condition(basis)).all()
        least = np.linalg.lstsq(basis, X.T)[0].T
        assert (np.abs(space.coordinates(X) - least) * np.linalg.norm(basis, 2)
                <= bound * condition(basis) ** 2).all()


@given(shape=shapes)
def test_the_complement_completes_the_space_and_returns(shape):
    space, _ = made(shape)
    other = space.complement()
    assert space.dimension + other.dimension == shape[0]
    whole = np.concatenate([space.orthonormal, other.orthonormal], axis=1)
    assert_orthonormal(whole.T)
    again = other.complement()
    assert again.dimension == space.dimension
    assert space.angles(again).max(initial=0.0) <= rounding(float, shape[0], 1.0)
    np.testing.assert_allclose(space.projector() + other.projector(), np.eye(shape[0]),
                               atol=rounding(float, shape[0], 1.0))
    assert space.angles(other).min(initial=2.0) >= math.pi / 2 - rounding(float, shape[0], 1.0)


@given(first=shapes, second=shapes, shared=st.integers(0, 5))
def test_dimensions_of_union_and_intersection_add_up(first, second, shared):
    features = first[0]
    rng = np.random.default_rng([first[2], second[2]])
    common = rng.standard_normal((features, shared))

    def space(columns):
        own = rng.standard_normal((features, columns))
        mixed = np.concatenate([common, own], axis=1)[:, :features]
        return fastdr.Subspace(mixed @ np.linalg.qr(rng.standard_normal((mixed.shape[1],) * 2))[0])

    one, other = space(first[1]), space(second[1])
    union, both = one.union(other), one.intersection(other)
    assert union.dimension + both.dimension == one.dimension + other.dimension
    assert union.dimension == min(features, one.dimension + other.dimension - min(
        shared, one.dimension, other.dimension))
    assert_orthonormal(union.orthonormal.T)
    for part in (one, other):
        allowed = union.angle_error * 8 + rounding(float, features, 1.0)
        assert part.angles(union).max(initial=0.0) <= allowed
        assert both.angles(part).max(initial=0.0) <= allowed


@pytest.mark.parametrize("angles", [
    [0.0], [1e-12], [1e-9, math.pi / 2], [0.0, 1e-15, 1e-8, 1e-4, 0.5, math.pi / 4, 1.5],
    [math.pi / 2 - 1e-12], [1e-300], [math.pi / 2] * 3])
def test_small_and_large_angles_together(rng, angles):
    k = len(angles)
    turn = np.linalg.qr(rng.standard_normal((2 * k + 1,) * 2))[0]
    first = np.eye(2 * k + 1)[:, :k]
    second = np.zeros((2 * k + 1, k))
    second[range(k), range(k)] = np.cos(angles)
    second[range(k, 2 * k), range(k)] = np.sin(angles)
    mix = rng.standard_normal((k, k)) + 3 * np.eye(k)
    plain = fastdr.Subspace(first).angles(fastdr.Subspace(second))
    np.testing.assert_allclose(plain, angles, rtol=4 * EPS, atol=EPS**2)
    bound = rounding(float, 2 * k + 1, condition(mix))
    turned = fastdr.Subspace(turn @ first @ mix), fastdr.Subspace(turn @ second)
    np.testing.assert_allclose(turned[0].angles(turned[1]), angles, rtol=0, atol=bound)
    np.testing.assert_allclose(turned[1].angles(turned[0]), angles, rtol=0, atol=bound)


def test_angles_of_different_dimensions():
    plane, line = fastdr.Subspace(np.eye(4)[:, :2]), fastdr.Subspace([1, 0, 1, 0])
    for angles in (plane.angles(line), line.angles(plane)):
        np.testing.assert_allclose(angles, [math.pi / 4], rtol=4 * EPS)
    assert plane.angles(fastdr.Subspace(np.zeros((4, 0)))).shape == (0,)


def test_a_nearly_common_direction_counts_if_the_tolerance_says_so():
    plane = fastdr.Subspace(np.eye(3)[:, :2])
    tilted = fastdr.Subspace([[1, 0], [0, 0], [1e-6, 1]])
    assert (plane.union(tilted).dimension, plane.intersection(tilted).dimension) == (3, 1)
    line = fastdr.Subspace([1, 0, 1e-6])
    assert plane.intersection(line).dimension == 0
    assert plane.union(line).dimension == 3
    assert plane.intersection(line, tolerance=1e-5).dimension == 1
    assert plane.union(line, tolerance=1e-5).dimension == 2
    assert fastdr.Subspace(np.eye(3)).union(line, tolerance=0).dimension == 3
    with pytest.raises(ValueError, match=r"tolerance=2 must be an angle"):
        plane.union(line, tolerance=2)


def test_dependent_columns_are_said_and_handled(rng):
    independent = rng.standard_normal((6, 3))
    basis = independent @ rng.standard_normal((3, 5))
    with pytest.warns(fastdr.AccuracyWarning, match="5 columns span only 3 dimension") as caught:
        space = fastdr.Subspace(basis)
    assert caught[0].filename == __file__
    assert (space.dimension, space.deficient) == (3, True)
    assert space.angles(fastdr.Subspace(independent)).max() <= 4 * space.angle_error
    X = rng.standard_normal((4, 6))
    values = np.linalg.svd(basis, compute_uv=False)
    bound = rounding(float, 6, 4.0) * (values[0] / values[2]) ** 2 / values[0]
    np.testing.assert_allclose(space.coordinates(X), X @ np.linalg.pinv(basis).T, atol=bound)
    with pytest.warns(fastdr.AccuracyWarning, match="2 columns span only 0"):
        nothing = fastdr.Subspace(np.zeros((3, 2)))
    np.testing.assert_array_equal(nothing.coordinates([1, 2, 3]), [0, 0])
    assert nothing.complement().dimension == 3


def test_units_of_the_columns_do_not_matter(rng):
    basis = rng.standard_normal((5, 3))
    X = rng.standard_normal((4, 5))
    plain = fastdr.Subspace(basis)
    for scale in ([1e-200, 1.0, 1e200], [2.0**-1060, 1.0, 2.0**1000]):
        scaled = fastdr.Subspace(basis * scale)
        assert not scaled.deficient
        assert plain.angles(scaled).max() <= rounding(float, 5, condition(basis)) + (
            2.0**-14 if min(scale) < 1e-300 else 0)  # a subnormal keeps 14 bits
        if min(scale) > 1e-300:
            np.testing.assert_allclose(scaled.coordinates(X) * scale, plain.coordinates(X),
                                       atol=rounding(float, 5, 4 * condition(basis) ** 2))


def test_ill_conditioned_bases_lose_what_qr_loses_not_what_normal_equations_lose():
    e = 1e-7  # BᵀB has condition 4e14
    basis = np.array([[1, 1], [e, 0], [0, e]])
    X = basis @ [3.0, -2.0]
    found = fastdr.Subspace(basis).coordinates(X)
    np.testing.assert_allclose(found, [3, -2], atol=rounding(float, 3, 4 * condition(basis)))


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i4", "u1", "?"])
def test_dtypes_of_points_and_bases(rng, dtype, stored):
    X = (rng.standard_normal((30, 6)) * 3 + 4).clip(0, 9).astype(dtype)
    basis = rng.standard_normal((6, 2))
    space = fastdr.Subspace(basis)
    expected = "f4" if dtype in {"f4", "f2"} else "f8"
    size = np.abs(X.astype(float)).max() * 6
    for layout in ("C", "F", "strided", "readonly"):
        values = stored(X, layout)
        for result in (space.project(values), space.coordinates(values), *space.decompose(values)):
            assert result.dtype == expected
        exact = X.astype(float) @ space.projector()
        np.testing.assert_allclose(space.project(values), exact,
                                   atol=rounding(expected, 6, size))
        assert space.distance(values).dtype == np.float64
    np.testing.assert_array_equal(values, X)
    small = fastdr.Subspace(basis.astype("f4"))
    assert small.basis.dtype == "f4"
    assert space.angles(small).max() <= small.angle_error * 2
    assert small.intersection(space).dimension == 2  # within float32 rounding of the basis
    assert space.basis.flags.writeable is False is space.orthonormal.flags.writeable


def test_one_point_is_a_batch_of_one(rng):
    space = fastdr.Subspace(rng.standard_normal((6, 2)))
    X = rng.standard_normal((3, 6))
    for name in ("project", "coordinates", "distance"):
        method = getattr(space, name)
        np.testing.assert_array_equal(np.asarray(method(X[0])), method(X[:1])[0])
    assert isinstance(space.distance(X[0]), float)


def test_results_outside_of_the_range_are_refused(floating):
    plane = fastdr.Subspace(np.array([[1, 0], [1, 1], [1, 2]], floating))
    largest = np.finfo(floating).max
    for point in ([largest, -largest, largest], [largest, largest, -largest]):
        point = np.array(point, floating)
        for part in (plane.decompose, plane.distance):
            with pytest.raises(ValueError, match=f"leaves the range of {floating}"):
                part(point)
    thin = fastdr.Subspace(np.array([[1e-30], [1e-30]], floating))
    with pytest.raises(ValueError, match=f"leaves the range of {floating}"):
        thin.coordinates(np.full(2, largest / 8))


def test_distances_of_huge_and_close_points():
    plane = fastdr.Subspace(np.eye(3)[:, :2])
    assert plane.distance([1e200, 0, 3e200]) == 3e200
    assert plane.distance([1e8, 1e8, 1e-9]) == pytest.approx(1e-9, rel=4 * EPS)


@pytest.mark.parametrize(("basis", "words"), [
    ([[1, np.nan]], "basis contains NaN at row 0, column 1"), (np.zeros((2, 2, 2)), "dim 3"),
    (3.0, "got scalar"), ([["a"]], "not numbers|dtype"), (np.zeros((0, 2)), "0 sample"),
    ([1j, 2], "Complex")])
def test_useless_bases_are_refused(basis, words):
    with pytest.raises((ValueError, TypeError), match=words):
        fastdr.Subspace(basis)


def test_useless_points_and_partners_are_refused():
    plane = fastdr.Subspace(np.eye(3)[:, :2])
    for X in ([1, 2], [[1, 2]], np.zeros((2, 4))):
        with pytest.raises(ValueError, match=r"the subspace lies in R\^3"):
            plane.project(X)
    for space in (plane, fastdr.Subspace(np.zeros((3, 0)))):
        for method in (space.project, space.coordinates, space.distance, space.decompose):
            with pytest.raises(ValueError, match="NaN at row 1, column 2"):
                method([[1, 2, 3], [1, 2, np.nan]])
    with pytest.raises(ValueError, match=r"lie in R\^3 and R\^2"):
        plane.angles(fastdr.Subspace([1, 1]))
    with pytest.raises(ValueError, match="angle_error=-1 must be an angle"):
        fastdr.Subspace([1, 2, 3], angle_error=-1)
    with pytest.raises(TypeError, match="other is list; expected a Subspace"):
        plane.union([1, 2, 3])
    with pytest.raises(ValueError, match="at most 32768 features"):
        fastdr.Subspace(np.ones(40000)).projector()


def test_the_axes_of_a_fit_are_a_subspace(iris):
    pca = fastdr.PCA(2).fit(iris)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        space = fastdr.Subspace(pca.components_.T)
    centred = iris - pca.mean_
    bound = rounding(float, 4, np.abs(centred).max())
    np.testing.assert_allclose(space.distance(centred) ** 2,
                               pca.reconstruction_error(iris, per_row=True), atol=10 * bound)
