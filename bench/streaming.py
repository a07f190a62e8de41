"""One pass over a file, against the slower of reading it and multiplying its rows.

``python -m bench.streaming [--rows N] [--columns D] [--quick] [--folder DIR] [--json FILE]
[--markdown FILE]`` writes an .npy file of float32 (4 GB by default), fits PCA to it from the page
cache and from the disk, and says how long reading alone and the products alone take, and how much
memory the fit took. Each figure comes from a process of its own. The disk is what is behind the
page cache if posix_fadvise drops the file from it; the share that was dropped is stated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import fastdr
from bench import machine
from bench.memory import baseline, peak
from bench.tables import mark, page, short_head, table

ROWS, COLUMNS, QUICK_ROWS = 10_000_000, 100, 100_000
COMPONENTS = 10
BLOCK = 1 << 22
SAMPLE = 1 << 30  # bytes of rows in memory whose products are timed
ROUNDS = 5
ALLOWED = 1e-6  # relative error of a variance
SLOWER = 1.3  # than the slower of reading and multiplying, at most


def write(path: Path, rows: int, columns: int) -> None:
    """Write rows of descending deviations and a mean of 10, some at a time."""
    rng = np.random.default_rng(0)
    file = np.lib.format.open_memmap(path, "w+", "f4", (rows, columns))
    scale = np.linspace(3, 1, columns, dtype="f4")
    step = max(1, (1 << 26) // (4 * columns))
    for start in range(0, rows, step):
        part = file[start:start + step]
        np.multiply(rng.standard_normal(part.shape, np.float32), scale, out=part)
        part += 10
    file.flush()


def drop(path: Path) -> float:
    """Drop the file from the page cache; return the share of a sample that is gone."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        size, gone, buffer = os.fstat(file.fileno()).st_size, 0, bytearray(1)
        places = range(0, size, max(1, size // 200))
        for place in places:
            try:
                os.preadv(file.fileno(), [buffer], place, os.RWF_NOWAIT)
            except BlockingIOError:
                gone += 1
    return gone / len(places)


def reading(path: Path) -> float:
    """Seconds to read all of a file into buffers, on all threads."""
    size, threads = path.stat().st_size, fastdr.get_num_threads()
    with open(path, "rb", buffering=0) as file:

        def part(first: int) -> None:
            buffer = bytearray(BLOCK)
            for place in range(first * BLOCK, size, threads * BLOCK):
                os.preadv(file.fileno(), [buffer], place)

        start = perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(part, range(threads)))
        return perf_counter() - start


def multiplying(path: Path) -> float:
    """Seconds that the sums of all rows would take if they were in memory."""
    whole = np.load(path, mmap_mode="r")
    rows = np.array(whole[:max(1, SAMPLE // (4 * whole.shape[1]))])
    fastdr.moments(rows)
    times = []
    for _ in range(ROUNDS):
        start = perf_counter()
        fastdr.moments(rows)
        times.append(perf_counter() - start)
    return min(times) * len(whole) / len(rows)


def fitting(path: Path) -> tuple[float, int, float]:
    """Seconds of a fit, bytes it took beyond what the process held, error of its variances."""
    columns = np.load(path, mmap_mode="r").shape[1]
    fastdr.PCA(COMPONENTS).fit(np.random.default_rng(0).standard_normal((5000, columns), "f4"))
    before, start = baseline(), perf_counter()
    pca = fastdr.PCA(COMPONENTS).fit(fastdr.open_rows(path))
    seconds, risen = perf_counter() - start, peak() - before
    exact = fastdr.Moments.of_source(fastdr.open_rows(path), precision="double")
    true = np.linalg.eigvalsh(exact.covariance())[::-1][:COMPONENTS]
    return seconds, risen, float(np.abs(pca.explained_variance_ / true - 1).max())


STEPS = {"reading": reading, "multiplying": multiplying, "fitting": fitting}


def child(step: str, path: Path, threads: int) -> Any:
    """Return what a step measured in a process of its own."""
    command = [sys.executable, "-m", "bench.streaming", "--child", step, str(path),
               "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True,
                          cwd=Path(__file__).parent.parent)
    return json.loads(done.stdout)


def measured(path: Path, rows: int, columns: int, threads: int, count: int) -> dict[str, Any]:
    """Write the file, measure in `count` rounds, and return plain values."""
    write(path, rows, columns)
    reading(path)  # into the cache
    rounds = [{step: child(step, path, threads) for step in STEPS} for _ in range(count)]
    best = {step: min(each[step] for each in rounds) for step in STEPS}
    seconds, memory, error = best["fitting"]
    return {"rows": rows, "columns": columns, "bytes": path.stat().st_size,
            "machine": machine.describe(threads), "reading": best["reading"],
            "multiplying": best["multiplying"], "fitting": seconds, "memory": memory,
            "error": error, "cold": from_disk(path, threads, count)}


def from_disk(path: Path, threads: int, count: int) -> dict[str, float]:
    """Return seconds of reading and fitting, the median of rounds: a disk varies by the second.

    Nothing but the share that was dropped, zero, where the page cache cannot be dropped.
    """
    times: dict[str, list[float]] = {"reading": [], "fitting": []}
    dropped = 0.0
    for _ in range(count):
        for step, found in times.items():
            dropped = drop(path) if hasattr(os, "posix_fadvise") else 0.0
            if not dropped:
                return {"dropped": dropped}
            result = child(step, path, threads)
            found.append(result if step == "reading" else result[0])
    return {"dropped": dropped} | {step: median(found) for step, found in times.items()}


def markdown(found: dict[str, Any], quick: bool) -> str:
    """Return what was measured; a quick run has no limit."""
    size, cold = found["bytes"], found["cold"]
    body: list[list[str]] = []

    def line(what: str, seconds: float, reading: float | None = None) -> None:
        beside = ""
        if reading is not None:
            slower = seconds / max(reading, found["multiplying"])
            beside = f"{slower:.2f}× (at most {SLOWER:g}×){mark(SLOWER, slower, not quick)}"
        body.append([what, f"{seconds:.3f} s", f"{size / seconds / 1e9:.2f} GB/s", beside])

    line("reading, from the page cache", found["reading"])
    line("multiplying, rows in memory", found["multiplying"])
    line("PCA.fit, from the page cache", found["fitting"], found["reading"])
    if "fitting" in cold:
        line("reading, from the disk", cold["reading"])
        line("PCA.fit, from the disk", cold["fitting"], cold["reading"])
    dropped = (f"Dropped from the page cache before reading from the disk: {cold['dropped']:.0%}."
               if "fitting" in cold else
               "The page cache could not be dropped: nothing is known of the disk.")
    return "\n\n".join([
        f"{found['rows']} × {found['columns']} float32, {size / 1e9:.2f} GB, {COMPONENTS} "
        f"components, threads: {found['machine']['threads']}",
        table(["what", "time", "rate", "to the slower of reading and multiplying"], body),
        f"Memory of the fit: {found['memory'] / 1e6:.0f} MB; error of its variances: "
        f"{found['error']:.1e}. {dropped}"])


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m bench.streaming", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows, one round")
    parser.add_argument("--threads", type=int, help="default: all")
    parser.add_argument("--folder", type=Path, help="where to put the file; default: that for "
                                                    "temporary files")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="where to write the table")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    threads, _limit = machine.set_threads(given.threads)
    if given.child:
        print(json.dumps(STEPS[given.child[0]](Path(given.child[1]))))
        return 0
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        rows, count = (QUICK_ROWS, 1) if given.quick else (given.rows, ROUNDS)
        found = measured(Path(folder) / "rows.npy", rows, given.columns, threads, count)
    text = markdown(found, given.quick)
    print(text)
    if given.json:
        given.json.write_text(json.dumps(found) + "\n", "utf-8")
    if given.markdown:
        given.markdown.write_text(page(
            "One pass over a file", " ".join(["python -m bench.streaming", *arguments]),
            short_head(found["machine"]), text), "utf-8")
    return 0 if found["error"] <= ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
