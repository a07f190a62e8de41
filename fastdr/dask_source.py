"""Rows in Dask collections: sums formed chunk by chunk on the workers, merged in a tree."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from typing import Any

import numpy as np

from fastdr.class_statistics import ClassMoments
from fastdr.sparse import SparseSource
from fastdr.sparse_statistics import moments_of_sparse
from fastdr.statistics import Moments, Precision
from fastdr.threads import num_threads
from fastdr.validation import (
    AnyArray,
    FloatArray,
    as_matrix,
    check_square,
    is_sparse,
    names_of,
    raise_not_finite,
)

FAN_IN = 8  # sums that one task merges; the tree depends on the chunks alone
SCATTER, SPARSE_SCATTER = 4000, 2000  # features up to which a worker sends a square of them
GATHER = 1 << 30  # bytes of rows fewer than features that may come together in one place
GRAPH = "distributed.admin.large-graph-warning-threshold"
LOST = ("CancelledError", "ClosedClientError", "CommClosedError", "FutureCancelledError",
        "FuturesCancelledError")  # what `distributed` raises when a scheduler is gone


def is_dask(X: Any) -> bool:
    """Whether `X` is a Dask array or frame."""
    return type(X).__module__.partition(".")[0] == "dask" and hasattr(X, "__dask_graph__")


def dask_source(X: Any) -> DaskSource:
    """Return the rows of a Dask array or frame as a source; nothing is computed.

    Chunks of an array may be sparse: SciPy's matrices or arrays, if the array's meta says so.

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
    names = [str(name) for name in X.columns]
    kinds = []
    for name, kind in zip(names, X.dtypes, strict=True):
        if getattr(kind, "kind", "O") not in "fiub":
            raise TypeError(f"column {name!r} of X is not numeric; choose columns without it.")
        kinds.append(np.dtype(getattr(kind, "numpy_dtype", kind)))
    if not names:
        raise ValueError("Found array with 0 feature(s) while a minimum of 1 is required.")
    return DaskSource(X, len(names), np.result_type(*kinds), names_of(X))


@dataclass(frozen=True, eq=False)
class DaskSource:
    """The chunks of a Dask array or frame, each of whole rows, dense or sparse.

    Sums are formed where the chunks are and merged by eights in their order, so they are the same
    to the bit for any number of workers and threads. ``blocks`` computes one chunk after the
    other, for the few methods that take the rows in their order.
    """

    collection: Any
    features: int
    dtype: np.dtype[Any]
    columns: list[str] | None = None
    rereadable: bool = field(default=True, init=False)

    @property
    def shape(self) -> tuple[int | None, int]:
        """Rows (None while they are not known) and features."""
        rows = math.nan if self._framed else self.collection.shape[0]
        return (None if math.isnan(rows) else int(rows)), self.features

    @property
    def sparse(self) -> bool:
        """Whether chunks are sparse."""
        return is_sparse(getattr(self.collection, "_meta", None))

    @property
    def stays(self) -> bool:
        """Whether the rows stay where they are even if they are fewer than features."""
        rows = self.shape[0]
        return (rows is None or self.sparse
                or rows * self.features * self.dtype.itemsize > GATHER)

    @property
    def most(self) -> int:
        """Features up to which each chunk gives a square of them; 0 if rows come together."""
        rows = self.shape[0]
        if rows is not None and rows < self.features and not self.stays:
            return 0
        return SPARSE_SCATTER if self.sparse else SCATTER

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
        delayed = import_module("dask").delayed
        lengths: list[int] = computed(delayed(list)(list(map(delayed(_length), self.chunks))))
        return lengths

    def blocks(self) -> Iterator[AnyArray]:
        """Yield the chunks as dense arrays, computed one by one; none of them is empty."""
        for chunk, expected in zip(self.chunks, self._shapes(), strict=True):
            rows = _rows_of(computed(chunk), self.labels, expected)
            yield from rows.blocks() if isinstance(rows, SparseSource) else [rows][:len(rows)]

    def summed(self, function: Callable[..., Any], weights: FloatArray | None = None,
               *values: AnyArray) -> Any:
        """Return the sum of ``function(rows, weights, *values)`` over the chunks.

        It is called where they are, in one thread; what it returns must add up, and is small or
        O(d²). `rows` are an array or a `SparseSource`; `weights` and `values` have one entry a
        row, and are cut as the rows are. Chunks without rows or without weight are left out.

        Raises
        ------
        ValueError
            If all of them are, or a chunk has NaN or infinity; names chunk and row.
        ConnectionError
            If the scheduler is gone.
        """
        delayed = import_module("dask").delayed
        known = self.shape[0] is not None
        starts = np.concatenate([[0], np.cumsum(self.lengths)]).tolist() if known else None
        apply, add = delayed(_of_chunk), delayed(_added)
        shared = delayed(function, pure=False, traverse=False)  # sent once, not with each chunk
        cut = [[None] * len(self.chunks) if weights is None else self._split(weights),
               *map(self._split, values)]
        nodes = [apply(shared, chunk, index, None if starts is None else starts[index],
                       self.labels, expected, *parts)
                 for index, (chunk, expected, *parts) in enumerate(
                     zip(self.chunks, self._shapes(), *cut, strict=True))]
        while len(nodes) > 1:
            nodes = [add(nodes[start:start + FAN_IN]) for start in range(0, len(nodes), FAN_IN)]
        sent = sum(each.nbytes for each in (weights, *values) if each is not None)
        total = computed(nodes[0], sent + 256 * self.features)
        if total is None:
            raise ValueError("Found no rows: all chunks are empty or all weights are zero.")
        return total

    def moments(self, precision: Precision, weights: FloatArray | None = None) -> Moments:
        """Moments of all rows; O(d²) numbers come back."""
        check_square(self.features, "Ask PCA for a few components with svd_solver='auto'.")
        found: Moments = self.summed(partial(_moments, precision), weights)
        return found

    def class_moments(self, labels: AnyArray, weights: FloatArray | None, precision: Precision
                      ) -> ClassMoments:
        """Class moments of all rows, likewise."""
        found: ClassMoments = self.summed(partial(_class_moments, precision), weights, labels)
        return found

    def mapped(self, function: Callable[[AnyArray], AnyArray], names: Sequence[str],
               dtype: np.dtype[Any]) -> Any:
        """Return a collection of what `function` makes of each chunk; nothing is computed.

        A Dask array with chunks of the same rows, or a frame with the same index and columns
        `names`.
        """
        if not self._framed:
            return self.collection.map_blocks(
                _mapped_rows, function, self.features, len(names), dtype, None, dtype=dtype,
                meta=np.empty((0, 0), dtype), chunks=(self.collection.chunks[0], (len(names),)))
        frame = self.collection._meta
        meta = type(frame)(np.empty((0, len(names)), dtype), index=frame.index[:0],
                           columns=list(names))
        return self.collection.map_partitions(_mapped_frame, function, list(names), dtype,
                                              self.labels, meta=meta)

    @property
    def labels(self) -> list[str] | None:
        """What columns are called in errors, and in the partitions of a frame."""
        return [str(name) for name in self.collection.columns] if self._framed else self.columns

    @property
    def _framed(self) -> bool:
        return hasattr(self.collection, "to_dask_array")

    def _shapes(self) -> list[tuple[int | None, int]]:
        """Return what the collection says of each chunk: rows, None if not known, and features."""
        rows = [None] * len(self.chunks) if self.shape[0] is None else self.lengths
        return [(each, self.features) for each in rows]

    def _split(self, values: AnyArray) -> list[AnyArray]:
        """Cut one value a row into those of each chunk."""
        ends = np.cumsum(self.lengths)
        if len(values) != ends[-1]:
            raise ValueError(f"there are {len(values)} labels or weights for {ends[-1]} rows.")
        return np.split(values, ends[:-1])


def computed(value: Any, sent: int = 0) -> Any:
    """Compute a delayed value, the graph of which holds `sent` bytes of ours.

    Raises ConnectionError if the scheduler is gone, and whatever the work raises.
    """
    dask, room = import_module("dask"), {}
    if "distributed" in sys.modules:  # importing it later would undo the settings of its own
        size = dask.utils.parse_bytes(dask.config.get(GRAPH, "10MB"))
        room = {GRAPH: size + sent}
    with named_losses(), dask.config.set(room):
        return value.compute()


@contextmanager
def named_losses() -> Iterator[None]:
    """Say in a ConnectionError that a scheduler is gone."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ not in LOST:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConnectionError(
            "the connection to the Dask scheduler was lost, or the work was cancelled, before all "
            f"was computed; nothing was changed ({reason}). Open a new distributed.Client and "
            "call again.") from error


def _length(chunk: Any) -> int:
    return int(chunk.shape[0])


def _rows_of(chunk: Any, columns: Sequence[str] | None, expected: tuple[int | None, int]
             ) -> AnyArray | SparseSource:
    """Return a chunk as an array of numbers, which may have no rows, or as sparse rows.

    It must have the `expected` rows, if they are known, and features; one of a frame its
    `columns`, in their order: Dask does not see to that.
    """
    rows, features = expected
    if not rows and not _length(chunk):
        return np.empty((0, features))
    given = getattr(chunk, "columns", None)
    if given is not None and columns is not None and list(map(str, given)) != list(columns):
        raise ValueError(f"a partition has columns {list(given)}, but the Dask frame says "
                         f"{list(columns)}; choose them, in this order, in each partition.")
    if tuple(chunk.shape) != (_length(chunk) if rows is None else rows, features):
        raise ValueError(f"a chunk has shape {tuple(chunk.shape)}, but the Dask collection says "
                         f"{'any number of' if rows is None else rows} rows of {features} "
                         "features; tell map_blocks the chunks that its function returns.")
    return SparseSource.of(chunk) if is_sparse(chunk) else as_matrix(chunk)


def _of_chunk(function: Callable[..., Any], chunk: Any, index: int, first: int | None,
              columns: list[str] | None, expected: tuple[int | None, int],
              weights: FloatArray | None, *values: AnyArray) -> Any:
    """Sum a chunk in the calling thread; an error says which chunk and row it is in."""
    if weights is not None and not weights.any():
        return None
    rows = None
    try:
        rows = _rows_of(chunk, columns, expected)
        with num_threads(1):  # the scheduler has its own
            return function(rows, weights, *values) if len(rows) else None
    except (ValueError, TypeError) as raised:
        error: Exception = raised
        if isinstance(rows, np.ndarray):
            try:
                raise_not_finite(rows, columns=columns, first_row=first or 0)
            except ValueError as found:
                error = found
        within = first is None or not isinstance(rows, np.ndarray)
        where = " (rows are counted within it)" if within else ""
        raise type(error)(f"chunk {index}{where}: {error}") from None


def _added(sums: Sequence[Any]) -> Any:
    """Add up sums in order; None stands for no rows."""
    total = None
    for part in sums:
        if part is not None:
            total = part if total is None else total + part
    return total


def _moments(precision: Precision, rows: AnyArray | SparseSource, weights: FloatArray | None
             ) -> Moments:
    if isinstance(rows, SparseSource):
        return moments_of_sparse(rows, weights)
    return Moments.of(rows, weights, precision=precision)


def _class_moments(precision: Precision, rows: AnyArray | SparseSource,
                   weights: FloatArray | None, labels: AnyArray) -> ClassMoments:
    dense = rows.dense(0, len(rows)) if isinstance(rows, SparseSource) else rows
    return ClassMoments.of(dense, labels, weights, precision=precision)


def _mapped_rows(chunk: Any, function: Callable[[Any], AnyArray], features: int, width: int,
                 dtype: np.dtype[Any], columns: Sequence[str] | None) -> AnyArray:
    if not _length(chunk):
        return np.empty((0, width), dtype)
    with num_threads(1):
        return function(_rows_of(chunk, columns, (None, features))).astype(dtype, copy=False)


def _mapped_frame(frame: Any, function: Callable[[AnyArray], AnyArray], names: list[str],
                  dtype: np.dtype[Any], columns: Sequence[str] | None) -> Any:
    rows = _mapped_rows(frame, function, len(columns or ()), len(names), dtype, columns)
    return type(frame)(rows, index=frame.index, columns=names)
