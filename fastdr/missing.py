"""Rows with missing cells, NaN: which they are, and what a first look at the others tells."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastdr.mapped import read
from fastdr.sources import ArraySource, BlockSource, Source, block_rows
from fastdr.validation import AnyArray, FloatArray, raise_not_finite

FLOOR = 1e-10  # least noise: of rows with few cells, rounding errors of z are divided by it
SAFE = 400  # exponents of two whose squares, summed, stay in float64


@dataclass(frozen=True)
class ObservedRows:
    """Rows with missing cells, and what the observed ones tell in a first look.

    ``mean`` (d,) that of the observed cells, or a known one; ``scale`` (d,) their deviations or
    None; ``squares`` (d,) weighted sums of squares about ``mean``, of scaled columns; ``weights``
    (n,) or None, ``totals`` (d,) their sums over the observed cells of a column; ``cells`` observed
    and ``missing`` ones in rows of positive weight. Numbers are in units of 2**-exponent, which
    columns that are scaled have each of their own, (d,).
    """

    array: AnyArray
    weights: FloatArray | None
    estimated: bool
    mean: FloatArray
    scale: FloatArray | None
    squares: FloatArray
    totals: FloatArray
    cells: int
    missing: int
    exponent: int | NDArray[np.intc]

    def centred(self, first: int, last: int) -> FloatArray:
        """Return rows [first, last) about the mean and scaled, NaN in missing cells."""
        rows = read(self.array[first:last]).astype(np.float64, order="C")
        if np.any(self.exponent):
            np.ldexp(rows, self.exponent, out=rows)
        rows -= self.mean
        if self.scale is not None:
            rows /= self.scale
        return rows

    def weights_of(self, first: int, last: int) -> FloatArray:
        """Return the weights of rows [first, last)."""
        return (np.ones(last - first) if self.weights is None else self.weights[first:last])

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Yield the first and last of rows that take about 16 MB."""
        yield from _pieces(self.array)

    @property
    def weight(self) -> float:
        """Sum of the weights."""
        return float(len(self.array) if self.weights is None else self.weights.sum())

    @property
    def divisor(self) -> float:
        """What turns sums of squares of complete rows into variances."""
        return self.weight - self.estimated

    @property
    def total(self) -> float:
        """Mean square of all features together, times the number of them."""
        return float((self.squares / self.totals).sum())

    @property
    def floor(self) -> float:
        """The least variance of the noise: at it cells are matched to a hundred thousandth."""
        return FLOOR * self.total

    @cached_property
    def log_volume(self) -> float:
        """What makes a log-likelihood of scaled cells one of cells in their own units."""
        scales = 0.0 if self.scale is None else float(self.totals @ np.log(self.scale))
        return math.log(2) * float((self.exponent * self.totals).sum()) - scales

    def filled(self) -> Source:
        """Return the centred and scaled rows with 0, the mean, in missing cells."""
        def blocks() -> Iterator[FloatArray]:
            for first, last in self.pieces():
                yield np.nan_to_num(self.centred(first, last), copy=False, nan=0.0)

        return BlockSource(blocks, self.array.shape[1], len(self.array))

    def restored(self) -> Source:
        """Return the rows as they are, with the mean in missing cells."""
        mean = np.ldexp(self.mean, -self.exponent)

        def blocks() -> Iterator[AnyArray]:
            for first, last in self.pieces():
                block = read(self.array[first:last])
                yield np.where(np.isnan(block), mean.astype(block.dtype), block)

        return BlockSource(blocks, self.array.shape[1], len(self.array), self.array.dtype)


def has_missing(source: Source) -> bool:
    """Whether any cell is NaN; reads up to the first block that has one."""
    return source.dtype.kind == "f" and any(np.isnan(block).any() for block in source.blocks())


def observed_rows(source: ArraySource, weights: FloatArray | None, mean: FloatArray | None,
                  standardize: bool) -> ObservedRows:
    """Look at all cells: refuse infinity, rows and columns without any; find means and scales.

    `mean` (d,) is known or None. Four passes, O(n d).
    """
    array = source.array
    found = _survey(source, weights)
    unit = np.asarray if standardize else np.max  # columns that are scaled have units of their own
    used = len(array) if weights is None else int(np.count_nonzero(weights))
    missing, totals = used * array.shape[1] - found.cells, found.totals
    _check(found, missing, mean is None, source.columns)
    peak = unit(found.peaks)
    exponent = _rescue(peak)
    centre = np.ldexp(found.shift if mean is None else mean, exponent)
    rows = ObservedRows(array, weights, mean is None, centre, None, np.ones_like(totals), totals,
                        found.cells, missing, exponent)
    if mean is None:
        rows = replace(rows, mean=centre + _sums(rows)[0] / totals)
    rest, squares, spread = _sums(rows)
    further = _rescue(unit(spread), 2 * SAFE - np.frexp(peak)[1] - exponent)
    if np.any(further):  # the spread is far smaller than the cells
        exponent = exponent + further
        rows = replace(rows, mean=np.ldexp(rows.mean, further), exponent=exponent)
        rest, squares, spread = _sums(rows)
    if mean is None:
        rows = replace(rows, mean=rows.mean + rest / totals)
        squares = np.maximum(squares - rest**2 / totals, 0.0)
    rows = replace(rows, squares=squares)
    if not standardize:
        return rows
    scale = np.sqrt(squares / (totals - rows.estimated))
    scale[scale == 0] = 1.0
    return replace(rows, scale=scale, squares=squares / scale**2)


def _pieces(array: AnyArray) -> Iterator[tuple[int, int]]:
    step = block_rows(array.shape[1])
    for first in range(0, len(array), step):
        yield first, min(first + step, len(array))


class _Survey(NamedTuple):
    """What cells there are: of rows of positive weight, but for `peaks`.

    ``shift`` (d,) the first observed cell of each column, ``totals`` (d,) weights of all, ``cells``
    how many there are, ``empty`` rows without any, ``peaks`` (d,) the largest magnitudes.
    """

    shift: FloatArray
    totals: FloatArray
    cells: int
    empty: AnyArray
    peaks: FloatArray


def _survey(source: ArraySource, weights: FloatArray | None) -> _Survey:
    """Look at all cells; refuse infinity."""
    array = source.array
    totals, shift, peaks = np.zeros((3, array.shape[1]))
    empty, cells = [], 0
    for first, last in _pieces(array):
        block = read(array[first:last])
        seen = ~np.isnan(block)
        peaks = np.maximum(peaks, np.max(np.abs(block), axis=0, where=seen, initial=0.0))
        if peaks.max() == math.inf:
            raise_not_finite(array, columns=source.columns, allow_nan=True)
        part = np.ones(last - first) if weights is None else weights[first:last]
        seen &= part[:, None] > 0
        empty.append(first + np.flatnonzero(~seen.any(axis=1) & (part > 0)))
        new = (totals == 0) & seen.any(axis=0)
        shift[new] = block[np.argmax(seen, axis=0), np.arange(len(shift))][new]
        totals += part @ seen
        cells += int(np.count_nonzero(seen))
    return _Survey(shift, totals, cells, np.concatenate(empty), peaks)


def _check(found: _Survey, missing: int, estimated: bool, names: list[str] | None) -> None:
    """Refuse rows and columns of which too little is known."""
    lost = f"{100 * missing / (found.cells + missing):.3g} % of all cells are missing"
    if found.empty.size:
        raise ValueError(f"no cell is observed in {_listed('row', found.empty)} ({lost}). Leave "
                         "such rows out, or give them a sample_weight of 0.")
    none, few = found.totals == 0, (found.totals <= 1) & estimated
    if none.any():
        raise ValueError(f"no cell is observed in {_listed('column', np.flatnonzero(none), names)} "
                         f"({lost}). Leave such columns out.")
    if few.any():
        columns = _listed("column", np.flatnonzero(few), names)
        raise ValueError(f"one observed cell does not tell how {columns} varies ({lost}). Leave "
                         "such columns out, or pass mean=.")


def _listed(what: str, indices: AnyArray, names: list[str] | None = None) -> str:
    """Return "columns 3 ('a'), 7 ('b')" and so on, at most five."""
    shown = [f"{i}" if names is None else f"{i} ({names[i]!r})" for i in indices[:5]]
    more = ", ..." if len(indices) > 5 else ""
    count = "" if len(indices) <= 5 else f"{len(indices)} "
    return f"{count}{what}{'s' if len(indices) > 1 else ''} {', '.join(shown)}{more}"


def _rescue(peaks: FloatArray | float, most: Any = 2000) -> Any:
    """Return e, at most `most`, such that squares of numbers of sizes `peaks` 2**e are floats."""
    sizes = np.frexp(peaks)[1]
    found = np.minimum(np.where((peaks == 0) | (np.abs(sizes) < SAFE), 0, -sizes), most)
    return found if found.ndim else int(found)


def _sums(rows: ObservedRows) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return weighted sums of centred cells and of their squares, and the largest cells, (d,)."""
    sums, squares, peaks = np.zeros((3, len(rows.mean)))
    with np.errstate(over="ignore", under="ignore"):
        for first, last in rows.pieces():
            block = np.nan_to_num(rows.centred(first, last), copy=False, nan=0.0)
            peaks = np.maximum(peaks, np.abs(block).max(axis=0))
            weights = rows.weights_of(first, last)
            sums += weights @ block
            squares += weights @ np.square(block, out=block)
    return sums, squares, peaks
