"""Rows from whatever holds them: one function that opens files, stores, tables and batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from fastdr.dask_source import dask_source, is_dask
from fastdr.files import open_source
from fastdr.sources import ArraySource, BlockSource, Source, as_source, prefetched, read_once
from fastdr.sparse import SparseSource
from fastdr.stores import array_source
from fastdr.tables import frame_source, table_source
from fastdr.validation import as_matrix, names_of, whole

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
         "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
HELD = 4  # blocks in memory at a time: being read, waiting, in use, being converted


def open_rows(X: Any, *, columns: Sequence[str] | None = None, member: str | None = None,
              block_rows: int | None = None, memory: int | str | None = None,
              prefetch: bool | None = None, missing: bool = False, header: bool | None = None
              ) -> Source:
    """Open rows of any origin as a source, which every ``fit`` takes.

    Parameters
    ----------
    X : path, array, table, stored array, iterator or Source
        A path to a file or folder, see Notes; an array; a pandas or polars frame; a pyarrow
        Table, RecordBatch, Dataset or RecordBatchReader; an open h5py data set or Zarr array; a
        Dask array or frame, whose chunks are summed where they are; an iterator of batches, each
        (n, d), which are read once.
    columns : sequence of str, optional
        Which columns of a table to read, in this order.
    member : str, optional
        Which array of an ``.npz``, HDF5 or Zarr file.
    block_rows : int, optional
        Rows of a block; by default about 16 MB of them.
    memory : int or str, optional
        Bytes that blocks may take together, such as ``"200MB"``; it sets `block_rows`. Mapped
        files are then read instead, as mapped pages count as memory, too.
    prefetch : bool, optional
        Read the next block in a thread of its own; by default for files and stored arrays.
    missing : bool, default False
        Read blank cells of CSV files and null cells of tables as NaN, which PCA(missing="em")
        takes for missing ones; they are errors otherwise.
    header : bool, optional
        Whether the first line of a CSV file names the columns. By default it does if it has no
        number, or if it is 0, 1, ..., as pandas writes it, above something else than whole numbers;
        above those it may be either, which is an error. Other numbers, such as years, and a single
        0 are a row.

    Returns
    -------
    Source
        Its ``blocks()`` are read in order; ``rereadable`` tells whether more than once.

    Raises
    ------
    FileNotFoundError, ModuleNotFoundError
        If there is no such file, or the package that reads it is not installed.
    TypeError, ValueError
        If `X` is none of these, is not two-dimensional or not of numbers.

    Notes
    -----
    Files: ``.npy``, ``.npz``, ``.csv``, ``.csv.gz``, ``.parquet``, ``.arrow``, ``.feather``,
    ``.h5``, ``.hdf5``, Zarr; folders of ``.npy``, ``.parquet`` or ``.arrow`` files. A chunk or row
    group larger than a block is unpacked whole by the packages that read it.

    Examples
    --------
    >>> import numpy as np
    >>> import fastdr
    >>> batches = (np.full((2, 3), i) for i in range(4))
    >>> rows = fastdr.open_rows(batches)
    >>> rows.shape, rows.rereadable
    ((None, 3), False)
    >>> sum(len(block) for block in rows.blocks())
    8
    """
    if block_rows is not None and not whole(block_rows, 1):
        raise ValueError(f"block_rows must be a positive integer, got {block_rows!r}.")
    opened = _opener(X, columns, member, missing, header)
    if memory is not None and block_rows is None:
        source = _within(opened, as_bytes(memory))
    else:
        source = opened(block_rows)
    if isinstance(source, SparseSource):
        return source
    stored = isinstance(X, str | os.PathLike) or _kind(X) == "store"
    read = not isinstance(source, ArraySource)
    return prefetched(source) if (stored and read if prefetch is None else prefetch) else source


def is_opened(X: Any) -> bool:
    """Whether `X` holds rows that `open_rows` reads in blocks and `numpy.asarray` would whole."""
    if type(X) is np.ndarray:  # the usual case takes no time
        return False
    return _kind(X) in ("source", "dask", "store", "arrow", "batches")


def as_bytes(memory: Any, name: str = "memory") -> int:
    """Return a number of bytes given as such or like ``"1.5GB"``.

    Examples
    --------
    >>> as_bytes("200MB"), as_bytes("1 GiB")
    (200000000, 1073741824)
    """
    text = str(memory).strip().upper()
    number = text.rstrip("BKMGTI ")
    try:
        count = int(float(number) * UNITS[text[len(number):].strip() or "B"])
    except (ValueError, KeyError, OverflowError):  # NaN and infinity, too
        count = 0
    if count < 1 or isinstance(memory, bool):
        raise ValueError(f"{name}={memory!r} is not allowed; it must be a number of bytes, or one "
                         "with KB, MB, GB, TB, KiB, MiB, GiB or TiB.")
    return count


def _kind(X: Any) -> str:
    """Tell sources, stored arrays, Arrow tables, frames, iterators and the rest apart."""
    module = type(X).__module__.partition(".")[0]
    if is_dask(X):
        return "dask"
    if hasattr(X, "blocks") and hasattr(X, "rereadable"):
        return "source"
    if module in ("h5py", "zarr") and hasattr(X, "shape"):
        return "store"
    if module == "pyarrow" and hasattr(X, "schema"):
        return "arrow"
    if module in ("pandas", "polars") and hasattr(X, "__len__") and hasattr(X, "columns"):
        return "frame"
    return "batches" if hasattr(X, "__next__") else "array"


def _opener(X: Any, columns: Sequence[str] | None, member: str | None, missing: bool,
            header: bool | None) -> Callable[[int | None], Source]:
    """Return what opens `X` with a number of rows a block."""
    if isinstance(X, str | os.PathLike):
        return lambda rows: open_source(X, member=member, block_rows=rows, columns=columns,
                                        missing=missing, header=header)
    kind = _kind(X)
    if member is not None:
        raise ValueError(f"member={member!r} was given, but X is not a file.")
    if header is not None:
        raise ValueError(f"header={header} was given, but X is not a file.")
    if kind == "dask":
        chosen = X if columns is None else X[list(columns)]
        return lambda rows: dask_source(chosen)
    if kind == "arrow":
        return lambda rows: table_source(X, rows, columns, missing)
    if kind == "frame":
        return lambda rows: frame_source(X, rows, columns)
    if columns is not None:
        raise ValueError(f"columns={list(columns)} were given, but X ({type(X).__name__}) has no "
                         "named columns.")
    if kind == "store":
        return lambda rows: array_source(X, rows)
    if kind == "batches":
        batches = batch_source(X)
        return lambda rows: batches
    return lambda rows: _of_array(X, rows)


def _of_array(X: Any, rows: int | None) -> Source:
    source = as_source(X)
    return source.in_blocks(rows) if rows and isinstance(source, ArraySource) else source


def _within(opened: Callable[[int | None], Source], memory: int) -> Source:
    """Open with blocks that fit into `memory` bytes together."""
    source = opened(1)  # maps no file
    row = max(1, source.shape[1]) * max(source.dtype.itemsize, 4)
    rows = memory // (HELD * row)
    if rows < 1:
        raise ValueError(f"memory={memory} bytes are too few: {HELD} blocks of one row take "
                         f"{HELD * row}.")
    return opened(min(rows, max(1, (1 << 24) // row)))


def batch_source(batches: Iterator[Any]) -> Source:
    """Return the rows of an iterator of batches, which can be read once.

    The first batch is taken at once: it tells the number of features and the dtype.
    """
    first = next(batches, None)
    if first is None:
        raise ValueError("X is an iterator without a batch; it may have been read before.")
    head = as_matrix(first, "the first batch")
    unread = chain([head], batches)
    blocks = read_once(lambda: (as_matrix(batch, "a batch") for batch in unread),
                       "an iterator of batches")
    return BlockSource(blocks, head.shape[1], None, np.dtype(head.dtype), names_of(first),
                       rereadable=False)
