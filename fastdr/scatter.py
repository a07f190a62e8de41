"""Scatter of many rows in one pass, the same to the last bit for any number of threads.

Up to `SHARED_FEATURES` features the rows are cut into a fixed number of groups, each summed by
one thread into a triangle of its own and merged in order. Beyond that the triangle itself is
divided: threads pack panels of rows together, then multiply separate parts of one triangle.
"""

from __future__ import annotations

import math
from mmap import PAGESIZE
from typing import TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fastdr._dense import (
    EXPANDED,
    GROUPS,
    LARGE_PAGE,
    LEAST_PANEL,
    PANEL,
    SHARED_FEATURES,
    Expansion,
    Scatter,
    ScatterGroups,
    SharedScatter,
    step_rows,
    storage_size,
    strip_width,
    triangle_size,
)
from fastdr.mapped import read
from fastdr.sources import Rows
from fastdr.threads import get_num_threads, helped, ordered_map, together
from fastdr.validation import AnyArray, FloatArray

EPS, EPS_SINGLE = (float(np.finfo(kind).eps) for kind in (np.float64, np.float32))
_Real = TypeVar("_Real", np.float64, np.float32)

_GROUP_WORK = 1 << 24
_ROOM = 20  # groups may take this part of the memory of the rows
SAMPLE, PARTS = 32, 4096  # weighted rows about whose mean sums are gathered, of as many parts
HEAVIEST = 1e304  # weight of a part, so that those of all have a sum
RUN = 2048  # products that BLAS may sum one by one
SINGLE_RTOL = 1e-5  # wanted relative accuracy of a variance of float32 data
_KEPT_STRIPS, _PASSING_STRIPS = 16, 96  # of a part at most: 128 by 768 columns of AVX-512
_RUN = 1 << 37  # multiplications between two looks for Ctrl-C


def single_error(summed: int) -> float:
    """Error to be expected of a scatter of `summed` rows in float32 panels, relative to its trace.

    Each float32 sum, of twice up to 192 rows and reckoned as 256, is off by up to 1e-6, either way,
    so the errors of many average out: measured 2e-7 for 20 of them, 3e-8 for 800. Those of numbers
    that occur again and again do not: `sum_error` bounds them.
    """
    return 1e-6 / math.sqrt(max(1.0, summed / 256))


def sum_error(terms: int, *, single: bool = False) -> float:
    """Bound on the norm of the rounding in a scatter of so many terms, relative to its trace.

    An entry is summed by up to PANEL multiply-adds, in float32 if `single`, and what they come to
    in float64, of factors that were rounded themselves. However that rounds, entry (i, j) is off by
    at most m u sqrt(S_ii S_jj), m the roundings one after the other (Higham 2002, section 3.5),
    and such errors have at most m u times the trace for a norm.
    """
    panels = terms / LEAST_PANEL
    return (chain_error(min(terms, PANEL), EPS_SINGLE if single else EPS)
            + chain_error(min(panels, GROUPS) + panels))


def chain_error(terms: float, eps: float = EPS) -> float:
    """Bound on what summing `terms` products of rounded factors one by one loses, relative."""
    return 1.01 * (terms + 16) * eps / 2


def divisor_error(count: int, weight: float, divisor: float) -> float:
    """Bound on what a divisor loses, relative, that is the rounded sum of `count` weights, or less.

    NumPy sums sixteen weights one by one, then pairs; without weights the sum is exact.
    """
    return 0.0 if weight == count else chain_error(math.log2(max(count, 1))) * weight / divisor


def blas_error(terms: float) -> float:
    """Bound on what a product by BLAS of so many terms loses, relative, as `sum_error` says it.

    OpenBLAS sums up to RUN products one by one, for some shapes, and then these sums.
    """
    return chain_error(min(terms, RUN)) + chain_error(terms / RUN)


def middle(rows: AnyArray, weight: FloatArray | None = None, *, integral: bool) -> FloatArray:
    """Mean of the first rows, or of some with equal shares of the weight; (features,).

    The point about which sums are gathered.
    """
    size = max(1, min(256, (1 << 17) // rows.shape[1], max(SAMPLE, len(rows) // 16)))
    head = (read(rows[:size]) if weight is None else
            np.concatenate([read(rows[part]) for part in _heavy(weight, min(size, SAMPLE))]))
    head = head.astype(np.float64, order="C", copy=False)
    with np.errstate(all="ignore"):
        shift: FloatArray = head[0] + (head - head[0]).mean(axis=0)
    shift[~np.isfinite(shift)] = 0.0
    if integral:
        return np.asarray(np.rint(shift))
    single = rows.dtype.kind == "f" and rows.dtype.itemsize < 8
    return shift.astype(np.float32).astype(np.float64) if single else shift


def _heavy(weight: FloatArray, count: int) -> list[slice]:
    """Return `count` single rows, perhaps repeated, that stand for equal shares of the weight.

    Rows that weigh next to nothing may be far from all others. O(n) additions.
    """
    step = -(-len(weight) // PARTS)
    starts = np.arange(0, len(weight), step)
    with np.errstate(over="ignore"):
        sums = np.minimum(np.add.reduceat(weight, starts), HEAVIEST)
    shares = np.cumsum(sums)
    wanted = (np.arange(count) + 0.5) / count * shares[-1]
    begins = starts[np.searchsorted(shares, wanted, side="right")]
    if step > 1:
        begins = [start + np.argmax(weight[start:start + step]) for start in begins]
    return [slice(row, row + 1) for row in begins]


class ScatterSum:
    """Running scatter of row blocks; `add` blocks in order, then `finish` once.

    Rows are multiplied in `working` within a panel: float64, float32, or int16, which is exact and
    is for 8-bit integers without weights, about an integral shift among them. `fixed` leaves
    panels where they are. `outside` tells afterwards that products left the range of float32.
    With `narrow` there is room for `finish_narrow` only, half of that for `finish`.
    """

    def __init__(self, features: int, shift: FloatArray, working: DTypeLike = np.float64, *,
                 fixed: bool = False, row_shift: FloatArray | None = None,
                 narrow: bool = False) -> None:
        self.features, self.shift, self.fixed, self.row_shift = features, shift, fixed, row_shift
        self.itemsize = np.dtype(working).itemsize
        self._shared: SharedScatter | None = None
        self._storage = np.zeros((triangle_size if narrow else storage_size)(features,
                                                                             self.itemsize))
        if features > SHARED_FEATURES:
            _fetch_pages(self._storage)
        self._total = self._scatter(self._storage)

    @property
    def outside(self) -> bool:
        """Whether float32 products over- or underflowed."""
        return bool(self._total.outside)

    def _scatter(self, storage: FloatArray | None) -> Scatter:
        return Scatter(self.features, storage, self.shift, self.itemsize, self.fixed,
                       self.row_shift)

    def add(self, X: AnyArray | Rows, weight: FloatArray | None = None, *,
            root: FloatArray | None = None, transposed: bool = False) -> bool:
        """Add rows, multiplied by `root` (√weight); tell whether every value is finite."""
        if weight is not None:
            root = np.sqrt(weight)
        rows = X if isinstance(X, Rows) else Rows(X, transposed)
        add = self._add_shared if self.features > SHARED_FEATURES else self._add_groups
        return add(rows, weight, root)

    def _add_groups(self, rows: Rows, weight: FloatArray | None, root: FloatArray | None) -> bool:
        work = rows.count * self.features * max(self.features, 32)
        panels = -(-rows.count // PANEL)
        size = triangle_size(self.features, self.itemsize)
        room = max(2, rows.array.nbytes // (_ROOM * 8 * size))
        count = max(1, min(GROUPS, work // _GROUP_WORK, panels, room))
        count = 1 << count.bit_length() - 1  # so that any usual number of threads shares alike
        edges = np.array([min(panels * i // count * PANEL, rows.count) for i in range(count + 1)])

        if not rows.in_memory:
            return self._add_pieces(rows, edges, weight, root)
        threads = min(get_num_threads(), count)
        for matrix, _, _, _ in rows.pieces(0, rows.count):
            others = [self._scatter(None) for _ in range(count - 1)]
            groups = ScatterGroups(self._total, others, matrix, edges, weight, root, threads)
            together(groups, threads)
            groups.merge()
        return groups.finite

    def _add_pieces(self, rows: Rows, edges: NDArray[np.intp], weight: FloatArray | None,
                    root: FloatArray | None) -> bool:
        """Add groups of rows that are read piece by piece."""
        def sum_group(index: int) -> tuple[Scatter, bool]:
            size = triangle_size(self.features, self.itemsize)
            scatter = self._scatter(np.zeros(size)) if index else self._total
            finite = True
            for matrix, start, first, last in rows.pieces(edges[index], edges[index + 1], PANEL):
                finite &= scatter.add_rows(matrix, first, last, _part(weight, start, rows),
                                           _part(root, start, rows))
            return scatter, finite

        results = ordered_map(sum_group, len(edges) - 1)
        for scatter, _ in results[1:]:
            self._total.merge(scatter)
        return all(finite for _, finite in results)

    def _add_shared(self, rows: Rows, weight: FloatArray | None, root: FloatArray | None) -> bool:
        """Multiply panels in parts while the next ones are packed, and the next piece is read."""
        if self._shared is None:
            parts = _parts(-(-self.features // strip_width(self.itemsize)))
            self._shared = SharedScatter(self._total, parts)
        shared, finite = self._shared, True
        step = step_rows(self.itemsize)
        size = step * max(1, rows.in_memory * _RUN // (step * self.features ** 2))
        pieces = (piece for first in range(0, rows.count, size)
                  for piece in rows.pieces(first, min(first + size, rows.count), size))

        ready = next(pieces, None)
        while ready is not None:
            matrix, start, first, last = ready
            shared.begin(matrix, first, last, _part(weight, start, rows),
                         _part(root, start, rows))
            with helped(shared):
                ready = next(pieces, None)
                shared.work()
            finite &= shared.finite
        return finite

    def finish(self, *, centred: bool = True) -> tuple[FloatArray, FloatArray]:
        """Return (mean - shift, scatter); without centring the first is zero, the second Z'Z.

        The scatter is unpacked inside its own storage, so no second matrix is made.
        """
        offset = np.zeros(self.features)
        if centred:
            self._total.centre(offset)
        self._expand(8)
        return offset, self._square(self._storage)

    def finish_narrow(self, divisor: float) -> NDArray[np.float32]:
        """Return the scatter over `divisor` in float32, which takes the place of the triangle."""
        self._total.centre(np.zeros(self.features))
        self._expand(4, divisor)
        return self._square(self._storage.view(np.float32))

    def _square(self, storage: NDArray[_Real]) -> NDArray[_Real]:
        return storage[:self.features ** 2].reshape(self.features, self.features)

    def _expand(self, itemsize: int, divisor: float = 0) -> None:
        self._shared = None
        size, first = self.features, 0
        while first < size:
            few = size - first <= PANEL  # one thread moves them in order
            last = size if few else self._total.movable(first, itemsize)
            together(Expansion(self._total, first, last, divisor=divisor),
                     1 if few else -(-(last - first) // EXPANDED))
            first = last
        together(Expansion(self._total, 0, size, mirrored=True, divisor=divisor),
                 -(-size // PANEL))


def _fetch_pages(zeros: FloatArray) -> None:
    """Touch all pages of new zeros, each by one thread.

    Threads that meet in a large page which is not there yet each clear one, all but one in vain.
    """
    memory = zeros.view(np.uint8)
    begun = -memory.ctypes.data % LARGE_PAGE  # bytes of the page in which they begin

    def touch(page: int) -> None:
        end = begun + page * LARGE_PAGE
        memory[max(0, end - LARGE_PAGE):end:PAGESIZE].fill(0)

    ordered_map(touch, 1 + -(-(memory.size - begun) // LARGE_PAGE))


def _part(values: FloatArray | None, start: int, rows: Rows) -> FloatArray | None:
    return values if values is None or rows.in_place else values[start:]


def _parts(strips: int) -> NDArray[np.intp]:
    """Cut the triangle into parts of nearly equal work: row strips [j0, j1), column [i0, i1).

    Parts of the same columns follow one another, so that their panels stay in a thread's cache.
    Sums depend on them in their last bits, so they depend on the number of strips alone.
    """
    passing = _PASSING_STRIPS if strips > 2 * _PASSING_STRIPS else _PASSING_STRIPS // 2
    return np.array([(j, min(j + _KEPT_STRIPS, strips), i, min(i + passing, strips))
                     for i in range(0, strips, passing)
                     for j in range(0, min(i + passing, strips), _KEPT_STRIPS)], np.intp)
