"""The compiled contrast functions and products, for each size, dtype, weight and contrast."""

import numpy as np
import pytest
from reference import contrast
from scipy.stats import norm
from tolerance import rounding

from fastdr import FastICA
from fastdr._pointwise import PANEL, add_losses, add_products, add_scores, pack, score, unmix
from fastdr.contrasts import BuiltIn, Custom, Run, normal_values, peaked_sign

NAMES = ["logcosh", "exp", "cube"]


def panels_of(rows):
    out = np.full((-(-len(rows) // PANEL), rows.shape[1], PANEL), np.nan, rows.dtype)
    pack(rows, out)
    return out


def custom(name, a=1.0):
    return Custom(lambda y: (contrast(name, y, a)[0], contrast(name, y, a)[1].mean(axis=-1)))


@pytest.mark.parametrize("rows", [1, PANEL - 1, PANEL, PANEL + 1, 3 * PANEL])
def test_panels_hold_the_rows_and_zeros(rows, floating, rng):
    X = rng.standard_normal((rows, 3)).astype(floating)
    panels = panels_of(X)
    flat = panels.transpose(0, 2, 1).reshape(-1, 3)
    np.testing.assert_array_equal(flat[:rows], X)
    np.testing.assert_array_equal(flat[rows:], 0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("a", [1.0, 1.7])
def test_scores_to_rounding_from_zero_to_the_end_of_the_range(name, a, floating):
    eps = np.finfo(floating).eps
    y = np.concatenate([[0.0], np.logspace(-30, 1.5, 2 * PANEL - 1)])
    y = np.concatenate([y, -y]).astype(floating).reshape(-1, PANEL)
    g, slope, loss = contrast(name, y.astype(float), a)
    found, slopes = y.copy(), np.zeros(len(y))
    score(found, NAMES.index(name), a, np.empty((0, 0), floating), slopes)
    # e^x errs by x eps at most, from the rounding of its argument
    scale = 4 * eps * (1 + np.abs(y) ** (3 if name == "cube" else 1))
    assert (np.abs(found - g) <= scale).all()
    assert (np.abs(slopes - slope.sum(axis=1))
            <= rounding(floating, PANEL, np.abs(slope).sum(axis=1), safety=1)).all()
    one, losses = np.zeros((1, 1, PANEL), floating), np.zeros(y.size)
    one[0, 0, 0] = 1
    work = np.empty((y.size, PANEL), floating)
    add_losses(one, y.reshape(-1, 1), NAMES.index(name), a, one[0], work, losses)
    assert (np.abs(losses - loss.ravel()) <= 8 * eps * (1 + np.abs(loss.ravel()))).all()


def test_scores_of_huge_values_do_not_overflow(floating):
    huge = np.full((1, PANEL), np.sqrt(np.finfo(floating).max) / 2, floating)
    for code, limit in ((0, 1.0), (1, 0.0)):
        for sign in (1, -1):
            y, slopes = sign * huge, np.zeros(1)
            score(y, code, 2.0, np.empty((0, 0), floating), slopes)
            assert (np.abs(y - sign * limit) <= np.finfo(floating).tiny * huge * 4).all()
            assert abs(slopes[0]) <= 1e-3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sources", [1, 2, 3, 4, 5, 7, 8, 9, 15, 17])
def test_sums_over_panels_of_every_size(name, sources, floating, rng):
    for features in sorted({sources, 1, 2, 3, 4, 6, 13}):
        X = rng.standard_normal((2 * PANEL + 7, features)).astype(floating)
        W = rng.standard_normal((sources, features)).astype(floating) / 4
        weight = np.zeros((3, PANEL), floating)
        weight.ravel()[:len(X)] = rng.integers(0, 3, len(X))
        for w in (None, weight):
            factor = np.ones(len(X)) if w is None else w.ravel()[:len(X)].astype(float)
            run = Run(panels_of(X), np.empty((0, 0), floating) if w is None else w, len(X))
            y = X.astype(float) @ W.T.astype(float)
            g, slope, loss = contrast(name, y, 1.0)
            size = 1 + np.abs(X).max() * np.abs(W).sum(axis=1).max()
            bound = rounding(floating, 4 * len(X), size ** (4 if name == "cube" else 2), safety=1)
            for each in (BuiltIn(name), custom(name)):
                products, slopes = np.zeros((sources, features)), np.zeros(sources)
                each.add_scores(run, W, products, slopes)
                assert np.abs(products - (g * factor[:, None]).T @ X).max() <= bound
                assert np.abs(slopes - factor @ slope).max() <= bound
                losses = np.zeros(sources)
                each.add_losses(run, W, losses)
                assert np.abs(losses - factor @ loss).max() <= bound


def test_products_and_unmixing_are_those_of_matrices(floating, rng):
    panels = panels_of(rng.standard_normal((PANEL, 11)).astype(floating))
    W = rng.standard_normal((6, 11)).astype(floating)
    y = np.empty((1, 6, PANEL), floating)
    unmix(panels, W, y)
    assert np.abs(y[0] - W.astype(float) @ panels[0]).max() <= rounding(floating, 11, 12, 4)
    found = np.ones((6, 11))
    add_products(y, panels, found)
    assert np.abs(found - 1 - y[0].astype(float) @ panels[0].T).max() <= rounding(
        floating, PANEL, 40, 1)


def test_sums_are_added_to_what_is_there(floating):
    panels = np.zeros((1, 1, PANEL), floating)
    products, slopes = np.full((1, 1), 5.0), np.full(1, 7.0)
    add_scores(panels, np.ones((1, 1), floating), 2, 1.0, np.empty((0, 0), floating),
               np.empty((1, PANEL), floating), products, slopes)
    assert products[0, 0] == 5
    assert slopes[0] == 7


@pytest.mark.parametrize("name", NAMES)
def test_values_of_a_function_equal_those_compiled(name):
    y = np.linspace(-4, 4, 33)
    for part, other in zip(BuiltIn(name).values(y), custom(name).values(y), strict=True):
        np.testing.assert_allclose(part, other, rtol=0, atol=1e-11 if name != "cube" else 1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_normal_values_equal_integrals(name):
    y = np.linspace(-12, 12, 20001)
    weight = norm.pdf(y) * (y[1] - y[0])
    g, slope, loss = contrast(name, y, 1.0)
    found_loss, variance = normal_values(BuiltIn(name))
    assert found_loss == pytest.approx(weight @ loss, abs=1e-7)  # error of the quadrature
    assert variance == pytest.approx(weight @ (slope - y * g) ** 2, rel=1e-5)
    assert abs(weight @ (slope - y * g)) < 1e-12


def test_peaked_sources_have_a_known_sign():
    assert [peaked_sign(BuiltIn(name)) for name in NAMES] == [1.0, 1.0, -1.0]


@pytest.mark.parametrize("function", [
    np.tanh, lambda x: (np.tanh(x),), lambda x: (x[:1], x.mean(axis=-1)),
    lambda x: (x, x), lambda x: None])
def test_functions_that_return_the_wrong_thing_are_refused(function):
    with pytest.raises(ValueError, match="fun returned"):
        Custom(function).values(np.arange(5.0))


def test_functions_that_overwrite_their_argument_change_nothing_else():
    def pure(x):
        return x * x**2, 3 * np.mean(x**2, axis=-1)

    def hasty(x):
        slope = 3 * np.mean(x**2, axis=-1)
        x *= x**2
        return x, slope

    before = normal_values(BuiltIn("cube"))
    assert normal_values(Custom(hasty)) == normal_values(Custom(pure))
    assert peaked_sign(Custom(hasty)) == peaked_sign(Custom(pure))
    assert normal_values(BuiltIn("cube")) == before
    X = np.random.default_rng(0).laplace(size=(500, 2)) ** 3
    for weights in (None, np.arange(500) % 3):
        found, expected = (FastICA(fun=each).fit(X, sample_weight=weights)
                           for each in (hasty, pure))
        np.testing.assert_array_equal(found.components_, expected.components_)
        assert found.certificate_ == expected.certificate_
