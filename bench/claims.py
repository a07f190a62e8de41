"""The cost claims of PCA, measured: ``python -m bench.claims [--quick] [--runs N] …``.

Forming XᵀX costs O(N d²), its eigenvectors O(d³), the economy SVD O(N d min(N, d)): each is held
against operations counted by `opcounts` and against seconds, of LAPACK and of fastdr, on one
thread and on all; and the accuracy of either way against exact singular values. Writes
claims.json, claims.md and claims-*.png beside this file; exit code 1 if an exponent of counted
operations, which does not vary from run to run, is not the claimed one. Never for seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np

import fastdr
from bench import (
    accuracy,
    claims_plots,
    data,
    instructions,
    limits,
    machine,
    opcounts,
    verdicts,
)
from bench.laws import CROSSOVER, LAWS, Law

FORMAT = 1
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Effort:
    """Rounds over all points: at least `least`, at most `most`, within `budget` seconds.

    On a machine so busy that `least` rounds take twice the budget, the rest is left out.
    A sample repeats short calls for `sample` seconds; before each, BLAS threads get a `pause`
    to go to sleep.
    """

    least: int = 4
    most: int = 8
    budget: float = 85.0
    sample: float = 0.01
    pause: float = 0.04


FULL = Effort()
QUICK = Effort(least=1, most=3, budget=10.0, sample=0.002, pause=0.01)


def _pca(X: Any, solver: str) -> Any:
    """Fit all axes that centred rows have: one less than there are rows."""
    return fastdr.PCA(min(len(X) - 1, X.shape[1]), svd_solver=solver).fit(X)


CALLS: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("form", "LAPACK"): lambda X: X.T @ X,
    ("form", "fastdr"): lambda X: fastdr.covariance(X),
    ("eig", "LAPACK"): lambda C: np.linalg.eigh(C),
    ("svd", "LAPACK"): lambda X: np.linalg.svd(X, full_matrices=False),
    ("svd", "fastdr"): lambda X: _pca(X, "svd"),
    ("pca", "fastdr"): lambda X: _pca(X, "lapack"),
}


@dataclass
class Point:
    """One call at one size, and its samples so far."""

    call: Callable[[], Any]
    seconds: list[float]
    loops: int = 0
    warm: bool = False

    def sample(self, effort: Effort) -> None:
        """Time the call; the first time warms up, finds how often to repeat, and is replaced."""
        sleep(effort.pause)
        start = perf_counter()
        for _ in range(max(self.loops, 1)):
            self.call()
        elapsed = perf_counter() - start
        if not self.loops:
            self.loops, self.seconds = max(1, math.ceil(effort.sample / elapsed)), [elapsed]
            return
        if not self.warm:
            self.warm, self.seconds = True, []
        self.seconds.append(elapsed / self.loops)


def timed(points: Iterable[Point], effort: Effort) -> None:
    """Sample all points in turn, round after round, so that drift hits all sizes alike."""
    points, began = list(points), perf_counter()
    for count in range(effort.most + 1):  # the first round only warms up
        if count > effort.least and perf_counter() - began > effort.budget:
            break
        for point in points:
            if count and perf_counter() - began > 2 * effort.budget:
                return
            point.sample(effort)


class Matrices:
    """Test data by shape, made once: the realistic matrix of `data`, and XᵀX for "eig"."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, int, int], Any] = {}

    def of(self, operation: str, rows: int, columns: int) -> Any:
        """Return what `operation` is given at this size."""
        key = ("eig" if operation == "eig" else "X", rows, columns)
        if key not in self.kept:
            X = data.matrix(rows, columns, "f8")
            self.kept[key] = X.T @ X if operation == "eig" else X
        return self.kept[key]


def points_of(operation: str, who: str, shapes: Iterable[tuple[int, int]],
              matrices: Matrices) -> list[Point]:
    """Return one point for each shape."""
    def bind(X: Any) -> Callable[[], Any]:
        return lambda: CALLS[operation, who](X)

    return [Point(bind(matrices.of(operation, *shape)), []) for shape in shapes]


def times(threads: int, quick: bool, effort: Effort) -> list[dict[str, Any]]:
    """Time every law and the crossover on `threads` threads."""
    _, _limit = machine.set_threads(threads)
    matrices, series = Matrices(), []
    shapes = [(law.key, operation, law.shapes(quick)) for law in LAWS for operation in law.timed]
    columns, rows = CROSSOVER.sizes(quick)
    shapes += [("crossover", operation, [(n, columns) for n in rows])
               for operation in ("form", "eig", "svd", "pca")]
    for key, operation, sizes in shapes:
        for wanted, who in CALLS:
            if wanted == operation:
                series.append((key, operation, who, points_of(operation, who, sizes, matrices)))
    timed((point for *_, points in series for point in points), effort)
    return [{"law": key, "operation": operation, "who": who, "threads": threads,
             "seconds": [point.seconds for point in points]}
            for key, operation, who, points in series]


def counts(quick: bool) -> dict[str, list[int]]:
    """Count the operations of every law and of the crossover."""
    def of(law: Law) -> list[int]:
        return [opcounts.count(law.operation, *shape) for shape in law.counted(quick)]

    columns, rows = CROSSOVER.counted(quick)
    return {law.key: of(law) for law in LAWS} | {
        f"crossover {operation}": [opcounts.count(operation, n, columns) for n in rows]
        for operation in ("form", "eig", "svd")}


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Count, time and judge accuracy; the document holds plain values only."""
    load = list(os.getloadavg()) if hasattr(os, "getloadavg") else None
    everything, _limit = machine.set_threads(given.threads)
    document = {"format": FORMAT, "quick": given.quick, "machine": machine.describe(everything),
                "load": load, "limits": limits.measure(everything, quick=given.quick).as_dict()}
    effort = QUICK if given.quick else FULL
    document["times"], *document["again"] = [
        [series for threads in dict.fromkeys((1, everything)) for series in
         _told(f"run {run + 1}, seconds, threads: {threads}",
               partial(times, threads, given.quick, effort))] for run in range(given.runs)]
    _, _limit = machine.set_threads(1)
    document["accuracy"] = _told("accuracy", partial(accuracy.measure, given.quick))
    document["counts"] = _told("operations", partial(counts, given.quick))
    document["instructions"] = _told("instructions", partial(instructions.measure, given.quick))
    return document


def _told(what: str, call: Callable[[], Any]) -> Any:
    start = perf_counter()
    result = call()
    print(f"{what} [{perf_counter() - start:.1f} s]", file=sys.stderr, flush=True)
    return result


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.claims", description=__doc__)
    made.add_argument("--quick", action="store_true",
                      help="reduced sizes, few samples; writes nothing unless --out is given")
    made.add_argument("--threads", type=int, metavar="N",
                      help="threads of the second half; default: all usable CPUs")
    made.add_argument("--runs", type=int, default=1, metavar="N",
                      help="measure seconds so often, and say whether exponents agree")
    made.add_argument("--from", dest="source", type=Path, metavar="JSON",
                      help="measure nothing, render this file")
    made.add_argument("--out", type=Path, metavar="DIR", help="where to write; default: bench/")
    return made


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    made = parser()
    given = made.parse_args(arguments)
    if given.runs < 1:
        made.error(f"--runs is {given.runs}; at least 1 is needed")
    try:
        if given.source:
            document = json.loads(given.source.read_text("utf-8"))
        else:
            machine.restart_unpinned("bench.claims", arguments)
            document = measured(given)
        out = given.out or (None if given.quick else HERE)
        text = verdicts.markdown(document)
        if out is None:
            print(text)
        else:
            out.mkdir(parents=True, exist_ok=True)
            if not given.source:
                (out / "claims.json").write_text(
                    json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
            (out / "claims.md").write_text(text, "utf-8")
            claims_plots.save(document, out)
    except (ImportError, OSError, ValueError, KeyError) as error:
        made.exit(2, f"{made.prog}: {type(error).__name__}: {error}\n")
    wrong = verdicts.problems(document)
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
