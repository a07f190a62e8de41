"""LinearModel: hand-made models through every accessor, then invariants."""

import warnings
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from numpy.linalg import LinAlgError
from scipy.stats import multivariate_normal
from tolerance import rounding

from fastdr import PCA, reconstruct
from fastdr.diagnostics import cos_squared, spe, spe_contributions
from fastdr.models import LinearModel, fix_signs
from fastdr.validation import LARGEST_SQUARE

MEAN = np.array([1.0, 2.0, 3.0])
AXES = np.array([[0.6, 0.8, 0.0], [0.0, 0.0, 1.0]])


def handmade(**kwargs):
    """Two axes of three, variances 4 and 1, noise 0.25."""
    return LinearModel(**{"mean": MEAN, "components": AXES, "variances": [4.0, 1.0],
                          "noise_variance": 0.25, "left_out": 0.25, "count": 10, **kwargs})


@pytest.fixture
def rows(rng):
    return rng.standard_normal((20, 3)) + MEAN


def test_transform_and_back():
    model = handmade()
    np.testing.assert_allclose(model.transform([[1.6, 2.8, 5.0]]), [[1.0, 2.0]])
    np.testing.assert_allclose(model.inverse_transform([[1.0, 2.0]]), [[1.6, 2.8, 5.0]])
    np.testing.assert_allclose(model.reconstruction_error([[1.8, 1.4, 0.0]], per_row=True), [1.0])
    assert model.total_variance == 5.25
    assert model.rank == 2


@pytest.mark.parametrize("whiten", [False, "pca", "zca"])
@pytest.mark.parametrize("scale", [None, [1.0, 2.0, 10.0]])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_inverse_after_transform_projects(rows, whiten, scale, dtype):
    model = handmade(whiten=whiten, scale=scale, components=AXES.astype(dtype))
    X = rows.astype(dtype)
    Z = model.transform(X)
    back = model.inverse_transform(Z)
    assert Z.dtype == back.dtype == np.dtype(dtype)
    assert Z.shape == (20, model.n_outputs) == (20, 3 if whiten == "zca" else 2)
    divisor = np.ones(3) if scale is None else np.array(scale)
    expected = ((X - MEAN) / divisor) @ AXES.T @ AXES * divisor + MEAN
    atol = rounding(dtype, 3, 50)
    np.testing.assert_allclose(back, expected, rtol=0, atol=atol)
    np.testing.assert_allclose(model.inverse_transform(model.transform(back)), back, atol=atol)
    errors = model.reconstruction_error(X, per_row=True)
    np.testing.assert_allclose(errors, ((X - expected) ** 2).sum(1), atol=50 * atol)
    assert model.reconstruction_error(X) == errors.mean()


def test_whitened_scores_have_unit_variance_within_the_rank(rows):
    model = handmade(whiten="pca")
    plain = replace(model, whiten=False).transform(rows)
    np.testing.assert_allclose(model.transform(rows), plain / [2.0, 1.0], rtol=1e-14)
    flat = handmade(whiten="pca", variances=[4.0, 0.0])
    assert not flat.transform(rows)[:, 1].any()
    np.testing.assert_allclose(flat.inverse_transform([[0.0, 9.0]]), [MEAN])


def test_zca_turns_back_to_the_features(rows):
    model = handmade(whiten="zca")
    expected = (rows - MEAN) @ (AXES.T / [2.0, 1.0]) @ AXES
    np.testing.assert_allclose(model.transform(rows), expected, atol=1e-14)


def test_out_is_filled(rows):
    out = np.empty((20, 2))
    assert handmade().transform(rows, out) is out
    back = np.empty((20, 3))
    assert handmade().inverse_transform(out, back) is back
    np.testing.assert_array_equal(back, handmade().inverse_transform(handmade().transform(rows)))


@pytest.mark.parametrize("whiten", [False, "pca", "zca"])
@pytest.mark.parametrize("scale", [None, np.array([1.0, 2.0, 10.0])])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_likelihood_is_that_of_the_covariance(rows, whiten, scale, k):
    axes = np.vstack([AXES, [0.8, -0.6, 0.0]])[:k]
    model = handmade(components=axes, variances=[4.0, 1.0, 0.5][:k], scale=scale, whiten=whiten,
                     noise_variance=0.25 if k < 3 else 0.0)
    expected = multivariate_normal(MEAN, model.covariance()).logpdf(rows)
    np.testing.assert_allclose(model.log_likelihood(rows), expected, rtol=1e-12)
    np.testing.assert_allclose(model.precision() @ model.covariance(), np.eye(3), atol=1e-13)


@pytest.mark.parametrize(("k", "noise"), [(2, 0.0), (1, 0.0), (2, 1e-33)])
def test_a_singular_model_has_no_density(rows, k, noise):
    model = handmade(components=AXES[:k], variances=[4.0, 1.0][:k], noise_variance=noise)
    with pytest.warns(RuntimeWarning, match=f"rank {k} of 3"):
        assert (model.log_likelihood(rows) == -np.inf).all()
    with pytest.raises(LinAlgError, match=f"rank {k} of 3"):
        model.precision()
    assert np.isfinite(model.covariance()).all()


@pytest.mark.parametrize("scaled", [False, True])
def test_density_at_the_end_of_the_range(rng, scaled):
    X = np.where(rng.random((40, 3)) < 0.3, 1.0, -1.0)
    huge, plain = (PCA(2, standardize=scaled).fit(rows) for rows in (1.7e308 * X, X))
    found = huge.score_samples(1.7e308 * X)
    np.testing.assert_allclose(found, plain.score_samples(X) - 3 * np.log(1.7e308), rtol=1e-12)


def test_rows_whose_distance_overflows_have_density_0():
    model = handmade(mean=np.zeros(3), variances=[1e-280, 1e-290], noise_variance=1e-300)
    assert model.log_likelihood([[1e300, -1e300, 1e300]])[0] == -np.inf


def test_range_is_kept_by_the_exponent(rng):
    small = handmade(exponent=560, mean=np.zeros(3), scale=None)
    X = np.ldexp(rng.standard_normal((5, 3)), -560)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = handmade(mean=np.zeros(3)).log_likelihood(np.ldexp(X, 560))
        np.testing.assert_allclose(small.log_likelihood(X), plain + 3 * 560 * np.log(2))
        np.testing.assert_allclose(small.deviations, np.ldexp([2.0, 1.0], -560))
        assert small.covariance().max() == 0  # as IEEE dictates
        assert np.isinf(small.precision()).any()


def test_no_axes_leave_the_mean(rows):
    model = LinearModel(MEAN, np.zeros((0, 3)), [], noise_variance=2.0, left_out=6.0, count=10)
    assert model.transform(rows).shape == (20, 0)
    np.testing.assert_allclose(model.inverse_transform(np.empty((2, 0))), [MEAN, MEAN])
    np.testing.assert_allclose(model.reconstruction_error(rows, per_row=True),
                               ((rows - MEAN) ** 2).sum(1))
    np.testing.assert_allclose(model.log_likelihood(rows),
                               multivariate_normal(MEAN, 2 * np.eye(3)).logpdf(rows))
    np.testing.assert_allclose(model.precision(), np.eye(3) / 2)


def test_a_square_that_cannot_be_meant_is_refused():
    features = LARGEST_SQUARE + 1
    model = LinearModel(np.zeros(features), np.eye(1, features), [1.0], noise_variance=1.0)
    with pytest.raises(ValueError, match="32769 x 32769 matrix would take 8 GB.*components"):
        model.covariance()
    with pytest.raises(ValueError, match="32768"):
        model.precision()


def test_a_model_is_frozen():
    model = handmade()
    with pytest.raises(FrozenInstanceError):
        model.mean = MEAN
    with pytest.raises(ValueError, match="read-only"):
        model.components[0, 0] = 9.0


@pytest.mark.parametrize(("change", "words"), [
    ({"mean": [1.0]}, r"mean has shape \(1,\); expected \(3,\)"),
    ({"variances": [1.0]}, r"variances has shape \(1,\); expected \(2,\)"),
    ({"scale": [1.0, 1.0]}, r"scale has shape \(2,\); expected \(3,\)"),
    ({"components": np.zeros(3)}, r"components has shape \(3,\)"),
    ({"components": np.zeros((2, 3), int)}, "int64"),
    ({"whiten": "cholesky"}, "whiten='cholesky'"),
    *(({"variances": [1.0, value]}, "variances (must not be neg|contains NaN)")
      for value in (-1.0, np.nan, np.inf)),
    *(({name: value}, f"{name}.* expected finite numbers")
      for name in ("noise_variance", "left_out") for value in (-1.0, np.nan, np.inf)),
    ({"rank": 3}, "rank=3 or .* at most 2"),
    *(({"exponent": value}, f"exponent={value} is impossible") for value in (4097, -4097, 0.5)),
    *(({"whiten": whiten, **parts}, "divides by the deviations .* is 0 or infinite")
      for whiten in ("pca", "zca")
      for parts in ({"variances": [1.0, 0.0], "rank": 2}, {"exponent": 4000}, {"exponent": -4000})),
])
def test_parts_must_agree(change, words):
    with pytest.raises(ValueError, match=words):
        handmade(**change)


@pytest.mark.parametrize("width", [1, 3])
def test_scores_of_the_wrong_width_are_refused(width):
    with pytest.raises(ValueError, match=f"Z has {width} columns, but this model has 2"):
        handmade().inverse_transform(np.zeros((4, width)))


def test_signs():
    V = np.array([[0.1, -0.9], [-0.5, 0.5], [0.5, -0.5 * (1 + 1e-9)], [-0.5, 0.6], [0.0, 0.0]])
    expected = [[-0.1, 0.9], [0.5, -0.5], [0.5, -0.5], [-0.5, 0.6], [0.0, 0.0]]
    np.testing.assert_allclose(fix_signs(V.copy()), expected, atol=1e-9)
    np.testing.assert_array_equal(fix_signs(fix_signs(-V)), fix_signs(V.copy()))
    assert fix_signs(np.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_signs_are_those_of_the_first_of_the_largest_entries(rng, dtype):
    V = rng.integers(-2, 3, (500, 5)) * (1 + 1e-7 * rng.integers(-20, 21, (500, 5)))
    V = V.astype(dtype)
    expected = V.copy()
    for row in expected:
        sizes = np.abs(row)
        first = row[sizes >= (1 - 1e-6) * sizes.max()][0]
        row *= -1 if first < 0 else 1
    np.testing.assert_array_equal(fix_signs(V), expected)


@pytest.mark.parametrize("whiten", [False, "pca", "zca"])
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_a_model_of_no_axis_maps_every_row_to_the_mean(whiten, dtype):
    X = np.array([[1.0, 2], [3, 5], [2, 2]], dtype)
    model = PCA(0, whiten=whiten).fit(X).model_
    Z = model.transform(X)
    assert Z.shape == (3, 2 if whiten == "zca" else 0)
    assert not Z.any()
    for back in (model.inverse_transform(Z),
                 reconstruct(Z[:, :0], model.components, model.mean)):
        assert back.dtype == dtype
        np.testing.assert_array_equal(back, np.array([[2, 3]] * 3, dtype))
    np.testing.assert_array_equal(spe(model, X), [2, 5, 1])
    np.testing.assert_array_equal(spe_contributions(model, X), [[1, 1], [1, 4], [0, 1]])
    assert cos_squared(model, X).shape == (3, 0)
