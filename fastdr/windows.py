"""The last rows of a stream: a queue of panels whose sums are only ever added, never taken off."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Self

import numpy as np

from fastdr.statistics import Moments
from fastdr.streams import PANEL, SINGLE, Batch, copied, counted, joined, moments_of, together
from fastdr.validation import AnyArray, FloatArray, working_dtype


@dataclass(frozen=True, eq=False)
class Window:
    """The last `length` rows; a value, made anew by each `add`.

    Taking the moments of old rows off a sum cancels digits. Here rows stand in panels of max(256,
    d), and two stacks make a queue: `ahead` has sums from each of the older panels to the last
    of them, so that leaving one out is reading the next sum, and `behind` is the sum of the newer
    ones. When the older ones are used up the sums are formed anew. Each row is summed twice.

    Attributes
    ----------
    features, length : int
    seen : int, rows of positive weight so far.
    dtype : float32 if all rows were float32 or float16, else float64.
    panels : tuple of Batch, oldest first; `ahead` belongs to the first of them.
    ahead : tuple of Moments
    behind : Moments or None
    waiting : tuple of Batch, the newest rows, less than a panel.

    Examples
    --------
    >>> window = Window(1, 2).add(np.array([[1.0], [2.0], [6.0]]))
    >>> window.total().mean
    array([4.])
    """

    features: int
    length: int
    seen: int = 0
    dtype: np.dtype[Any] = SINGLE
    panels: tuple[Batch, ...] = ()
    ahead: tuple[Moments, ...] = ()
    behind: Moments | None = None
    waiting: tuple[Batch, ...] = ()

    @property
    def held(self) -> int:
        """Rows kept."""
        return _size(self.panels) + _size(self.waiting)

    def add(self, rows: AnyArray, weights: FloatArray | None = None) -> Self:
        """Return the window after more rows (n, d); weights (n,) say how often each occurs.

        A row of any positive weight takes one place. O(n d²), and twice that in the long run.
        """
        new = counted(rows, weights)
        window = replace(self, seen=self.seen + len(new.rows),
                         dtype=np.result_type(self.dtype, working_dtype(rows.dtype)))
        panel = max(PANEL, self.features)
        new = new.from_row(max(0, len(new.rows) - self.length))
        while len(new.rows):
            room = panel - _size(window.waiting)
            first = Batch(new.rows[:room], None if new.weights is None else new.weights[:room])
            window = window._filled((*window.waiting, copied(first)), panel)._trimmed()
            new = new.from_row(room)
        return window

    def _filled(self, waiting: tuple[Batch, ...], panel: int) -> Self:
        """Make a panel of the waiting rows if there are enough."""
        if _size(waiting) < panel:
            return replace(self, waiting=waiting)
        full = joined(waiting)
        sums = moments_of(full)
        return replace(self, panels=(*self.panels, full), waiting=(),
                       behind=sums if self.behind is None else together(self.behind, sums))

    def _trimmed(self) -> Self:
        """Drop what no longer belongs to the window, and turn the queue when it must be."""
        window, excess = self, self.held - self.length
        while window.panels and excess >= len(window.panels[0].rows):
            excess -= len(window.panels[0].rows)
            window = replace(window._turned(), panels=window.panels[1:])
            window = replace(window, ahead=window.ahead[1:])
        if excess > 0 and window.panels:
            return window._turned()
        if excess > 0:
            return replace(window, waiting=(joined(window.waiting).from_row(excess),))
        return window

    def _turned(self) -> Self:
        """Form the sums ahead, if the last of them was used up."""
        if self.ahead:
            return self

        def joined_before(later: Moments, earlier: Moments) -> Moments:
            return together(earlier, later)

        sums = accumulate(map(moments_of, reversed(self.panels)), joined_before)
        return replace(self, ahead=tuple(sums)[::-1], behind=None)

    def total(self) -> Moments:
        """Moments of the rows in the window; ValueError if there are none."""
        parts = [self.behind]
        excess = self.held - self.length
        if excess > 0 and self.panels:  # of the oldest panel only the last rows belong to it
            parts = [moments_of(self.panels[0].from_row(excess)), *self.ahead[1:2], self.behind]
        elif self.ahead:
            parts = [self.ahead[0], self.behind]
        if self.waiting:
            parts.append(moments_of(joined(self.waiting)))
        there = [part for part in parts if part is not None]
        if not there:
            raise ValueError("Found no rows: none came, or all their weights are zero.")
        *_, total = accumulate(there, together)
        return total

    def few(self) -> Batch | None:
        """Return the rows of the window if they are fewer than features."""
        held = min(self.held, self.length)
        if not 0 < held < self.features:
            return None
        return joined([*self.panels, *self.waiting]).from_row(self.held - held)


def _size(batches: tuple[Batch, ...]) -> int:
    return sum(len(batch.rows) for batch in batches)
