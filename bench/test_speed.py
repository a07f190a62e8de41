"""The cases of the table under pytest-benchmark, to compare one state of fastdr with another.

Only with ``--benchmark-enable``; see bench/README.md for the commands.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from bench import machine
from bench.cases import CASES, Case
from bench.contestants import Contestant
from bench.data import Inputs

PAIRS = [pytest.param(case, contestant, id=f"{case.name}-{contestant.name}")
         for case in CASES for contestant in case.contestants]


@pytest.fixture(scope="module", autouse=True)
def threads() -> Iterator[int]:
    """Give everybody the same threads: ``BENCH_THREADS``, or all usable CPUs."""
    if machine.unpinned(os.environ) is not None:
        pytest.fail(f"unset {' and '.join(machine.PINNED)}: they hold OpenBLAS back")
    wanted = os.environ.get("BENCH_THREADS")
    count, limit = machine.set_threads(int(wanted) if wanted else None)
    with limit:
        yield count


@pytest.fixture(scope="module")
def inputs_of(request: pytest.FixtureRequest) -> Any:
    """Make the data of a case; only those of the latest case are kept."""
    kept: dict[Case, Inputs] = {}

    def make(case: Case) -> Inputs:
        if case not in kept:
            kept.clear()
            kept[case] = case.inputs(case.full if request.config.getoption("full")
                                     else case.quick)
        return kept[case]

    return make


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("case", "contestant"), PAIRS)
def test_speed(case: Case, contestant: Contestant, inputs_of: Any, benchmark: Any) -> None:
    """Time one contestant; the error it reached is kept beside the time."""
    if not contestant.present:
        pytest.skip(f"{contestant.package} is not installed")
    inputs = inputs_of(case)
    call = contestant.prepare(inputs)
    benchmark.group = case.name
    benchmark.extra_info["error"] = case.error(inputs, call())
    benchmark(call)
