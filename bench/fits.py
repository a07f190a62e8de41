"""Exponents, crossings and their uncertainty, from measured or counted costs; pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

Values = Sequence[float]
Samples = Sequence[Values]
LEAST = 4  # points that a line is fitted to, if there are so many
LEVEL = 0.975  # of the upper end of a 95 % interval


@dataclass(frozen=True)
class Fit:
    """A power law ``constant * size**exponent`` between the sizes `first` and `last`.

    `exponent` ± `half` is the slope on a log-log scale and its interval.
    """

    exponent: float
    half: float
    constant: float
    first: float
    last: float

    def at(self, size: float) -> float:
        """Return the fitted cost of a size."""
        return float(self.constant * size**self.exponent)

    def __str__(self) -> str:
        # A half width is rounded up: an interval may not shrink in print.
        return f"{self.exponent:.2f} ± {max(math.ceil(100 * self.half - 1e-6), 1) / 100:.2f}"


@dataclass(frozen=True)
class Crossing:
    """Where a ratio passes 1, with the ends that the scatter of its samples allows."""

    at: float
    low: float
    high: float


def best(samples: Values) -> float:
    """Return the least of the samples: whatever disturbs a measurement adds to it."""
    return min(samples)


def uncertainty(samples: Values) -> float:
    """Return how far the two least samples lie apart, relative to the least."""
    least = sorted(samples)[:2]
    return float((least[-1] - least[0]) / least[0])


def line(x: Values, y: Values) -> tuple[float, float, float]:
    """Fit y = a + b x by least squares; return b, a and the half width of b's 95 % interval."""
    X, Y = np.asarray(x, float), np.asarray(y, float)
    if len(X) < 3:
        raise ValueError(f"{len(X)} points do not tell how far they lie from a line; need 3")
    apart = X - X.mean()
    slope = float(apart @ Y / (apart @ apart))
    start = float(Y.mean() - slope * X.mean())
    left = Y - start - slope * X
    error = math.sqrt(float(left @ left) / (len(X) - 2) / float(apart @ apart))
    return slope, start, float(student.ppf(LEVEL, len(X) - 2)) * error


def power_law(sizes: Values, samples: Samples) -> Fit:
    """Fit the upper half of the sizes (at least four), where terms of lower order matter less.

    The interval adds what the points' distances from the line allow (Student's t, so blocking and
    caches count as scatter), and the change of slope if the least samples were as wrong as
    `uncertainty` says, all in the worst direction.
    """
    keep = min(len(sizes), max(LEAST, math.ceil(len(sizes) / 2)))
    sizes, samples = sizes[-keep:], samples[-keep:]
    x = np.log(sizes)
    slope, start, half = line(list(x), [math.log(best(each)) for each in samples])
    apart = x - x.mean()
    weights = np.abs(apart) / (apart @ apart)
    half += float(weights @ [uncertainty(each) for each in samples])
    return Fit(slope, half, math.exp(start), sizes[0], sizes[-1])


def crossing(sizes: Values, above: Samples, below: Samples) -> Crossing | None:
    """Find the size from which on `below` costs less than `above`; None if it never changes.

    Interpolated on a log-log scale at the last change. The interval is that of both costs
    changed by their uncertainty, against each other.
    """
    ratio = [math.log(best(a) / best(b)) for a, b in zip(above, below, strict=True)]
    doubt = [uncertainty(a) + uncertainty(b) for a, b in zip(above, below, strict=True)]
    found = _last_root(sizes, ratio)
    if found is None:
        return None
    ends = [_last_root(sizes, [r + sign * u for r, u in zip(ratio, doubt, strict=True)])
            for sign in (1, -1)]
    low, high = (found if end is None else end for end in ends)
    return Crossing(found, min(low, found), max(high, found))


def _last_root(sizes: Values, ratio: Values) -> float | None:
    """Return where `ratio` turns positive for good."""
    for index in range(len(sizes) - 1, 0, -1):
        before, after = ratio[index - 1], ratio[index]
        if before <= 0 < after:
            part = -before / (after - before)
            return float(sizes[index - 1] * (sizes[index] / sizes[index - 1]) ** part)
    return None


def two_terms(sizes: Sequence[tuple[float, float]], costs: Values) -> tuple[float, float]:
    """Fit cost = a N d min(N, d) + b min(N, d)³ to relative least squares; return a and b."""
    terms = np.array([[n * d * min(n, d), min(n, d) ** 3] for n, d in sizes], float)
    weighted = terms / np.asarray(costs, float)[:, None]
    a, b = np.linalg.lstsq(weighted, np.ones(len(costs)), rcond=None)[0]
    return float(a), float(b)
