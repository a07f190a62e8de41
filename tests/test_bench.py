"""The benchmark table is well formed, its rows run, and its results become tables."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import fastdr

# Behind everything else, so that an installed fastdr stays the one that is tested.
sys.path.append(str(Path(__file__).resolve().parent.parent))
pytest.importorskip("bench", reason="the benchmarks are not beside these tests")

from bench import (  # noqa: E402
    dask_fit,
    data,
    latency,
    limits,
    machine,
    measure,
    memory,
    reference,
    report,
    scaling,
    tables,
    turns,
)
from bench.cases import CASES, Case, Work, select  # noqa: E402
from bench.contestants import OURS, Contestant  # noqa: E402


def tiny(case: Case) -> Case:
    columns, rows = (30, 20) if case.full[0] < case.full[1] else (24, 160)
    if case.group in {"transform", "reconstruct", "reconstruction_error"}:
        columns = 64
    return dataclasses.replace(case, full=(rows, columns))


def entry(name, seconds, error=1e-15, state="measured", message=""):
    if state != "measured":
        return {"name": name, "state": state, "message": message}
    return {"name": name, "state": state, "median": seconds, "spread": 0.02, "loops": 1,
            "seconds": [seconds] * 3, "error": error}


def row(ours=0.010, error=1e-15, bound=("fma", 0.007), name="covariance 1000x8 f8"):
    made = {"name": name, "group": "covariance", "detail": "", "dtype": "f8", "shape": [1000, 8],
            "full_shape": [1000, 8], "target": 2.0, "share_target": 0.6, "allowed": 1e-12,
            "work": None,
            "contestants": [entry(OURS, ours, error), entry("NumPy", 0.030),
                            entry("SciPy", 0.025), entry("oneDAL", 0, state="absent")]}
    return made | measure.verdict(made, bound)


def document(*rows, quick=False):
    return {"format": report.FORMAT, "quick": quick, "rows": list(rows),
            "machine": machine.describe(2),
            "load": [3.0, 1.0, 1.0], "limits": limits.Limits(1e11, 2e11, 2e10).as_dict(),
            "memory": [{"name": "covariance 1000x8 f8", "group": "covariance", "detail": "",
                        "dtype": "f8", "shape": [1000, 8], "data": 64000,
                        "contestants": [{"name": OURS, "state": "measured", "peak": 2_500_000,
                                         "result": 512}]}]}


def test_latency_of_rows_and_batches():
    found = {"quick": True, "import": 0.001, "latency": latency.latency(64, 8, "f4", True),
             "throughput": latency.throughput(10, "f8", 1, True), "machine": machine.describe(1)}
    assert latency.problems(found) == []
    text = latency.markdown(found)
    assert text.count("| 64 → 8 f4 |") == len(found["latency"]) >= 5
    assert "| 10 f8, 1 thread |" in text
    found["latency"][0]["error"] = float("nan")
    assert len(latency.problems(found)) == 1


def test_table_is_well_formed():
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        names = [contestant.name for contestant in case.contestants]
        assert names[0] == OURS
        assert len(names) >= 2
        assert len(set(names)) == len(names)
        assert all(quick <= full for quick, full in zip(case.quick, case.full, strict=True))
        assert case.target >= 1
        assert 0 < case.allowed <= 1e-5
        assert case.share is None or case.work is not None
        if case.work:
            work = case.work(*case.full, case.dtype)
            assert work.flops > 0
            assert work.traffic > 0
            assert work.arithmetic in {"f4", "f8"}


@pytest.mark.parametrize(("name", "target"), [
    ("covariance 1000000x8 f8", 4), ("covariance 1000000x32 f8", 2.5),
    ("covariance 1000000x64 f4", 2.5), ("covariance 1000000x128 f8", 1.8),
    ("covariance 200000x512 f4", 1.45), ("covariance 20000x1000 f8", 1.2),
    ("covariance 10000x4000 f8", 1.05), ("covariance 1000000x64 u1", 4),
    ("transform 1000000x128→10 f8", 3), ("transform 200000x512→50 f8", 2),
    ("reconstruction_error 200000x512→50 f8", 3), ("PCA.fit 1000000x128→10 f8", 1.9),
    ("PCA.fit digits 1797x64→10 f8", 1), ("FastICA.fit 100000x64 f8", 4),
])
def test_promised_rows_are_there(name, target):
    assert [case.target for case in CASES if case.name == name] == [target]


def test_memory_names_are_cases():
    assert set(memory.NAMES) <= {case.name for case in CASES}


def test_selection():
    assert len(select(None)) == len(CASES)
    assert {case.dtype for case in select("covariance F4")} == {"f4"}
    with pytest.raises(ValueError, match=r"no case matches 'nothing'; the cases are"):
        select("nothing")


@pytest.mark.filterwarnings("default")  # rivals warn as they like
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_row_runs_and_is_right(case):
    result = measure.run(tiny(case), effort=measure.ONE)
    assert measure.problems(result) == []
    assert result["right"] is True
    assert json.loads(json.dumps(result)) == result


@pytest.mark.parametrize("dtype", ["f8", "f4", "u1"])
def test_data_are_seeded_and_offset(dtype):
    X = data.matrix(3000, 10, dtype)
    assert X.dtype == dtype
    np.testing.assert_array_equal(X, data.matrix(3000, 10, dtype))
    distance = np.abs(X.mean(0, dtype=float)) / X.std(0, dtype=float)
    assert distance.min() > 1.5
    assert distance.max() < 6


def test_blocks_do_not_change_the_reference():
    inputs = data.plain(5000, 700, "f8")
    exact = np.cov(inputs.X, rowvar=False)
    assert reference.covariance_error(inputs, exact) < 1e-14
    uncentred = inputs.X.mean(0), inputs.X.T @ inputs.X
    assert reference.covariance_error(inputs, uncentred) < 1e-11


def test_a_wrong_answer_is_found():
    wrong = Contestant(OURS, lambda inputs: lambda: np.cov(inputs.X, rowvar=False) * 1.001)
    raises = Contestant("broken", lambda inputs: lambda: 1 / 0)
    absent = Contestant("absent", lambda inputs: None, "no_such_package")
    case = tiny(dataclasses.replace(CASES[0], contestants=(wrong, raises, absent)))
    result = measure.run(case, effort=measure.ONE)
    assert [each["state"] for each in result["contestants"]] == ["measured", "failed", "absent"]
    first, second = measure.problems(result)
    assert "ZeroDivisionError" in first
    assert "fastdr's error 1.0e-03 exceeds 1e-12" in second
    assert "**wrong**" in tables.speed(document(result))


def test_contestants_take_turns_and_slow_ones_are_called_once():
    calls = []
    runners = [measure.Runner(Contestant(name, lambda inputs: None),
                              lambda name=name: calls.append(name), 0.0, first, 1, [])
               for name, first in ((OURS, 0.1), ("A", 0.2), ("slow", 9.0))]
    measure.rounds(runners, measure.Effort(least=3, most=3, pause=0.0, warm=0.0))
    turns = list(zip(calls[::2], calls[1::2], strict=True))
    assert len(turns) == 3
    assert set(turns) == {(OURS, "A"), ("A", OURS)}
    assert runners[2].seconds == [9.0]


@pytest.mark.parametrize(("seconds", "count"), [(0.1, 4), (0.6, 3)])
def test_short_calls_are_warmed_up_after_the_pause(seconds, count):
    calls = []
    runner = measure.Runner(Contestant(OURS, lambda inputs: None), lambda: calls.append(1), 0.0,
                            seconds, 3, [])
    runner.sample(dataclasses.replace(measure.FULL, pause=0.0))
    assert len(calls) == count
    assert len(runner.seconds) == 1


@pytest.mark.parametrize("case", CASES[:2])
@pytest.mark.parametrize(("limit", "amount", "before"), [
    ("read", "traffic", limits.Limits(f8=1e30, f4=1e30, read=1.0)),
    ("fma", "flops", limits.Limits(f8=1.0, f4=1.0, read=1e30))])
def test_the_binding_limit_takes_turns(case, limit, amount, before):
    row = measure.run(tiny(case), effort=measure.ONE, limits=before)
    assert row["limit"] == limit
    assert row["limit_seconds"] < row["work"][amount]  # measured now, not one a second


def test_a_limit_repeats_as_often_as_ours():
    """After a pause calls are slower at first: more of them would have a better mean."""
    case = CASES[0]
    work = case.work(*case.quick, case.dtype)
    assert measure.limiter_of("read", work, measure.ONE, 7).loops == 7


@pytest.mark.parametrize("arithmetic", ["f8", "f4"])
def test_a_limit_multiplies_as_much_as_it_is_told(monkeypatch, arithmetic):
    done = []
    dense = limits._kernels()

    class Counting:
        def peak_flops(self, itemsize, iterations):
            assert itemsize == int(arithmetic[1])
            done.append(dense.peak_flops(itemsize, iterations))
            return done[-1]

    monkeypatch.setattr(limits, "_kernels", Counting)
    call = limits.multiplying(1e7, arithmetic)
    done.clear()
    call()
    assert len(done) == limits.PARTS
    assert 1e7 <= sum(done) < 1.02e7


def test_verdict():
    result = row()
    assert result["ratio"] == pytest.approx(2.5)
    assert result["best_rival"] == "SciPy"
    assert result["share"] == pytest.approx(0.7)
    assert result["limit"] == "fma"
    assert row(error=float("nan"))["right"] is False
    assert row(bound=None)["share"] is None


def test_an_approximate_rival_competes_only_where_it_is_right():
    made = row()
    made["contestants"].append(entry("random", 0.001, error=1e-3) | {"approximate": True})
    assert measure.verdict(made, None)["best_rival"] == "SciPy"
    assert "≈ 1.00 ms ±2 % (1e-03)" in tables.speed(document(made))
    made["contestants"][-1]["error"] = 1e-12
    assert measure.verdict(made, None)["best_rival"] == "random"


def test_peaks_are_compared():
    made = document(row())
    made["memory"][0]["contestants"].append({"name": "NumPy", "state": "measured",
                                             "peak": 9_000_000, "result": 512})
    assert "| 2.5 (rivals 9.0) |" in tables.speed(made)


def test_binding_limit():
    machine_limits = limits.Limits(f8=100.0, f4=200.0, read=10.0)
    assert machine_limits.bound(Work(400.0, 30.0, "f4")) == ("read", 3.0)
    assert machine_limits.bound(Work(400.0, 20.0, "f8")) == ("fma", 4.0)


def test_limits_are_measured():
    found = limits.measure(1, quick=True)
    assert min(found.f4, found.f8, found.read) > 1e8


def test_limits_say_what_is_missing(monkeypatch):
    monkeypatch.setattr(limits, "import_module", lambda name: object())
    with pytest.raises(ImportError, match="no peak_flops: rebuild fastdr"):
        limits.measure(1)


def test_markdown():
    text = tables.markdown(document(row(), row(ours=0.020, name="slow")))
    assert "| 10.0 ms ±2 % (1e-15) |" in text
    assert "| absent | 2.50× ✓ | 2× | 70 % FMA, floor 60 % ✓ | 2.5 |" in text
    assert "1.25× **✗ missed** | 2× | 35 % FMA, floor 60 % **✗ missed** | — |" in text
    assert "| covariance 1 000 × 8 f8 | 0 | fastdr | 2.5 | 0.0 |" in text
    assert "load 3.0" in text
    quick = tables.markdown(document(row(ours=0.020), quick=True))
    assert "✗ missed**" not in quick
    assert "floors are not judged" in quick


def test_report_renders_and_replaces_the_readme_block(tmp_path, monkeypatch, capsys):
    source, target, readme = (tmp_path / name for name in ("in.json", "out.md", "README.md"))
    source.write_text(json.dumps(document(row())))
    readme.write_text(f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n")
    monkeypatch.setattr(report, "README", readme)
    assert report.main(["--from", str(source), "--markdown", str(target), "--readme"]) == 0
    assert target.read_text("utf-8") == tables.markdown(document(row()))
    text = readme.read_text("utf-8")
    assert "old" not in text
    assert "SciPy: 25.0 ms" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "1 cases, 0 marked, 0 failures" in capsys.readouterr().err


def test_dask_fit_compares_ours_on_a_cluster_with_both_others():
    array = pytest.importorskip("dask.array")
    inputs = data.with_components(3)(300, 20, "f8")
    given = argparse.Namespace(rows=300, columns=20, components=3, dtype="f8", workers=2, threads=1)
    calls = dask_fit.contestants(inputs, array.from_array(inputs.X, chunks=(100, 20)))
    found = [{"name": name, "seconds": [0.2, 0.1, 0.3],
              "error": reference.fit_error(inputs, calls[name]())}
             for name in (dask_fit.LOCAL, dask_fit.OURS)]
    assert dask_fit.problems(found, "f8") == []
    text = dask_fit.markdown(found, given)
    assert "On the cluster 1.00× the time in this process" in text
    found[1]["error"] = float("nan")
    assert len(dask_fit.problems(found, "f8")) == 1


def test_scaling_draws_every_contestant_that_is_present(tmp_path, monkeypatch):
    monkeypatch.setattr(scaling, "measured", lambda quick: made)
    for name in machine.PINNED:  # or this process would be started anew without them
        monkeypatch.delenv(name, raising=False)
    axis = [{"size": size, "shape": [100, 8, 2], "allowed": 1e-10, "contestants": [
        entry(OURS, size / 1e3), entry("random", size / 1e4, 1e-3) | {"approximate": True},
        entry("none", 0, state="absent")]} for size in (100, 200)]
    made = {"machine": machine.describe(2), "quick": True,
            "panels": dict.fromkeys(("N", "d", "k", "threads"), axis)}
    assert scaling.main(["--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "scaling.json").read_text("utf-8"))["panels"]["N"] == axis
    assert (tmp_path / "scaling.png").stat().st_size > 10_000
    (legend,) = scaling.draw(made).legends
    assert [text.get_text() for text in legend.get_texts()] == [OURS, "≈ random"]


def test_scaling_varies_one_row_of_the_table():
    case = scaling.case_of(300, 20, 3)
    result = measure.run(dataclasses.replace(case, contestants=case.contestants[:1]),
                         effort=measure.ONE)
    assert result["shape"] == [300, 20]
    assert result["right"] is True
    assert case.inputs(case.full).k == 3


def test_readme_without_marks_is_refused():
    with pytest.raises(ValueError, match="need the marks"):
        tables.replace_block("nothing here", "new")


def test_rows_are_replaced_only_between_like_runs():
    old = document(row(), row(name="other"))
    new = document(row(ours=0.005))
    both = report.merged(old, new)
    assert [each["ratio"] for each in both["rows"]] == [pytest.approx(5), pytest.approx(2.5)]
    with pytest.raises(ValueError, match="differs in 'quick'"):
        report.merged(old, document(row(), quick=True))


def test_openblas_is_set_free():
    assert machine.unpinned({"A": "1"}) is None
    pinned = {"A": "1", "OPENBLAS_CORETYPE": "Haswell"}
    assert machine.unpinned(pinned) == {"A": "1"}
    assert machine.unpinned(pinned | {"OPENBLAS_L2_SIZE": "512"}) == {"A": "1"}


@pytest.mark.parametrize("result", [np.zeros((3, 2)), (np.zeros(3), np.zeros(3, "f4"))])
def test_sizes_of_results(result):
    assert memory.nbytes(result) == (48 if isinstance(result, np.ndarray) else 36)


def test_memory_above_the_baseline_is_seen():
    before = memory.baseline()
    block = np.ones(80_000_000, np.uint8)
    assert 75e6 < memory.peak() - before < 120e6
    assert block[0] == 1


def test_versions_by_turns():
    tree = str(Path(fastdr.__file__).parents[1])
    (case,) = select("covariance 1000000x8 f8")
    title, head, first, second = turns.compare(case, [tree, tree], 3, True, 1).splitlines()
    assert title == "covariance 1000000x8 f8: 3 rounds, threads: 1"
    assert head.split()[:4] == ["tree", "median", "least", "error"]
    assert first.startswith(tree)
    assert first.endswith("1.000 ±0.000")
    assert second.startswith(tree)
    assert float(second.split()[-2]) > 0
    assert 0 < float(second.split()[-3]) < case.allowed


def test_a_directory_without_fastdr_takes_no_turns(tmp_path):
    (case,) = select("covariance 1000000x8 f8")
    with pytest.raises(RuntimeError, match="has no package fastdr: .* was found instead"):
        turns.compare(case, [str(tmp_path)], 3, True, 1)


def test_a_version_that_does_not_run_is_named(tmp_path, capfd):
    (tmp_path / "fastdr").mkdir()
    (tmp_path / "fastdr" / "__init__.py").touch()
    (case,) = select("covariance 1000000x8 f8")
    with pytest.raises(RuntimeError, match=f"fastdr of {tmp_path} does not run this case"):
        turns.compare(case, [str(tmp_path)], 3, True, 1)
    assert "Error" in capfd.readouterr().err


def test_one_round_has_no_standard_error(capsys):
    with pytest.raises(SystemExit, match="2"):
        turns.main([".", "--only", "covariance", "--rounds", "1"])
    assert "--rounds is 1; it takes 2 or more" in capsys.readouterr().err
