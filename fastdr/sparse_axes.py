"""A few principal axes of sparse rows: by iteration on what is stored, or from a small scatter."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.linalg import eigh

from fastdr.actions import Action, MatrixAction
from fastdr.bases import completed
from fastdr.centring import CentredRows
from fastdr.certificate import EPS, slack
from fastdr.dimension import fraction
from fastdr.lanczos import Callback, Ritz
from fastdr.plan import SMALL
from fastdr.solvers import Spectrum
from fastdr.sparse import SparseAction, SparseMoments, SparseSource, sparse_gram, sparse_moments
from fastdr.topk import SINGLE_TOL, Iteration, sharp, unscaled
from fastdr.validation import FloatArray, check_square, working_dtype

LARGE = 2000  # features up to which the scatter may be the faster; it is up to SMALL
FIRST = 16  # axes to seek first for a share of the variance
MANY = 20  # one axis for so many features is work for LAPACK
SINGLE_EXPONENT = 40  # of data whose squares are well inside float32
SINGLE_OFFSET = 100.0  # squares of the means relative to those about them that float32 bears


@dataclass(frozen=True)
class SparseAxes:
    """Axes of sparse rows, and how they were found.

    ``spectrum`` in the units of the moments; ``columns`` that were multiplied; ``residual``
    largest, relative to the largest value; ``converged`` whether it is within the tolerance.
    """

    spectrum: Spectrum
    columns: int = 0
    residual: float = 0.0
    converged: bool = True


def sparse_axes(rows: SparseSource, told: SparseMoments, components: int, *, rng: Generator,
                scale: FloatArray | None = None, weights: FloatArray | None = None,
                method: str = "auto", tol: float = 0.0, start: FloatArray | None = None,
                callback: Callback | None = None) -> SparseAxes:
    """Return `components` principal axes of rows that are centred and scaled in the products.

    `told` are the moments of the rows, with the same `weights`: what is centred at is their mean,
    and with `told.uncentred` the axes are singular vectors. Columns are divided by `scale`, such
    as `told.scale`. `tol` 0 means 1e-10, 1e-5 in float32, and sharper if the smallest wanted
    value needs it. `method` "lanczos" reads the stored entries once for 8 columns, 16 in float32;
    "lapack" forms the scatter; "auto" does so up to 400 features, or 2000 if rows are sparse
    enough.
    """
    action = SparseAction(rows, told, scale, weights)
    bound = min(int(np.count_nonzero(told.squares)), told.count - told.estimated)
    most = max(0, min(components, bound))
    if most and (method == "lapack" or (method == "auto" and _scatter_pays(rows, most))):
        check_square(rows.features, "Use the method 'lanczos'.")
        found = _from_scatter(sparse_gram(rows, told, scale, weights), most, method == "lapack")
        told_method = "eig(scatter)"
    else:
        if _single(rows, told) and not 0 < tol < SINGLE_TOL:
            action.dtype = np.dtype(np.float32)
        found = iterated(action, most, tol, rng, start, callback)
        told_method = "lanczos(rows)"
    spectrum = as_spectrum(found, action.trace, components, bound, told.count, told_method)
    return SparseAxes(replace(spectrum, passes=max(1, action.passes)), action.columns,
                      float(found.residuals.max(initial=0.0)) / (found.scale or 1.0),
                      found.converged)


def centred_sparse(rows: SparseSource, weights: FloatArray | None, mean: FloatArray | None,
                   standardize: bool) -> tuple[SparseMoments, CentredRows]:
    """Read sparse rows once for their moments; return these, and what a first pass says."""
    told = sparse_moments(rows, weights, mean)
    return told, CentredRows(
        rows, weights, told.mean, told.squares, None, told.scale if standardize else None,
        told.count, told.weight, told.divisor, len(rows) < rows.features, False, told.exponent)


def spectrum_of(told: SparseMoments, centred: CentredRows, components: int,
                share: float | None = None, **how: Any) -> Spectrum:
    """Return axes of rows that `centred_sparse` read; `how` as for `sparse_axes`.

    If their `share` of the variance is given instead of their number, twice as many are sought
    until it is reached, so the fewest are found without a full decomposition.
    """
    rows, total = centred.source, centred.total
    assert isinstance(rows, SparseSource)
    count = components if share is None else min(FIRST, components)
    while True:
        found = sparse_axes(rows, told, count, scale=centred.scale, weights=centred.weights, **how)
        values = found.spectrum.values
        if share is None or count == components or values.sum() > share * total:
            break
        count, how = min(2 * count, components), how | {"start": found.spectrum.vectors}
    solver = "lanczos" if found.columns else "lapack"
    spectrum = replace(_certain(found.spectrum), solver=solver, columns=found.columns,
                       residual=found.residual if found.columns else None,
                       converged=found.converged)
    if share is None:
        return spectrum
    return spectrum.first(fraction(spectrum.values, total, centred.divisor, share))


def _certain(found: Spectrum) -> Spectrum:
    """Count values that rounding of the scatter alone may have made as 0."""
    real = int(np.count_nonzero(found.values > found.error))
    if real >= found.rank:
        return found
    values = np.where(np.arange(len(found.values)) < real, found.values, 0.0)
    return replace(found, values=values, rank=real,
                   vectors=completed(found.vectors[:real], len(values)))


def as_spectrum(found: Ritz, trace: float, components: int, bound: int, count: int, method: str
                ) -> Spectrum:
    """Complete eigenpairs of a scatter of `count` rows, whose rank is at most `bound`."""
    values, features = np.maximum(found.values, 0.0), found.vectors.shape[1]
    cut = max(count, features) * EPS * math.sqrt(values.max(initial=0.0))
    rank = int(np.count_nonzero(np.sqrt(values) > cut))
    left = max(0.0, trace - float(values.sum())) if len(values) < bound else 0.0
    return Spectrum(np.concatenate([values, np.zeros(components - len(values))]),
                    completed(found.vectors, components), left, trace,
                    slack(features) * found.scale, rank, method, 1)


def _scatter_pays(rows: SparseSource, count: int) -> bool:
    """Whether outer products of the rows cost less than the columns of an iteration."""
    if rows.features <= SMALL:
        return True
    if rows.features > LARGE or len(rows) < rows.features:
        return False
    columns = 6 * (count + 10)
    products = float((np.diff(rows.indptr).astype(np.float64)**2).sum())
    return products + 4.0 * rows.features**3 / 3 < 4.0 * columns * rows.stored


def _from_scatter(matrix: FloatArray, count: int, whole: bool) -> Ritz:
    """Return the largest eigenpairs of a scatter: by LAPACK if small, if many, or if `whole`."""
    size = len(matrix)
    if not whole and size > SMALL and count <= size // MANY:
        exponent = math.frexp(float(np.trace(matrix)))[1]
        action = MatrixAction(matrix, matrix.dtype, exponent)
        return iterated(action, count, 0.0, np.random.default_rng(0), None, None)
    part = None if size <= SMALL else (size - count, size - 1)
    values, vectors = eigh(matrix, subset_by_index=part, driver="evr" if part else "evd",
                           check_finite=False, overwrite_a=True)
    last = -count - 1
    return Ritz(values[:last:-1], np.ascontiguousarray(vectors.T[:last:-1]), np.zeros(count), 0.0,
                -math.inf, float(values[-1]), True, 0, 0)


def _single(rows: SparseSource, told: SparseMoments) -> bool:
    """Whether the rows are float32, and may be multiplied so."""
    offset = told.weight * float(told.rest @ told.rest)
    return bool(working_dtype(rows.dtype) == np.float32 and not told.exponent
                and abs(rows.exponent or 0) < SINGLE_EXPONENT
                and offset <= SINGLE_OFFSET * float(told.squares.sum()))


def iterated(action: Action, count: int, tol: float, rng: Generator, start: FloatArray | None,
             callback: Callback | None) -> Ritz:
    """Return `count` eigenpairs, times 2**exponent of the action, by Lanczos; see `sharp`."""
    if not count:
        return Ritz(np.zeros(0), np.zeros((0, action.size)), np.zeros(0), 0.0, -math.inf, 0.0,
                    True, 0, 0)
    how = Iteration(rng, tol=tol, callback=callback)
    return unscaled(sharp(action, count, how, start), action.exponent)
