"""Which solver, and at what cost: a pure function of sizes, storage and what is asked for."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from fastdr._dense import peak_flops, read_bytes
from fastdr.scatter import SINGLE_RTOL, single_error
from fastdr.sources import BLOCK_BYTES
from fastdr.threads import get_num_threads, ordered_map
from fastdr.validation import working_dtype

ITERATIVE = ("lanczos", "power", "randomized")
CERTIFICATES = ("auto", True, False, "residual", "proof")
SMALL = 400  # order up to which LAPACK is the fastest
DIVIDE = 2048  # order up to which LAPACK may take two squares of workspace
PROOF = 3000  # order up to which a proof is made without being asked for
PROOF_SHARE = 0.15  # of the other work that a proof may take beyond that order
RACE = 0.6  # of LAPACK's time that an iteration may take before LAPACK takes over
CALL = 1e-3  # seconds that a fit takes at least
LARGEST_SCATTER = 8000  # order from which rows that are read in blocks are read again instead, and
# up to which a matrix is formed for a proof alone
CLEAR = 1.3  # how much faster rows must be than the scatter, which can be proved
BASIS = 3  # longest Lanczos basis, in axes
UNEVEN = 4.0  # how much smaller than the mean of the first k variances the k-th is, about
FEW = 0.15  # part of all axes up to which rows in chunks elsewhere are read again


@dataclass(frozen=True)
class Rates:
    """What the machine does in a second: float64 operations from registers, bytes read."""

    flops: float
    read: float


# Choices are made with these and not with a measurement, so that they repeat; only their ratio
# matters, and machines differ little in it.
NOMINAL = Rates(1e11, 2e10)


@dataclass(frozen=True)
class Task:
    """What is asked for.

    ``rows`` None if unknown; ``components`` None for all of them or as many as make up a
    ``share`` of the variance; ``stored`` rows can be read in place as often as wanted;
    ``rereadable`` in blocks; ``weighted`` rows have weights; ``tol`` 0 for the default;
    ``elsewhere`` features up to which a square of them may be formed of each chunk of rows that
    workers have, 0 for rows that are here.
    """

    rows: int | None
    features: int
    dtype: Any = "f8"
    components: int | None = None
    share: bool = False
    solver: str = "auto"
    certificate: bool | str = "auto"
    tol: float = 0.0
    stored: bool = True
    rereadable: bool = True
    weighted: bool = False
    iterations: int = 7
    oversamples: int = 10
    elsewhere: int = 0

    @property
    def wide(self) -> bool:
        """Whether rows are fewer than features."""
        return self.rows is not None and self.rows < self.features

    @property
    def order(self) -> int:
        """Order of the smaller Gram matrix."""
        return self.features if self.rows is None else min(self.rows, self.features)

    @property
    def single(self) -> bool:
        """Whether the rows are multiplied in float32."""
        return bool(working_dtype(self.dtype) == np.float32)

    @property
    def axes(self) -> int:
        """Number of axes, guessed if only their share of the variance is known."""
        guess = max(1, self.order // 50) if self.share else self.order
        return guess if self.components is None else self.components

    def proving(self, way: Plan) -> bool | None:
        """Return whether to prove if there is a matrix; None if no certificate is wanted."""
        if self.certificate is False:
            return None
        return way.proof or (self.certificate != "residual" and self.order <= PROOF)


class Step(NamedTuple):
    """Operations at some part of the peak rate, and bytes read meanwhile."""

    flops: float
    part: float
    bytes: float = 0.0

    def seconds(self, rates: Rates) -> float:
        """Return how long it takes at such rates."""
        return max(self.flops / (self.part * rates.flops), self.bytes / rates.read)

    def times(self, count: int) -> Step:
        """Return the same `count` times."""
        return Step(count * self.flops, self.part, count * self.bytes)


@dataclass(frozen=True)
class Plan:
    """How a fit will go.

    Attributes
    ----------
    solver : str, "lapack", "svd", "lanczos", "power" or "randomized"
    on : {"covariance", "gram", "rows"}, the matrix that it works on: features by features, rows
        by rows, or neither, the rows being read again for each few columns.
    reason : str
    passes : int, reads of the rows; about, for an iteration on them.
    columns : int, vectors that an iteration will about multiply; 0 for the others.
    flops : float, operations.
    peak_bytes : int, memory beyond the data.
    seconds : float, on this machine if the rates were measured.
    proof : bool, whether a Cholesky factorisation will prove the answer.
    budget : float, columns after which LAPACK takes over; infinite if nothing does.

    Examples
    --------
    >>> import fastdr
    >>> chosen = fastdr.PCA(10).plan(np.broadcast_to(1.0, (100_000, 2_000)))
    >>> chosen.solver, chosen.on
    ('lanczos', 'rows')
    """

    solver: str
    on: str
    reason: str
    passes: int
    columns: int
    flops: float
    peak_bytes: int
    seconds: float
    proof: bool
    budget: float = math.inf

    def __str__(self) -> str:
        """Return a table of two columns."""
        rows = {"solver": self.solver, "works on": self.on, "reason": self.reason,
                "passes": self.passes, "columns": self.columns or "-",
                "flops": f"{self.flops:.2g}",
                "memory": f"{readable(self.peak_bytes)} beyond the data",
                "time": f"about {self.seconds:.2g} s", "proof": "yes" if self.proof else "no"}
        return "\n".join(f"{name:<10}{value}" for name, value in rows.items())


@lru_cache(256)
def plan(task: Task, *, rates: Rates = NOMINAL, memory: int | None = None) -> Plan:
    """Return the fastest way that takes at most `memory` bytes beyond the data.

    Costs are counts of operations over a part of `rates`; the parts are those that our kernels,
    LAPACK and BLAS were measured to reach. "auto" takes an iteration if it will about take less
    than `RACE` of LAPACK's time, and then gives it that long. Raises ValueError if nothing fits.
    """
    ways = _ways(task, memory is not None)
    fitting = [way for way in ways if memory is None or way[0].peak_bytes <= memory]
    if not fitting and task.certificate in (True, "proof"):
        found = plan(replace(task, certificate="residual"), rates=rates, memory=memory)
        return replace(found, reason=f"{found.reason}; no proof: its matrix does not fit")
    if not fitting:
        needs = ", ".join(f"{way.solver} on {way.on} {readable(way.peak_bytes)}"
                          for way, _ in ways)
        raise ValueError(f"nothing fits in {readable(memory or 0)} beyond the data: "
                         f"{task.axes} axes need {needs}. Allow more memory"
                         f"{_instead(task, memory or 0)}.")
    chosen = fastest(fitting, rates)
    if len(fitting) < len(ways):
        chosen = replace(chosen, reason=f"{chosen.reason}; the fastest of what fits in "
                                        f"{readable(memory or 0)}")
        if all(way.solver != "lapack" for way, _ in fitting):
            chosen = replace(chosen, budget=math.inf)  # nothing could take over
    return chosen


def fastest(ways: list[tuple[Plan, list[Step]]], rates: Rates) -> Plan:
    """Return the fastest of plans by their steps, with its time at such `rates`."""
    chosen, steps = min(ways, key=lambda way: way[0].seconds * (
        CLEAR if way[0].on == "rows" else 1.0))
    return replace(chosen, seconds=CALL + seconds_of(steps, rates))


def race(order: int, axes: int, dtype: Any = "f8", tol: float = 0.0) -> float:
    """Return the columns of a matrix that an iteration may take, 0 if LAPACK is the faster."""
    task = Task(None, order, dtype, axes, tol=tol)
    column = column_of(task, "covariance").seconds(NOMINAL)
    budget = RACE * seconds_of(lapack_steps(task), NOMINAL) / column
    return budget if order > SMALL and columns_of(task, "lanczos") <= budget else 0.0


def _instead(task: Task, memory: int) -> str:
    """Say how many axes would fit, or what else would."""
    if task.share or task.solver in ("lapack", "svd") or not task.rereadable:
        return ""
    axes = task.axes // 2
    while axes and memory < min(
            way.peak_bytes for way, _ in _ways(replace(task, components=axes), True)):
        axes //= 2
    return f", or ask for at most {axes} axes" if axes else ""


def _ways(task: Task, slow: bool = False) -> list[tuple[Plan, list[Step]]]:
    """Return what the solver asked for allows, with or without iterations slower than LAPACK."""
    asked, side = task.solver, "gram" if task.wide else "covariance"
    shape = "fewer rows than features" if task.wide else "rows at least as many as features"
    if asked == "svd":
        return [_way(task, "svd", "rows", "as asked", _qr(task), 2)]
    if _stays(task):
        return [_in_place(task)]
    whole = [*_square(task), *lapack_steps(task)]
    lapack = _way(task, "lapack", side, shape, whole, 1 + task.wide)
    if asked == "lapack":
        return [lapack]
    every = task.components is None and not task.share
    if every or (asked in ITERATIVE and task.components is not None
                 and task.components >= task.order):
        reason = shape if asked == "auto" else f"all axes are wanted; {shape}"
        return [(replace(lapack[0], reason=reason), whole)]
    if asked == "randomized" and task.share:
        return [(replace(lapack[0], reason=f"a share of the variance needs bounds that a fixed "
                                           f"number of steps does not give; {shape}"), whole)]
    raced = asked == "auto"
    if raced and task.order <= SMALL and not slow:
        return [lapack]
    method, ways = "lanczos" if raced else asked, [lapack] if raced else []
    for on in (side, "rows"):
        if on == "rows" and (not task.rereadable or task.share or not _worth_reading(task)):
            continue
        before = _square(task) if on == side else [_first(task)]
        instead = lapack_steps(task) if on == side else whole
        columns, step = columns_of(task, method), column_of(task, on)
        budget = RACE * seconds_of(instead, NOMINAL) / step.seconds(NOMINAL) if raced else math.inf
        if columns > budget and not task.share and not slow:
            continue
        steps = [*before, step.times(columns)]
        few = "a share of the variance" if task.share else f"{task.axes} of {task.order} axes"
        reason = f"iteration for {few}; {shape}" if raced else f"as asked; {shape}"
        way = _way(task, method, on, reason, steps, len(before), columns, budget)
        ways.append(way)
    return ways


def _way(task: Task, solver: str, on: str, reason: str, steps: list[Step], passes: int,
         columns: int = 0, budget: float = math.inf) -> tuple[Plan, list[Step]]:
    """Return a plan, and its steps with those of the proof."""
    order, axes, proof = task.order, task.axes, False
    asked = task.certificate in (True, "proof")
    proving = [Step(order**3 / 3 + 2 * order**2 * axes, 0.5)]
    if on != "rows" or solver == "svd":  # whose triangle makes the scatter again
        cheap = order <= PROOF or (
            seconds_of(proving, NOMINAL) <= PROOF_SHARE * seconds_of(steps, NOMINAL))
        proof = asked or (task.certificate == "auto" and cheap)
    elif asked and order <= LARGEST_SCATTER:
        proof, proving = True, [*_square(task), *proving]
    elif asked:
        reason = f"{reason}; {unproved(order)}"
    steps = steps + proving * proof
    if on == "rows" and columns:
        passes += math.ceil(columns / block_of(task)) + proof
    made = Plan(solver, on, reason, passes, columns, sum(step.flops for step in steps),
                _memory(task, solver, on, proof), seconds_of(steps, NOMINAL), proof, budget)
    return made, steps


def unproved(order: int) -> str:
    """Say why there is no proof though one was asked for."""
    return (f"no proof: a matrix of order {order}, more than {LARGEST_SCATTER}, is not formed "
            "for it")


def seconds_of(steps: list[Step], rates: Rates) -> float:
    """Return how long some steps take together."""
    return sum(step.seconds(rates) for step in steps)


def _worth_reading(task: Task) -> bool:
    """Whether rows in blocks should be read again and again, rather than the scatter formed."""
    return task.stored or task.order > LARGEST_SCATTER


def _stays(task: Task) -> bool:
    """Whether rows elsewhere are too wide for a square of their features, and axes few."""
    few = task.share or task.axes <= FEW * task.order
    return bool(few and 0 < task.elsewhere < task.features and task.solver != "lapack")


def _in_place(task: Task) -> tuple[Plan, list[Step]]:
    """Return the iteration on products that workers form with their chunks."""
    method = "lanczos" if task.share or task.solver == "auto" else task.solver
    columns = columns_of(task, method)
    return _way(task, method, "rows", "iteration on products formed where the chunks are; a square "
                f"of {task.features} features is too large to send", [
                    _first(task), column_of(task, "rows").times(columns)], 1, columns, math.inf)


def _size(task: Task) -> float:
    return float(task.rows or task.features) * task.features


def _first(task: Task) -> Step:
    """Means and sums of squares: two reads."""
    return Step(6 * _size(task), 0.2, 2 * _size(task) * np.dtype(task.dtype).itemsize)


def _square(task: Task) -> list[Step]:
    """One triangle of the scatter or the Gram matrix, in float64 again if float32 will not do."""
    summed = task.features if task.wide else task.rows or task.features
    again = task.single and UNEVEN * task.axes * single_error(summed) > SINGLE_RTOL
    form = Step(_size(task) * task.order, 1.3 if task.single else 0.7,
                 _size(task) * np.dtype(task.dtype).itemsize)
    forms = [form, form._replace(part=0.7)] if again else [form]
    if not task.wide:
        return forms
    return [_first(task), *forms, Step(2 * _size(task) * task.axes, 0.4)]


def lapack_steps(task: Task) -> list[Step]:
    """Tridiagonal form, half of it bound by memory; values; back to the vectors wanted."""
    axes = task.order if task.share else task.axes
    return [Step(4 / 3 * task.order**3 + 2.3 * task.order**2 * axes, 0.36)]


def _qr(task: Task) -> list[Step]:
    """QR of the rows or their transpose, and the SVD of the triangle."""
    return [_first(task), Step(2 * _size(task) * task.order, 0.25),
            Step(20.0 * task.order**3, 0.25)]


def block_of(task: Task) -> int:
    """Columns that are multiplied at a time."""
    return 16 if task.single else 8


def columns_of(task: Task, method: str) -> int:
    """Columns that an iteration will about take: measured on spectra of moderate decay."""
    if method == "randomized":
        return (task.iterations + 2) * (task.axes + task.oversamples)
    tol = task.tol or (1e-5 if task.single else 1e-10)
    lanczos = (task.axes + 10) * (3 - 0.3 * math.log10(max(tol, 1e-15)))
    return min(math.ceil(lanczos), 2 * task.order) * (4 if method == "power" else 1)


def column_of(task: Task, on: str) -> Step:
    """One column of an iteration, and making it orthogonal to the others."""
    order, block = task.order, block_of(task)
    basis = BASIS * task.axes + 10 * block
    against = 4.0 * basis * (order if on != "rows" else task.features)
    if on != "rows":
        return Step(2.0 * order**2 + against, 0.2, 8.0 * order**2 / block)
    part = 0.18 if task.weighted or not task.stored else 1.1 if task.single else 0.6
    return Step(4 * _size(task) + against * part / 0.2, part,
                 _size(task) * np.dtype(task.dtype).itemsize / block)


def _memory(task: Task, solver: str, on: str, proof: bool) -> int:
    """Bytes beyond the data at the worst moment."""
    order, axes, features = task.order, task.axes, task.features
    squares = 1.0 + proof if on != "rows" or proof else 0.0
    if solver == "lapack":
        squares = 1 + max(3.0 if order <= DIVIDE else 1.0 + min(1.0, axes / order), proof)
    elif solver == "svd":
        squares = 5.0
    vectors = 2.0 * axes * features + order * axes
    if solver in ITERATIVE:
        width = features if on == "rows" else order
        basis = min(order, BASIS * axes + 10 * block_of(task)) + 2 * block_of(task)
        vectors += basis * width / (2 if task.single and on == "rows" else 1)
        vectors += 32.0 * 8 * width * (on == "rows")  # parts of a sum that threads make
    return int(8 * (squares * order**2 + vectors) + 3 * BLOCK_BYTES)


def readable(size: float) -> str:
    """Return bytes as a short text.

    Examples
    --------
    >>> readable(2_500_000_000)
    '2.5 GB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError


def measured() -> Rates:
    """Return the rates of this machine with the current number of threads, measured once."""
    return _measured(get_num_threads())


@cache
def _measured(threads: int) -> Rates:
    buffer = np.ones(1 << 26, np.uint8)
    edges = [len(buffer) * part // threads for part in range(threads + 1)]
    best = Rates(0.0, 0.0)
    for _ in range(3):
        start = time.perf_counter()
        done = sum(ordered_map(lambda _: peak_flops(8, 200_000), threads))
        flops, start = done / (time.perf_counter() - start), time.perf_counter()
        ordered_map(lambda part: read_bytes(buffer, edges[part], edges[part + 1]), threads)
        read = len(buffer) / (time.perf_counter() - start)
        best = Rates(max(best.flops, flops), max(best.read, read))
    return best
