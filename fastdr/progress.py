"""A bar on stderr while rows are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastdr.sources import BlockSource, Source
from fastdr.validation import AnyArray

Tick = Callable[[AnyArray], None]


@contextmanager
def row_bar(source: Source, description: str, *, done: int = 0, leave: bool = False
            ) -> Iterator[Tick]:
    """Provide what to call with each block of `source` that was read: rows/s, MB/s, time left.

    `done` rows were read before; `leave` lets the bar stand afterwards. A source that does not
    know its rows, but how much of its bytes were read, has a bar of these.
    """
    from tqdm.auto import tqdm

    rows, place = source.shape[0], getattr(source, "place", None)
    by_bytes = rows is None and place is not None
    total = place()[1] if by_bytes and place is not None else rows
    read, seen = 0, 0
    with tqdm(total=total, desc=description, unit="B" if by_bytes else "row", unit_scale=True,
              initial=done, leave=leave) as bar:

        def tick(block: AnyArray) -> None:
            nonlocal read, seen
            read, seen = read + block.nbytes, seen + len(block)
            seconds = max(bar.format_dict["elapsed"], 1e-3)
            if by_bytes and place is not None:
                bar.set_postfix_str(f"{seen} rows, {seen / seconds:.3g} rows/s", refresh=False)
                bar.update(place()[0] - bar.n)
            else:
                bar.set_postfix_str(f"{read / seconds / 1e6:.0f} MB/s", refresh=False)
                bar.update(len(block))

        yield tick


def with_progress(source: Source, description: str, *, leave: bool = False) -> Source:
    """Return `source` with a bar on stderr for every pass, see `row_bar`."""
    if hasattr(source, "moments"):  # it does not pass its rows through here
        return source
    rows, features = source.shape

    def blocks() -> Iterator[AnyArray]:
        with row_bar(source, description, leave=leave) as tick:
            for block in source.blocks():
                yield block
                tick(block)

    return BlockSource(blocks, features, rows, source.dtype, source.columns, source.rereadable)
