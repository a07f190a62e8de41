"""Peak memory of each case, every contestant in a process of its own.

``python -m bench.memory [--quick] [--threads N] [--only WORDS]``. What counts is how far the
process rises above what it held with its packages loaded, its data made and one small call done.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench import machine, tables
from bench.cases import CASES, Case, select

QUICK_NAMES = (
    "covariance 10000x4000 f8", "reconstruction_error 200000x512→50 f8",
    "PCA.fit 1000000x128→10 f8", "PCA.fit 50x200000→5 f4",
)
NAMES = (
    "covariance 1000000x128 f8", "covariance 1000000x64 u1", "transform 1000000x128→10 f8",
    *QUICK_NAMES,
)
SMALL = (300, 64)
GENES, GENES_SHARE = 2000, 0.25  # of the matrix that a fit may take beside it
UNIT = 1 if sys.platform == "darwin" else 1024
# Freed blocks go back to the system at once, or reusing them would hide what a call takes.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}


def peak() -> int:
    """Return the largest resident set of this process so far, in bytes."""
    import resource

    try:  # ru_maxrss would begin with the peak of the parent process
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT


def baseline() -> int:
    """Return what is resident now, in bytes, and start the peak again from there.

    Only Linux can do that; elsewhere the peak so far is the baseline, which hides as much as
    making the data took above it (blocks of 8 MB).
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass
    return peak()


def nbytes(result: Any) -> int:
    """Return the size of the arrays in a result."""
    if isinstance(result, tuple):
        return sum(map(nbytes, result))
    return int(np.asarray(result).nbytes)


def child(case: Case, index: int, shape: tuple[int, int]) -> dict[str, Any]:
    """Measure one contestant in this process."""
    contestant = case.contestants[index]
    contestant.prepare(case.inputs((min(shape[0], SMALL[0]), min(shape[1], SMALL[1]))))()
    call = contestant.prepare(case.inputs(shape))
    before = baseline()
    result = call()
    return {"peak": peak() - before, "result": nbytes(result)}


def _entry(case: Case, index: int, quick: bool, threads: int) -> dict[str, Any]:
    contestant = case.contestants[index]
    if not contestant.present:
        return {"name": contestant.name, "state": "absent"}
    command = [sys.executable, "-m", "bench.memory", "--threads", str(threads), "--child",
               str(CASES.index(case)), str(index), *["--quick"] * quick]
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          cwd=Path(__file__).parent.parent, env=os.environ | ALLOCATOR)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"name": contestant.name, "state": "failed", "message": lines[-1]}
    return ({"name": contestant.name, "state": "measured"}
            | json.loads(done.stdout.splitlines()[-1]))


def run(case: Case, *, quick: bool, threads: int) -> dict[str, Any]:
    """Measure the contestants of a case: one after the other, small ones side by side.

    Rivals are measured for the cases in `NAMES`, fastdr for every one.
    """
    shape = case.quick if quick else case.full
    count = len(case.contestants) if case.name in NAMES else 1
    with ThreadPoolExecutor(machine.available_cpus() if quick else 1) as pool:
        entries = list(pool.map(lambda index: _entry(case, index, quick, threads),
                                range(count)))
    return {"name": case.name, "group": case.group, "detail": case.detail, "dtype": case.dtype,
            "shape": list(shape), "data": case.nbytes(shape),
            "contestants": entries}


def genes(rows: int) -> str:
    """Return what PCA of `rows` cells by 2000 genes takes beside the matrix, in this process."""
    import fastdr
    from bench import sparse

    X = sparse.rows_of(rows, GENES, "f4", GENES // 10)
    size = X.data.nbytes + X.indices.nbytes + X.indptr.nbytes
    fastdr.PCA(50).fit(X[:SMALL[0]])
    before = baseline()
    fastdr.PCA(50).fit(X)
    more = peak() - before
    return (f"PCA.fit sparse {rows}x{GENES}→50 f4: {X.nnz} entries, {size / 1e6:.0f} MB; "
            f"{more / 1e6:.0f} MB more, {more / size:.0%} (at most {GENES_SHARE:.0%} wanted)")


def chosen(pattern: str | None, quick: bool) -> list[Case]:
    """Cases that match; a quick run takes only those of `QUICK_NAMES`, which may be none."""
    return [case for case in select(pattern) if not quick or case.name in QUICK_NAMES]


def problems(row: dict[str, Any]) -> list[str]:
    return [f"memory of {row['name']}: {entry['name']} failed: {entry['message']}"
            for entry in row["contestants"] if entry["state"] == "failed"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="reduced sizes")
    parser.add_argument("--threads", type=int, help="threads for everybody; default: all")
    parser.add_argument("--only", metavar="WORDS", help="cases whose name holds all these words")
    parser.add_argument("--genes", type=int, metavar="ROWS", help="measure the fit of so many "
                        "sparse rows of 2000 columns instead")
    parser.add_argument("--child", nargs=2, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        case, index = CASES[given.child[0]], given.child[1]
        package = case.contestants[index].package
        _, _limit = machine.set_threads(given.threads, ("scipy", package))
        print(json.dumps(child(case, index, case.quick if given.quick else case.full)))
        return 0
    threads = given.threads or machine.available_cpus()
    if given.genes:
        print(genes(given.genes))
        return 0
    try:
        cases = chosen(given.only, given.quick)
    except ValueError as error:
        parser.error(str(error))
    rows = [run(case, quick=given.quick, threads=threads) for case in cases]
    print(tables.memory(rows))
    found = [problem for row in rows for problem in problems(row)]
    print(*found, sep="\n", end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
