"""A bar on stderr while rows are read."""

from __future__ import annotations

from collections.abc import Iterator

from fastdr.sources import BlockSource, Source
from fastdr.validation import AnyArray


def with_progress(source: Source, description: str, *, leave: bool = False) -> Source:
    """Return `source` with a bar on stderr for every pass: rows/s, MB/s and the time left.

    `leave` lets the bar stand when the pass has ended.
    """
    from tqdm.auto import tqdm

    if hasattr(source, "moments"):  # it does not pass its rows through here
        return source
    rows, features = source.shape

    def blocks() -> Iterator[AnyArray]:
        with tqdm(total=rows, desc=description, unit="row", unit_scale=True,
                  leave=leave) as bar:
            read = 0
            for block in source.blocks():
                yield block
                read += block.nbytes
                rate = read / max(bar.format_dict["elapsed"], 1e-3)
                bar.set_postfix_str(f"{rate / 1e6:.0f} MB/s", refresh=False)
                bar.update(len(block))

    return BlockSource(blocks, features, rows, source.dtype, source.columns, source.rereadable)
