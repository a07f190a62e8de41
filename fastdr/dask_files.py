"""Files as Dask collections: each worker opens them itself and reads rows of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from fastdr.dask_source import DaskSource
from fastdr.files import open_source
from fastdr.sources import block_rows
from fastdr.validation import AnyArray

Name = tuple[str, str | None, Sequence[str] | None, str]
PARTS = 16  # that even a small file is cut into, if they are a quarter of a block at least


def dask_rows(path: Path, *, member: str | None = None, columns: Sequence[str] | None = None,
              header: bool | None = None) -> DaskSource:
    """Return the rows of a file or folder, to be read a part at a time by Dask's workers.

    The file is opened here for its shape, and by every worker under the same absolute path. Parts
    take 4 to 64 MB, or one row group, record batch or chunk if that is more; they depend on the
    file alone.

    Raises
    ------
    ValueError
        As `open_source`, and if rows can only be reached by reading all before them: CSV and
        ``.npz``.
    """
    source: Any = open_source(path, member=member, columns=columns, header=header)
    size, features = source.shape
    if getattr(source, "between", None) is None:
        raise ValueError(f"{path}: cannot be cut into parts for workers, for a row is found by "
                         "reading all before it. Use .npy, .parquet, .arrow, HDF5, Zarr, or a "
                         "folder of .npy, .parquet or .arrow files.")
    block = block_rows(features, source.dtype.itemsize)
    step = min(4 * block, max(1, block // 4, -(-size // PARTS)))
    dask, array = import_module("dask"), import_module("dask.array")
    read, edges = dask.delayed(_read), _edges(size, step, getattr(source, "cuts", None))
    name = str(path.resolve()), member, columns and tuple(columns), uuid4().hex
    parts = [array.from_delayed(read(name, first, last),
                                (last - first, features), source.dtype)
             for first, last in zip(edges, edges[1:], strict=False)]
    return DaskSource(array.concatenate(parts), features, source.dtype, source.columns)


def _edges(size: int, step: int, cuts: Sequence[int] | None) -> list[int]:
    """Return ascending rows from 0 to `size`, at least `step` apart but for the last, at cuts."""
    edges = [0]
    for row in range(0, size, step) if cuts is None else cuts:
        if row - edges[-1] >= step:
            edges.append(row)
    return edges if edges[-1] == size else [*edges, size]


def _read(name: Name, first: int, last: int) -> AnyArray:
    """Return rows [first, last) of a file; the work of one task."""
    return np.asarray(_opened(*name).between(first, last))


@lru_cache(2)
def _opened(path: str, member: str | None, columns: Sequence[str] | None, _: str) -> Any:
    """Open a file once for all parts that a process reads of it in the same call of `dask_rows`."""
    return open_source(path, member=member, columns=columns)
