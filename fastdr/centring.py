"""The first pass: what rows are centred at, how far they spread, and how to read them again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdr.column_statistics import ColumnMoments
from fastdr.low_rank import LowRankMoments
from fastdr.mapped import read
from fastdr.scatter import blas_error, sum_error
from fastdr.sources import ArraySource, BlockSource, Source, block_rows, gathered
from fastdr.sparse import SparseSource
from fastdr.statistics import (
    FEW_ROWS,
    LARGEST,
    SMALLEST,
    Kind,
    Moments,
    Precision,
    check_squares,
)
from fastdr.validation import AnyArray, FloatArray, working_dtype

EPS = float(np.finfo(np.float64).eps)
WHOLE_BYTES = 1 << 30  # of fewer rows than features that are read from a mapped file at once
INVERTIBLE = 2.0**-1020  # numbers from here on have a finite inverse
FAR = 508  # exponents of rows that are never multiplied by each other as they are
SQUARABLE = 1e-100, 1e100  # sums of squares, all those of float32 rows, whose squares are in range


@dataclass(frozen=True)
class CentredRows:
    """What a first pass over the rows tells, and how to read them again, centred.

    ``mean`` (d,) of the columns, or the given one; ``squares`` (d,) weighted sums of squares about
    it and ``scatter`` (d, d) or None, of the scaled columns; ``scale`` (d,) deviations or None;
    ``count`` rows of positive weight, ``weight`` their sum; ``divisor`` turns a scatter
    into a covariance; ``wide`` fewer rows than features; ``single`` float32 arithmetic. Numbers
    are in units of 2**-exponent (0 unless squares of squares might leave the float64 range).
    ``lost`` (d,) is what rounding took from the mean of the rows, None for a known one: float64
    holds a mean to eps |mean|, and that times sqrt(weight) would pass for variance in a direction
    that has none.
    """

    source: Source
    weights: FloatArray | None
    mean: FloatArray
    squares: FloatArray
    scatter: FloatArray | None
    scale: FloatArray | None
    count: int
    weight: float
    divisor: float
    wide: bool
    single: bool
    exponent: int = 0
    lost: FloatArray | None = None

    @property
    def estimated(self) -> bool:
        """Whether the centre is the mean of the rows."""
        return self.divisor != self.weight

    @property
    def total(self) -> float:
        """Trace of the scatter of the scaled columns."""
        return float(self.squares.sum())

    @cached_property
    def bound(self) -> int:
        """The rank cannot exceed this: varying columns, and rows less one for the mean."""
        return max(0, min(int(np.count_nonzero(self.squares)),
                          self.count - self.estimated))

    @property
    def unit(self) -> int:
        """Exponent of the scaled columns: deviations leave none."""
        return self.exponent if self.scale is None else 0

    @property
    def far(self) -> bool:
        """Whether products of the rows as they are stored might leave float64."""
        if self.scale is None:
            return abs(self.exponent) > FAR
        return self.exponent != 0 or float(self.scale.min()) < INVERTIBLE

    @property
    def terms(self) -> int:
        """Terms of each entry of the smaller matrix of squares."""
        return self.mean.size if self.wide else self.count

    @property
    def rounding(self) -> float:
        """Bound on the norm of what rounding adds to that matrix, which BLAS sums if `far`."""
        product = blas_error(self.terms) if self.far else 0.0
        return (sum_error(self.terms, single=self.single) + product) * self.total

    def scaled(self, exponent: int) -> CentredRows:
        """Return the same in units of 2**-exponent of these, the scatter in place."""
        if not exponent:
            return self
        if self.scatter is not None:
            np.ldexp(self.scatter, 2 * exponent, out=self.scatter)
        lost = None if self.lost is None else np.ldexp(self.lost, exponent)
        return replace(self, mean=np.ldexp(self.mean, exponent), lost=lost,
                       squares=np.ldexp(self.squares, 2 * exponent),
                       exponent=self.exponent + exponent)

    def centred(self, block: AnyArray, columns: slice = slice(None)) -> FloatArray:
        """Return some `columns` of the rows as float64, centred and scaled."""
        rows = read(block[:, columns]).astype(np.float64, order="C")
        if self.exponent:
            np.ldexp(rows, self.exponent, out=rows)
        rows -= self.mean[columns]
        if self.lost is not None:
            rows -= self.lost[columns]
        if self.scale is not None:
            rows /= self.scale[columns]
        return rows

    def blocks(self) -> Iterator[FloatArray]:
        """Yield the varying columns of the centred rows, times the roots of the weights."""
        varying, start = self.squares > 0, 0
        step = piece(self.mean.size)
        for block in self.source.blocks():
            for first in range(0, len(block), step):
                rows = self.centred(block[first:first + step])
                if self.weights is not None:
                    rows *= np.sqrt(self.weights[start:start + len(rows), None])
                start += len(rows)
                yield rows if varying.all() else rows[:, varying]

    def summed(self, function: Callable[[CentredRows], Any]) -> Any:
        """Return `function` of these rows, or its sum over the chunks that workers have of them."""
        if not hasattr(self.source, "summed"):
            return function(self)
        about = replace(self, source=None, weights=None, scatter=None)  # type: ignore[arg-type]
        return self.source.summed(partial(_of_part, function, about), self.weights)

    def transposed_blocks(self) -> Iterator[FloatArray]:
        """Yield the transposed centred rows, some features at a time."""
        array = gathered(self.source).array
        step = piece(len(array))
        for start in range(0, self.mean.size, step):
            rows = self.centred(array, slice(start, start + step))
            if self.estimated:
                rows -= np.average(rows, axis=0, weights=self.weights)
            if self.weights is not None:
                rows *= np.sqrt(self.weights[:, None])
            yield rows.T


def _of_part(function: Callable[[CentredRows], Any], about: CentredRows,
             rows: AnyArray | SparseSource, weights: FloatArray | None) -> Any:
    """Return `function` of some of all rows that `about` tells of."""
    source = rows if isinstance(rows, SparseSource) else ArraySource(rows)
    return function(replace(about, source=source, weights=weights))


def piece(width: int) -> int:
    """Return how many rows of `width` float64 numbers take about 4 MB, at least one."""
    return max(1, block_rows(width) // 4)


def centred_rows(source: Source, weights: FloatArray | None = None, *,
                 mean: FloatArray | None = None, standardize: bool = False,
                 scatter: bool = True, double: bool = False) -> CentredRows:
    """Read the rows once: mean, sums of squares and, unless they are few, the scatter.

    Centres at the known `mean` (divisor: sum of weights) or at the mean of the rows (divisor:
    one less). `standardize` divides columns by their deviation, constant ones by 1. `double`
    asks for float64 arithmetic on float32 rows. Rows whose squares would overflow or vanish are
    read again times a power of two, which is exact, and refused if they can be read once only; if
    those squared would, all that was found is multiplied so. One pass, O(n d^2); O(n d) if not
    `scatter`.
    """
    rows, features = source.shape
    used = rows if weights is None else int(np.count_nonzero(weights))
    wide = used is not None and used < features
    if wide and not isinstance(source, ArraySource) and not getattr(source, "stays", False):
        source = gathered(source)
    elif wide and isinstance(source, ArraySource) and source.array.nbytes <= WHOLE_BYTES:
        source = replace(source, array=read(source.array))
    precision: Precision = "double" if double else None
    once = None if source.rereadable else _Once(source, weights, mean)
    reading = source if once is None else once.rows

    def first_pass(exponents: NDArray[np.intc]) -> CentredRows:
        moved = exponents.any()
        given = _scaled(source, exponents) if moved else reading
        found = _moments(given, weights, scatter and not wide, precision)
        about = None if mean is None else np.ldexp(mean, exponents)
        single = (working_dtype(source.dtype) == np.float32 and not double and not moved
                  and (wide or found.count > FEW_ROWS))
        return _told(source, weights, found, found.weight - (mean is None), about, wide=wide,
                     single=single, exponent=int(exponents[0]))

    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        result = first_pass(np.zeros(features, np.intc))
        if once is not None:
            check_squares(result.squares, once.varying, "pass an array, or ")
        exponents = _rescue_exponents(result, standardize)
        if exponents.any():
            result = first_pass(exponents)
    if standardize:
        return standardized(result, exponents)
    return result.scaled(level(result.squares))


def level(squares: FloatArray) -> int:
    """Return e such that `squares` times 4**e are near 1; 0 if they can be squared as they are."""
    largest = float(squares.max(initial=0.0))
    if SQUARABLE[0] < largest < SQUARABLE[1] or not 0 < largest < math.inf:
        return 0
    return -(math.frexp(largest)[1] // 2)


def centred_moments(source: Source, weights: FloatArray | None, total: Moments | LowRankMoments, *,
                    mean: FloatArray | None = None, standardize: bool = False,
                    kind: Kind = "frequency") -> CentredRows:
    """Return what a first pass over rows of these moments would; `source` reads them again.

    `mean` and `standardize` as for `centred_rows`; ValueError if the weights leave no divisor.
    """
    if isinstance(total, Moments):
        total = replace(total, scatter=total.scatter.copy())
    divisor = total.divisor(kind=kind) if mean is None else total.weight
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        rows = _told(source, weights, total, divisor, mean)
    check_squares(rows.squares, bool((rows.mean != total.mean).any()))
    return standardized(rows) if standardize else rows.scaled(level(rows.squares))


def _moments(source: Source, weights: FloatArray | None, scatter: bool, precision: Precision
             ) -> Moments | ColumnMoments:
    """Mean and sums of squares, or all of the scatter, in one pass."""
    if scatter:
        return (Moments.of(source.array, weights, precision=precision)
                if isinstance(source, ArraySource)
                else Moments.of_source(source, weights, precision=precision))
    if hasattr(source, "summed"):  # where the rows are
        total: ColumnMoments = source.summed(ColumnMoments.of, weights)
    else:
        total, start = ColumnMoments.none(source.shape[1]), 0
        for block in [source.array] if isinstance(source, ArraySource) else source.blocks():
            part = None if weights is None else weights[start:start + len(block)]
            start += len(block)
            if part is None or part.any():
                total += ColumnMoments.of(block, part)
    return total


class _Once:
    """Rows that can be read once, and whether some lie off a known mean, or the first of them.

    Squares that vanish are as those of rows that are all equal, and nobody can look again.
    """

    def __init__(self, source: Source, weights: FloatArray | None, mean: FloatArray | None):
        self.source, self.weights, self.centre, self.varying = source, weights, mean, False
        rows, features = source.shape
        self.rows = BlockSource(self._blocks, features, rows, source.dtype, source.columns, False)

    def _blocks(self) -> Iterator[AnyArray]:
        start = 0
        for block in self.source.blocks():
            rows, start = block, start + len(block)
            if self.weights is not None:
                rows = block[self.weights[start - len(block):start] > 0]
            if len(rows) and not self.varying:
                self.centre = rows[0].copy() if self.centre is None else self.centre
                self.varying = bool((rows != self.centre).any())
            yield block


def _scaled(source: Source, exponents: NDArray[np.intc]) -> Source:
    """Return the columns of `source` times 2**exponents (d,), in float64."""
    rows, features = source.shape
    return BlockSource(lambda: (np.ldexp(block.astype(np.float64), exponents)
                                for block in source.blocks()), features, rows)


def _rescue_exponents(rows: CentredRows, each: bool) -> NDArray[np.intc]:
    """Return e (d,) such that columns times 2**e have squares well inside float64; 0 if so now.

    All have the same unless `each` may have its own. A column far from 0 does not vary if its
    squares vanish.
    """
    source, mean, squares = rows.source, rows.mean, rows.squares
    none, whole = np.zeros(mean.size, np.intc), source.dtype.kind != "f" and rows.estimated
    usual = not each and SMALLEST < squares.max() < LARGEST
    if usual or whole or not source.rereadable:
        return none
    largest = squares if each else squares.max(keepdims=True)
    doubtful = ~((largest > SMALLEST) & (largest < LARGEST))
    doubtful &= ~((largest == 0) & (np.abs(mean) > 1e-100)) if each else True
    if not doubtful.any():
        return none
    peak, spread = np.zeros((2, mean.size))
    centre = mean / 4 if np.isfinite(mean).all() else np.zeros_like(mean)
    start = 0
    for block in source.blocks():
        start += len(block)
        if rows.weights is not None:
            block = block[rows.weights[start - len(block):start] > 0]
        quarter = block / np.float64(4)
        peak = np.maximum(peak, np.abs(quarter).max(axis=0, initial=0))
        spread = np.maximum(spread, np.abs(quarter - centre).max(axis=0, initial=0))
    if not each:
        peak, spread = peak.max(keepdims=True), spread.max(keepdims=True)
    exponents = np.minimum(-2 - np.frexp(spread)[1], 1018 - np.frexp(peak)[1])
    return np.where(doubtful & (spread > 0), exponents, none)


def _told(source: Source, weights: FloatArray | None, found: Moments | ColumnMoments |
          LowRankMoments, divisor: float, about: FloatArray | None, *, wide: bool = False,
          single: bool = False, exponent: int = 0) -> CentredRows:
    """Return rows of these moments, centred at their mean or at a known one; takes the scatter."""
    scatter = found.scatter if isinstance(found, Moments) else None
    rows = CentredRows(source, weights, found.mean, found.squares, scatter, None, found.count,
                       found.weight, divisor, wide, single, exponent,
                       lost=found.rest if about is None else None)
    if about is None:
        return rows
    step = (found.mean - about) + found.rest
    if scatter is not None:
        for row, factor in enumerate(found.weight * step):  # no second d x d
            scatter[row] += factor * step
    return replace(rows, mean=about, squares=rows.squares + found.weight * step**2)


def standardized(rows: CentredRows, exponents: Any = 0) -> CentredRows:
    """Divide columns by their deviations: the scatter becomes divisor times the correlation.

    Columns are in units of 2**-exponents (d,) of their own. What is returned has their mean and
    scale as they are stored, or a quarter of them where differences would overflow.
    """
    scale = np.sqrt(rows.squares / rows.divisor)
    scale[scale == 0] = 1.0
    if rows.scatter is not None:
        rows.scatter[...] /= scale
        rows.scatter[...] /= scale[:, None]
    exponent = -2 if np.min(exponents) < -1024 else 0
    stored = exponent - exponents
    return replace(rows, squares=rows.squares / scale**2, exponent=exponent,
                   mean=np.ldexp(rows.mean, stored), scale=np.ldexp(scale, stored),
                   lost=None if rows.lost is None else np.ldexp(rows.lost, stored))


def read_again(rows: CentredRows, *, scatter: bool = True, double: bool = False) -> CentredRows:
    """Read the rows again, in the same units, with or without forming their scatter.

    `double` as for `centred_rows`.
    """
    known = None if rows.estimated else np.ldexp(rows.mean, -rows.exponent)
    again = centred_rows(rows.source, rows.weights, mean=known,
                         standardize=rows.scale is not None, scatter=scatter, double=double)
    return again.scaled(rows.unit - again.unit)


def rows_meant(rows: int, weights: FloatArray | None, known_mean: bool) -> int:
    """Return the number of rows that weighted rows stand for; refuse too few."""
    total = float(rows) if weights is None else float(weights.sum())
    if total <= 0 or (total <= 1 and not known_mean):
        given = (f"n_samples={rows}, 1 sample" if weights is None
                 else f"sample_weight with sum {total:g}")
        raise ValueError(f"a total weight of more than 1 is needed to estimate variances about "
                         f"the mean of the rows; got {given}. Weights count rows; pass mean= if "
                         "the mean is known.")
    used = rows if weights is None else int(np.count_nonzero(weights))
    return max(used, math.floor(total * (1 + 4 * EPS)))
