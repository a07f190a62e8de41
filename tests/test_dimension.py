"""Rules for the number of axes: published thresholds, and planted axes found again."""

import numpy as np
import pytest

import fastdr
from fastdr.dimension import gavish_donoho, optimal_factor, parallel
from fastdr.sources import BlockSource


@pytest.mark.parametrize(("beta", "published"), [  # Gavish & Donoho (2014), table IV
    (0.05, 1.5194), (0.1, 1.6089), (0.2, 1.7650), (0.3, 1.9061), (0.5, 2.1711), (0.7, 2.4263),
    (0.9, 2.7048), (1.0, 2.8582)])
def test_the_optimal_threshold_is_the_published_one(beta, published):
    # the paper computed its medians to about three digits
    assert optimal_factor(beta) == pytest.approx(published, abs=0.02)


def planted(rng, shape, axes):
    """White noise and `axes` directions that stand far above it."""
    U = np.linalg.qr(rng.standard_normal((shape[0], axes)))[0]
    V = np.linalg.qr(rng.standard_normal((shape[1], axes)))[0]
    strength = np.linspace(8, 4, axes) * np.sqrt(max(shape))
    return rng.standard_normal(shape) + (U * strength) @ V.T + 5.0


@pytest.mark.parametrize("rule", ["gavish-donoho", "parallel"])
@pytest.mark.parametrize("shape", [(400, 60), (60, 400), (100, 100)])
@pytest.mark.parametrize("axes", [1, 4])
@pytest.mark.parametrize("solver", ["auto", "svd"])
def test_planted_axes_are_found(rng, rule, shape, axes, solver):
    model = fastdr.PCA(rule, svd_solver=solver).fit(planted(rng, shape, axes))
    assert model.n_components_ == axes
    assert model.components_.shape == (axes, shape[1])
    assert len(model.certificate_.lower) == axes
    again = fastdr.PCA(rule, svd_solver=solver).fit(planted(rng, shape, axes))
    assert again.n_components_ >= 1


@pytest.mark.parametrize("rule", ["gavish-donoho", "parallel"])
def test_noise_alone_keeps_one(rng, rule):
    kept = [fastdr.PCA(rule).fit(rng.standard_normal((300, 40))).n_components_ for _ in range(5)]
    assert max(kept) <= 2
    assert min(kept) == 1
    with pytest.warns(UserWarning, match="All rows are equal"):
        assert fastdr.PCA(rule).fit(np.ones((5, 3))).n_components_ == 1


def test_rules_are_refused_by_iterations(rng):
    X = planted(rng, (60, 20), 2)
    for rule in ("gavish-donoho", "parallel"):
        with pytest.raises(ValueError, match=f"n_components='{rule}' cannot be a string"):
            fastdr.PCA(rule, svd_solver="lanczos").fit(X)
    once = BlockSource(lambda: iter([X]), 20, 60, rereadable=False)
    with pytest.raises(ValueError, match="reads the rows again"):
        fastdr.PCA("parallel").fit(once)
    with pytest.raises(ValueError, match="'mle', 'gavish-donoho', 'parallel'"):
        fastdr.PCA("kaiser").fit(X)


def test_parallel_has_a_seed(rng):
    X = planted(rng, (200, 30), 3)
    for seed in (None, 5):
        models = [fastdr.PCA("parallel", random_state=seed).fit(X) for _ in range(2)]
        assert models[0].n_components_ == models[1].n_components_ == 3


def test_edges():
    assert gavish_donoho(np.zeros(0), (0, 0)) == 0
    assert gavish_donoho(np.zeros(3), (5, 3)) == 1
    assert parallel(np.zeros(0), np.zeros((2, 0))) == 0
    assert parallel(np.array([5.0, 4.0]), np.array([[3.0, 2.0]])) == 2
