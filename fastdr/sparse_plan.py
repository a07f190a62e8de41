"""Which way to the axes of sparse rows, and at what cost; `plan` is for dense ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fastdr.plan import (
    BASIS,
    LARGEST_SCATTER,
    NOMINAL,
    PROOF,
    PROOF_SHARE,
    SMALL,
    Plan,
    Rates,
    Step,
    Task,
    block_of,
    column_of,
    columns_of,
    fastest,
    lapack_steps,
    plan,
    readable,
    seconds_of,
    unproved,
)
from fastdr.sources import BLOCK_BYTES, Source
from fastdr.sparse import LINE, PIECE, SparseSource, part_count
from fastdr.threads import get_num_threads

LARGE = 2000  # features up to which the scatter may be the faster; it is up to SMALL
MANY = 20  # one axis for so many features is work for LAPACK
STRIPS = {8: 0.13, 4: 0.25}  # part of the peak that products with strips reach, by itemsize
OUTER = 0.03  # the same of outer products
READ = 30.0  # operations a stored entry, at the first rate, for which the first pass takes as long


class Stored(NamedTuple):
    """Stored entries, operations to form the scatter, and to form the smaller Gram matrix."""

    entries: int
    scatter: float
    gram: float

    @classmethod
    def of(cls, rows: SparseSource) -> Stored:
        """Count them; columns are counted only where their Gram matrix might be formed."""
        scatter = float((np.diff(rows.indptr).astype(np.float64)**2).sum())
        if len(rows) >= rows.features:
            return cls(rows.stored, scatter, scatter)
        if len(rows) > LARGEST_SCATTER:
            return cls(rows.stored, scatter, math.inf)
        columns = np.zeros(rows.features)
        for start in range(0, rows.stored, PIECE):
            columns += np.bincount(rows.indices[start:min(start + PIECE, rows.stored)],
                                   minlength=rows.features)
        return cls(rows.stored, scatter, float((columns**2).sum()))


def sparse_plan(task: Task, stored: Stored, *, rates: Rates = NOMINAL, memory: int | None = None
                ) -> Plan:
    """Return the faster way that takes at most `memory` bytes beyond the data.

    "lapack" forms the scatter; "lanczos" reads the stored entries once for 8 columns, 16 in
    float32; any other solver of `task` leaves the choice. Raises ValueError if nothing fits.
    """
    if task.solver == "svd":
        raise ValueError("solver 'svd' would make sparse rows dense; use 'auto', 'lapack' or "
                         "'lanczos'.")
    ways = []
    few = task.features <= SMALL
    scatter = task.solver == "lapack" or task.features <= LARGE and not task.wide
    if task.solver == "lapack" or (task.solver != "lanczos" and (few or scatter)):
        ways.append(_by_scatter(task, stored))
    if task.solver != "lapack" and not (few and ways):
        ways.append(_by_lanczos(task, stored))
    fitting = [way for way in ways if memory is None or way[0].peak_bytes <= memory]
    if not fitting and task.certificate in (True, "proof"):
        found = sparse_plan(replace(task, certificate="residual"), stored, rates=rates,
                            memory=memory)
        return replace(found, reason=f"{found.reason}; no proof: its matrix does not fit")
    if not fitting:
        needs = ", ".join(f"{way.solver} {readable(way.peak_bytes)}" for way, _ in ways)
        raise ValueError(f"nothing fits in {readable(memory or 0)} beyond the data: "
                         f"{task.axes} axes need {needs}. Allow more memory, or ask for fewer "
                         "axes.")
    return fastest(fitting, rates)


def _by_scatter(task: Task, stored: Stored) -> tuple[Plan, list[Step]]:
    """Outer products of the rows, and LAPACK, or Lanczos for a few of many."""
    square, solver, columns = replace(task, rows=None), "lapack", 0
    steps = [_first(stored), Step(stored.scatter, OUTER)]
    few = not task.share and task.axes <= task.features // MANY
    if task.solver != "lapack" and few and task.features > SMALL:
        solver, columns = "lanczos", columns_of(square, "lanczos")
        steps.append(column_of(square, "covariance").times(columns))
    else:
        steps += lapack_steps(square)
    return _way(square, stored, solver, "covariance", "their scatter is small", steps, 2,
                columns)


def _by_lanczos(task: Task, stored: Stored) -> tuple[Plan, list[Step]]:
    """Products with what is stored, and making the vectors orthogonal."""
    columns = columns_of(task, "lanczos")
    basis = BASIS * task.axes + 10 * block_of(task)
    steps = [_first(stored), Step(4.0 * stored.entries * columns, STRIPS[4 if task.single else 8]),
             Step(4.0 * basis * task.features * columns, 0.2)]
    passes = 1 + math.ceil(columns / block_of(task))
    return _way(task, stored, "lanczos", "rows", f"{task.axes} axes by products with them", steps,
                passes, columns)


def _first(stored: Stored) -> Step:
    return Step(READ * stored.entries, STRIPS[8])


def _way(task: Task, stored: Stored, solver: str, on: str, reason: str, steps: list[Step],
         passes: int, columns: int = 0) -> tuple[Plan, list[Step]]:
    """Return a plan, and its steps with those of the proof."""
    order, asked = task.order, task.certificate in (True, "proof")
    proving = [Step(order**3 / 3 + 2 * order**2 * task.axes, 0.5)]
    if on == "rows":
        proving.append(Step(stored.gram, OUTER))
    possible = on != "rows" or order <= LARGEST_SCATTER
    cheap = (on != "rows" and order <= PROOF) or (
        seconds_of(proving, NOMINAL) <= PROOF_SHARE * seconds_of(steps, NOMINAL))
    proof = possible and (asked or (task.certificate == "auto" and cheap))
    if asked and not proof:
        reason = f"{reason}; {unproved(order)}"
    steps = steps + proving * proof
    made = Plan(solver, on, f"sparse rows; {stored.entries} entries are stored; {reason}",
                passes + (proof and on == "rows"), columns, sum(step.flops for step in steps),
                _memory(task, stored, on, proof), seconds_of(steps, NOMINAL), proof)
    return made, steps


def _memory(task: Task, stored: Stored, on: str, proof: bool) -> int:
    """Bytes beyond the data at the worst moment; pieces are converted one a thread."""
    features, axes = task.features, task.axes
    entry = 8 + 4 + 8  # values, indices and, for columns that are shifted, what is subtracted
    pieces = min(PIECE, stored.entries) * entry * get_num_threads()
    vectors = 8.0 * features * (4 + 2 * axes)
    if on == "rows":
        basis = min(features, BASIS * axes + 10 * block_of(task)) + 2 * block_of(task)
        vectors += 8.0 * features * (basis + axes)
        vectors += LINE * features * (part_count(stored.entries, features) + 3)
    formed = 0.0
    if on != "rows" or proof:
        order = task.order
        parts = min(part_count(stored.entries, order, order), 2 * get_num_threads())
        formed = 8.0 * order**2 * (max(parts + 1, 4) + proof)
        if on == "rows" and task.wide:
            formed += stored.entries * 2 * entry
    return int(vectors + pieces + formed + BLOCK_BYTES)


def plan_of(source: Source, task: Task, *, rates: Rates = NOMINAL, memory: int | None = None
            ) -> Plan:
    """Return `sparse_plan` of sparse rows, `plan` of others."""
    if isinstance(source, SparseSource):
        return sparse_plan(task, Stored.of(source), rates=rates, memory=memory)
    return plan(task, rates=rates, memory=memory)
