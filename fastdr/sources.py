"""Where rows come from: one protocol over arrays in memory, mapped files and streams of blocks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fastdr._dense import Matrix
from fastdr.mapped import file_of, read
from fastdr.validation import AnyArray, FloatArray, as_matrix

BLOCK_BYTES = 1 << 24
REPEATS = 16  # rows are looked through for repeats if each occurs at most so often
PIECE_BYTES = 1 << 21  # stay in the cache from where they are read to where they are used


def block_rows(features: int, itemsize: int = 8) -> int:
    """Rows of a block of about 16 MB; at least one."""
    return max(1, BLOCK_BYTES // max(1, features * itemsize))


Piece = tuple[Matrix, int, int, int]  # with the row it starts at, and its rows [first, last)


class Rows:
    """Rows of an array as kernels see them: it, or pieces of a file or of byte-swapped data.

    ``in_place`` tells that there is one piece only, the array itself. Columns of a mapped file are
    far apart in it, so they are left where they are.
    """

    def __init__(self, array: AnyArray, transposed: bool = False) -> None:
        self.array, self._file = array.T if transposed else array, file_of(array)
        self.in_place = array.dtype.isnative and (self._file is None or transposed)
        self.count = self.array.shape[0]
        self._whole = Matrix(self.array) if self.in_place else None

    @property
    def in_memory(self) -> bool:
        """Whether nothing is read from a file, which might be cut meanwhile."""
        return self.in_place and self._file is None

    def pieces(self, first: int, last: int, least: int = 256) -> Iterator[Piece]:
        """Yield pieces that cover rows [first, last), all but the last of a multiple of `least`."""
        if self._whole is not None:
            if self._file is not None:
                self._file.check()
            yield self._whole, 0, first, last
            return
        width = max(1, self.array.shape[1] * self.array.itemsize)
        step = max(1, PIECE_BYTES // width // least) * least
        for start in range(first, last, step):
            piece = read(self.array[start:min(start + step, last)])
            native = piece.astype(piece.dtype.newbyteorder("="), copy=False)
            yield Matrix(native), start, 0, len(piece)


class Source(Protocol):
    """Rows in order, a block at a time.

    ``shape`` is (rows, features), rows None while unknown; ``columns`` are names or None;
    ``rereadable`` tells whether ``blocks`` may be called again.
    """

    @property
    def shape(self) -> tuple[int | None, int]: ...  # noqa: D102

    @property
    def dtype(self) -> np.dtype[Any]: ...  # noqa: D102

    @property
    def columns(self) -> list[str] | None: ...  # noqa: D102

    @property
    def rereadable(self) -> bool: ...  # noqa: D102

    def blocks(self) -> Iterator[AnyArray]: ...  # noqa: D102


@dataclass(frozen=True)
class ArraySource:
    """A two-dimensional array, in memory or memory-mapped; never copied."""

    array: AnyArray
    columns: list[str] | None = None
    rereadable: bool = True

    @property
    def shape(self) -> tuple[int | None, int]:
        """Rows and features."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype as stored."""
        return self.array.dtype

    def blocks(self) -> Iterator[AnyArray]:
        """Yield views of consecutive rows, copies of those of a mapped file."""
        step = block_rows(self.array.shape[1], self.array.dtype.itemsize)
        for start in range(0, self.array.shape[0], step):
            yield read(self.array[start:start + step])

    def between(self, first: int, last: int) -> AnyArray:
        """Return rows [first, last), a view."""
        return self.array[first:last]

    def in_blocks(self, rows: int) -> BlockSource:
        """Return the same rows as blocks of `rows` each."""
        total, features = self.array.shape
        return BlockSource(lambda: (read(self.array[start:start + rows])
                                    for start in range(0, total, rows)),
                           features, total, self.array.dtype, self.columns)


@dataclass(frozen=True)
class BlockSource:
    """Row blocks from a callable that opens the stream anew: files, queries, generators.

    ``place``, if known, tells how many bytes were read by now, and how many there are.
    ``between(first, last)`` reads some rows by themselves, None where that is not possible;
    ``cuts`` are the rows at which that costs nothing, ascending from 0 to all; None: everywhere.
    """

    open_blocks: Callable[[], Iterator[AnyArray]]
    features: int
    rows: int | None = None
    dtype: np.dtype[Any] = np.dtype(np.float64)
    columns: list[str] | None = None
    rereadable: bool = True
    place: Callable[[], tuple[int, int]] | None = None
    between: Callable[[int, int], AnyArray] | None = None
    cuts: Sequence[int] | None = None

    @property
    def shape(self) -> tuple[int | None, int]:
        """Rows (None while unknown) and features."""
        return self.rows, self.features

    def blocks(self) -> Iterator[AnyArray]:
        """Yield the blocks, each checked to have the stated number of features."""
        row = 0
        for block in self.open_blocks():
            if block.ndim != 2 or block.shape[1] != self.features:
                raise ValueError(f"block starting at row {row} has shape {block.shape}; expected "
                                 f"(rows, {self.features}).")
            yield block
            row += len(block)


def read_once(open_blocks: Callable[[], Iterator[AnyArray]], what: str
              ) -> Callable[[], Iterator[AnyArray]]:
    """Return `open_blocks` for `what` can be read once: it refuses a second call."""
    used = False

    def blocks() -> Iterator[AnyArray]:
        nonlocal used
        if used:
            raise ValueError(f"{what} can be read once, and it has been; pass a new one, or a "
                             "source that opens it anew.")
        used = True
        return open_blocks()

    return blocks


def prefetched(source: Source) -> Source:
    """Return `source` with a thread that reads the next block while one is worked on.

    At most three blocks are held: one in use, one that waits and one that is being read.
    """
    rows, features = source.shape
    return BlockSource(lambda: _read_ahead(source.blocks), features, rows, source.dtype,
                       source.columns, source.rereadable, getattr(source, "place", None))


def _read_ahead(open_blocks: Callable[[], Iterator[AnyArray]]) -> Iterator[AnyArray]:
    """Yield the blocks that another thread reads; its errors are raised here."""
    waiting: queue.Queue[tuple[AnyArray | None, BaseException | None]] = queue.Queue(1)
    ended = threading.Event()

    def put(block: AnyArray | None, error: BaseException | None) -> bool:
        while not ended.is_set():
            try:
                waiting.put((block, error), timeout=0.1)
                return True
            except queue.Full:
                pass
        return False

    def read() -> None:
        try:
            for block in open_blocks():
                if not put(block, None):
                    return
                del block
            put(None, None)
        except BaseException as error:
            put(None, error)

    reader = threading.Thread(target=read, name="fastdr-reader", daemon=True)
    reader.start()
    try:
        while True:
            block, error = waiting.get()
            if error is not None:
                raise error
            if block is None:
                return
            yield block
            del block
    finally:
        ended.set()
        reader.join()


def gathered(source: Source) -> ArraySource:
    """Return rows as one array: those of a source of blocks are put together."""
    if isinstance(source, ArraySource):
        return source
    return ArraySource(np.concatenate(list(source.blocks())), source.columns)


def each_once(source: Source, weights: FloatArray | None) -> tuple[Source, FloatArray | None]:
    """Return each distinct row once, ascending, and how often it occurs, if that is few rows.

    Once white, up to features + 1 rows are the corners of a simplex, the same from all sides.
    What rounding decides there must not depend on their order, nor on how repeats are counted.
    More than a block, whose copy would count, is left as it is.
    """
    if not isinstance(source, ArraySource) or source.array.nbytes > BLOCK_BYTES:
        return source, weights
    size, most = len(source.array), source.array.shape[1] + 1
    if not 2 <= size <= REPEATS * most or not np.isfinite(rows := read(source.array)).all():
        return source, weights
    counts = np.ones(size) if weights is None else weights
    rows = rows[counts > 0]
    once, place = np.unique(rows.astype(rows.dtype.newbyteorder("=")), axis=0, return_inverse=True)
    if len(once) > most:
        return source, weights
    occurs = np.asarray(np.bincount(place.ravel(), counts[counts > 0]), np.float64)
    return ArraySource(once, source.columns), occurs


def as_source(X: Any) -> Source:
    """Return `X` itself if it is a Source, else an ArraySource over its array."""
    if hasattr(X, "blocks") and hasattr(X, "rereadable"):
        source: Source = X
        return source
    return ArraySource(as_matrix(X))
