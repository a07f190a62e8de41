"""Contrast functions of independent component analysis, built in or given by the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.polynomial.laguerre import laggauss
from numpy.polynomial.legendre import leggauss

from fastdr._pointwise import PANEL, add_losses, add_products, add_scores, unmix
from fastdr.validation import AnyArray, FloatArray, as_numbers

CODES = {"logcosh": 0, "exp": 1, "cube": 2}
RULES = {"hermite": hermegauss, "laguerre": laggauss, "legendre": leggauss}
NODES = 100  # of a quadrature over a density
STEPS = 16  # of a quadrature from 0 to y
Function = Callable[[AnyArray], tuple[Any, Any]]


@dataclass(frozen=True)
class Run:
    """Consecutive panels of rows.

    ``panels`` (m, k, PANEL), zero behind the ``rows`` that count; ``weight`` (m, PANEL) or, for
    weights of one, (0, 0).
    """

    panels: AnyArray
    weight: AnyArray
    rows: int

    def part(self, first: int, last: int) -> Run:
        """Return panels `first` to `last`."""
        last = min(last, len(self.panels))
        return Run(self.panels[first:last], self.weight[first:last],
                   min(self.rows, last * PANEL) - first * PANEL)


class Contrast(Protocol):
    """A function G with score g = G', summed over sources y = unmixing x."""

    @property
    def threaded(self) -> bool: ...  # noqa: D102

    def add_scores(self, run: Run, unmixing: AnyArray, products: FloatArray,
                   slopes: FloatArray) -> None:
        """Add Σ w g(y) xᵀ to `products` (p, k) and Σ w g'(y) to `slopes` (p,)."""

    def add_losses(self, run: Run, unmixing: AnyArray, losses: FloatArray) -> None:
        """Add Σ w G(y) to `losses` (p,)."""

    def values(self, y: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return g, g' and G at each entry of `y` (m,)."""


@dataclass(frozen=True)
class BuiltIn:
    """log cosh(a y) / a ("logcosh"), 1 - exp(-y²/2) ("exp") or y⁴/4 ("cube"), compiled."""

    name: str
    a: float = 1.0

    @property
    def threaded(self) -> bool:
        """Whether parts may be summed by several threads."""
        return True

    def add_scores(self, run: Run, unmixing: AnyArray, products: FloatArray,
                   slopes: FloatArray) -> None:
        """Add Σ w g(y) xᵀ to `products` (p, k) and Σ w g'(y) to `slopes` (p,)."""
        work = np.empty((len(unmixing), PANEL), unmixing.dtype)
        add_scores(run.panels, unmixing, CODES[self.name], self.a, run.weight, work, products,
                   slopes)
        if not run.weight.size:  # the columns of zeros behind the rows
            at_zero = {"logcosh": self.a, "exp": 1.0, "cube": 0.0}[self.name]
            slopes -= (len(run.panels) * PANEL - run.rows) * at_zero

    def add_losses(self, run: Run, unmixing: AnyArray, losses: FloatArray) -> None:
        """Add Σ w G(y) to `losses` (p,); G(0) = 0, so columns of zeros add nothing."""
        work = np.empty((len(unmixing), PANEL), unmixing.dtype)
        add_losses(run.panels, unmixing, CODES[self.name], self.a, run.weight, work, losses)

    def values(self, y: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return g, g' and G at each entry of `y`: each is a sum over one column."""
        g, slopes, losses = np.zeros((y.size, 1)), np.zeros(y.size), np.zeros(y.size)
        first = np.zeros((1, 1, PANEL))
        first[0, 0, 0] = 1.0
        run = Run(first, first[0], 1)  # the other columns have no weight
        self.add_scores(run, y[:, None], g, slopes)
        self.add_losses(run, y[:, None], losses)
        return g[:, 0], slopes, losses


@dataclass(frozen=True)
class Custom:
    """A Python function y (p, m) -> g(y) (p, m), mean of g'(y) over the last axis (p,)."""

    function: Function

    @property
    def threaded(self) -> bool:
        """Whether parts may be summed by several threads."""
        return False

    def _sources(self, run: Run, unmixing: AnyArray) -> AnyArray:
        y = np.empty((len(run.panels), len(unmixing), PANEL), unmixing.dtype)
        unmix(run.panels, unmixing, y)
        return np.ascontiguousarray(y.transpose(1, 0, 2)).reshape(len(unmixing), -1)[:, :run.rows]

    def _call(self, y: AnyArray) -> tuple[AnyArray, AnyArray]:
        result = self.function(y)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise ValueError(f"fun returned {type(result).__name__}; it must return two arrays: "
                             "g(x), shaped as x, and the mean of g'(x) over the last axis.")
        g, slope = (as_numbers(part, "what fun returns") for part in result)
        if g.shape != y.shape or slope.shape != y.shape[:-1]:
            raise ValueError(f"fun returned shapes {g.shape} and {slope.shape} for x of shape "
                             f"{y.shape}; expected {y.shape} and {y.shape[:-1]}: g(x) and the "
                             "mean of its derivative over the last axis.")
        return g, slope

    def _each(self, y: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Return g and g' entry by entry: the mean over a last axis of one is the value."""
        g, slope = self._call(y.reshape(-1, 1).copy())  # which the function may overwrite
        return g.reshape(y.shape), slope.reshape(y.shape)

    def add_scores(self, run: Run, unmixing: AnyArray, products: FloatArray,
                   slopes: FloatArray) -> None:
        """Add Σ w g(y) xᵀ to `products` (p, k) and Σ w g'(y) to `slopes` (p,)."""
        y = self._sources(run, unmixing)
        if run.weight.size:
            weight = run.weight.ravel()[:run.rows]
            g, slope = self._each(y)
            g, total = g * weight, slope @ weight
        else:
            g, slope = self._call(y)
            total = slope * run.rows
        slopes += total
        padded = np.zeros((len(unmixing), len(run.panels) * PANEL), unmixing.dtype)
        padded[:, :run.rows] = g
        scores = padded.reshape(len(unmixing), -1, PANEL).transpose(1, 0, 2)
        add_products(np.ascontiguousarray(scores), run.panels, products)

    def add_losses(self, run: Run, unmixing: AnyArray, losses: FloatArray) -> None:
        """Add Σ w G(y) to `losses` (p,), G the integral of g from 0."""
        y = self._sources(run, unmixing)
        weight = run.weight.ravel()[:run.rows] if run.weight.size else np.ones(run.rows)
        losses += self._integral(y) @ weight

    def _integral(self, y: AnyArray) -> AnyArray:
        steps, parts = _quadrature("legendre", STEPS)
        return sum((part / 2 * y * self._each(y * ((1 + step) / 2))[0]
                    for step, part in zip(steps, parts, strict=True)), np.zeros(y.shape))

    def values(self, y: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return g, g' and G at each entry of `y`."""
        g, slope = self._each(y)
        return np.asarray(g, float), np.asarray(slope, float), self._integral(y)


@cache
def _quadrature(rule: str, size: int) -> tuple[FloatArray, FloatArray]:
    """Return the nodes and weights of a Gauss rule, found once: its eigenvalues take 4 ms."""
    nodes, weights = RULES[rule](size)
    kept = weights > 1e-20 * weights.max()  # farther out a user's function may overflow
    return nodes[kept], weights[kept]


def normal_values(contrast: Contrast) -> tuple[float, float]:
    """Return E G(ν) and the variance of g'(ν) - ν g(ν) for a standard normal ν.

    The latter has mean zero (Stein): its mean over n rows tells how far from normal a source is,
    with that variance over n if it is normal.
    """
    nodes, weights = _quadrature("hermite", NODES)
    weights = weights / weights.sum()
    g, slope, loss = contrast.values(nodes)
    curvature = slope - nodes * g
    centre = float(weights @ curvature)
    return float(weights @ loss), float(weights @ (curvature - centre) ** 2)


def peaked_sign(contrast: Contrast) -> float:
    """Return the sign of E g'(y) - E y g(y) for sources more peaked than normal (Laplace)."""
    nodes, weights = _quadrature("laguerre", NODES // 2)
    nodes = nodes / np.sqrt(2)
    total = 0.0
    for side in (nodes, -nodes):
        g, slope, _ = contrast.values(side)
        total += float(weights @ (slope - side * g))
    return 1.0 if total >= 0 else -1.0
