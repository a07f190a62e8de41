"""Rows from files: NumPy, CSV and Parquet, read a block at a time."""

from __future__ import annotations

import csv
import gzip
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

import numpy as np
from numpy.lib import format as npy

from fastdr.sources import ArraySource, BlockSource, Source
from fastdr.sources import block_rows as default_rows
from fastdr.validation import AnyArray

SUFFIXES = (".npy", ".npz", ".csv", ".csv.gz", ".parquet")
WHOLE_MEMBER_BYTES = 1 << 30
_CSV_BYTES = 1 << 22


def open_source(path: str | os.PathLike[str], *, member: str | None = None,
                block_rows: int | None = None) -> Source:
    r"""Open a file of numbers as a source of row blocks; the whole is never in memory.

    Parameters
    ----------
    path : str or path
        ``.npy`` (memory-mapped), ``.npz`` (one member, decompressed as it is read), ``.csv`` or
        ``.csv.gz`` (cells separated by commas; a first line without numbers names the
        columns) or ``.parquet`` (numeric columns; needs pyarrow).
    member : str, optional
        Which array of an ``.npz`` file; needed only if it holds several two-dimensional ones.
    block_rows : int, optional
        Rows of a block; by default about 16 MB of them.

    Returns
    -------
    Source
        ``shape`` is (rows, features), rows None for CSV; can be read any number of times.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ModuleNotFoundError
        For Parquet without pyarrow.
    ValueError
        If the suffix is not one of the above, or the file is empty, truncated, not
        two-dimensional or has something else than numbers. Faults in the rows of a CSV,
        ``.npz`` or Parquet file are raised when the rows are read.

    Notes
    -----
    A compressed member in Fortran order cannot be read by rows: it is read whole up to 1 GiB
    and refused above.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "points.csv"
    >>> _ = path.write_text("x,y\n1,2\n3,4\n")
    >>> source = open_source(path)
    >>> source.columns, [block.tolist() for block in source.blocks()]
    (['x', 'y'], [[[1.0, 2.0], [3.0, 4.0]]])
    """
    path = Path(path)
    suffix = file_suffix(path)
    if path.is_dir():
        raise ValueError(f"{path}: is a directory, not a file.")
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file.")
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty.")
    if member is not None and suffix != ".npz":
        raise ValueError(f"{path}: member={member!r} was given, but only .npz files have members.")
    if block_rows is not None and block_rows < 1:
        raise ValueError(f"block_rows must be a positive integer, got {block_rows}.")
    if suffix == ".npz":
        return _npz_source(path, member, block_rows)
    return _READERS[suffix](path, block_rows)


def file_suffix(path: Path) -> str:
    """Return the one of ``SUFFIXES`` that `path` ends in; ValueError if there is none."""
    name = path.name.lower()
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return suffix
    raise ValueError(f"{path}: unknown suffix {path.suffix!r}; allowed are {', '.join(SUFFIXES)}.")


class _Header(NamedTuple):
    """What the header of an .npy stream says."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Bytes of the array."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize


def _read_header(file: IO[bytes], where: str) -> _Header:
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        return _Header(*read(file))
    except (ValueError, KeyError) as error:
        raise ValueError(f"{where}: not a NumPy array file, or truncated ({error}).") from None


def _check_header(header: _Header, where: str) -> None:
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
    if 0 in shape:
        raise ValueError(f"{where}: holds an array of shape {shape}; at least one row and one "
                         f"feature are needed.")


def _npy_source(path: Path, rows: int | None) -> Source:
    with open(path, "rb") as file:
        header = _read_header(file, str(path))
        _check_header(header, str(path))
        offset = file.tell()
        have = os.fstat(file.fileno()).st_size - offset
    if have < header.size:
        raise ValueError(f"{path}: truncated: {header.shape} of {header.dtype} take {header.size} "
                         f"bytes, the file has {have}.")
    array = np.memmap(path, header.dtype, "r", offset, header.shape,
                      "F" if header.fortran else "C")
    if rows is None:
        return ArraySource(array)
    total = header.shape[0]
    return BlockSource(lambda: (array[start:start + rows] for start in range(0, total, rows)),
                       header.shape[1], total, header.dtype)


def _npz_source(path: Path, member: str | None, rows: int | None) -> Source:
    with _zip_errors(path), zipfile.ZipFile(path) as archive:
        headers = {}
        for name in archive.namelist():
            with archive.open(name) as file:
                headers[name.removesuffix(".npy")] = _read_header(file, f"{path}[{name}]")
    member = _choose_member(path, headers, member)
    header, where = headers[member], f"{path}[{member}]"
    _check_header(header, where)
    (total, features), dtype = header.shape, header.dtype
    if header.fortran and total > 1 and features > 1:
        return ArraySource(_whole_member(path, member, header))
    step = rows or default_rows(features, dtype.itemsize)

    def blocks() -> Iterator[AnyArray]:
        with _zip_errors(path), zipfile.ZipFile(path) as archive, _open(archive, member) as file:
            _read_header(file, where)
            for start in range(0, total, step):
                shape = (min(step, total - start), features)
                yield np.frombuffer(_read_exactly(file, header._replace(shape=shape), where),
                                    dtype).reshape(shape)

    return BlockSource(blocks, features, total, dtype)


def _choose_member(path: Path, headers: dict[str, _Header], member: str | None) -> str:
    """Return `member` after checking it, or the only two-dimensional array."""
    tables = [name for name, header in headers.items() if len(header.shape) == 2]
    content = ", ".join(f"{name} {header.shape}" for name, header in headers.items()) or "nothing"
    if member is not None:
        if member not in headers:
            raise ValueError(f"{path}: has no member {member!r}; it holds {content}.")
        return member
    if len(headers) == 1 or len(tables) == 1:
        return (tables or list(headers))[0]
    raise ValueError(f"{path}: choose one member of this file; it holds {content}.")


def _open(archive: zipfile.ZipFile, member: str) -> IO[bytes]:
    name = f"{member}.npy"
    return archive.open(name if name in archive.namelist() else member)


def _whole_member(path: Path, member: str, header: _Header) -> AnyArray:
    """Read a member in Fortran order, which cannot be read by rows."""
    where = f"{path}[{member}]"
    if header.size > WHOLE_MEMBER_BYTES:
        raise ValueError(f"{where}: is in Fortran order and {header.size / 2**30:.1f} GiB, so it "
                         f"cannot be read by rows: save it with numpy.save, or after "
                         f"numpy.ascontiguousarray.")
    with _zip_errors(path), zipfile.ZipFile(path) as archive, _open(archive, member) as file:
        _read_header(file, where)
        data = _read_exactly(file, header, where)
    return np.frombuffer(data, header.dtype).reshape(header.shape, order="F")


def _read_exactly(file: IO[bytes], header: _Header, where: str) -> bytes:
    data = file.read(header.size)
    if len(data) < header.size:
        raise ValueError(f"{where}: truncated: {header.size - len(data)} bytes are missing.")
    return data


@contextmanager
def _zip_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path}: not an .npz file, truncated or damaged ({error}).") from None


def _csv_source(path: Path, rows: int | None) -> Source:
    with _text_errors(path), _open_text(path) as file:
        first = file.readline()
        cells = _cells(first)
        named = not any(_is_number(cell) for cell in cells) and any(cells)
        columns = _column_names(path, cells) if named else None
        if not (file.readline() if named else first).strip():
            raise ValueError(f"{path}: line {1 + named} is blank; expected rows of numbers"
                             f"{' below the header line' if named else ''}.")

    def blocks() -> Iterator[AnyArray]:
        with _text_errors(path), _open_text(path) as file:
            if named:
                file.readline()
            yield from _csv_blocks(path, file, len(cells), columns, rows)

    return BlockSource(blocks, len(cells), columns=columns)


def _csv_blocks(path: Path, file: IO[str], features: int, columns: list[str] | None,
                rows: int | None) -> Iterator[AnyArray]:
    """Yield blocks of the remaining lines; blank lines are allowed at the end only."""
    line, blank = 1 + (columns is not None), 0
    while lines := file.readlines(_CSV_BYTES) if rows is None else list(islice(file, rows)):
        count = len(lines)
        while lines and not lines[-1].strip():
            lines.pop()
        if blank and lines:
            raise ValueError(f"{path}: line {blank} is blank.")
        if lines:
            try:
                block = np.loadtxt(lines, delimiter=",", comments=None, quotechar='"', ndmin=2)
            except ValueError as error:
                _explain(path, lines, line, features, columns, error)
            if block.shape != (len(lines), features) or not np.isfinite(block).all():
                _explain(path, lines, line, features, columns, None)
            yield block
        if len(lines) < count:
            blank = blank or line + len(lines)
        line += count


def _explain(path: Path, lines: list[str], line: int, features: int, columns: list[str] | None,
             error: Exception | None) -> NoReturn:
    """Raise ValueError naming the line and column of the first fault."""
    for text in lines:
        cells = _cells(text)
        if not any(cells) and len(cells) < 2:
            raise ValueError(f"{path}: line {line} is blank.")
        for index, cell in enumerate(cells[:features]):
            name = "" if columns is None else f" ({columns[index]!r})"
            where = f"{path}: line {line}, column {index + 1}{name} is"
            if not cell:
                raise ValueError(f"{where} blank; remove or impute such cells first.")
            if not _is_number(cell):
                raise ValueError(f"{where} {cell[:40]!r}, not a number (cells are separated by "
                                 f"commas).")
            if not np.isfinite(float(cell)):
                raise ValueError(f"{where} {cell}; remove or impute such cells first.")
        if len(cells) != features:
            raise ValueError(f"{path}: line {line} has {len(cells)} cells; expected {features}.")
        line += 1
    raise ValueError(f"{path}: {error}")


def _cells(text: str) -> list[str]:
    row = next(csv.reader([text.rstrip("\r\n")]), [])
    return [cell.strip() for cell in row]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _column_names(path: Path, cells: list[str]) -> list[str]:
    """Return the names of the header line, which may be commented out as numpy.savetxt does."""
    names = [cells[0].removeprefix("#").strip(), *cells[1:]]
    if "" in names:
        raise ValueError(f"{path}: column {names.index('') + 1} has no name in the header line; "
                         f"if it is the index of a pandas frame, write it with index=False.")
    return names


def _open_text(path: Path) -> IO[str]:
    if path.name.lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return open(path, encoding="utf-8-sig")


@contextmanager
def _text_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a gzip file, truncated or damaged ({error}).") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not a text file in UTF-8 ({error}).") from None


def import_pyarrow(path: Path) -> Any:
    """Import pyarrow with its Parquet module, or say how to get it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f'{path}: Parquet files need pyarrow; run: pip install '
                                  f'"fastdr[io]"') from None
    return pyarrow


def _parquet_source(path: Path, rows: int | None) -> Source:
    arrow = import_pyarrow(path)

    def open_file() -> Any:
        # read through a small buffer: otherwise whole column chunks are held
        return arrow.parquet.ParquetFile(path, buffer_size=1 << 16, pre_buffer=False)

    try:
        with open_file() as file:
            schema, total = file.schema_arrow, file.metadata.num_rows
    except arrow.ArrowInvalid as error:
        raise ValueError(f"{path}: not a Parquet file, or truncated ({error}).") from None
    index = [name for name in (schema.pandas_metadata or {}).get("index_columns", [])
             if isinstance(name, str)]
    fields = [field for field in schema if field.name not in index]
    dtype = _common_dtype(path, arrow, fields)
    names = [field.name for field in fields]
    if total == 0 or not names:
        raise ValueError(f"{path}: holds {total} rows of {len(names)} columns; at least one row "
                         f"and one column are needed.")
    step = rows or max(1, default_rows(len(names), dtype.itemsize) // 4)

    def blocks() -> Iterator[AnyArray]:
        first = 0
        with open_file() as file:
            for batch in file.iter_batches(step, columns=names, use_threads=False):
                block = np.empty((batch.num_rows, len(names)), dtype, order="F")
                for position, name in enumerate(names):
                    cells = batch.column(name)
                    if cells.null_count:
                        row = first + cells.is_null().index(True).as_py()
                        raise ValueError(f"{path}: row {row}, column {position} ({name!r}) is "
                                         f"null; remove or impute such cells first.")
                    block[:, position] = cells.to_numpy(zero_copy_only=False)
                first += batch.num_rows
                yield block

    return BlockSource(blocks, len(names), total, dtype, names)


def _common_dtype(path: Path, arrow: Any, fields: Sequence[Any]) -> np.dtype[Any]:
    """Return one dtype that holds every column."""
    types = arrow.types
    for field in fields:
        if not (types.is_integer(field.type) or types.is_floating(field.type)
                or types.is_boolean(field.type)):
            raise ValueError(f"{path}: column {field.name!r} is {field.type}, not numeric; write "
                             f"the file without it.")
    return np.result_type(*[np.dtype(field.type.to_pandas_dtype()) for field in fields] or [bool])


_READERS: dict[str, Callable[[Path, int | None], Source]] = {
    ".npy": _npy_source, ".csv": _csv_source, ".csv.gz": _csv_source, ".parquet": _parquet_source,
}
