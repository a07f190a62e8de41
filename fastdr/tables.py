"""Rows from columnar tables: Parquet and Arrow files, folders of them, frames in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fastdr.sources import BlockSource, Source, block_rows, read_once
from fastdr.validation import MAY_BE_MISSING, AnyArray, as_matrix, names_of

TABLE_SUFFIXES = (".parquet", ".arrow", ".feather")


def import_pyarrow(where: object) -> Any:
    """Import pyarrow with its Parquet module, or say how to get it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f'{where}: Parquet files need pyarrow; run: pip install '
                                  f'"fastdr[io]"') from None
    return pyarrow


def parquet_source(paths: Sequence[Path], rows: int | None, columns: Sequence[str] | None = None,
                   missing: bool = False) -> Source:
    """Return the rows of Parquet files of the same columns, one file after the other."""
    where = paths[0] if len(paths) == 1 else paths[0].parent
    arrow = import_pyarrow(where)

    def open_file(path: Path) -> Any:
        # read through a small buffer: otherwise whole column chunks are held
        return arrow.parquet.ParquetFile(path, buffer_size=1 << 16, pre_buffer=False)

    def facts(path: Path) -> tuple[Any, list[int]]:
        try:
            with open_file(path) as file:
                told = file.metadata
                return file.schema_arrow, [told.row_group(index).num_rows
                                           for index in range(told.num_row_groups)]
        except arrow.ArrowInvalid as error:
            raise ValueError(f"{path}: not a Parquet file, or truncated ({error}).") from None

    def batches(path: Path, groups: Sequence[int], step: int, names: list[str]) -> Iterator[Any]:
        with open_file(path) as file:
            yield from file.iter_batches(step, row_groups=groups, columns=names,
                                         use_threads=False)

    return _of_files(arrow, paths, facts, batches, rows, columns, missing)


def arrow_source(paths: Sequence[Path], rows: int | None, columns: Sequence[str] | None = None,
                 missing: bool = False) -> Source:
    """Return the rows of Arrow IPC (Feather 2) files of the same columns."""
    where = paths[0] if len(paths) == 1 else paths[0].parent
    arrow = import_pyarrow(where)

    def facts(path: Path) -> tuple[Any, list[int]]:
        try:
            with arrow.memory_map(str(path)) as mapped:
                file = arrow.ipc.open_file(mapped)
                return file.schema, [file.get_batch(index).num_rows
                                     for index in range(file.num_record_batches)]
        except arrow.ArrowInvalid as error:
            raise ValueError(f"{path}: not an Arrow file, or truncated ({error}).") from None

    def batches(path: Path, groups: Sequence[int], step: int, names: list[str]) -> Iterator[Any]:
        with arrow.memory_map(str(path)) as mapped:
            file = arrow.ipc.open_file(mapped)
            for index in groups:
                yield from _cut(file.get_batch(index).select(names), step)

    return _of_files(arrow, paths, facts, batches, rows, columns, missing)


def table_source(table: Any, rows: int | None, columns: Sequence[str] | None = None,
                 missing: bool = False) -> Source:
    """Return the rows of a pyarrow Table, RecordBatch, Dataset or RecordBatchReader.

    A reader can be read once, the others any number of times.
    """
    arrow, kind = import_pyarrow("X"), type(table).__name__
    fields = _chosen(f"X ({kind})", table.schema, columns)
    names = [field.name for field in fields]
    dtype = _common_dtype(f"X ({kind})", arrow, fields, missing)
    step = rows or block_rows(len(names), dtype.itemsize)
    once = kind == "RecordBatchReader"

    def batches() -> Iterator[Any]:
        if once:
            return (part for batch in table for part in _cut(batch.select(names), step))
        if hasattr(table, "scanner"):
            return iter(table.to_batches(columns=names, batch_size=step, batch_readahead=1,
                                         fragment_readahead=1))
        chosen = table.select(names)
        return iter(chosen.to_batches(max_chunksize=step) if hasattr(chosen, "to_batches")
                    else _cut(chosen, step))

    def blocks() -> Iterator[AnyArray]:
        return _as_blocks(f"X ({kind})", batches(), names, dtype, missing)

    total = None if once else table.num_rows if hasattr(table, "num_rows") else table.count_rows()
    return BlockSource(read_once(blocks, "a RecordBatchReader") if once else blocks, len(names),
                       total, dtype, names, rereadable=not once)


def frame_source(frame: Any, rows: int | None, columns: Sequence[str] | None = None) -> Source:
    """Return the rows of a pandas or polars frame, converted a block at a time."""
    if columns is not None:
        check_names("X", columns, list(frame.columns))
        frame = frame[list(columns)]
    width, total = len(frame.columns), len(frame)
    step = rows or block_rows(max(1, width))

    def part(start: int, count: int) -> Any:
        return (frame.iloc[start:start + count] if hasattr(frame, "iloc")
                else frame[start:start + count])

    def blocks() -> Iterator[AnyArray]:
        return (as_matrix(part(start, step)) for start in range(0, total, step))

    return BlockSource(blocks, width, total, as_matrix(part(0, 1)).dtype, names_of(frame))


def _of_files(arrow: Any, paths: Sequence[Path], facts: Callable[[Path], tuple[Any, list[int]]],
              batches: Callable[[Path, Sequence[int], int, list[str]], Iterator[Any]],
              rows: int | None, columns: Sequence[str] | None, missing: bool) -> Source:
    """Return a source over files whose schemas have been compared."""
    where = paths[0] if len(paths) == 1 else paths[0].parent
    names: list[str] = []
    dtypes: list[np.dtype[Any]] = []  # files that were written at different times may differ
    groups: dict[Path, list[int]] = {}
    for path in paths:
        schema, groups[path] = facts(path)
        fields = _chosen(path, schema, columns)
        here = [field.name for field in fields]
        if path != paths[0] and here != names:
            raise ValueError(f"{path}: has columns {here}, but {paths[0].name} in the same folder "
                             f"has {names}; choose some by columns.")
        names = here
        dtypes.append(_common_dtype(path, arrow, fields, missing))
    dtype = np.result_type(*dtypes)
    cuts = np.cumsum([0, *chain.from_iterable(groups.values())]).tolist()
    total = cuts[-1]
    if total == 0 or not names:
        raise ValueError(f"{where}: holds {total} rows of {len(names)} columns; at least one row "
                         f"and one column are needed.")
    step = rows or max(1, block_rows(len(names), dtype.itemsize) // 4)

    def blocks() -> Iterator[AnyArray]:
        every = (batches(path, range(len(sizes)), step, names) for path, sizes in groups.items())
        return _as_blocks(where, chain.from_iterable(every), names, dtype, missing)

    def between(first: int, last: int) -> AnyArray:
        places = ((path, index) for path, sizes in groups.items() for index in range(len(sizes)))
        parts = [_cut_out(batches(path, [index], step, names), first - start, last - start)
                 for (path, index), start, end in zip(places, cuts, cuts[1:], strict=False)
                 if first < end and start < last]
        return np.concatenate(list(_as_blocks(where, chain.from_iterable(parts), names, dtype,
                                              missing, first)))

    return BlockSource(blocks, len(names), total, dtype, names, between=between, cuts=cuts)


def _chosen(where: object, schema: Any, columns: Sequence[str] | None) -> list[Any]:
    """Return the fields asked for, or all but the index of a pandas frame."""
    index = [name for name in (schema.pandas_metadata or {}).get("index_columns", [])
             if isinstance(name, str)]
    names = ([name for name in schema.names if name not in index] if columns is None
             else list(columns))
    check_names(where, names, schema.names)
    return [schema.field(name) for name in names]


def check_names(where: object, chosen: Sequence[str], names: Sequence[str]) -> None:
    """Raise ValueError unless each name that is `chosen` is that of one column."""
    counts = Counter(names)
    for name in chosen:
        found = counts[name]
        if found != 1:
            several = f"{found} columns" if found else "no column"
            raise ValueError(f"{where}: has {several} {name!r}; it has {list(names)}.")


def _cut(batch: Any, step: int) -> Iterator[Any]:
    """Yield a record batch in slices of at most `step` rows."""
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def _cut_out(batches: Iterator[Any], first: int, last: int) -> Iterator[Any]:
    """Yield what lies in rows [first, last) of record batches; both may lie beyond them."""
    row = 0
    for batch in batches:
        start, stop = max(first - row, 0), min(last - row, batch.num_rows)
        row += batch.num_rows
        if start < stop:
            yield batch.slice(start, stop - start)


def _as_blocks(where: object, batches: Iterator[Any], names: Sequence[str], dtype: np.dtype[Any],
               missing: bool, first: int = 0) -> Iterator[AnyArray]:
    """Yield record batches as arrays; a null cell is NaN, or an error that names its place."""
    for batch in batches:
        block = np.empty((batch.num_rows, len(names)), dtype, order="F")
        for position, name in enumerate(names):
            cells = batch.column(name)
            if cells.null_count and not missing:
                row = first + cells.is_null().index(True).as_py()
                raise ValueError(f"{where}: row {row}, column {position} ({name!r}) is null; "
                                 f"remove or impute such cells first{MAY_BE_MISSING}.")
            block[:, position] = cells.to_numpy(zero_copy_only=False)
        first += batch.num_rows
        yield block


def _common_dtype(where: object, arrow: Any, fields: Sequence[Any], missing: bool
                  ) -> np.dtype[Any]:
    """Return one dtype that holds every column, and NaN if cells may be missing."""
    types = arrow.types
    for field in fields:
        if not (types.is_integer(field.type) or types.is_floating(field.type)
                or types.is_boolean(field.type)):
            raise ValueError(f"{where}: column {field.name!r} is {field.type}, not numeric; choose "
                             "columns without it.")
    dtype = np.result_type(*[np.dtype(field.type.to_pandas_dtype()) for field in fields] or [bool])
    return np.dtype(np.float64) if missing and dtype.kind != "f" else dtype
