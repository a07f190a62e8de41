"""The machine's own limits, measured on the same threads as the cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from time import perf_counter
from typing import Any

import numpy as np

from bench.cases import Work
from fastdr.threads import num_threads, ordered_map

MIB = 1 << 20
PARTS = 16  # of what is read or multiplied, taken by whichever thread is free


@dataclass(frozen=True)
class Limits:
    """Fused multiply-adds from registers (flops a second, a fused one counts 2) and reading.

    Flops are those of all threads together in f8 and f4; `read` is bytes a second.
    """

    f8: float
    f4: float
    read: float

    def bound(self, work: Work) -> tuple[str, float]:
        """Return the binding limit, ``"fma"`` or ``"read"``, and the least seconds it allows."""
        fma = work.flops / getattr(self, work.arithmetic)
        read = work.traffic / self.read
        return ("fma", fma) if fma >= read else ("read", read)

    def as_dict(self) -> dict[str, float]:
        """Return plain values for JSON."""
        return asdict(self)


def _kernels() -> Any:
    """Return the compiled module; ImportError if it cannot measure limits."""
    try:
        dense = import_module("fastdr._dense")
    except ImportError as error:
        raise ImportError("the limits need the compiled module fastdr._dense: install fastdr "
                          "(pip install .) or pass --no-limits") from error
    for name in ("peak_flops", "read_bytes"):
        if not hasattr(dense, name):
            raise ImportError(f"fastdr._dense has no {name}: rebuild fastdr (pip install .) "
                              "or pass --no-limits")
    return dense


def measure(threads: int, *, quick: bool = False) -> Limits:
    """Measure all three limits on `threads` threads: the best of several runs each."""
    seconds, repeats, size = (0.05, 5, 128 * MIB) if quick else (0.1, 15, 512 * MIB)
    with num_threads(threads):
        f8, f4 = (_multiplied(kind, seconds, repeats) for kind in ("f8", "f4"))
        return Limits(f8, f4, _best(reading(size), size, repeats))


def reading(size: float) -> Callable[[], Any]:
    """Return a call that reads `size` bytes once, by as many threads as fastdr has."""
    read_bytes = _kernels().read_bytes
    buffer = np.ones(int(size), np.uint8)
    edges = [buffer.size * part // PARTS // 8 * 8 for part in range(PARTS + 1)]
    return lambda: ordered_map(
        lambda part: read_bytes(buffer, edges[part], edges[part + 1]), PARTS)


def multiplying(flops: float, arithmetic: str) -> Callable[[], Any]:
    """Return a call that does `flops` in registers, by as many threads as fastdr has."""
    peak, itemsize = _kernels().peak_flops, np.dtype(arithmetic).itemsize
    each = math.ceil(flops / peak(itemsize, 1) / PARTS)
    return lambda: ordered_map(lambda part: peak(itemsize, each), PARTS)


def _multiplied(arithmetic: str, seconds: float, repeats: int) -> float:
    """Return the best rate of runs that take about so many seconds."""
    probe = 1e8
    flops = seconds * _best(multiplying(probe, arithmetic), probe, repeats)
    return _best(multiplying(flops, arithmetic), flops, repeats)


def _best(call: Callable[[], Any], amount: float, repeats: int) -> float:
    """Return the most of `amount` a second, after one warm-up."""
    call()
    taken = []
    for _ in range(repeats):
        start = perf_counter()
        call()
        taken.append(perf_counter() - start)
    return amount / min(taken)
