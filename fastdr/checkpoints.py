"""A long first pass that can be taken up where it stopped: moments so far, kept in a file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np

from fastdr.persistence import load_moments, save
from fastdr.progress import row_bar
from fastdr.sources import ArraySource, Source, block_rows
from fastdr.statistics import Moments, Precision
from fastdr.validation import AnyArray, FloatArray, rows_named


def origin_of(path: Path, output: Path | None = None, **choices: Any) -> dict[str, Any]:
    """Return what tells the rows of a file or folder from others: sizes, times and `choices`.

    Files in a folder that belong to `output`, as its checkpoint does, are no rows.
    """
    paths = [path]
    if path.is_dir():
        paths = [entry for entry in sorted(path.rglob("*"))
                 if output is None or not _is_of(output.name, entry.name)]
    files = [(entry, entry.stat()) for entry in paths if entry.is_file()]
    return {"path": str(path.resolve()), "files": len(files),
            "bytes": sum(facts.st_size for _, facts in files),
            "changed": max(facts.st_mtime_ns for _, facts in files), **choices}


def _is_of(output: str, name: str) -> bool:
    """Whether a file is an output, its checkpoint, or one of these half-written."""
    return name in (output, f"{output}.checkpoint") or name.startswith(f".{output}.")


@dataclass(frozen=True)
class CheckpointedSource:
    """A source whose moments are saved now and then, and continued if that was done before.

    Attributes
    ----------
    source : Source
    path : Path of the checkpoint, an ordinary file of `Moments`.
    origin : mapping of plain values: what the rows are. A checkpoint of others is left alone
        and written over.
    every : float, seconds between two checkpoints.
    shown : bool, whether to show a bar on stderr.
    """

    source: Source
    path: Path
    origin: Mapping[str, Any]
    every: float = 30.0
    shown: bool = False

    @property
    def shape(self) -> tuple[int | None, int]:
        """Rows and features."""
        return self.source.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype as stored."""
        return self.source.dtype

    @property
    def columns(self) -> list[str] | None:
        """Names of the columns, or None."""
        return self.source.columns

    @property
    def rereadable(self) -> bool:
        """Whether the rows can be read again."""
        return self.source.rereadable

    def blocks(self) -> Iterator[AnyArray]:
        """Yield the blocks of the source."""
        return self.source.blocks()

    def resumed(self, precision: Precision = None) -> tuple[int, Moments | None]:
        """Return how many rows the checkpoint has, and their moments; (0, None) without one.

        Raises ValueError if there is a file of that name that is no checkpoint.
        """
        if not self.path.exists():
            return 0, None
        try:
            moments, report = load_moments(self.path)
        except ValueError as error:
            raise ValueError(f"the checkpoint cannot be used: {error} Remove {self.path} to begin "
                             "anew.") from None
        same = report.get("origin") == dict(self.origin) and report.get("precision") == precision
        rows = report.get("rows")
        if not same or not isinstance(rows, int) or moments.mean.size != self.shape[1]:
            return 0, None
        return rows, moments

    def moments(self, precision: Precision, weights: FloatArray | None = None) -> Moments:
        """Return the moments of all rows, to the bit the same whether it was interrupted or not."""
        if weights is not None:
            return Moments.of_source(self.source, weights, precision=precision)
        done, total = self.resumed(precision)
        saved, row = time.monotonic(), done
        bar = row_bar(self.source, "reading rows", done=done) if self.shown else nullcontext(len)
        with bar as tick:
            for block in _after(self.source, done):
                with rows_named(block, self.columns, row):
                    found = Moments.of(block, precision=precision)
                total = found if total is None else total + found
                row += len(block)
                tick(block)
                if time.monotonic() - saved >= self.every:
                    save(total, self.path, {"origin": dict(self.origin), "rows": row,
                                            "precision": precision})
                    saved = time.monotonic()
        if total is None:
            raise ValueError("Found no rows: the source is empty.")
        return total

    def remove(self) -> None:
        """Remove the checkpoint, and what processes that were killed while they saved it left."""
        self.path.unlink(missing_ok=True)
        for part in self.path.parent.glob(f".{escape(self.path.name)}.*.part"):
            part.unlink(missing_ok=True)


def _after(source: Source, done: int) -> Iterator[AnyArray]:
    """Yield the blocks behind the first `done` rows, which end a block; none of them is empty."""
    if isinstance(source, ArraySource):
        array = source.array[done:]
        step = 8 * block_rows(array.shape[1], array.itemsize)  # views take no memory
        yield from (array[start:start + step] for start in range(0, len(array), step))
        return
    row = 0
    for block in source.blocks():
        row += len(block)
        if row > done and len(block):
            if row - len(block) < done:
                raise ValueError("the checkpoint ends within a block; it was made with blocks of "
                                 "another size.")
            yield block
