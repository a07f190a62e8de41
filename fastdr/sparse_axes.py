"""A few principal axes of sparse rows: by iteration on what is stored, or from a small scatter."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import Generator

from fastdr.actions import Action, MatrixAction
from fastdr.bases import completed
from fastdr.centring import CentredRows, level
from fastdr.certificate import EPS, Certificate, slack
from fastdr.dimension import fraction
from fastdr.lanczos import Callback, Ritz
from fastdr.plan import Plan
from fastdr.scatter import chain_error
from fastdr.solvers import Spectrum, eigh_of
from fastdr.sparse import SparseAction, SparseMoments, SparseSource, sparse_moments
from fastdr.sparse_scatter import sparse_gram, sparse_images, sparse_outer_gram
from fastdr.statistics import SMALLEST, vanished
from fastdr.topk import SINGLE_TOL, TOL, Iteration, sharp, told_of, unscaled
from fastdr.validation import AnyArray, FloatArray, check_square, working_dtype

FIRST = 16  # axes to seek first for a share of the variance
SINGLE_EXPONENT = 40  # of data whose squares are well inside float32
SINGLE_OFFSET = 100.0  # squares of the means relative to those about them that float32 bears


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Sparse rows as they are centred and scaled in the products.

    ``told`` are the moments of the rows, with the same ``weights``: what is centred at is their
    mean, and with `told.uncentred` the axes are singular vectors. Columns are divided by
    ``scale``, such as `told.scale`.
    """

    rows: SparseSource
    told: SparseMoments
    scale: FloatArray | None = None
    weights: FloatArray | None = None

    @property
    def bound(self) -> int:
        """The rank cannot exceed this."""
        return min(int(np.count_nonzero(self.told.squares)),
                   self.told.count - self.told.estimated)

    @property
    def parts(self) -> tuple[Any, ...]:
        """The rows, their moments, the scale and the weights."""
        return self.rows, self.told, self.scale, self.weights

    @property
    def total(self) -> float:
        """Trace of the scatter."""
        return SparseAction(*self.parts).trace

    @property
    def rounding(self) -> float:
        """Bound on the norm of what rounding adds to the scatter, or to the inner products.

        The means of columns that are not full come off sums of squares about 0.
        """
        rows, told = self.rows, self.told
        lengths = np.bincount(rows.indices[:rows.stored], minlength=1)
        most = max(int(lengths.max()), int(np.diff(rows.indptr).max(initial=0)))
        offset = told.rest if self.scale is None else told.rest / self.scale
        return (chain_error(most) + slack(rows.features)) * (
            self.total + told.weight * float(offset @ offset))


@dataclass(frozen=True, eq=False)
class _Found:
    """Eigenpairs, the Spectrum that they make, the scatter if it was formed, and its rounding."""

    pairs: Ritz
    spectrum: Spectrum
    matrix: FloatArray | None
    error: float


def sparse_axes(given: SparseRows, components: int, way: Plan, *, certify: bool = True,
                share: float | None = None, **how: Any) -> Spectrum:
    """Return `components` principal axes of sparse rows, or as few as exceed a `share`.

    `way` is what `sparse_plan` chose; `how` as for `_axes`. To exceed a share of the variance
    twice as many axes are sought until they do, so the fewest are found without a full
    decomposition. `certify` adds a certificate, with a proof if that is planned.
    """
    total = given.total
    count = components if share is None else min(FIRST, components)
    while True:
        found = _axes(given, count, way, certify, **how)
        values = found.spectrum.values
        if share is None or count == components or values.sum() > share * total:
            break
        count, how = min(2 * count, components), how | {"start": found.spectrum.vectors}
    spectrum = found.spectrum
    if certify and len(found.pairs.values):
        told = _certified(given, found, way.proof)
        spectrum = replace(spectrum, certificate=told.padded(count, found.error))
    if share is None:
        return spectrum
    return spectrum.first(fraction(spectrum.values, total, given.told.divisor, share))


def _axes(given: SparseRows, components: int, way: Plan, certify: bool, *, rng: Generator,
          tol: float = 0.0, start: FloatArray | None = None, callback: Callback | None = None
          ) -> _Found:
    """Return axes from the scatter, or by products with the rows.

    `tol` 0 means 1e-10, 1e-5 in float32, and sharper if the smallest wanted value needs it.
    """
    rows, told, matrix = given.rows, given.told, None
    action: Action = SparseAction(*given.parts)
    most, passes, proving = max(0, min(components, given.bound)), 1, 0
    if most and way.on == "covariance":
        check_square(rows.features, "Use the method 'lanczos'.")
        matrix = sparse_gram(*given.parts)
        action = MatrixAction(matrix, matrix.dtype, math.frexp(given.total)[1])
    elif _single(rows, told) and not 0 < tol < SINGLE_TOL:
        action.dtype = np.dtype(np.float32)
    if matrix is not None and way.solver == "lapack":
        pairs = _decomposed(matrix, most, certify)
    else:
        pairs = _iterated(action, most, tol, rng, start, callback)
    if isinstance(action, SparseAction):
        passes, proving = max(1, action.passes), int(way.proof)
    columns, error = action.columns, given.rounding
    method = "lanczos" if columns else "eig"
    where = "rows" if matrix is None else "scatter"
    spectrum = replace(
        _spectrum(pairs, components, given, error), method=f"{method}({where})",
        passes=passes + proving, columns=columns, solver="lanczos" if columns else "lapack",
        converged=pairs.converged,
        residual=float(pairs.residuals.max()) / (pairs.scale or 1.0) if columns else None)
    return _Found(pairs, spectrum, matrix, error)


def _certified(given: SparseRows, found: _Found, prove: bool) -> Certificate:
    """Return the certificate; for a proof the smaller Gram matrix is formed if there is none."""
    matrix, vectors, rows = found.matrix, found.pairs.vectors, given.rows
    if matrix is None and prove:
        if len(rows) < rows.features:
            matrix = sparse_outer_gram(*given.parts)
            vectors = sparse_images(vectors, *given.parts).T
        else:
            matrix = sparse_gram(*given.parts)
    return told_of(matrix, vectors, found.pairs, found.error, prove)


def centred_sparse(rows: SparseSource, weights: FloatArray | None, mean: FloatArray | None,
                   standardize: bool) -> tuple[SparseRows, CentredRows]:
    """Read sparse rows once for their moments; return these, and what a first pass says.

    Columns to be scaled get units of their own where squares of some leave float64 in those of
    others, and are copied then.
    """
    told, own, given = sparse_moments(rows, weights, mean), np.zeros(rows.features, int), rows
    if standardize and (told.squares < SMALLEST).any():
        own = _own_units(rows, told)
    if own.any():
        values = np.ldexp(rows.values.astype(np.float64), own[rows.indices])
        given = replace(rows, values=values, exponent=None)
        told = sparse_moments(given, weights, None if mean is None else np.ldexp(mean, own))
    if not standardize:
        told = told.scaled(level(told.squares))
    scale = told.scale if standardize else None
    squares = told.squares if scale is None else told.squares / scale**2
    return SparseRows(given, told, scale, weights), CentredRows(
        rows, weights, np.ldexp(told.mean, -own), squares, None,
        None if scale is None else np.ldexp(scale, -own), told.count, told.weight, told.divisor,
        len(rows) < rows.features, False, told.exponent)


def _own_units(rows: SparseSource, told: SparseMoments) -> AnyArray:
    """Return (d,) exponents that bring columns near 1, 0 unless squares of some vanished."""
    peaks = np.zeros(rows.features)
    np.maximum.at(peaks, rows.indices[:rows.stored], np.abs(rows.values[:rows.stored]))
    own: AnyArray = np.where(peaks > 0, -np.frexp(peaks)[1], 0)
    lost = (peaks > 0) & vanished(told.squares, np.ldexp(peaks, told.exponent))
    return own if lost.any() else np.zeros_like(own)


def likely_error(found: Spectrum) -> float:
    """Return the error to be expected of values, where `error` bounds the worst."""
    return slack(found.vectors.shape[1]) * float(found.values.max(initial=0.0))


def certain(found: Spectrum) -> Spectrum:
    """Count values that rounding of the scatter alone may have made as 0."""
    real = int(np.count_nonzero(found.values > likely_error(found)))
    if real >= found.rank:
        return found
    count, told = len(found.values), found.certificate
    values = np.where(np.arange(count) < real, found.values, 0.0)
    return replace(found, values=values, rank=real, vectors=completed(found.vectors[:real], count),
                   certificate=None if told is None else replace(
                       told, lower=np.where(values > 0, told.lower, 0.0)))


def _spectrum(found: Ritz, components: int, given: SparseRows, error: float) -> Spectrum:
    """Complete eigenpairs of a scatter, whose rank is bounded."""
    values, features = np.maximum(found.values, 0.0), found.vectors.shape[1]
    cut = max(given.told.count, features) * EPS * math.sqrt(values.max(initial=0.0))
    rank = int(np.count_nonzero(np.sqrt(values) > cut))
    left = max(0.0, given.total - float(values.sum())) if len(values) < given.bound else 0.0
    return Spectrum(np.concatenate([values, np.zeros(components - len(values))]),
                    completed(found.vectors, components), left, given.total, error, rank, "", 1)


def _decomposed(matrix: FloatArray, count: int, keep: bool) -> Ritz:
    """Return the largest eigenpairs of a scatter by LAPACK."""
    values, vectors = eigh_of(matrix, count, keep=keep)
    values = np.maximum(values, 0.0)
    following = float(values[count]) if len(values) > count else -math.inf
    return Ritz(values[:count], vectors[:count], np.zeros(count), 0.0, following,
                float(values[0]), True, 0, 0)


def _single(rows: SparseSource, told: SparseMoments) -> bool:
    """Whether the rows are float32, and may be multiplied so."""
    offset = told.weight * float(told.rest @ told.rest)
    return bool(working_dtype(rows.dtype) == np.float32 and not told.exponent
                and abs(rows.exponent or 0) < SINGLE_EXPONENT
                and offset <= SINGLE_OFFSET * float(told.squares.sum()))


def _iterated(action: Action, count: int, tol: float, rng: Generator, start: FloatArray | None,
              callback: Callback | None) -> Ritz:
    """Return `count` eigenpairs, times 2**exponent of the action, by Lanczos; see `sharp`."""
    if not count:
        return Ritz(np.zeros(0), np.zeros((0, action.size)), np.zeros(0), 0.0, -math.inf, 0.0,
                    True, 0, 0)
    how = Iteration(rng, tol=tol, callback=callback, reach=TOL[4])  # sums of many rows round
    return unscaled(sharp(action, count, how, start), action.exponent)
