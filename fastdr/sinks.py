"""Rows to files: NumPy, CSV and Parquet, written a block at a time beside and then renamed."""

from __future__ import annotations

import csv
import gzip
import io
import os
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from fastdr.files import file_suffix, header_names
from fastdr.outputs import replacing
from fastdr.tables import import_pyarrow
from fastdr.validation import AnyArray


class Sink(ABC):
    """A file under construction; the first block decides dtype and number of columns."""

    least = 1  # columns, without which lines are blank and tables have no rows

    def __init__(self, part: Path, columns: Sequence[str] | None) -> None:
        self.part = part
        self.columns = columns
        self.rows = 0
        self.dtype: np.dtype[Any] | None = None
        self.width = 0

    def write(self, block: AnyArray) -> None:
        """Append the rows of `block`, (rows, columns); ValueError if its width differs."""
        if self.dtype is None:
            self.width = block.shape[1]
            self.dtype = block.dtype.newbyteorder("=")
            if self.width < self.least:
                raise ValueError("rows without columns can be written to .npy and .npz files only.")
            if self.columns is not None and len(self.columns) != self.width:
                raise ValueError(f"{len(self.columns)} column names for {self.width} columns.")
            self.open()
        if block.shape[1] != self.width:
            raise ValueError(f"block has {block.shape[1]} columns, those before it {self.width}.")
        self.append(np.ascontiguousarray(block, self.dtype))
        self.rows += len(block)

    @abstractmethod
    def open(self) -> None:
        """Create the file; dtype and width are known now."""

    @abstractmethod
    def append(self, block: AnyArray) -> None:
        """Write contiguous rows."""

    @abstractmethod
    def finish(self) -> None:
        """Complete and close the file."""

    @abstractmethod
    def close(self) -> None:
        """Close the file as it is; harmless when it was never opened."""


class _NpySink(Sink):
    """An .npy file; the header has room to write the number of rows when it is known."""

    least = 0
    file: io.BufferedWriter | None = None

    def open(self) -> None:
        self.file = open(self.part, "wb")
        self._write_header()

    def _write_header(self) -> None:
        assert self.file is not None
        assert self.dtype is not None
        npy.write_array_header_1_0(self.file, {
            "descr": npy.dtype_to_descr(self.dtype), "fortran_order": False,
            "shape": (self.rows, self.width)})

    def append(self, block: AnyArray) -> None:
        assert self.file is not None
        self.file.write(block.data)

    def finish(self) -> None:
        assert self.file is not None
        self.file.flush()
        self.file.seek(0)
        self._write_header()
        self.close()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


class _NpzSink(_NpySink):
    """An .npz file with one member X: an .npy file first, since its rows are not known before."""

    def finish(self) -> None:
        super().finish()
        with replacing(self.part) as archive, zipfile.ZipFile(archive, "w") as file:
            file.write(self.part, "X.npy")


class _CsvSink(Sink):
    """Comma-separated shortest decimals that read back as the same numbers."""

    file: io.TextIOWrapper | None = None

    def open(self) -> None:
        self.file = self._open_text()
        self.writer = csv.writer(self.file, lineterminator="\n")
        if self.columns is not None:
            self.writer.writerow(self.columns)

    def _open_text(self) -> io.TextIOWrapper:
        return open(self.part, "w", encoding="utf-8", newline="")

    def append(self, block: AnyArray) -> None:
        if block.dtype == np.float32:
            self.writer.writerows([f"{value:.9g}" for value in row] for row in block.tolist())
        else:
            self.writer.writerows(block.tolist())

    def finish(self) -> None:
        self.close()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


class _CsvGzSink(_CsvSink):
    """CSV through gzip, without name and time inside, so equal rows make equal files."""

    raw: io.BufferedWriter | None = None

    def _open_text(self) -> io.TextIOWrapper:
        self.raw = open(self.part, "wb")
        packed = gzip.GzipFile("", "wb", 6, self.raw, mtime=0)
        return io.TextIOWrapper(packed, encoding="utf-8", newline="")

    def close(self) -> None:
        super().close()
        if self.raw is not None:
            self.raw.close()


class _ParquetSink(Sink):
    """A Parquet file; columns without names become x0, x1, ..."""

    writer: Any = None

    def open(self) -> None:
        self.arrow = import_pyarrow(self.part)
        names = self.columns or [f"x{index}" for index in range(self.width)]
        kind = self.arrow.from_numpy_dtype(self.dtype)
        self.schema = self.arrow.schema([(name, kind) for name in names])
        self.writer = self.arrow.parquet.ParquetWriter(self.part, self.schema,
                                                       use_dictionary=False)

    def append(self, block: AnyArray) -> None:
        arrays = [self.arrow.array(np.ascontiguousarray(column)) for column in block.T]
        self.writer.write_batch(self.arrow.record_batch(arrays, schema=self.schema))

    def finish(self) -> None:
        self.close()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


_SINKS: dict[str, type[Sink]] = {".npy": _NpySink, ".npz": _NpzSink, ".csv": _CsvSink,
                                 ".csv.gz": _CsvGzSink, ".parquet": _ParquetSink}


def _check_names(path: Path, suffix: str, columns: Sequence[str]) -> None:
    """Raise ValueError if `open_source` would refuse a file with these names, or read others."""
    if suffix == ".parquet" and len(set(columns)) < len(columns):
        raise ValueError(f"{path}: two columns have the same name in {list(columns)}, which a "
                         "table cannot tell apart; write to another kind of file.")
    if "csv" in suffix and not _kept_by_csv(columns):
        raise ValueError(f"{path}: a header line cannot keep all names of {list(columns)}: blank "
                         "ones, spaces at the ends, a # at the start and line breaks are lost; "
                         "write to another kind of file.")


def _kept_by_csv(columns: Sequence[str]) -> bool:
    """Whether names that are written as a header line are read back from it."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(columns)
    try:
        return header_names(Path(), io.StringIO(text.getvalue(), None).readline()) == list(columns)
    except ValueError:  # for a blank name
        return False


@contextmanager
def open_sink(path: str | os.PathLike[str], columns: Sequence[str] | None = None) -> Iterator[Sink]:
    r"""Open a file for row blocks; it appears under its name when all is written, or not at all.

    Parameters
    ----------
    path : str or path
        Ends in ``.npy``, ``.npz`` (the array is called X), ``.csv``, ``.csv.gz`` or
        ``.parquet`` (needs pyarrow).
    columns : sequence of str, optional
        Names for the header line of a CSV file and the columns of a Parquet file.

    Yields
    ------
    Sink
        ``write(block)`` appends rows; the first block decides dtype and number of columns.

    Raises
    ------
    FileNotFoundError
        If the directory does not exist.
    PermissionError
        If it cannot be written.
    ModuleNotFoundError
        For Parquet without pyarrow.
    ValueError
        If the suffix is unknown, there is something at `path` that is not a regular file, two
        columns of a Parquet file have the same name, a CSV file would not keep a name, nothing
        was written or the blocks differ in width.

    Notes
    -----
    The rows go to a hidden file in the same directory, which replaces `path` at the end and is
    removed after an error or Ctrl-C; a file that was there before stays whole until then, and the
    new one has its mode. Symbolic links are followed.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> import numpy as np
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "scores.csv"
    >>> with open_sink(path, ["a", "b"]) as sink:
    ...     sink.write(np.eye(2))
    >>> path.read_text()
    'a,b\n1.0,0.0\n0.0,1.0\n'
    """
    suffix = file_suffix(Path(path))
    if suffix == ".parquet":
        import_pyarrow(Path(path))
    if columns:
        _check_names(Path(path), suffix, columns)
    with replacing(path) as part:
        sink = _SINKS[suffix](part, columns)
        try:
            yield sink
            if not sink.rows:
                raise ValueError(f"{path}: no rows were written.")
            sink.finish()
        except BaseException:
            with suppress(OSError):  # flushing to a full disk fails again
                sink.close()
            raise
