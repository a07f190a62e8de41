"""Mapped files whose rows are read as those of a file, so that one that shrinks is an error.

A page of a mapping that the file no longer has ends the process (SIGBUS); a file that ends where
it is read only gives fewer bytes. So rows are read into buffers that stay in the cache: a tenth of
a second for a gigabyte, which is little beside their scatter.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
READS = hasattr(os, "preadv")  # Windows has not, nor lets mapped files shrink


class _Descriptor:
    """An open file, closed with the last array that reads it."""

    def __init__(self, number: int) -> None:
        self.number = os.dup(number)

    def __del__(self) -> None:
        os.close(self.number)


class MappedFile(np.memmap):
    """Numbers in a mapped file, and the file; views of them have both."""

    descriptor: _Descriptor | None
    origin: int  # address at which the file would begin
    end: int  # its size is at least that

    @classmethod
    def opened(cls, path: Path, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...],
               order: Any) -> Self:
        """Map a file for reading."""
        with open(path, "rb") as file:
            array = np.memmap(file, dtype, "r", offset, shape, order).view(cls)
            if READS:
                array.descriptor = _Descriptor(file.fileno())
        array.origin, array.end = _address(array) - offset, offset + array.nbytes
        return array

    def __array_finalize__(self, obj: Any) -> None:
        """Take the file over from the array that this is a view of."""
        super().__array_finalize__(obj)
        shared = getattr(self, "_mmap", None) is not None
        self.descriptor = getattr(obj, "descriptor", None) if shared else None
        self.origin, self.end = getattr(obj, "origin", 0), getattr(obj, "end", 0)

    def check(self) -> None:
        """Raise ValueError if the file has become too short: what is mapped must not be touched."""
        if self.descriptor is not None and os.fstat(self.descriptor.number).st_size < self.end:
            raise self.too_short

    @property
    def too_short(self) -> ValueError:
        """The error to raise."""
        return ValueError(f"{self.filename}: is shorter than when it was opened: it was cut while "
                          "being read.")


def file_of(array: Any) -> MappedFile | None:
    """Return the mapped file that an array is a view of, if it can be read otherwise."""
    while isinstance(array, np.ndarray):
        if isinstance(array, MappedFile):
            return array if array.descriptor is not None else None
        array = array.base
    return None


def read(view: AnyArray) -> AnyArray:
    """Return a two-dimensional view of a mapped file as read from it; other arrays themselves.

    Raises ValueError if the file has become too short.
    """
    mapped = file_of(view)
    lines = view.T if abs(view.strides[0]) < abs(view.strides[1]) else view
    if mapped is None or not view.size or (
            lines.strides[1] != view.itemsize and lines.shape[1] > 1):
        return view
    assert mapped.descriptor is not None
    file, start = mapped.descriptor.number, _address(lines) - mapped.origin
    copy = np.empty(lines.shape, view.dtype)
    joined = len(copy) == 1 or lines.strides[0] == copy.strides[0]
    for index, target in enumerate([copy] if joined else copy):
        if not _filled(file, target, start + index * lines.strides[0]):
            raise mapped.too_short
    return copy if lines is view else copy.T


def taken(array: AnyArray, places: Any) -> AnyArray:
    """Return a copy of rows of an array at any `places`.

    Raises ValueError if they are in a mapped file that has become too short.
    """
    mapped = file_of(array)
    if mapped is not None:
        mapped.check()
    return np.asarray(array[places])


def _filled(file: int, target: AnyArray, position: int) -> bool:
    """Fill a contiguous array from a position of a file on; tell whether there was enough."""
    rest = target.reshape(-1).view(np.uint8).data
    while len(rest):
        got = os.preadv(file, [rest], position)
        if got <= 0:
            return False
        rest, position = rest[got:], position + got
    return True


def _address(array: AnyArray) -> int:
    return int(array.__array_interface__["data"][0])
