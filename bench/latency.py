"""Latency of one row and throughput of batches: ``python -m bench.latency [--quick]``.

Writes latency.json and latency.md beside this file; with --quick it only prints. Exit code 1 if
fastdr's answer was wrong, never for speed.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, perf_counter_ns, sleep
from typing import Any

import numpy as np

import fastdr
from bench import data, machine
from bench.tables import page, reached, short_head, table

HERE = Path(__file__).resolve().parent
SHAPES = ((64, 8), (768, 50))
BATCH_SHAPE = (64, 8)
BATCHES = tuple(10**power for power in range(7))
FIT_ROWS = 4096
PAUSE = 0.02  # lets spinning BLAS threads go to sleep
ALLOWED = {"f8": 1e-13, "f4": 1e-5}  # error of a score relative to the length of its row

Call = Callable[[], Any]
Prepare = Callable[[Any, Any], Call]  # (fitted fastdr.PCA, rows) -> the call to be timed


def _into(pca: Any, X: Any) -> Call:
    p, row, out = pca.projector(), X[0], np.empty(len(pca.components_), X.dtype)
    return lambda: p.into(row, out)


def _projector(pca: Any, X: Any) -> Call:
    p, given = pca.projector(), X[0] if len(X) == 1 else X
    return lambda: p(given)


def _estimator(pca: Any, X: Any) -> Call:
    return lambda: pca.transform(X)


def _compiled(pca: Any, X: Any) -> Call:
    from fastdr import jit

    m, row, out = pca.model_.jit(), X[0], np.empty(len(pca.components_), X.dtype)

    def run() -> Any:
        jit.project(m, row, out)
        return out

    return run


def _numpy(pca: Any, X: Any) -> Call:
    mean, axes = pca.mean_.astype(X.dtype), np.ascontiguousarray(pca.components_.T, X.dtype)
    given = X[0] if len(X) == 1 else X
    return lambda: (given - mean) @ axes


def _scikit(pca: Any, X: Any) -> Call:
    from sklearn.decomposition import PCA

    twin = PCA(len(pca.components_)).fit(np.zeros((100, X.shape[1]), X.dtype) + np.arange(100)[
        :, None].astype(X.dtype))
    twin.mean_, twin.components_ = pca.mean_.astype(X.dtype), pca.components_.astype(X.dtype)
    return lambda: twin.transform(X)


def _onnx(pca: Any, X: Any) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = fastdr.get_num_threads()
    session = onnxruntime.InferenceSession(
        fastdr.to_onnx(pca).SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"rows": X})[0]


def _faiss(pca: Any, X: Any) -> Call:
    import faiss

    faiss.omp_set_num_threads(fastdr.get_num_threads())
    features, axes = X.shape[1], len(pca.components_)
    twin = faiss.PCAMatrix(features, axes)
    faiss.copy_array_to_vector(pca.components_.astype("f4").ravel(), twin.A)
    faiss.copy_array_to_vector((-pca.components_ @ pca.mean_).astype("f4"), twin.b)
    twin.is_trained = True
    rows = X.astype("f4")  # the only dtype that it has
    return lambda: twin.apply(rows)


ROW_CALLS: dict[str, tuple[Prepare, str]] = {
    "Projector.into(x, out)": (_into, "fastdr"),
    "Projector(x)": (_projector, "fastdr"),
    "jit.project, called from Python": (_compiled, "numba"),
    "fastdr.PCA.transform": (_estimator, "fastdr"),
    "NumPy (x - mean) @ W": (_numpy, "numpy"),
    "scikit-learn PCA.transform": (_scikit, "sklearn"),
    "onnxruntime": (_onnx, "onnxruntime"),
    "faiss PCAMatrix (f4)": (_faiss, "faiss"),
}
BATCH_CALLS: dict[str, tuple[Prepare, str]] = {
    name: ROW_CALLS[label] for name, label in (
        ("fastdr", "Projector(x)"), ("NumPy", "NumPy (x - mean) @ W"),
        ("scikit-learn", "scikit-learn PCA.transform"), ("onnxruntime", "onnxruntime"),
        ("faiss", "faiss PCAMatrix (f4)"))}


def fitted(features: int, axes: int, dtype: str) -> Any:
    return fastdr.PCA(axes).fit(data.matrix(FIT_ROWS, features, dtype))


def error_of(pca: Any, X: Any, result: Any) -> float:
    """Largest error of a sample of scores, relative to the length of their row."""
    rows = X[:100].astype(np.longdouble) - pca.mean_
    exact = rows @ pca.components_.T.astype(np.longdouble)
    found = np.atleast_2d(result)[:100]
    return float((np.abs(found - exact) / np.linalg.norm(rows.astype("f8"), axis=1)[:, None]).max())


def call_times(call: Call, count: int) -> list[int]:
    """Nanoseconds of single calls; the clock's own time is taken off."""
    nothing = [-(perf_counter_ns() - perf_counter_ns()) for _ in range(1000)]
    clock, times = int(statistics.median(nothing)), []
    for _ in range(count):
        start = perf_counter_ns()
        call()
        times.append(max(0, perf_counter_ns() - start - clock))
    return times


def latency(features: int, axes: int, dtype: str, quick: bool) -> list[dict[str, Any]]:
    """Time single rows: all contestants in turn, several rounds of many calls."""
    pca = fitted(features, axes, dtype)
    X = data.matrix(1, features, dtype, seed=1)
    calls = {name: prepare(pca, X) for name, (prepare, package) in ROW_CALLS.items()
             if find_spec(package)}
    times: dict[str, list[int]] = {name: [] for name in calls}
    errors = {name: error_of(pca, X, call()) for name, call in calls.items()}
    gc.disable()
    try:
        for _ in range(2 if quick else 10):
            for name, call in calls.items():
                sleep(PAUSE)
                call_times(call, 20)
                times[name] += call_times(call, 100 if quick else 2000)
    finally:
        gc.enable()
    found = []
    for name in calls:
        cuts = statistics.quantiles(times[name], n=100, method="inclusive")
        found.append({"name": name, "features": features, "axes": axes, "dtype": dtype,
                      "least": min(times[name]), "p50": cuts[49], "p99": cuts[98],
                      "calls": len(times[name]), "error": errors[name]})
    return found


def throughput(rows: int, dtype: str, threads: int, quick: bool) -> list[dict[str, Any]]:
    """Time batches of `rows` rows: the best of several rounds, contestants in turn."""
    pca = fitted(*BATCH_SHAPE, dtype)
    X = data.matrix(rows, BATCH_SHAPE[0], dtype, seed=1)
    _threads, limit = machine.set_threads(threads)
    try:
        calls = {name: prepare(pca, X) for name, (prepare, package) in BATCH_CALLS.items()
                 if find_spec(package)}
        errors = {name: error_of(pca, X, call()) for name, call in calls.items()}
        best = dict.fromkeys(calls, float("inf"))
        for _ in range(3 if quick else 15):
            for name, call in calls.items():
                sleep(PAUSE)
                loops = max(1, 1000 // rows)
                start = perf_counter()
                for _ in range(loops):
                    call()
                best[name] = min(best[name], (perf_counter() - start) / loops)
    finally:
        limit.restore_original_limits()
        fastdr.set_num_threads(None)
    return [{"name": name, "rows": rows, "dtype": dtype, "threads": threads,
             "seconds": best[name], "error": errors[name]} for name in calls]


def import_seconds() -> float:
    """Return the least time of ``import fastdr`` in processes that have NumPy and SciPy."""
    code = ("import time, numpy, scipy; t = time.perf_counter(); import fastdr; "
            "print(time.perf_counter() - t)")
    return min(float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                                    check=True).stdout) for _ in range(5))


def measured(quick: bool) -> dict[str, Any]:
    shapes, batches = (SHAPES[:1], BATCHES[:4]) if quick else (SHAPES, BATCHES)
    document: dict[str, Any] = {"quick": quick, "import": import_seconds(), "latency": [],
                                "throughput": []}
    for features, axes in shapes:
        for dtype in ("f8", "f4"):
            document["latency"] += latency(features, axes, dtype, quick)
    for dtype in ("f8", "f4"):
        for threads in (1, 2):
            for rows in batches:
                document["throughput"] += throughput(rows, dtype, threads, quick)
    return document | {"machine": machine.describe(1)}


def nanoseconds(value: float) -> str:
    return f"{value:.0f} ns" if value < 10_000 else f"{value / 1000:.1f} µs"


def markdown(document: dict[str, Any]) -> str:
    """Return the tables: latencies by shape, then rows a second by batch."""
    parts = [short_head(document["machine"])
             + f"\n- `import fastdr` after NumPy and SciPy: {1000 * document['import']:.1f} ms",
             "## One row", "Time of a call: the middle one and that of 99 in 100, one thread. The "
             "error is relative to the length of the row."]
    body = [[f"{e['features']} → {e['axes']} {e['dtype']}", e["name"], nanoseconds(e["p50"]),
             nanoseconds(e["p99"]), nanoseconds(e["least"]), reached(e["error"])]
            for e in document["latency"]]
    parts.append(table(["model", "call", "p50", "p99", "least", "error"], body))
    parts += ["## Batches", f"Million rows a second, {BATCH_SHAPE[0]} → {BATCH_SHAPE[1]}, best of "
              "several rounds."]
    names = list(dict.fromkeys(e["name"] for e in document["throughput"]))
    cells: dict[tuple[str, int, int], dict[str, str]] = {}
    for e in document["throughput"]:
        cells.setdefault((e["dtype"], e["threads"], e["rows"]), {})[e["name"]] = (
            f"{e['rows'] / e['seconds'] / 1e6:.3g}")
    parts.append(table(["rows", *names], [
        [f"{rows} {dtype}, {threads} thread{'s' * (threads > 1)}",
         *(found.get(name, "absent") for name in names)]
        for (dtype, threads, rows), found in cells.items()]))
    return page("One row, and batches", "python -m bench.latency", *parts)


def problems(document: dict[str, Any]) -> list[str]:
    """Wrong answers of ours."""
    return [f"{e['name']} {e['dtype']}: error {e['error']:.1e} exceeds {ALLOWED[e['dtype']]:.0e}"
            for e in document["latency"] + document["throughput"]
            if e["name"].startswith(("Projector", "jit", "fastdr"))
            and not e["error"] <= ALLOWED[e["dtype"]]]


def main(arguments: list[str] | None = None) -> int:
    made = argparse.ArgumentParser(prog="python -m bench.latency", description=__doc__)
    made.add_argument("--quick", action="store_true", help="few calls, small batches; print only")
    arguments = sys.argv[1:] if arguments is None else arguments
    given = made.parse_args(arguments)
    machine.restart_unpinned("bench.latency", arguments)
    document = measured(given.quick)
    text = markdown(document)
    print(text)
    if not given.quick:
        (HERE / "latency.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        (HERE / "latency.md").write_text(text, "utf-8")
    found = problems(document)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
