"""What `PCA.plan` predicts beside what the fit takes, and what a lost race costs.

``python -m bench.plans [--quick] [--json FILE]`` prints a table. Spectra decay moderately, as the
predictions assume; a spectrum of noise makes the iteration lose its race against LAPACK.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import fastdr
from bench import data, machine
from fastdr import plan

# rows, columns, dtype, axes, solver
FITS = (
    (1_797, 64, "f8", 10, "auto"), (10_000, 128, "f8", None, "auto"),
    (100_000, 128, "f4", 10, "auto"), (400_000, 128, "f8", 10, "auto"),
    (20_000, 512, "f8", 50, "auto"), (20_000, 1_000, "f8", 10, "auto"),
    (20_000, 1_000, "f8", None, "auto"), (10_000, 2_000, "f8", 50, "lanczos"),
    (100_000, 1_000, "f8", 10, "auto"), (500, 20_000, "f8", 10, "auto"),
    (2_000, 20_000, "f4", 50, "auto"), (10_000, 4_000, "f8", 50, "auto"),
    (10_000, 4_000, "f4", 50, "auto"), (20_000, 500, "f8", 10, "power"),
    (20_000, 500, "f8", 10, "randomized"), (50_000, 100, "f8", 10, "svd"),
    (5_000, 400, "f8", None, "svd"),
)
RACES = ((10_000, 1_000, 10), (6_000, 2_000, 10))  # rows, columns, axes of noise
SAMPLES = 5
LIMIT = 1.6  # times LAPACK that a lost race may take


def seconds(run: Callable[[], Any], samples: int) -> float:
    """Return the median time of a call after one to warm up."""
    run()
    times = []
    for _ in range(samples):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return median(times)


def predicted(quick: bool) -> list[dict[str, Any]]:
    """Fit each case; return what was said before and what it took."""
    found = []
    for rows, columns, dtype, axes, solver in FITS:
        if quick and rows * columns > 4_000_000:
            continue
        X = data.decaying(axes or 1)(rows, columns, dtype).X
        model = fastdr.PCA(axes, svd_solver=solver)
        told = model.plan(X)
        took = seconds(lambda model=model, X=X: model.fit(X), 1 if quick else SAMPLES)
        found.append({"name": f"{rows}x{columns}→{axes or 'all'} {dtype} {solver}",
                      "solver": f"{told.solver} on {told.on}", "predicted": told.seconds,
                      "measured": took})
    return found


def lost(quick: bool) -> list[dict[str, Any]]:
    """Time the default solver where its iteration must lose, and LAPACK, in turn."""
    found = []
    for rows, columns, axes in RACES[:1] if quick else RACES:
        X = np.random.default_rng(0).standard_normal((rows, columns))
        times: dict[str, list[float]] = {"auto": [], "lapack": []}
        for _ in range(1 if quick else SAMPLES):
            for solver, taken in times.items():
                taken.append(seconds(
                    lambda solver=solver, X=X, axes=axes:
                    fastdr.PCA(axes, svd_solver=solver).fit(X), 1))
        found.append({"name": f"noise {rows}x{columns}→{axes}",
                      **{solver: median(taken) for solver, taken in times.items()}})
    return found


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m bench.plans", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small cases, once each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    given = parser.parse_args(arguments)
    machine.restart_unpinned("bench.plans", arguments)
    threads, _limit = machine.set_threads(None)
    plan.measured()
    fits, races = predicted(given.quick), lost(given.quick)
    print(f"{'fit':34} {'plan':22} {'predicted':>10} {'measured':>10} {'factor':>7}")
    for row in fits:
        print(f"{row['name']:34} {row['solver']:22} {1e3 * row['predicted']:8.2f}ms "
              f"{1e3 * row['measured']:8.2f}ms {row['predicted'] / row['measured']:7.2f}")
    apart = median(math.exp(abs(math.log(row["predicted"] / row["measured"]))) for row in fits)
    print(f"median factor between them: {apart:.2f} (2)")
    for row in races:
        print(f"{row['name']}: {row['auto'] / row['lapack']:.2f} times LAPACK ({LIMIT})")
    if given.json:
        document = {"machine": machine.describe(threads), "quick": given.quick, "median": apart,
                    "fits": fits, "races": races}
        given.json.write_text(json.dumps(document, ensure_ascii=False) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
