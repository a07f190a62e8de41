"""Rows from ``.npy`` files, mapped or read a block at a time, one or a folder of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from fastdr.mapped import MappedFile, read
from fastdr.sources import ArraySource, BlockSource, Source
from fastdr.validation import AnyArray


class Header(NamedTuple):
    """What the header of an .npy stream says."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Bytes of the array."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize


def read_header(file: IO[bytes], where: str) -> Header:
    """Read what stands before the numbers."""
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        return Header(*read(file))
    except (ValueError, KeyError, SyntaxError, TokenError) as error:
        raise ValueError(f"{where}: not a NumPy array file, or truncated ({error}).") from None


def check_header(header: Header, where: str) -> None:
    """Raise ValueError unless the array is a table of numbers."""
    shape, dtype = header.shape, header.dtype
    if dtype.kind not in "fiub" or (dtype.kind == "f" and dtype.itemsize > 8):
        raise ValueError(f"{where}: has dtype {dtype}; allowed are float64, float32, float16, bool "
                         f"and integers: save it converted with astype(float).")
    if len(shape) != 2:
        hint = ("save it as array.reshape(-1, 1) if it is one feature, array.reshape(1, -1) if it "
                "is one row" if len(shape) == 1 else "save it reshaped to (rows, features)")
        raise ValueError(f"{where}: holds a {len(shape)}-D array of shape {shape}; expected a 2-D "
                         f"one: {hint}.")
    if any(type(size) is not int for size in shape) or shape[0] < 1 or shape[1] < 0:
        raise ValueError(f"{where}: holds an array of shape {shape}; at least one row is needed.")


def npy_source(path: Path, rows: int | None) -> Source:
    """Map the file, or read it `rows` rows at a time: then no more of it is in memory."""
    header, offset = _checked_file(path)
    if rows is None or header.fortran:
        array = _mapped(path, header, offset)
        source = ArraySource(array)
        return source if rows is None else source.in_blocks(rows)

    def blocks() -> Iterator[AnyArray]:
        return _file_blocks(path, header, offset, rows)

    return BlockSource(blocks, header.shape[1], header.shape[0], header.dtype)


def npy_folder(folder: Path, rows: int | None) -> Source:
    """Return the rows of all ``.npy`` files of a folder, in the order of their names."""
    paths = sorted(folder.glob("*.npy"))
    headers = [_checked_file(path)[0] for path in paths]
    features = headers[0].shape[1]
    for path, header in zip(paths, headers, strict=True):
        if header.shape[1] != features:
            raise ValueError(f"{path}: has {header.shape[1]} columns, but {paths[0].name} in the "
                             f"same folder has {features}.")

    def blocks() -> Iterator[AnyArray]:
        for path in paths:
            yield from npy_source(path, rows).blocks()

    edges = np.cumsum([0, *(header.shape[0] for header in headers)]).tolist()
    dtype = np.result_type(*[header.dtype for header in headers])

    def between(first: int, last: int) -> AnyArray:
        parts = [read(_mapped(path, *_checked_file(path))[max(first - start, 0):last - start])
                 for path, start, end in zip(paths, edges, edges[1:], strict=False)
                 if first < end and start < last]
        return np.concatenate(parts, dtype=dtype)

    return BlockSource(blocks, features, edges[-1], dtype, between=between)


def _checked_file(path: Path) -> tuple[Header, int]:
    """Return the header of a complete file and where its numbers begin."""
    with open(path, "rb") as file:
        header = read_header(file, str(path))
        check_header(header, str(path))
        offset = file.tell()
        have = os.fstat(file.fileno()).st_size - offset
    if have < header.size:
        raise ValueError(f"{path}: truncated: {header.shape} of {header.dtype} take {header.size} "
                         f"bytes, the file has {have}.")
    return header, offset


def _mapped(path: Path, header: Header, offset: int) -> AnyArray:
    return MappedFile.opened(path, header.dtype, offset, header.shape,
                             "F" if header.fortran else "C")


def _file_blocks(path: Path, header: Header, offset: int, rows: int) -> Iterator[AnyArray]:
    total, features = header.shape
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        for start in range(0, total, rows):
            count = min(rows, total - start)
            block = np.fromfile(file, header.dtype, count * features)
            if len(block) < count * features:
                raise ValueError(f"{path}: ends at row {start + len(block) // features} of "
                                 f"{total}: it was cut while being read.")
            yield block.reshape(count, features)


def read_exactly(file: IO[bytes], header: Header, where: str) -> bytes:
    """Read all numbers that the header promises."""
    data = file.read(header.size)
    if len(data) < header.size:
        raise ValueError(f"{where}: truncated: {header.size - len(data)} bytes are missing.")
    return data


def chosen_member(path: Path, found: Mapping[str, tuple[int, ...]], member: str | None) -> str:
    """Return `member` after checking it, or the only two-dimensional array."""
    tables = [name for name, shape in found.items() if len(shape) == 2]
    content = ", ".join(f"{name} {shape}" for name, shape in found.items()) or "nothing"
    if member is not None:
        if member.strip("/") not in found:
            raise ValueError(f"{path}: has no member {member!r}; it holds {content}.")
        return member.strip("/")
    if len(found) == 1 or len(tables) == 1:
        return (tables or list(found))[0]
    raise ValueError(f"{path}: choose one member of this file; it holds {content}.")
