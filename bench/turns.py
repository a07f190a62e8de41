"""Versions of fastdr by turns: ``python -m bench.turns TREE TREE … --only WORDS``.

A TREE holds a package `fastdr` with its kernels, as a checkout does after ``python setup.py
build_ext --inplace``. Each has a process that keeps the data of a case; in every round all are
called once, in random order, so that drift of the machine hits all of them. Others are compared
with the first tree, by the median of their ratios to it in each round: ± its standard error.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench import machine, measure, tables
from bench.cases import CASES, Case, select

ROOT = Path(__file__).resolve().parent.parent
EFFORT = measure.Effort(sample=0.02, pause=0.02, warm=0.05)
# fastdr of the tree, which PYTHONPATH names, then these benchmarks, not the tree's.
BOOT = """
import sys
import fastdr
sys.path.insert(0, sys.argv.pop(1))
from bench.turns import serve
serve(*map(int, sys.argv[1:]))
"""
# Standard error of a median of n values, normal ones, in their interquartile range / √n.
ERROR_OF_MEDIAN = 0.93


@dataclass
class Version:
    """A tree as it was given, its process, the error it reached, and what its calls took."""

    tree: str
    process: subprocess.Popen[str]
    error: float = math.nan
    seconds: list[float] = field(default_factory=list)

    def answer(self) -> str:
        """Return the next line of the process; RuntimeError if it ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"fastdr of {self.tree} does not run this case, see above; were its "
                               "kernels built? python setup.py build_ext --inplace")
        return line

    def call(self) -> None:
        """Have the process call once, and note what it took."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.seconds.append(float(self.answer()))


def serve(index: int, quick: int, threads: int) -> None:
    """Tell the error reached and whose fastdr it is; then seconds of a call at every line read."""
    import fastdr

    case = CASES[index]
    _threads, _limit = machine.set_threads(threads, ())
    inputs = case.inputs(case.quick if quick else case.full)
    runner = measure.start(case.contestants[0], case, inputs, EFFORT)
    print(f"{runner.error} {Path(fastdr.__file__).parent.parent}", flush=True)
    for _line in sys.stdin:
        runner.sample(EFFORT)
        print(runner.seconds[-1], flush=True)


def start(tree: str, case: Case, quick: bool, threads: int) -> subprocess.Popen[str]:
    """Start the process of a tree."""
    command = [sys.executable, "-P", "-c", BOOT, str(ROOT), str(CASES.index(case)),
               str(int(quick)), str(threads)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            env=os.environ | {"PYTHONPATH": str(Path(tree).resolve())})


def check(version: Version) -> None:
    """Wait until a process is ready; RuntimeError if its fastdr is not that of the tree."""
    error, found = version.answer().split(maxsplit=1)
    if Path(found).resolve() != Path(version.tree).resolve():
        raise RuntimeError(f"{version.tree} has no package fastdr: {found} was found instead")
    version.error = float(error)


def ratio(seconds: list[float], base: list[float]) -> str:
    """Return the median of the ratios and its standard error."""
    ratios = [ours / theirs for ours, theirs in zip(seconds, base, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{middle:.3f} ±{ERROR_OF_MEDIAN * (high - low) / len(ratios) ** 0.5:.3f}"


def compare(case: Case, trees: list[str], rounds: int, quick: bool, threads: int) -> str:
    """Call all trees by turns; return a table of what they took."""
    order = random.Random(0)
    with ExitStack() as processes:
        versions = []
        for tree in trees:
            process = processes.enter_context(start(tree, case, quick, threads))
            versions.append(Version(tree, process))
            check(versions[-1])
        for _ in range(rounds):
            for version in order.sample(versions, len(versions)):
                version.call()
    width = max(len("tree"), *map(len, trees))
    lines = [f"{case.name}: {rounds} rounds, threads: {threads}",
             f"{'tree':{width}} {'median':>9} {'least':>9} {'error':>7}  ratio to the first"]
    for version in versions:
        median, least = statistics.median(version.seconds), min(version.seconds)
        lines.append(f"{version.tree:{width}} {tables.duration(median):>9} "
                     f"{tables.duration(least):>9} {tables.reached(version.error):>7}  "
                     f"{ratio(version.seconds, versions[0].seconds)}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m bench.turns", description=__doc__)
    parser.add_argument("trees", nargs="+", metavar="TREE", help="a directory with fastdr in it")
    parser.add_argument("--only", required=True, metavar="WORDS",
                        help="cases whose name holds all these words")
    parser.add_argument("--rounds", type=int, default=40, metavar="N",
                        help="2 or more; default: 40")
    parser.add_argument("--threads", type=int, metavar="N", help="default: all usable CPUs")
    parser.add_argument("--quick", action="store_true", help="reduced sizes")
    given = parser.parse_args(arguments)
    if given.rounds < 2:
        parser.error(f"--rounds is {given.rounds}; it takes 2 or more")
    machine.restart_unpinned("bench.turns", arguments)
    try:
        threads, _limit = machine.set_threads(given.threads, ())
        for case in select(given.only):
            print(compare(case, given.trees, given.rounds, given.quick, threads), flush=True)
    except (RuntimeError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
