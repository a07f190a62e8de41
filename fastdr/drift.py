"""How far new rows leave the axes of a model, and how far these axes turn when they are added."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fastdr.centring import piece
from fastdr.low_rank import LowRankMoments
from fastdr.models import LinearModel
from fastdr.statistics import Moments
from fastdr.subspace import Subspace
from fastdr.validation import AnyArray, FloatArray


@dataclass(frozen=True)
class Drift:
    """What the newest batch of a stream changed.

    Attributes
    ----------
    rows : int, rows of positive weight in the batch.
    residual : float in [0, 1]
        Share of the batch's squared distances from the mean before it that the axes before it do
        not hold; NaN if there were no axes before it.
    expected : float in [0, 1]
        The same share among the rows before the batch, for comparison.
    angle : float, radians in [0, pi/2]
        Largest principal angle between the axes before and after the batch; if their numbers
        differ, that between the smaller span and the larger.

    Examples
    --------
    >>> import numpy as np
    >>> from fastdr.models import LinearModel
    >>> before = LinearModel([0.0, 0.0], [[1.0, 0.0]], [1.0])
    >>> energy = Energy(before)
    >>> energy.add(np.array([[3.0, 4.0]]))
    >>> round(energy.share, 9)
    0.64
    """

    rows: int
    residual: float
    expected: float
    angle: float


class Energy:
    """Squared distances of rows from the mean of a model, and from its axes: two sums."""

    def __init__(self, model: LinearModel) -> None:
        self.model = model
        self.axes = model.components.astype(np.float64, copy=False)
        self.total = self.outside = 0.0

    @property
    def share(self) -> float:
        """Part of the distances that the axes do not hold; 0 if all rows are at the mean."""
        return min(self.outside / self.total, 1.0) if self.total > 0 else 0.0

    def add(self, rows: AnyArray, weights: FloatArray | None = None) -> None:
        """Add rows (n, d), weights (n,); O(n d k)."""
        step = piece(rows.shape[1])
        for start in range(0, len(rows), step):
            part = rows[start:start + step].astype(np.float64, order="C") - self.model.mean
            if self.model.scale is not None:
                part /= self.model.scale
            if weights is not None:
                part *= np.sqrt(weights[start:start + step, None])
            self.total += float(np.einsum("ij,ij->", part, part))
            part -= (part @ self.axes.T) @ self.axes
            self.outside += float(np.einsum("ij,ij->", part, part))

    def add_moments(self, moments: Moments | LowRankMoments) -> None:
        """Add rows of which only the moments are known; O(d² k), or O(m d k)."""
        if isinstance(moments, LowRankMoments):
            step = (moments.mean - self.model.mean) + moments.rest
            rows = np.concatenate([moments.factor, math.sqrt(moments.weight) * step[None]])
            squares = moments.squares + moments.weight * step**2
            if self.model.scale is not None:
                rows, squares = rows / self.model.scale, squares / self.model.scale**2
            total, held = float(squares.sum()), float(((rows @ self.axes.T) ** 2).sum())
            self.total += total
            self.outside += max(total - held, 0.0)
            return
        scatter = moments.about(self.model.mean)
        if self.model.scale is not None:
            scatter /= self.model.scale
            scatter /= self.model.scale[:, None]
        held = float(np.einsum("ij,ij->", self.axes @ scatter, self.axes))
        total = float(np.trace(scatter))
        self.total += total
        self.outside += max(total - held, 0.0)


def drift_between(before: LinearModel, after: LinearModel, energy: Energy, rows: int) -> Drift:
    """Return what adding `rows` rows of `energy` did."""
    angle = 0.0
    if min(len(before.components), len(after.components)):
        spans = [Subspace(model.components.astype(np.float64).T) for model in (before, after)]
        angle = float(spans[0].angles(spans[1])[-1])
    total = before.total_variance
    expected = before.left_out / total if total > 0 else 0.0
    return Drift(rows, energy.share, min(expected, 1.0), angle)


def first_drift(rows: int) -> Drift:
    """Return the drift of a batch before which there were no axes."""
    return Drift(rows, math.nan, math.nan, math.nan)
