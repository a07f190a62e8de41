"""A few principal axes by iteration: from the scatter, or from the rows without forming it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.random import Generator

from fastdr.actions import Action, MatrixAction
from fastdr.centring import CentredRows, centred_rows, refined
from fastdr.lanczos import Callback, lanczos
from fastdr.operators import gram_apply
from fastdr.power import power
from fastdr.solvers import EPS, RTOL, Spectrum, lapack, residual, slack
from fastdr.sources import ArraySource, Source
from fastdr.validation import AnyArray, FloatArray

TOL = {8: 1e-10, 4: 1e-5}  # residual relative to the largest eigenvalue
SMALL = 400  # order up to which LAPACK is the fastest
RACE = 0.8  # columns, in units of the order, in which LAPACK is more than half done


@dataclass
class RowsAction:
    """C = A'A of the centred, scaled, weighted rows A, never formed; one read for 8 columns."""

    rows: CentredRows
    dtype: np.dtype[Any]
    size: int = field(init=False)
    exponent: int = 0
    columns: int = 0
    passes: int = 0

    def __post_init__(self) -> None:
        """Take the order from the columns, and the size of the numbers from the trace."""
        self.size = self.rows.mean.size
        total = self.rows.total
        self.exponent = math.frexp(total)[1] if total else 0

    def __call__(self, rows: AnyArray) -> AnyArray:
        """Return the images of `rows` (b, d)."""
        self.columns += len(rows)
        self.passes += 1
        data, given = self.rows, np.ldexp(rows, -self.exponent)
        if isinstance(data.source, ArraySource) and data.weights is None and not data.exponent:
            return gram_apply(data.source.array, given.T, data.mean, data.scale).T
        varying = data.squares > 0
        inner = given[:, varying].astype(np.float64)
        total = np.zeros_like(inner)
        for block in data.blocks():
            total += (block @ inner.T).T @ block
        images = np.zeros(rows.shape)
        images[:, varying] = total
        return images.astype(rows.dtype, copy=False)


def few(order: int, axes: int) -> bool:
    """Tell whether so few axes of a matrix of this order are found faster by iteration."""
    return order > SMALL and axes <= order // 20


def without_scatter(source: Source, features: int, axes: int, weights: FloatArray | None) -> bool:
    """Tell whether iterating on the rows takes fewer operations than forming the scatter first.

    Forming it takes n d² operations, one iteration on the rows 4 n d, and there are about
    6 (axes + 10) of them, at 1.3 times the speed (the rows are read from memory, not built).
    """
    return (isinstance(source, ArraySource) and weights is None
            and features > 18 * (axes + 10))


def iterative(rows: CentredRows, components: int, *, method: str = "lanczos", tol: float = 0.0,
              rng: Generator, start: FloatArray | None = None, budget: float = math.inf,
              callback: Callback | None = None) -> Spectrum:
    """Return `components` axes by iteration, or by LAPACK where that is the wiser.

    It is if the wanted values reach down to the rounding of a scatter, where only a QR
    factorisation of the rows tells them apart, and if `budget` columns do not converge.
    """
    if not 0 < components <= rows.bound:
        return _exactly(rows, components)
    action = action_of(rows)
    solve = power if method == "power" else lanczos
    found = solve(action, components, tol=tol or TOL[action.dtype.itemsize], rng=rng, start=start,
                  budget=budget, callback=callback)
    error = slack(action.size) * found.scale
    uncertain = found.values[-1] <= error / RTOL or not found.converged
    if uncertain:
        return _exactly(rows, components)
    values = np.ldexp(found.values, action.exponent)
    cut = max(rows.count, rows.mean.size) * EPS * math.sqrt(values[0])
    rank = int(np.count_nonzero(np.sqrt(values) > cut))
    passes = action.passes if isinstance(action, RowsAction) else 0
    left_out = rows.total - float(values.sum())
    if left_out <= slack(action.size) / RTOL * rows.total and rows.source.rereadable:
        left_out, passes = residual(refined(rows), found.vectors), passes + 1
    return Spectrum(values, found.vectors, max(left_out, 0.0), rows.total,
                    float(np.ldexp(error, action.exponent)), rank, method, passes)


def _exactly(rows: CentredRows, components: int) -> Spectrum:
    """Return the axes by LAPACK, from the scatter if it was formed, else after forming it."""
    if rows.scatter is not None or rows.wide:
        return lapack(rows, components)
    again = centred_rows(rows.source, rows.weights, mean=None if rows.estimated else
                         np.ldexp(rows.mean, -rows.exponent), standardize=rows.scale is not None)
    found = lapack(again, components)
    return replace(found, passes=found.passes + 1)


def action_of(rows: CentredRows) -> Action:
    """Return the scatter's action: of the matrix if it was formed, else of the rows."""
    if rows.scatter is None:
        return RowsAction(rows, np.dtype(np.float32 if rows.single else np.float64))
    exponent = math.frexp(rows.total)[1] if rows.total else 0
    return MatrixAction(rows.scatter, rows.scatter.dtype, exponent)
