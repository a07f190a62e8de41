"""Whitened rows in panels: kept in memory, or made anew for each pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from fastdr._pointwise import PANEL, pack
from fastdr.contrasts import Run
from fastdr.operators import project
from fastdr.sources import ArraySource, Source
from fastdr.threads import ordered_map
from fastdr.validation import AnyArray, FloatArray

KEEP = 1 << 30  # bytes of whitened rows that stay in memory
RUN = 1 << 22  # numbers in a run: what is whitened at a time
_PACKED = 16  # panels that a thread packs at a time


@dataclass(frozen=True)
class Panels:
    """Rows of a source as sources of an unmixing see them: factor (x - mean), in panels.

    ``factor`` (k, d) and ``mean`` (d,), or None for the rows as they are; ``weights`` (n,) or
    None, ``weight`` their sum, ``rows`` their number. ``dtype`` is that of the arithmetic.
    ``kept`` are all runs, if they fit in memory. Weights are in units of ``unit``.
    """

    source: Source
    weights: FloatArray | None
    factor: FloatArray | None
    mean: FloatArray | None
    rows: int
    weight: float
    dtype: np.dtype[Any]
    kept: tuple[Run, ...] | None = None
    unit: float = 1.0

    def in_units(self) -> Panels:
        """Return the same with weights in units of a power of two, so that float32 holds them."""
        if self.weights is None:
            return self
        unit = 2.0 ** int(np.frexp(self.weights.max())[1])
        return replace(self, weights=self.weights / unit, weight=self.weight / unit, unit=unit)

    @property
    def features(self) -> int:
        """Components of a whitened row."""
        return self.source.shape[1] if self.factor is None else len(self.factor)

    @property
    def effective_rows(self) -> float:
        """Rows without weights that would give means as precise as those of these."""
        if self.weights is None:
            return float(self.rows)
        return self.weight**2 / float(self.weights @ self.weights)

    def runs(self) -> Iterator[Run]:
        """Yield runs of whole panels in order, the same whether kept or not."""
        yield from self._made() if self.kept is None else self.kept

    def _made(self) -> Iterator[Run]:
        start, step = 0, max(1, RUN // (self.features * PANEL)) * PANEL
        for rows in _cut(self.source, step):
            weight = np.empty((0, 0), self.dtype)
            panels = -(-len(rows) // PANEL)
            if self.weights is not None:
                weight = np.zeros((panels, PANEL), self.dtype)
                weight.ravel()[:len(rows)] = self.weights[start:start + len(rows)]
            start += len(rows)
            yield Run(self._packed(rows, panels), weight, len(rows))

    def _packed(self, rows: AnyArray, panels: int) -> AnyArray:
        if self.factor is None:
            white = np.ascontiguousarray(rows, self.dtype)
        else:
            white = np.asarray(project(rows, self.factor, self.mean), self.dtype)
        packed = np.empty((panels, self.features, PANEL), self.dtype)

        def part(index: int) -> None:
            first = index * _PACKED
            pack(white[first * PANEL:(first + _PACKED) * PANEL], packed[first:first + _PACKED])

        ordered_map(part, -(-panels // _PACKED))
        return packed

    def keep(self) -> Panels:
        """Return the same with all runs in memory, if they take no more than KEEP bytes."""
        if self.rows * self.features * self.dtype.itemsize > KEEP:
            return self
        return replace(self, kept=tuple(self._made()))

    def sample(self, every: int, dtype: DTypeLike) -> Panels:
        """Return each `every`-th whole panel, in `dtype` and kept in memory."""
        parts, skip = [], 0
        for run in self.runs():
            whole = run.rows // PANEL
            panels, weight = (np.ascontiguousarray(array[skip:whole:every], dtype)
                              for array in (run.panels, run.weight))
            parts.append(Run(panels, weight, len(panels) * PANEL))
            skip = (skip - whole) % every
        rows = sum(run.rows for run in parts)
        total = (float(rows) if self.weights is None
                 else sum(float(run.weight.sum(dtype=np.float64)) for run in parts))
        return replace(self, dtype=np.dtype(dtype), rows=rows, weight=total, kept=tuple(parts))


def _cut(source: Source, step: int) -> Iterator[AnyArray]:
    """Yield the rows of `source`, `step` at a time whatever its blocks are."""
    if isinstance(source, ArraySource):
        for start in range(0, len(source.array), step):
            yield source.array[start:start + step]
        return
    waiting: list[AnyArray] = []
    size = 0
    for block in source.blocks():
        while size + len(block) >= step:
            taken = step - size
            yield np.concatenate([*waiting, block[:taken]])
            block, waiting, size = block[taken:], [], 0
        if len(block):
            waiting.append(np.array(block))
            size += len(block)
    if waiting:
        yield np.concatenate(waiting)
