"""Rows of INPUT as the commands see them: read here, or by the workers of a Dask cluster."""

from __future__ import annotations

import csv
import logging
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from fastdr.dask_files import dask_rows
from fastdr.dask_source import DaskSource, named_losses
from fastdr.inputs import as_bytes, open_rows
from fastdr.models import LinearModel
from fastdr.progress import with_progress
from fastdr.sources import Source
from fastdr.validation import AnyArray, working_dtype

try:
    import typer
except ModuleNotFoundError:  # cli.main() says how to install it
    typer = None  # type: ignore[assignment]

FORMATS = ".npy, .npz, .csv, .csv.gz or .parquet"
ROWS = (f"Rows: {FORMATS}, .arrow, .feather, .h5, .hdf5, Zarr, or a folder of .npy, .parquet or "
        ".arrow files.")
WAIT = 20.0  # seconds for a scheduler to answer, and for its first worker
AHEAD = 2  # results for each thread of the workers that may wait to be written


if typer is not None:
    Member = Annotated[str | None, typer.Option(help="Array to read from an .npz, HDF5 or Zarr "
                                                "file.")]
    Columns = Annotated[str | None, typer.Option(
        metavar="NAME,NAME", help="Columns of a table to read, in this order; names with commas "
        "in double quotes.")]
    Header = Annotated[bool | None, typer.Option(
        "--header/--no-header", help="Whether the first line of a CSV file has names; default: as "
        "can be told from it.")]


def opened(path: Path, member: str | None, columns: str | None, memory: str | None,
           header: bool | None, missing: bool = False) -> Source:
    """Open rows with blocks that take a fourth of `memory` at most."""
    within = None if memory is None else max(1, as_bytes(memory) // 4)
    return open_rows(path, member=member, columns=_names(columns), memory=within, missing=missing,
                     header=header)


@contextmanager
def rows_at(path: Path, member: str | None, columns: str | None, memory: str | None,
            header: bool | None, scheduler: str | None, seconds: float, missing: bool
            ) -> Iterator[Source]:
    """Open INPUT here, or in a session with the Dask cluster at `scheduler`.

    Raises ConnectionError if no scheduler answers within `seconds`, or it has no worker by then.
    """
    if scheduler is None:
        yield opened(path, member, columns, memory, header, missing)
        return
    if missing:
        raise ValueError("--missing reads all rows here, many times; it cannot be given with "
                         "--dask.")
    with _cluster(scheduler, seconds):
        yield dask_rows(path, member=member, columns=_names(columns), header=header)


def scores_of(rows: Source, model: LinearModel, bar: bool, missing: bool) -> Iterator[AnyArray]:
    """Yield the scores of consecutive rows, computed where the rows are."""
    scores = model.transform_observed if missing else model.transform
    if isinstance(rows, DaskSource):
        names = [str(index) for index in range(model.n_outputs)]
        yield from _in_order(rows.mapped(scores, names, working_dtype(rows.dtype)))
        return
    for block in (with_progress(rows, "rows", leave=True) if bar else rows).blocks():
        yield scores(block)


def refuse_given(why: str, options: Mapping[str, Any]) -> None:
    """Refuse the first of the `options` that has a value, as it would do nothing."""
    for name, value in options.items():
        if value:
            raise typer.BadParameter(f"{why}.", param_hint=name)


def _names(columns: str | None) -> list[str] | None:
    """Return the names in a list, which may be quoted as in a CSV file if they have commas."""
    if columns is None:
        return None
    try:
        names = next(csv.reader([columns], skipinitialspace=True)) or [""]
    except csv.Error as error:
        raise typer.BadParameter(f"{columns!r} is no list of names ({error}).",
                                 param_hint="--columns") from None
    return [name.strip() for name in names]


@contextmanager
def _cluster(scheduler: str, seconds: float) -> Iterator[None]:
    """Let the workers of a scheduler compute what is computed inside."""
    try:
        distributed: Any = import_module("distributed")
    except ModuleNotFoundError:
        raise ModuleNotFoundError('--dask needs distributed; run: pip install "fastdr[dask]"'
                                  ) from None
    for name in ("distributed", "distributed.client"):  # errors are told in one line, by us
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client = distributed.Client(scheduler, timeout=seconds)
    except OSError:
        raise ConnectionError(f"no Dask scheduler answered at {scheduler} within {seconds:g} s; "
                              "start one with: dask scheduler") from None
    try:
        try:
            client.wait_for_workers(1, timeout=seconds)
        except TimeoutError:
            raise ConnectionError(f"the Dask scheduler at {scheduler} had no worker for "
                                  f"{seconds:g} s; start one with: dask worker {scheduler}"
                                  ) from None
        yield
    finally:
        client.close(timeout=1)


def _in_order(lazy: Any) -> Iterator[AnyArray]:
    """Yield the chunks of a Dask array in order while workers compute the next few."""
    distributed: Any = import_module("distributed")
    client = distributed.default_client()
    ahead, waiting = AHEAD * sum(client.nthreads().values()), deque[Any]()
    with named_losses():
        for chunk in lazy.to_delayed().ravel():
            waiting.append(client.compute(chunk))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
