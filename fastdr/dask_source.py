"""Rows in Dask collections: moments summed chunk by chunk on the workers, merged in a tree."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any, TypeVar

import numpy as np

from fastdr.class_statistics import ClassMoments
from fastdr.statistics import Moments, Precision
from fastdr.threads import num_threads
from fastdr.validation import AnyArray, FloatArray, as_matrix, raise_not_finite

FAN_IN = 8  # sums that one task merges; the tree depends on the chunks alone
Sums = TypeVar("Sums", Moments, ClassMoments)


def is_dask(X: Any) -> bool:
    """Whether `X` is a Dask array or frame."""
    return type(X).__module__.partition(".")[0] == "dask" and hasattr(X, "__dask_graph__")


def dask_source(X: Any) -> DaskSource:
    """Return the rows of a Dask array or frame as a source; nothing is computed.

    Raises
    ------
    ValueError, TypeError
        If it is not two-dimensional or not of numbers.

    Warns
    -----
    UserWarning
        If an array has chunks along its columns, which are joined, as rows are needed whole.
    """
    if hasattr(X, "to_dask_array"):
        return _of_frame(X)
    if X.ndim != 2:
        raise ValueError(f"Expected 2D array, got {X.ndim}D Dask array of shape {X.shape} instead; "
                         "reshape it to (rows, features).")
    if math.isnan(X.shape[1]) or X.shape[1] < 1:
        raise ValueError(f"X is a Dask array of shape {X.shape}; the number of features must be "
                         "known and at least 1: call X.compute_chunk_sizes() first.")
    as_matrix(np.empty((1, 1), X.dtype))  # refuses what is not numbers
    if X.numblocks[1] > 1:
        whole = X.rechunk({0: "auto", 1: -1} if not math.isnan(X.shape[0]) else {1: -1})
        size = X.dtype.itemsize * X.shape[1] * np.max(whole.chunks[0]) / 1e6
        warnings.warn(f"X has {X.numblocks[1]} chunks along its columns, but rows are needed "
                      f"whole: it is rechunked to chunks of {size:.0f} MB. Pass "
                      "X.rechunk({0: 'auto', 1: -1}) yourself to choose their size.", UserWarning,
                      stacklevel=5)
        X = whole
    return DaskSource(X, X.shape[1], np.dtype(X.dtype))


def _of_frame(X: Any) -> DaskSource:
    if X.ndim != 2:
        raise ValueError("Expected a Dask frame, got a series; pass X.to_frame().")
    kinds = {str(name): np.dtype(getattr(kind, "numpy_dtype", kind))
             if getattr(kind, "kind", "O") in "fiub" else None
             for name, kind in X.dtypes.items()}
    for name, kind in kinds.items():
        if kind is None or kind.kind not in "fiub":
            raise TypeError(f"column {name!r} of X is not numeric; choose columns without it.")
    if not kinds:
        raise ValueError("Found array with 0 feature(s) while a minimum of 1 is required.")
    return DaskSource(X, len(kinds), np.result_type(*kinds.values()), list(kinds))


@dataclass(frozen=True, eq=False)
class DaskSource:
    """The chunks of a Dask array or frame, each of whole rows.

    Sums are formed where the chunks are and merged by eights in their order, so they are the same
    to the bit for any number of workers and threads. ``blocks`` computes one chunk after the
    other, for the few solvers that read the rows again.
    """

    collection: Any
    features: int
    dtype: np.dtype[Any]
    columns: list[str] | None = None
    rereadable: bool = field(default=True, init=False)

    @property
    def shape(self) -> tuple[int | None, int]:
        """Rows (None while they are not known) and features."""
        rows = self.collection.shape[0] if self.columns is None else math.nan
        return (None if math.isnan(rows) else int(rows)), self.features

    @cached_property
    def chunks(self) -> list[Any]:
        """The chunks as delayed values."""
        delayed = self.collection.to_delayed()
        return list(delayed.ravel()) if isinstance(delayed, np.ndarray) else list(delayed)

    @cached_property
    def lengths(self) -> list[int]:
        """Rows of each chunk; one pass if they are not known."""
        if self.shape[0] is not None:
            return [int(rows) for rows in self.collection.chunks[0]]
        dask = import_module("dask")
        return [int(rows) for rows in dask.compute(*map(dask.delayed(len), self.chunks))]

    def blocks(self) -> Iterator[AnyArray]:
        """Yield the chunks as arrays, computed one by one."""
        for chunk in self.chunks:
            yield _rows_of(chunk.compute(), self.features)

    def moments(self, precision: Precision, weights: FloatArray | None = None) -> Moments:
        """Moments of all rows, summed on the workers; O(d²) numbers come back."""
        parts = self._split(weights) if weights is not None else [None] * len(self.chunks)
        return self._sum(_chunk_moments, [(part, precision) for part in parts])

    def class_moments(self, labels: AnyArray, weights: FloatArray | None, precision: Precision
                      ) -> ClassMoments:
        """Class moments of all rows, likewise."""
        parts = self._split(weights) if weights is not None else [None] * len(self.chunks)
        return self._sum(_chunk_class_moments, [
            (at, part, precision) for at, part in zip(self._split(labels), parts, strict=True)])

    def mapped(self, function: Callable[[AnyArray], AnyArray], names: Sequence[str],
               dtype: np.dtype[Any]) -> Any:
        """Return a collection of what `function` makes of each chunk; nothing is computed.

        A Dask array with chunks of the same rows, or a frame with the same index and columns
        `names`.
        """
        if self.columns is None:
            return self.collection.map_blocks(
                _mapped_rows, function, len(names), dtype, dtype=dtype,
                meta=np.empty((0, 0), dtype), chunks=(self.collection.chunks[0], (len(names),)))
        frame = self.collection._meta
        meta = type(frame)(np.empty((0, len(names)), dtype), index=frame.index[:0],
                           columns=list(names))
        return self.collection.map_partitions(_mapped_frame, function, list(names), dtype,
                                              meta=meta)

    def _split(self, values: AnyArray) -> list[AnyArray]:
        """Cut one value a row into those of each chunk."""
        ends = np.cumsum(self.lengths)
        if len(values) != ends[-1]:
            raise ValueError(f"there are {len(values)} labels or weights for {ends[-1]} rows.")
        return np.split(values, ends[:-1])

    def _sum(self, task: Callable[..., Sums | None], arguments: Sequence[tuple[Any, ...]]) -> Sums:
        """Apply `task` to each chunk and merge the results in a tree."""
        delayed = import_module("dask").delayed
        known = self.shape[0] is not None
        starts = np.concatenate([[0], np.cumsum(self.lengths)]) if known else None
        apply, merge = delayed(task), delayed(_merged)
        nodes = [apply(chunk, index, None if starts is None else int(starts[index]), self.columns,
                       self.features, *more)
                 for index, (chunk, more) in enumerate(zip(self.chunks, arguments, strict=True))]
        while len(nodes) > 1:
            nodes = [merge(nodes[start:start + FAN_IN]) for start in range(0, len(nodes), FAN_IN)]
        total: Sums | None = nodes[0].compute()
        if total is None:
            raise ValueError("Found no rows: all chunks are empty or all weights are zero.")
        return total


def _rows_of(chunk: Any, features: int) -> AnyArray:
    """Return a chunk as an array of numbers."""
    if len(chunk) == 0:
        return np.empty((0, features))
    return as_matrix(chunk if isinstance(chunk, np.ndarray) or not hasattr(chunk, "to_numpy")
                     else chunk.to_numpy())


def _of_chunk(make: Callable[[AnyArray], Sums], chunk: Any, index: int, first: int | None,
              columns: list[str] | None, features: int) -> Sums | None:
    """Sum a chunk in the calling thread; an error says which chunk and row it is in."""
    rows = _rows_of(chunk, features)
    if not len(rows):
        return None
    try:
        with num_threads(1):  # the scheduler has its own
            return make(rows)
    except (ValueError, TypeError) as raised:
        error: Exception = raised
        try:
            raise_not_finite(rows, columns=columns, first_row=first or 0)
        except ValueError as found:
            error = found
        where = " (rows are counted within it)" if first is None else ""
        raise type(error)(f"chunk {index}{where}: {error}") from None


def _chunk_moments(chunk: Any, index: int, first: int | None, columns: list[str] | None,
                   features: int, weights: FloatArray | None, precision: Precision
                   ) -> Moments | None:
    if weights is not None and not weights.any():
        return None
    return _of_chunk(lambda rows: Moments.of(rows, weights, precision=precision), chunk, index,
                     first, columns, features)


def _chunk_class_moments(chunk: Any, index: int, first: int | None, columns: list[str] | None,
                         features: int, labels: AnyArray, weights: FloatArray | None,
                         precision: Precision) -> ClassMoments | None:
    if weights is not None and not weights.any():
        return None
    return _of_chunk(lambda rows: ClassMoments.of(rows, labels, weights, precision=precision),
                     chunk, index, first, columns, features)


def _merged(sums: Sequence[Sums | None]) -> Sums | None:
    """Merge sums in order; None stands for no rows."""
    total = None
    for part in sums:
        if part is not None:
            total = part if total is None else total.merge(part)
    return total


def _mapped_rows(chunk: Any, function: Callable[[AnyArray], AnyArray], width: int,
                 dtype: np.dtype[Any]) -> AnyArray:
    if not len(chunk):
        return np.empty((0, width), dtype)
    with num_threads(1):
        return function(_rows_of(chunk, chunk.shape[1])).astype(dtype, copy=False)


def _mapped_frame(frame: Any, function: Callable[[AnyArray], AnyArray], names: list[str],
                  dtype: np.dtype[Any]) -> Any:
    rows = _mapped_rows(frame, function, len(names), dtype)
    return type(frame)(rows, index=frame.index, columns=names)
