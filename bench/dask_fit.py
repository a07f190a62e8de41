"""PCA.fit of rows on a Dask cluster beside the fit of the same rows in this process, and dask-ml's.

``python -m bench.dask_fit [--rows N] [--columns D] [--components K] [--dtype f8] [--workers W]
[--threads T] [--chunks C] [--markdown FILE]`` starts W worker processes of T threads each on this
machine, gives them the rows once, and lets everybody use W T threads. Contestants are timed in
turn, as those of the report; figures are medians. The exit code is 1 if an answer of fastdr is
wrong, and never depends on speed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import fastdr
from bench import data, machine, measure, reference
from bench.contestants import Contestant
from bench.tables import duration, mark, page, reached, short_head, table

LOCAL, OURS = "fastdr, this process", "fastdr, cluster"
ALLOWED = {"f8": 1e-9, "f4": 1e-4}  # of `reference.fit_error`
SLOWER, FASTER = 1.5, 5.0  # than the fit in this process at most; than dask-ml at least


def contestants(inputs: data.Inputs, lazy: Any) -> dict[str, Callable[[], Any]]:
    """Return who takes part, as calls that return variances and components."""
    def fitted(estimator: Any, rows: Any) -> Callable[[], Any]:
        def run() -> Any:
            model = estimator.fit(rows)
            return np.asarray(model.explained_variance_), np.asarray(model.components_)

        return run

    calls = {LOCAL: fitted(fastdr.PCA(inputs.k), inputs.X),
             OURS: fitted(fastdr.PCA(inputs.k), lazy)}
    if find_spec("dask_ml"):
        from dask_ml.decomposition import PCA

        for name, solver in (("dask-ml full", "full"), ("≈ dask-ml randomized", "randomized")):
            calls[name] = fitted(PCA(inputs.k, svd_solver=solver, random_state=0), lazy)
    return calls


def on_workers(client: Any, X: Any, chunks: int) -> Any:
    """Return `X` as a Dask array, the chunks of which the workers have."""
    import dask
    import dask.array

    edges = np.linspace(0, len(X), chunks + 1).astype(int)
    parts = [X[first:last] for first, last in zip(edges, edges[1:], strict=False)]
    futures = client.scatter(parts)
    return dask.array.concatenate([
        dask.array.from_delayed(dask.delayed(future), part.shape, X.dtype)
        for future, part in zip(futures, parts, strict=True)])


def started(name: str, call: Callable[[], Any], inputs: data.Inputs) -> measure.Runner:
    """Call somebody for the first time, and judge the answer."""
    first, answer = measure.seconds_of(call)
    error = reference.fit_error(inputs, answer)
    return measure.Runner(Contestant(name, lambda _inputs: call), call, error, first, 1, [])


def measured(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Time everybody in turn, `given.rounds` times after a first call, whose answer is judged."""
    import distributed

    inputs = data.with_components(given.components)(given.rows, given.columns, given.dtype)
    with distributed.LocalCluster(
            n_workers=given.workers, threads_per_worker=given.threads, processes=True,
            protocol="tcp", dashboard_address=None) as cluster, \
            distributed.Client(cluster) as client:
        lazy = on_workers(client, inputs.X, given.chunks or 2 * given.workers * given.threads)
        _threads, limit = machine.set_threads(given.workers * given.threads)
        try:
            runners = [started(name, call, inputs)
                       for name, call in contestants(inputs, lazy).items()]
            measure.rounds(runners, measure.Effort(least=given.rounds, most=given.rounds))
        finally:
            limit.restore_original_limits()
            fastdr.set_num_threads(None)
    return [{"name": runner.contestant.name, "seconds": runner.seconds, "error": runner.error}
            for runner in runners]


def markdown(found: list[dict[str, Any]], given: argparse.Namespace) -> str:
    """Return the table, with everybody's time relative to ours on the cluster."""
    medians = {entry["name"]: statistics.median(entry["seconds"]) for entry in found}
    body = [[entry["name"], duration(medians[entry["name"]]),
             duration(min(entry["seconds"])) if len(entry["seconds"]) > 1 else "once",
             f"{medians[entry['name']] / medians[OURS]:.2f}×", reached(entry["error"])]
            for entry in found]
    slower = medians[OURS] / medians[LOCAL]
    lines = [f"PCA({given.components}).fit of {given.rows} × {given.columns} {given.dtype}, "
             f"{given.workers} workers of {given.threads} thread(s)",
             table(["who", "median", "least", "to ours on the cluster", "error"], body),
             f"On the cluster {slower:.2f}× the time in this process (at most {SLOWER:g}×)"
             f"{mark(SLOWER, slower, True)}."]
    if "dask-ml full" in medians:
        faster = medians["dask-ml full"] / medians[OURS]
        lines.append(f"dask-ml takes {faster:.2f}× as long (at least {FASTER:g}×)"
                     f"{mark(faster, FASTER, True)}.")
    return "\n\n".join(lines)


def problems(found: list[dict[str, Any]], dtype: str) -> list[str]:
    """Return wrong answers of ours."""
    return [f"{entry['name']}: error {entry['error']:.1e} exceeds {ALLOWED[dtype]:.0e}"
            for entry in found
            if entry["name"].startswith("fastdr") and not entry["error"] <= ALLOWED[dtype]]


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    made = argparse.ArgumentParser(prog="python -m bench.dask_fit", description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 1_000_000), ("columns", 128), ("components", 10),
                          ("workers", 2), ("threads", 1), ("chunks", 0), ("rounds", 5)):
        made.add_argument(f"--{name}", type=int, default=default)
    made.add_argument("--dtype", choices=sorted(ALLOWED), default="f8")
    made.add_argument("--markdown", type=Path, metavar="FILE", help="where to write the table")
    given = made.parse_args(arguments)
    machine.restart_unpinned("bench.dask_fit", arguments)
    found = measured(given)
    text = markdown(found, given)
    print(text)
    if given.markdown:
        about = short_head(machine.describe(given.workers * given.threads))
        given.markdown.write_text(page(
            "On a Dask cluster", " ".join(["python -m bench.dask_fit", *arguments]), about, text),
            "utf-8")
    wrong = problems(found, given.dtype)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
