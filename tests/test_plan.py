"""Decisions of the plan, its costs against the truth, and memory budgets."""

import dataclasses
import tracemalloc

import numpy as np
import pytest

import fastdr
from fastdr.plan import NOMINAL, Rates, Task, measured, plan, readable

N = None


@pytest.mark.parametrize(("rows", "features", "dtype", "k", "more", "solver", "on"), [
    (1797, 64, "f8", 10, {}, "lapack", "covariance"),            # small
    (10**6, 128, "f8", 10, {}, "lapack", "covariance"),
    (10**6, 128, "f8", N, {}, "lapack", "covariance"),
    (50, 200_000, "f4", 5, {}, "lapack", "gram"),                # few rows
    (10**6, 4000, "f8", N, {}, "lapack", "covariance"),          # all axes
    (10**5, 2000, "f8", 10, {}, "lanczos", "rows"),              # few of many
    (10**4, 4000, "f8", 50, {}, "lanczos", "rows"),
    (10**4, 4000, "f4", 50, {}, "lanczos", "rows"),
    (2000, 20_000, "f4", 50, {}, "lanczos", "rows"),
    (20_000, 1000, "f8", 10, {}, "lanczos", "rows"),
    (20_000, 1000, "f8", 20, {}, "lapack", "covariance"),
    (20_000, 1000, "f8", 200, {}, "lapack", "covariance"),       # many
    (10**5, 2000, "f8", 10, {"stored": False}, "lanczos", "covariance"),  # one read
    (10**5, 20_000, "f8", 10, {"stored": False}, "lanczos", "rows"),      # scatter too large
    (10**5, 20_000, "f8", 10, {"stored": False, "rereadable": False}, "lanczos", "covariance"),
    (10**5, 2000, "f8", N, {"share": True}, "lanczos", "covariance"),
    (10**5, 200, "f8", N, {"share": True}, "lapack", "covariance"),
    (10**4, 4000, "f8", 50, {"solver": "lapack"}, "lapack", "covariance"),
    (10**4, 4000, "f8", 50, {"solver": "svd"}, "svd", "rows"),
    (150, 4, "f8", 2, {"solver": "lanczos"}, "lanczos", "covariance"),
    (150, 4, "f8", 4, {"solver": "lanczos"}, "lapack", "covariance"),
    (150, 4, "f8", 2, {"solver": "randomized"}, "randomized", "covariance"),
    (150, 4, "f8", N, {"solver": "randomized", "share": True}, "lapack", "covariance"),
    (4, 150, "f8", 2, {"solver": "power"}, "power", "gram"),
    (N, 30, "f8", 3, {"stored": False}, "lapack", "covariance"),  # a stream of unknown length
])
def test_decisions(rows, features, dtype, k, more, solver, on):
    way = plan(Task(rows, features, dtype, k, **more))
    assert (way.solver, way.on) == (solver, on)
    assert way.seconds > 0
    assert way.flops > 0
    assert way.passes >= 1
    assert (way.columns > 0) is (solver in {"lanczos", "power", "randomized"})
    again = plan(Task(rows, features, dtype, k, **more), rates=Rates(1e9, 1e9))
    assert (again.solver, again.on, again.budget) == (solver, on, way.budget)  # not by the speed
    assert again.seconds > way.seconds


@pytest.mark.parametrize(("order", "certificate", "proof"), [
    (64, "auto", True), (3000, "auto", True), (6000, "auto", True), (64, "residual", False),
    (64, False, False), (6000, "proof", True), (6000, True, True)])
def test_proofs(order, certificate, proof):
    assert plan(Task(100_000, order, components=order, certificate=certificate)).proof is proof


def test_a_proof_that_would_take_long_is_not_made():
    task = Task(12_000, 10_000, components=5, solver="lanczos", rereadable=False)
    assert not plan(task).proof
    assert plan(dataclasses.replace(task, rows=10**6)).proof


def test_memory_changes_the_choice_or_refuses():
    task = Task(10**5, 3000, components=100)
    free = plan(task)
    assert free.on == "covariance"
    tight = plan(task, memory=free.peak_bytes // 2)
    assert tight.on == "rows"
    assert tight.budget == np.inf  # LAPACK could not take over
    assert tight.peak_bytes < free.peak_bytes
    assert "the fastest of what fits" in tight.reason
    with pytest.raises(ValueError, match=r"nothing fits in 60 MB .* ask for at most \d+ axes"):
        plan(task, memory=60_000_000)
    with pytest.raises(ValueError, match="nothing fits in 1 MB .* Allow more memory"):
        plan(dataclasses.replace(task, solver="svd"), memory=1_000_000)


@pytest.mark.parametrize(("shape", "k", "solver"), [
    ((2000, 450), 5, "lanczos"), ((2000, 450), 5, "lapack"), ((200, 3000), 5, "lapack"),
    ((1500, 200), None, "svd")])
def test_fits_stay_within_the_memory_that_was_planned(rng, shape, k, solver):
    X = rng.standard_normal(shape) * 0.95 ** np.arange(shape[1])
    model = fastdr.PCA(k, svd_solver=solver)
    planned = model.plan(X).peak_bytes
    model.fit(X[:50])  # what is loaded on first use is not the fit's
    tracemalloc.start()
    model.fit(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= planned


def test_an_estimator_plans_what_it_does(rng):
    for shape, k in (((900, 450), 3), ((900, 450), 0.5), ((60, 30), None), ((3000, 1000), 3)):
        X = rng.standard_normal(shape) * 0.8 ** np.arange(shape[1])
        model = fastdr.PCA(k).fit(X)
        assert model.plan(X).solver == model.solver_used_
    assert fastdr.PCA(2).plan(X, sample_weight=np.ones(3000)).solver == "lanczos"
    with pytest.raises(ValueError, match="n_components=2000"):
        fastdr.PCA(2000).plan(X)
    with pytest.raises(ValueError, match="nothing fits in 1 kB"):
        fastdr.PCA(2, max_memory=1000).fit(X)


def test_rates_are_measured_once():
    assert measured() is measured()
    assert measured().flops > 1e8
    assert measured().read > 1e8
    assert NOMINAL.flops > NOMINAL.read


def test_printed_plans():
    printed = str(plan(Task(10**5, 2000, components=10)))
    assert "lanczos" in printed
    assert readable(999) == "999 bytes"
    assert readable(5e12) == "5e+03 GB"
