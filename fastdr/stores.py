"""Rows from chunked arrays on disk: HDF5 data sets and Zarr arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from fastdr.numpy_files import Header, check_header, chosen_member
from fastdr.sources import BlockSource, Source, block_rows
from fastdr.validation import AnyArray

HDF5_SUFFIXES = (".h5", ".hdf5")
ZARR_MARKS = ("zarr.json", ".zarray", ".zgroup")


def hdf5_source(path: Path, member: str | None, rows: int | None) -> Source:
    """Return the rows of a data set of an HDF5 file, which is open only while it is read."""
    try:
        import h5py
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f'{path}: HDF5 files need h5py; run: pip install "fastdr[io]"'
                                  ) from None

    @contextmanager
    def opened() -> Iterator[Any]:
        try:
            file = h5py.File(path, "r")
        except OSError as error:
            raise ValueError(f"{path}: not an HDF5 file, or truncated ({error}).") from None
        with file:
            yield file

    found: dict[str, tuple[int, ...]] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = item.shape or ()

    with opened() as file, _damage(path):
        file.visititems(note)
    name = chosen_member(path, found, member)

    @contextmanager
    def data() -> Iterator[Any]:
        with opened() as file:
            with _damage(path):
                array = file[name]
            yield array

    return chunked_source(data, f"{path}[{name}]", rows)


def zarr_source(path: Path, member: str | None, rows: int | None) -> Source:
    """Return the rows of a Zarr array, or of one in a group."""
    try:
        import zarr
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f'{path}: Zarr needs zarr; run: pip install "fastdr[io]"'
                                  ) from None
    with _damage(path):
        store = zarr.open(str(path), mode="r")
        found = {} if hasattr(store, "shape") else dict(_arrays(store))
    if hasattr(store, "shape"):
        if member is not None:
            raise ValueError(f"{path}: member={member!r} was given, but this is one array.")
        return array_source(store, rows, str(path))
    name = chosen_member(path, {name: item.shape for name, item in found.items()}, member)
    return array_source(found[name], rows, f"{path}[{name}]")


def _arrays(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a Zarr group and of those inside, by their paths."""
    for name, array in group.arrays():
        yield prefix + name, array
    for name, inner in group.groups():
        yield from _arrays(inner, f"{prefix}{name}/")


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Say of which file a fault is that its package met in what stands about the numbers."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{path}: cannot be opened as HDF5 or Zarr; it is damaged ({error})."
                         ) from None


def array_source(array: Any, rows: int | None, where: str = "X") -> Source:
    """Return the rows of an open h5py data set or Zarr array."""
    return chunked_source(lambda: nullcontext(array), where, rows)


def chunked_source(opened: Callable[[], AbstractContextManager[Any]], where: str,
                   rows: int | None) -> Source:
    """Return the rows of what has ``shape``, ``dtype``, perhaps ``chunks``, and can be sliced.

    Blocks are whole chunks unless these take more than 64 MB or `rows` says otherwise, so that a
    compressed chunk is not unpacked twice.
    """
    with opened() as data:
        header = Header(tuple(data.shape or ()), False, np.dtype(data.dtype))
        chunk = (getattr(data, "shards", None) or getattr(data, "chunks", None) or (1,))[0]
    check_header(header, where)
    total, features = header.shape
    step = rows or block_rows(features, header.dtype.itemsize)
    if rows is None and chunk <= 4 * step:
        step = max(chunk, step // chunk * chunk)

    def between(first: int, last: int) -> AnyArray:
        with opened() as data:
            return part(data, first, last)

    def part(data: Any, first: int, last: int) -> AnyArray:
        try:
            block = np.asarray(data[first:last])
        except (OSError, RuntimeError, ValueError) as error:  # of filters that unpack chunks
            raise ValueError(f"{where}: rows {first} to {last - 1} cannot be read; the file is "
                             f"damaged, or was closed ({error}).") from None
        if block.shape != (last - first, features):
            raise ValueError(f"{where}: ends before row {total}: it was cut while being read.")
        return block

    def blocks() -> Iterator[AnyArray]:
        with opened() as data:
            for start in range(0, total, step):
                yield part(data, start, min(start + step, total))

    return BlockSource(blocks, features, total, header.dtype, between=between,
                       cuts=None if chunk == 1 else [*range(0, total, chunk), total])
