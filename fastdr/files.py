"""Rows from files and folders of any format, read a block at a time."""

from __future__ import annotations

import csv
import gzip
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import IO, NoReturn

import numpy as np
from scipy.sparse import load_npz

from fastdr.numpy_files import (
    Header,
    check_header,
    chosen_member,
    npy_folder,
    npy_source,
    read_exactly,
    read_header,
)
from fastdr.sources import ArraySource, BlockSource, Source
from fastdr.sources import block_rows as default_rows
from fastdr.sparse import SparseSource
from fastdr.stores import HDF5_SUFFIXES, ZARR_MARKS, hdf5_source, zarr_source
from fastdr.tables import TABLE_SUFFIXES, arrow_source, check_names, parquet_source
from fastdr.validation import MAY_BE_MISSING, AnyArray

SUFFIXES = (".npy", ".npz", ".csv", ".csv.gz", ".parquet")
READABLE = (*SUFFIXES, ".arrow", ".feather", *HDF5_SUFFIXES)
SPARSE_MEMBERS = {"data", "format", "shape"}  # of an .npz file that scipy.sparse.save_npz wrote
WHOLE_MEMBER_BYTES = 1 << 30
_CSV_BYTES = 1 << 22


def open_source(path: str | os.PathLike[str], *, member: str | None = None,
                block_rows: int | None = None, columns: Sequence[str] | None = None,
                missing: bool = False, header: bool | None = None) -> Source:
    r"""Open a file or folder of numbers as a source of row blocks; the whole is never in memory.

    Parameters
    ----------
    path : str or path
        ``.npy`` (memory-mapped), ``.npz`` (one member, decompressed as it is read, or a sparse
        matrix of `scipy.sparse.save_npz`, read whole), ``.csv`` or
        ``.csv.gz`` (cells separated by commas), ``.parquet``, ``.arrow`` or ``.feather`` (numeric
        columns; needs pyarrow), ``.h5`` or ``.hdf5`` (needs h5py), a Zarr folder (needs zarr), or
        a folder of ``.npy``, ``.parquet`` or ``.arrow`` files, which are read in the order of
        their names.
    member : str, optional
        Which array of an ``.npz``, HDF5 or Zarr file; needed only if it holds several
        two-dimensional ones.
    block_rows : int, optional
        Rows of a block; by default about 16 MB of them.
    columns : sequence of str, optional
        Which columns of a table to read, in this order.
    missing : bool, default False
        Read blank cells of CSV files, "nan" there, and null cells of tables as NaN; they are errors
        otherwise.
    header : bool, optional
        Whether the first line of a CSV file names the columns. By default it does if it has no
        number, or if it is 0, 1, ..., as pandas writes it, above something else than whole numbers;
        above those it may be either, which is an error. Other numbers, and a single 0, are a row.

    Returns
    -------
    Source
        ``shape`` is (rows, features), rows None for CSV; can be read any number of times.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ModuleNotFoundError
        For a format whose package is not installed.
    ValueError
        If the suffix is not one of the above, or the file is empty, truncated, not
        two-dimensional or has something else than numbers. Faults in the rows of a CSV,
        ``.npz`` or Parquet file are raised when the rows are read.

    Notes
    -----
    A compressed member in Fortran order cannot be read by rows: it is read whole up to 1 GiB
    and refused above. With `block_rows` an ``.npy`` file is read instead of mapped.

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
    if block_rows is not None and block_rows < 1:
        raise ValueError(f"block_rows must be a positive integer, got {block_rows}.")
    if path.is_dir():
        if header is not None:
            raise ValueError(f"{path}: header={header} was given, but no .csv files are read from "
                             "folders.")
        return _folder_source(path, member, block_rows, columns, missing)
    suffix = file_suffix(path, READABLE)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file.")
    if path.stat().st_size == 0:
        raise ValueError(f"{path}: the file is empty.")
    if member is not None and suffix not in (".npz", *HDF5_SUFFIXES):
        raise ValueError(f"{path}: member={member!r} was given, but only .npz, HDF5 and Zarr "
                         "files have members.")
    if header is not None and "csv" not in suffix:
        raise ValueError(f"{path}: header={header} was given, but only .csv and .csv.gz files have "
                         "header lines.")
    if suffix in TABLE_SUFFIXES:
        return _TABLES[suffix]([path], block_rows, columns, missing)
    if columns is not None and "csv" not in suffix:
        raise ValueError(f"{path}: columns={list(columns)} were given, but only tables have named "
                         "columns.")
    if suffix in HDF5_SUFFIXES:
        return hdf5_source(path, member, block_rows)
    if suffix == ".npz":
        return _npz_source(path, member, block_rows)
    source = (npy_source(path, block_rows) if suffix == ".npy"
              else _csv_source(path, block_rows, missing, header))
    return source if columns is None else _with_columns(path, source, columns)


def file_suffix(path: Path, allowed: Sequence[str] = SUFFIXES) -> str:
    """Return the one of the `allowed` that `path` ends in; ValueError if there is none."""
    name = path.name.lower()
    for suffix in allowed:
        if name.endswith(suffix):
            return suffix
    raise ValueError(f"{path}: unknown suffix {path.suffix!r}; allowed are {', '.join(allowed)}.")


def _folder_source(path: Path, member: str | None, rows: int | None,
                   columns: Sequence[str] | None, missing: bool) -> Source:
    """Return the rows of a folder, by what is in it."""
    if any((path / mark).exists() for mark in ZARR_MARKS):
        if columns is not None:
            raise ValueError(f"{path}: columns were given, but a Zarr array has no named ones.")
        return zarr_source(path, member, rows)
    if member is not None:
        raise ValueError(f"{path}: member={member!r} was given, but this is a folder of files.")
    kinds = [suffix for suffix in (".npy", *TABLE_SUFFIXES) if any(path.glob(f"*{suffix}"))]
    if len(kinds) != 1:
        raise ValueError(f"{path}: is a folder with {' and '.join(kinds) or 'no'} files to read; "
                         f"expected those of one kind: .npy, {', '.join(TABLE_SUFFIXES)}, or a "
                         "Zarr array.")
    if kinds[0] in TABLE_SUFFIXES:
        return _TABLES[kinds[0]](sorted(path.glob(f"*{kinds[0]}")), rows, columns, missing)
    if columns is not None:
        raise ValueError(f"{path}: columns were given, but .npy files have no named ones.")
    return npy_folder(path, rows)


def _with_columns(path: Path, source: Source, columns: Sequence[str]) -> Source:
    """Return some columns of a source by name."""
    names = source.columns or []
    check_names(path, columns, names)
    index = {name: place for place, name in enumerate(names)}
    places = [index[name] for name in columns]
    return BlockSource(lambda: (block[:, places] for block in source.blocks()), len(places),
                       source.shape[0], source.dtype, list(columns),
                       place=getattr(source, "place", None))


def _sparse_source(path: Path, member: str | None) -> SparseSource:
    """Return the rows of a matrix that `scipy.sparse.save_npz` wrote, which is read whole."""
    if member is not None:
        raise ValueError(f"{path}: member={member!r} was given, but the file holds one sparse "
                         "matrix.")
    with _zip_errors(path):
        try:
            matrix = load_npz(path)
        except (KeyError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
            raise ValueError(f"{path}: not a sparse matrix of SciPy ({error}).") from None
    if matrix.dtype.kind not in "fiub":
        raise ValueError(f"{path}: has dtype {matrix.dtype}; allowed are numbers that are real.")
    return SparseSource.of(matrix, path.name)


def _npz_source(path: Path, member: str | None, rows: int | None) -> Source:
    with _zip_errors(path), zipfile.ZipFile(path) as archive:
        names = {name.removesuffix(".npy") for name in archive.namelist()}
        if SPARSE_MEMBERS <= names:
            return _sparse_source(path, member)
        headers = {}
        for name in _arrays_of(archive):
            with archive.open(name) as file:
                headers[name.removesuffix(".npy")] = read_header(file, f"{path}[{name}]")
    member = chosen_member(path, {name: item.shape for name, item in headers.items()}, member)
    header, where = headers[member], f"{path}[{member}]"
    check_header(header, where)
    (total, features), dtype = header.shape, header.dtype
    if header.fortran and total > 1 and features > 1:
        return ArraySource(_whole_member(path, member, header))
    step = rows or default_rows(features, dtype.itemsize)

    def blocks() -> Iterator[AnyArray]:
        with _zip_errors(path), zipfile.ZipFile(path) as archive, _open(archive, member) as file:
            read_header(file, where)
            for start in range(0, total, step):
                shape = (min(step, total - start), features)
                yield np.frombuffer(read_exactly(file, header._replace(shape=shape), where),
                                    dtype).reshape(shape)

    return BlockSource(blocks, features, total, dtype)


def _arrays_of(archive: zipfile.ZipFile) -> list[str]:
    """Return the names of the members that are arrays: notes may stand beside them."""
    names = archive.namelist()
    return [name for name in names if name.endswith(".npy")] or names


def _open(archive: zipfile.ZipFile, member: str) -> IO[bytes]:
    name = f"{member}.npy"
    return archive.open(name if name in archive.namelist() else member)


def _whole_member(path: Path, member: str, header: Header) -> AnyArray:
    """Read a member in Fortran order, which cannot be read by rows."""
    where = f"{path}[{member}]"
    if header.size > WHOLE_MEMBER_BYTES:
        raise ValueError(f"{where}: is in Fortran order and {header.size / 2**30:.1f} GiB, so it "
                         f"cannot be read by rows: save it with numpy.save, or after "
                         f"numpy.ascontiguousarray.")
    with _zip_errors(path), zipfile.ZipFile(path) as archive, _open(archive, member) as file:
        read_header(file, where)
        data = read_exactly(file, header, where)
    return np.frombuffer(data, header.dtype).reshape(header.shape, order="F")


@contextmanager
def _zip_errors(path: Path) -> Iterator[None]:
    """Say of which file a fault is; RuntimeError: encrypted, or of an unknown compression."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f"{path}: not an .npz file, truncated or damaged ({error}).") from None


def _csv_source(path: Path, rows: int | None, missing: bool, header: bool | None) -> Source:
    with _text_errors(path), _open_text(path) as (file, _):
        first, second = file.readline(), file.readline()
        cells = _cells(first)
        named = _has_names(path, cells, _cells(second)) if header is None else header
        columns = header_names(path, first) if named else None
        if not (second if named else first).strip():
            raise ValueError(f"{path}: line {1 + named} is blank; expected rows of numbers"
                             f"{' below the header line' if named else ''}.")

    reached, size = 0, path.stat().st_size

    def blocks() -> Iterator[AnyArray]:
        nonlocal reached
        with _text_errors(path), _open_text(path) as (file, stored):
            if named:
                file.readline()
            for block in _csv_blocks(path, file, len(cells), columns, rows, missing):
                reached = stored.tell()
                yield block

    return BlockSource(blocks, len(cells), columns=columns, place=lambda: (reached, size))


def _has_names(path: Path, cells: list[str], below: list[str]) -> bool:
    """Whether the first line of a CSV file names the columns, as can be told from the second."""
    if not any(_is_number(cell) for cell in cells):
        return any(cells)
    counted = cells[not cells[0]:]  # above the index of a pandas frame there is no name
    if len(cells) < 2 or counted != [str(index) for index in range(len(counted))] or not any(below):
        return False
    if all(cell.lstrip("+-").isdecimal() for cell in below):
        raise ValueError(f"{path}: line 1, {','.join(cells)[:40]}, may be names or a row, as whole "
                         "numbers follow; say which: header=True or False (--header, --no-header).")
    return True


def _csv_blocks(path: Path, file: IO[str], features: int, columns: list[str] | None,
                rows: int | None, missing: bool) -> Iterator[AnyArray]:
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
                block = _numbers(lines, missing)
            except ValueError as error:
                _explain(path, lines, line, features, columns, error, missing)
            sound = not np.isinf(block).any() if missing else np.isfinite(block).all()
            open_quote = lines[-1].count('"') % 2  # NumPy minds it only if lines follow
            if block.shape != (len(lines), features) or not sound or open_quote:
                _explain(path, lines, line, features, columns, None, missing)
            yield block
        if len(lines) < count:
            blank = blank or line + len(lines)
        line += count


def _numbers(lines: list[str], missing: bool) -> AnyArray:
    """Return the cells of some lines; those that are blank are NaN if cells may be missing."""
    read = partial(np.loadtxt, lines, delimiter=",", comments=None, quotechar='"', ndmin=2)
    try:
        return read()
    except ValueError:
        if not missing:
            raise
        return read(converters=lambda cell: _number(cell.strip() or "nan"))


def _explain(path: Path, lines: list[str], line: int, features: int, columns: list[str] | None,
             error: Exception | None, missing: bool) -> NoReturn:
    """Raise ValueError naming the line and column of the first fault."""
    for text in lines:
        cells = _cells(text)
        if not any(cells) and len(cells) < 2:
            raise ValueError(f"{path}: line {line} is blank.")
        if text.count('"') % 2:
            raise ValueError(f"{path}: line {line} has a quote without its pair; cells cannot go "
                             "on in the next line.")
        for index, cell in enumerate(cells[:features]):
            name = "" if columns is None else f" ({columns[index]!r})"
            where = f"{path}: line {line}, column {index + 1}{name} is"
            if not cell:
                if missing:
                    continue
                raise ValueError(f"{where} blank; remove or impute such cells first"
                                 f"{MAY_BE_MISSING}.")
            if not _is_number(cell):
                hint = "; header=True or --header if it has names" if line == 1 else ""
                raise ValueError(f"{where} {cell[:40]!r}, not a number (cells are separated by "
                                 f"commas{hint}).")
            if np.isinf(float(cell)) or not (missing or np.isfinite(float(cell))):
                advice = MAY_BE_MISSING if np.isnan(float(cell)) else ""
                raise ValueError(f"{where} {cell}; remove or impute such cells first{advice}.")
        if len(cells) != features:
            raise ValueError(f"{path}: line {line} has {len(cells)} cells; expected {features}.")
        line += 1
    raise ValueError(f"{path}: {error}")


def _cells(text: str) -> list[str]:
    row = next(csv.reader([text.rstrip("\r\n")]), [])
    return [cell.strip() for cell in row]


def _number(cell: str) -> float:
    """Return the number that a cell is to `numpy.loadtxt`: no 1_000, no digits beyond ASCII."""
    if "_" in cell or not cell.isascii():
        raise ValueError(f"{cell!r} is not a number")
    return float(cell)


def _is_number(cell: str) -> bool:
    try:
        _number(cell)
    except ValueError:
        return False
    return True


def header_names(path: Path, line: str) -> list[str]:
    """Return the names of a header line, which may be commented out as numpy.savetxt does."""
    cells = _cells(line)
    names = [cells[0].removeprefix("#").strip(), *cells[1:]]
    if "" in names:
        raise ValueError(f"{path}: column {names.index('') + 1} has no name in the header line; "
                         f"if it is the index of a pandas frame, write it with index=False.")
    return names


@contextmanager
def _open_text(path: Path) -> Iterator[tuple[IO[str], IO[bytes]]]:
    """Open a file as text; yield that, and what it is read from, which tells how far."""
    with open(path, "rb") as stored:
        if path.name.lower().endswith(".gz"):
            with gzip.open(stored, "rt", encoding="utf-8-sig") as text:
                yield text, stored
        else:
            with TextIOWrapper(stored, encoding="utf-8-sig") as text:
                yield text, stored


@contextmanager
def _text_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a gzip file, truncated or damaged ({error}).") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text file in UTF-8 ({error}).") from None
    except csv.Error as error:
        raise ValueError(f"{path}: has no cells separated by commas ({error}).") from None


_TABLES: dict[str, Callable[[Sequence[Path], int | None, Sequence[str] | None, bool], Source]] = {
    ".parquet": parquet_source, ".arrow": arrow_source, ".feather": arrow_source,
}
