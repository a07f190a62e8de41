"""Instructions that LAPACK executes, from hardware counters or from Valgrind, on one thread.

``perf_event_open`` counts instructions in user mode where the kernel and the (virtual) machine
permit it; else callgrind counts them if Valgrind is installed; else there is no count.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bench.laws import LAWS, Shape
from fastdr.threads import available_cpus

HARDWARE, INSTRUCTIONS = 0, 1  # linux/perf_event.h
SOFTWARE, TASK_CLOCK = 1, 1
SYSCALL = {"x86_64": 298, "aarch64": 241}
USER_ONLY = 1 << 5 | 1 << 6  # exclude_kernel, exclude_hv
ROUTINES = {"form": "cblas_dsyrk", "eig": "dsyevd_", "svd": "dgesdd_"}
SPELLINGS = ("scipy_{}64_", "scipy_{}", "{}64_", "{}")  # by who built the BLAS that NumPy has


class _Attributes(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint32), ("size", ctypes.c_uint32),
                ("config", ctypes.c_uint64), ("sample", ctypes.c_uint64 * 3),
                ("flags", ctypes.c_uint64), ("rest", ctypes.c_uint64 * 10)]


class Counter:
    """A counter of this thread, by ``perf_event_open``; OSError if it is not permitted."""

    def __init__(self, kind: int = HARDWARE, event: int = INSTRUCTIONS) -> None:
        number = SYSCALL.get(platform.machine()) if sys.platform == "linux" else None
        if number is None:
            raise OSError(f"no perf_event_open on {sys.platform} {platform.machine()}")
        wanted = _Attributes(type=kind, size=ctypes.sizeof(_Attributes), config=event,
                             flags=USER_ONLY)
        self.handle = ctypes.CDLL(None, use_errno=True).syscall(
            number, ctypes.byref(wanted), 0, -1, -1, 0)
        if self.handle < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def read(self) -> int:
        """Return the count since the counter was opened."""
        return int.from_bytes(os.read(self.handle, 8), sys.byteorder)

    def of(self, call: Callable[[], Any]) -> int:
        """Return what `call` adds, the least of three runs after one to warm up."""
        call()
        found = []
        for _ in range(3):
            before = self.read()
            call()
            found.append(self.read() - before)
        return min(found)

    def close(self) -> None:
        """Give the counter back."""
        os.close(self.handle)


def call_of(operation: str, shape: Shape) -> Callable[[], Any]:
    """Return LAPACK's (for the product, BLAS's) `operation` on seeded data of a shape."""
    X = np.random.default_rng(shape).standard_normal(shape)
    if operation == "form":
        return lambda: X.T @ X
    if operation == "eig":
        C = X.T @ X
        return lambda: np.linalg.eigh(C)
    return lambda: np.linalg.svd(X, full_matrices=False)


def measure(quick: bool) -> dict[str, Any] | None:
    """Return the instructions of every law, or None where they cannot be counted.

    Valgrind takes a minute and is left out of a quick run.
    """
    try:
        counter = Counter()
    except OSError:
        return None if quick or not shutil.which("valgrind") else _callgrind_all()
    try:
        return {"by": "hardware counter", "laws": {
            law.key: [counter.of(call_of(law.operation, shape)) for shape in law.instructed()]
            for law in LAWS}}
    finally:
        counter.close()


def _callgrind_all() -> dict[str, Any] | None:
    """Count all laws, a process for each routine: callgrind mixes up several."""
    shapes = {operation: [shape for law in LAWS if law.operation == operation
                          for shape in law.instructed()] for operation in ROUTINES}
    with ThreadPoolExecutor(available_cpus()) as pool:
        counts = dict(zip(shapes, pool.map(callgrind, shapes, shapes.values()), strict=True))
    if None in counts.values():
        return None
    left = {operation: iter(found or ()) for operation, found in counts.items()}
    return {"by": "callgrind", "laws": {
        law.key: list(islice(left[law.operation], len(law.instructed())))
        for law in LAWS}}


def callgrind(operation: str, shapes: Sequence[Shape]) -> list[int] | None:
    """Return the instructions within LAPACK's routine for each shape; None if it is not seen."""
    name = routine(operation)
    if name is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--collect-atstart=no",
                   f"--toggle-collect={name}", f"--dump-after={name}",
                   f"--callgrind-out-file={folder}/dump",
                   sys.executable, "-m", "bench.instructions", operation,
                   *(f"{rows}x{columns}" for rows, columns in shapes)]
        done = subprocess.run(command, capture_output=True, check=False,
                              cwd=Path(__file__).parent.parent,
                              env=os.environ | {"OPENBLAS_NUM_THREADS": "1"})
        dumps = sorted(Path(folder).glob("dump.*"), key=lambda path: int(path.suffix[1:]))
        totals = [_total(path.read_text("utf-8", "replace")) for path in dumps]
    queries = 1 if operation == "form" else 2  # LAPACK is first asked for its workspace
    counts = totals[queries - 1 :: queries]
    return counts if not done.returncode and len(counts) == len(shapes) and all(counts) else None


def routine(operation: str) -> str | None:
    """Return the name of the routine in NumPy's BLAS and LAPACK, None if it has another."""
    from threadpoolctl import threadpool_info

    loaded = [info["filepath"] for info in threadpool_info() if info["user_api"] == "blas"]
    for path in sorted(loaded, key=lambda path: "numpy" not in path):
        library = ctypes.CDLL(path)
        for spelling in SPELLINGS:
            name = spelling.format(ROUTINES[operation])
            if hasattr(library, name):
                return name
    return None


def _total(dump: str) -> int:
    return next(int(line.split()[1]) for line in dump.splitlines() if line.startswith("totals:"))


if __name__ == "__main__":
    for text in sys.argv[2:]:
        sizes = text.split("x")
        call_of(sys.argv[1], (int(sizes[0]), int(sizes[1])))()
