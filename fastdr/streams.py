"""Rows that come in batches: their moments so far, beside the last few rows as they came."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from fastdr.low_rank import LowRankMoments
from fastdr.sources import ArraySource, BlockSource, Source
from fastdr.sparse import FAR, SparseSource
from fastdr.sparse_statistics import chosen, moments_of_sparse, stacked
from fastdr.statistics import LARGEST, SMALLEST, Moments, check_squares
from fastdr.validation import (
    AnyArray,
    FloatArray,
    as_matrix,
    as_weights,
    check_square,
    raise_not_finite,
    rows_named,
    working_dtype,
)

PANEL = 256  # rows that are worth a product of their own
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
LEAST = 64  # rows that are worth a truncation of their own
Known = TypeVar("Known", Moments, LowRankMoments)


class Batch(NamedTuple):
    """Rows (n, d) of any real dtype and their weights (n,), positive, or None."""

    rows: Any  # array or SparseSource
    weights: FloatArray | None

    def part(self, first: int, last: int) -> Batch:
        """Return the rows [first, last); views."""
        rows, weights = self.rows, self.weights
        return Batch(rows.part(first, min(last, len(rows))) if isinstance(rows, SparseSource)
                     else rows[first:last], None if weights is None else weights[first:last])

    def from_row(self, first: int) -> Batch:
        """Return the rows from `first` on; views."""
        return self.part(first, len(self.rows))


def joined(batches: Iterable[Batch]) -> Batch:
    """Return all rows in one batch; a copy unless there is only one."""
    batches = list(batches)
    if len(batches) == 1:
        return batches[0]
    weights = None
    if any(batch.weights is not None for batch in batches):
        weights = np.concatenate([np.ones(len(batch.rows)) if batch.weights is None
                                  else batch.weights for batch in batches])
    rows = [batch.rows for batch in batches]
    if any(isinstance(part, SparseSource) for part in rows):
        return Batch(stacked(rows), weights)
    return Batch(np.concatenate(rows), weights)


def counted(rows: AnyArray | SparseSource, weights: FloatArray | None) -> Batch:
    """Return the rows of positive weight; those without any must be finite, too."""
    if weights is None or weights.all():
        return Batch(rows, weights)
    if isinstance(rows, SparseSource):
        return Batch(chosen(rows, weights > 0), weights[weights > 0])
    raise_not_finite(rows)
    return Batch(rows[weights > 0], weights[weights > 0])


def copied(batch: Batch) -> Batch:
    """Return a finite copy in native byte order, which later changes of the rows do not reach."""
    rows, weights = batch
    own = None if weights is None else weights.copy()
    if isinstance(rows, SparseSource):
        return Batch(replace(rows, indptr=rows.indptr.copy(), indices=rows.indices.copy(),
                             values=rows.values.copy()), own)
    raise_not_finite(rows)
    return Batch(np.array(rows, dtype=rows.dtype.newbyteorder("="), order="C"), own)


def moments_of(batch: Batch) -> Moments:
    """Moments of the rows in float64; refuses squares that float64 does not hold."""
    check_square(batch.rows.shape[1], "PCA needs no such square for fewer rows than features, nor "
                                      "if n_components is a number.")
    return _in_range(batch, moments_of_sparse(*batch) if isinstance(batch.rows, SparseSource)
                     else Moments.of(*batch, precision="double"))


def low_rank_moments_of(batch: Batch) -> LowRankMoments:
    """As `moments_of`, for more features than a square matrix may have."""
    return _in_range(batch, LowRankMoments.of(*batch))


def _in_range(batch: Batch, found: Known) -> Known:
    tiny, rows = found.squares.max() < SMALLEST, batch.rows
    if isinstance(rows, SparseSource):
        varying = found.squares.any() or (rows.exponent or 0) < -FAR
    else:
        varying = tiny and (rows != rows[0]).any()
    check_squares(found.squares, bool(varying))
    return found


def together(before: Known, more: Known, *, faded: bool = False) -> Known:
    """Return moments of both; refuses squares that float64 does not hold, unless they `faded`."""
    with np.errstate(over="ignore", invalid="ignore"):
        joint = before + more
    apart = (more.mean != before.mean) | (more.rest != before.rest)
    check_squares(joint.squares, not faded and bool(apart.any()))
    return joint


class Growing(Protocol):
    """What takes rows and is made anew by each batch."""

    def add(self, rows: Any, weights: FloatArray | None = None) -> Self: ...  # noqa: D102


class Watcher(Protocol):
    """What looks at rows as they pass."""

    def add(self, rows: AnyArray, weights: FloatArray | None = None) -> None: ...  # noqa: D102


Rows = TypeVar("Rows", bound=Growing)


def grown(so_far: Rows, source: Source, weights: FloatArray | None,
          watcher: Watcher | None = None) -> Rows:
    """Add the rows of a source, which `watcher` sees too; an error names the row in the source.

    If nothing has to see the rows, sources that gather their moments themselves are asked.
    """
    tall = (source.shape[0] or math.inf) >= source.shape[1]
    if (isinstance(so_far, Stream) and so_far.forgetting == 1 and watcher is None and tall
            and so_far.rank is None and hasattr(source, "moments")):
        found = Moments.of_source(source, weights, precision="double")
        if SMALLEST < found.squares.max() < LARGEST:  # else each block is looked at
            return so_far.add_moments(found, working_dtype(source.dtype))
    if isinstance(source, SparseSource) and isinstance(so_far, Stream) and watcher is None:
        return so_far.add(source, weights)
    start = 0
    for block in [source.array] if isinstance(source, ArraySource) else source.blocks():
        part = None if weights is None else weights[start:start + len(block)]
        if len(block):
            as_matrix(block)
            with rows_named(block, source.columns, start):
                so_far = so_far.add(block, part)
            if watcher is not None:
                watcher.add(block, part)
        start += len(block)
    return so_far


def weights_of(source: Source, sample_weight: ArrayLike | None, *, some: bool = True
               ) -> FloatArray | None:
    """Return weights for the rows of a batch, checked; `some` must not be zero."""
    if sample_weight is None:
        return None
    rows = source.shape[0]
    if rows is None:
        raise ValueError("sample_weight needs a source that knows its number of rows.")
    return as_weights(sample_weight, rows, some=some)


def gone(features: int, dtype: np.dtype[Any]) -> Source:
    """Return a source that stands for rows that cannot be read again."""
    def refuse() -> NoReturn:
        raise ValueError("rows that came in batches cannot be read again.")

    return BlockSource(refuse, features, None, dtype, rereadable=False)


@dataclass(frozen=True, eq=False)
class Stream:
    """All rows that came so far; a value, made anew by each `add`.

    Attributes
    ----------
    features : int
    forgetting : float in (0, 1]
        What a row counts beside the row that comes after it.
    seen : int, rows of positive weight so far.
    weight : float, sum of their weights, faded or not.
    dtype : float32 if all rows were float32 or float16, else float64.
    rank : int or None
        How many axes of a truncated scatter to keep, if features are too many for a square.
    summed : Moments, LowRankMoments if there is a `rank`, or None; of all rows but those waiting.
    waiting : tuple of Batch, the last rows: fewer than max(256, d), or max(64, 2 rank), so that
        sums are worth it and the rows take about as much room as the moments.
    held : int, rows waiting.

    Examples
    --------
    >>> stream = Stream(1).add(np.array([[1.0], [2.0]])).add(np.array([[6.0]]))
    >>> stream.total().mean, stream.seen
    (array([3.]), 3)
    """

    features: int
    forgetting: float = 1.0
    seen: int = 0
    weight: float = 0.0
    dtype: np.dtype[Any] = SINGLE
    rank: int | None = None
    summed: Moments | LowRankMoments | None = None
    waiting: tuple[Batch, ...] = ()
    held: int = 0

    @property
    def least(self) -> int:
        """Rows that are worth summing."""
        return max(PANEL, self.features) if self.rank is None else max(LEAST, 2 * self.rank)

    def add(self, rows: AnyArray | SparseSource, weights: FloatArray | None = None) -> Self:
        """Return the stream with more rows (n, d); weights (n,) say how often each occurs.

        O(n d) while rows wait, O((n + d) d) when those waiting are summed; O(n d rank) with one.
        """
        new = counted(rows, weights)
        if not len(new.rows):
            return self
        held, least = self.held + len(new.rows), self.least
        summed, waiting = self.summed, (*self.waiting, new)
        if held < least:
            waiting = (*self.waiting, copied(new))
        elif len(new.rows) < least:
            summed, waiting, held = self._with([joined(waiting)]), (), 0
        else:
            before = [joined(self.waiting)] if self.waiting else []
            summed, waiting, held = self._with([*before, new]), (), 0
        weight = len(new.rows) if new.weights is None else float(new.weights.sum())
        return replace(self, seen=self.seen + len(new.rows), weight=self.weight + weight,
                       dtype=np.result_type(self.dtype, working_dtype(rows.dtype)),
                       summed=summed, waiting=waiting, held=held)

    def add_moments(self, moments: Moments | LowRankMoments, dtype: np.dtype[Any] = DOUBLE
                    ) -> Self:
        """Return the stream with rows of which only the moments are known."""
        if self.forgetting < 1:
            raise ValueError("Moments do not say in which order their rows came; they can only "
                             "be added with forgetting=1.")
        if len(moments.mean) != self.features:
            raise ValueError(f"the moments are of {len(moments.mean)} features; expected "
                             f"{self.features}.")
        if isinstance(moments, Moments) is not (self.rank is None):
            raise ValueError(f"these are {type(moments).__name__}, but {self.features} features "
                             "with this n_components are kept as "
                             f"{'LowRankMoments' if self.rank else 'Moments'}.")
        check_squares(moments.squares, bool(moments.squares.any()))
        return replace(self, seen=self.seen + moments.count, weight=self.weight + moments.weight,
                       dtype=np.result_type(self.dtype, dtype), summed=self._joined(moments))

    def merge(self, other: Stream) -> Self:
        """Return all rows of both streams."""
        if min(self.forgetting, other.forgetting) < 1:
            raise ValueError("streams that forget cannot be merged: the order of their rows is "
                             "not known.")
        if self.rank != other.rank:
            raise ValueError(f"streams of {self.rank} and {other.rank} axes cannot be merged.")
        both = replace(self, dtype=np.result_type(self.dtype, other.dtype))
        if other.summed is not None:
            both = replace(both, summed=self._joined(other.summed))
        if other.waiting:
            both = both.add(*joined(other.waiting))
        return replace(both, seen=self.seen + other.seen, weight=self.weight + other.weight)

    def total(self) -> Moments | LowRankMoments:
        """Moments of all rows; ValueError if there are none."""
        total = self._with([joined(self.waiting)]) if self.waiting else self.summed
        if total is None:
            raise ValueError("Found no rows: none came, or all their weights are zero.")
        return total

    def few(self) -> Batch | None:
        """Return all rows if they are fewer than features and none counts less for its age."""
        if self.summed is not None or not self.waiting or self.seen >= self.features:
            return None
        return joined(self.waiting) if self.forgetting == 1 else None

    def _with(self, batches: list[Batch]) -> Moments | LowRankMoments | None:
        """Return the moments summed so far joined with `batches`."""
        stream = self
        for batch in batches:
            for part in self._cut(batch):
                stream = replace(stream, summed=stream._appended(part))
        return stream.summed

    def _cut(self, batch: Batch) -> list[Batch]:
        """Cut what a factor of many rows would be made of."""
        rows = len(batch.rows)
        step = rows if self.rank is None else self.least
        return [batch.part(first, min(first + step, rows)) for first in range(0, rows, step)]

    def _appended(self, batch: Batch) -> Moments | LowRankMoments:
        moments = moments_of if self.rank is None else low_rank_moments_of
        if self.forgetting == 1:
            return self._joined(moments(batch))
        weights, squares, fade = self._aged(batch)
        found = replace(moments(Batch(batch.rows, weights)), square_weight=squares)
        if self.summed is None or fade == 0:
            return found
        return replace(self, summed=self.summed.faded(fade))._joined(found)

    def _joined(self, more: Any) -> Moments | LowRankMoments:
        """Add moments to those summed so far, which are truncated only then."""
        before: Any = self.summed
        if before is None:
            joint: Moments | LowRankMoments = more
            return joint
        joint = together(before if self.rank is None else before.truncated(self.rank), more,
                         faded=self.forgetting < 1)
        return joint

    def _aged(self, batch: Batch) -> tuple[FloatArray, float, float]:
        """Return weights (n,) beside the last row, the sum of squares, what earlier rows count.

        A row of weight w is w rows one after the other: a geometric sum, in any order of batches
        the same as if they had come one by one.
        """
        rate = math.log(self.forgetting)
        own = np.ones(len(batch.rows)) if batch.weights is None else batch.weights
        after = np.cumsum(own[::-1])[::-1] - own
        with np.errstate(under="ignore"):
            weights = np.exp(rate * after) * (np.expm1(rate * own) / math.expm1(rate))
            squares = np.exp(2 * rate * after) * (np.expm1(2 * rate * own) / math.expm1(2 * rate))
            fade = float(np.exp(rate * own.sum()))
        return weights, float(squares.sum()), fade
