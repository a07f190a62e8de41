"""Time the contestants of a case in turn, and check what each of them reached."""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from time import perf_counter, sleep
from typing import Any

from bench.cases import Case, Work
from bench.contestants import OURS, Contestant
from bench.data import Inputs
from bench.limits import Limits, multiplying, reading


@dataclass(frozen=True)
class Effort:
    """How long to measure: rounds within a budget of seconds, a sample of at least `sample` s.

    Before each sample comes a `pause`: threads of BLAS and OpenMP spin after a call, up to 0.2 s,
    and would take time from whoever comes next. Then what takes less than `warm` seconds is called
    once untimed: threads and clocks that went to sleep take some ms to wake. A rival whose first
    call took more than `once` seconds and more than four times the fastest one's is not called
    again.
    """

    least: int = 5
    most: int = 15
    budget: float = 20.0
    sample: float = 0.05
    pause: float = 0.3
    warm: float = 0.5
    once: float = 2.0


FULL = Effort()
QUICK = Effort(least=1, most=3, budget=0.1, sample=0.005, pause=0.01, warm=0.05, once=0.5)
ONE = Effort(least=1, most=1, budget=0.0, sample=0.0, pause=0.0, warm=0.0)


@dataclass
class Runner:
    """A contestant that is present: its call, and how often a sample repeats it."""

    contestant: Contestant
    call: Callable[[], Any]
    error: float
    first: float
    loops: int
    seconds: list[float]

    def sample(self, effort: Effort) -> float:
        """Time the call once more; return the whole time spent."""
        begin = perf_counter()
        sleep(effort.pause)
        if self.first < effort.warm:
            self.call()
        start = perf_counter()
        for _ in range(self.loops):
            self.call()
        end = perf_counter()
        self.seconds.append((end - start) / self.loops)
        return end - begin


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    start = perf_counter()
    result = call()
    return perf_counter() - start, result


def start(contestant: Contestant, case: Case, inputs: Inputs, effort: Effort) -> Runner:
    """Prepare a contestant and call it: a warm-up, whose result is judged.

    What is imported at the first call may take a tenth of a second, so a second one tells how
    often a sample is to repeat it.
    """
    call = contestant.prepare(inputs)
    first, result = seconds_of(call)
    return runner_of(contestant, call, case.error(inputs, result), first, effort)


def runner_of(contestant: Contestant, call: Callable[[], Any], error: float, first: float,
              effort: Effort) -> Runner:
    again = first if first >= 20 * effort.sample else seconds_of(call)[0]
    loops = min(10_000, max(1, math.ceil(effort.sample / max(again, 1e-7))))
    return Runner(contestant, call, error, min(first, again), loops, [])


def limiter_of(limit: str, work: Work, effort: Effort, loops: int | None = None) -> Runner:
    """Return who only reads, or only multiplies, as much as `work` must: the limit of now.

    Others share the memory, the processor's power and its threads; all of them vary. It repeats
    `loops` times if ours does: the first calls after a pause, when caches hold what others read,
    take up to twice as long as the tenth.
    """
    call = (reading(work.traffic) if limit == "read"
            else multiplying(work.flops, work.arithmetic))
    runner = runner_of(Contestant(limit, lambda inputs: call), call, 0.0, seconds_of(call)[0],
                       effort)
    return runner if loops is None else replace(runner, loops=loops)


def rounds(runners: list[Runner], effort: Effort, others: Sequence[Runner] = ()) -> None:
    """Sample all contestants and others in turn, so that drift hits all of them.

    Each round has an order of its own: whoever comes behind one that heats the processor runs at a
    lower clock, and nobody must always do.
    """
    fastest = min(runner.first for runner in runners)
    slow = [runner for runner in runners if runner.contestant.name != OURS
            and runner.first > max(effort.once, 4 * fastest)]
    for runner in slow:
        runner.seconds.append(runner.first)
    active = [*(runner for runner in runners if runner not in slow), *others]
    spent, count, orders = 0.0, 0, Random(0)
    gc.collect()
    gc.disable()
    try:
        while count < effort.least or (count < effort.most and spent < effort.budget):
            spent += sum(runner.sample(effort) for runner in orders.sample(active, len(active)))
            count += 1
    finally:
        gc.enable()


def run(case: Case, *, quick: bool = False, effort: Effort | None = None,
        limits: Limits | None = None) -> dict[str, Any]:
    """Measure one case; the row holds plain values only, ready for JSON."""
    effort = effort or (QUICK if quick else FULL)
    shape = case.quick if quick else case.full
    inputs = case.inputs(shape)
    runners, others = [], []
    for contestant in case.contestants:
        if not contestant.present:
            others.append({"name": contestant.name, "state": "absent"})
            continue
        try:
            runners.append(start(contestant, case, inputs, effort))
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            others.append({"name": contestant.name, "state": "failed", "message": message})
    work = case.work(*shape, case.dtype) if case.work else None
    bound = limits.bound(work) if limits and work else None
    loops = next((runner.loops for runner in runners if runner.contestant.name == OURS), None)
    limiters = [limiter_of(bound[0], work, effort, loops)] if bound else []
    if runners:
        rounds(runners, effort, limiters)
    if limiters and limiters[0].seconds:
        bound = bound[0], statistics.median(limiters[0].seconds)
    entries = {entry["name"]: entry for entry in [*map(_entry, runners), *others]}
    row = {"name": case.name, "group": case.group, "detail": case.detail, "dtype": case.dtype,
           "shape": list(shape), "full_shape": list(case.full), "target": case.target,
           "share_target": case.share, "allowed": case.allowed,
           "contestants": [entries[contestant.name] for contestant in case.contestants]}
    row["work"] = vars(work).copy() if work else None
    return row | verdict(row, bound)


def _entry(runner: Runner) -> dict[str, Any]:
    median = statistics.median(runner.seconds)
    quarters = (statistics.quantiles(runner.seconds, n=4, method="inclusive")
                if len(runner.seconds) > 1 else [median] * 3)
    return {"name": runner.contestant.name, "state": "measured", "median": median,
            "spread": (quarters[2] - quarters[0]) / 2 / median, "loops": runner.loops,
            "seconds": runner.seconds, "error": float(runner.error),
            "approximate": runner.contestant.approximate}


def verdict(row: dict[str, Any], bound: tuple[str, float] | None) -> dict[str, Any]:
    """Compare ours with the fastest rival and with the binding limit; None where unknown."""
    measured = [entry for entry in row["contestants"] if entry["state"] == "measured"]
    ours = next((entry for entry in measured if entry["name"] == OURS), None)
    rivals = [entry for entry in measured if entry["name"] != OURS
              and not (entry.get("approximate") and not entry["error"] <= row["allowed"])]
    best = min(rivals, key=lambda entry: entry["median"], default=None)
    result: dict[str, Any] = dict.fromkeys(
        ("ratio", "best_rival", "limit", "limit_seconds", "share", "right"))
    if ours:
        # Written so that an error of NaN is wrong too.
        result["right"] = ours["error"] <= row["allowed"]
        if best:
            result |= {"ratio": best["median"] / ours["median"], "best_rival": best["name"]}
        if bound:
            result |= {"limit": bound[0], "limit_seconds": bound[1],
                       "share": bound[1] / ours["median"]}
    return result


def problems(row: dict[str, Any]) -> list[str]:
    """Say what makes a row a failure: something raised, or our answer is wrong. Never speed."""
    found = [f"{row['name']}: {entry['name']} failed: {entry['message']}"
             for entry in row["contestants"] if entry["state"] == "failed"]
    if row["right"] is False:
        error = next(e["error"] for e in row["contestants"] if e["name"] == OURS)
        found.append(f"{row['name']}: fastdr's error {error:.1e} exceeds {row['allowed']:.0e}")
    return found
