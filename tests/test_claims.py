"""Counted operations belong to right answers; fits find known laws; verdicts say what was found."""

import copy
import json
import sys
from pathlib import Path

import numpy as np
import pytest

# Behind everything else, so that an installed fastdr stays the one that is tested.
sys.path.append(str(Path(__file__).resolve().parent.parent))
pytest.importorskip("bench", reason="the benchmarks are not beside these tests")

from bench import (  # noqa: E402
    accuracy,
    claims,
    claims_plots,
    fits,
    instructions,
    machine,
    opcounts,
    verdicts,
)
from bench.laws import CROSSOVER, LAWS  # noqa: E402
from bench.opcounts import Ledger  # noqa: E402

EPS = np.finfo(float).eps
SHAPES = [(1, 1), (1, 5), (5, 1), (7, 7), (33, 32), (40, 30), (200, 30), (20, 90)]


def bound(X):
    """Return the usual backward error of a sequence of orthogonal transformations."""
    return 10 * max(X.shape) * EPS * np.linalg.norm(X)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("shape", SHAPES)
def test_counted_svd_is_right(shape, rng):
    X = rng.standard_normal(shape)
    ledger = Ledger()
    U, s, Vt = opcounts.svd(X, ledger)
    assert ledger.flops > 0
    assert np.linalg.norm((U * s) @ Vt - X) <= bound(X)
    assert abs(s - np.linalg.svd(X, compute_uv=False)).max() <= bound(X)
    for axes in (U.T, Vt):
        assert np.linalg.norm(axes @ axes.T - np.eye(min(shape))) <= bound(np.eye(max(shape)))


@pytest.mark.parametrize("shape", SHAPES)
def test_counted_product_and_eig_are_right(shape, rng):
    X = rng.standard_normal(shape)
    C = opcounts.gram(X, Ledger())
    assert np.linalg.norm(C - X.T @ X) <= shape[0] * EPS * np.linalg.norm(X) ** 2
    values, vectors = opcounts.eigh(C, Ledger())
    assert np.linalg.norm((vectors * values) @ vectors.T - C) <= bound(C)
    assert abs(values - np.linalg.eigvalsh(C)).max() <= bound(C)


def test_counts_are_those_of_the_textbooks():
    assert opcounts.count("form", 50, 20) == 50 * 20 * 21
    # Golub & Van Loan, table 8.6.1: 6 m n² + 20 n³ for the SVD by QR first, 9 n³ for eig.
    n, d = 2000, 40
    assert opcounts.count("svd", n, d) == pytest.approx(6 * n * d**2 + 20 * d**3, rel=0.1)
    assert opcounts.count("eig", 256, 128) == pytest.approx(9 * 128**3, rel=0.1)
    assert opcounts.count("svd", d, n) == pytest.approx(opcounts.count("svd", n, d), rel=0.02)


def test_every_step_is_counted():
    ledger, x = Ledger(), np.ones(5)
    assert ledger.dot(x, x) == 5
    assert ledger.flops == 10
    ledger.dot(np.ones((3, 5)), np.ones((5, 2)))
    assert ledger.flops == 10 + 2 * 30
    ledger.add(x, 2.0, np.ones(5))
    ledger.rotate(x, np.ones(5), 1.0, 0.0)
    assert ledger.flops == 70 + 10 + 30


def test_a_singular_bidiagonal_is_refused():
    with pytest.raises(ArithmeticError, match="has not full rank"):
        opcounts.svd(np.zeros((4, 4)) + np.arange(4.0), Ledger())


def noisy(sizes, exponent, spread, rng, rounds=5):
    return [[3e-9 * size**exponent * (1 + spread * rng.random()) for _ in range(rounds)]
            for size in sizes]


@pytest.mark.parametrize("exponent", [1.0, 2.0, 2.7])
def test_exponents_lie_within_their_intervals(exponent, rng):
    sizes = [64, 96, 128, 192, 256, 384, 512]
    inside = 0
    for _ in range(200):
        fit = fits.power_law(sizes, noisy(sizes, exponent, 0.1, rng))
        inside += abs(fit.exponent - exponent) <= fit.half
        assert (fit.first, fit.last) == (192, 512)
    assert inside >= 190  # 95 %
    exact = fits.power_law(sizes, [[size**exponent] for size in sizes])
    assert exact.exponent == pytest.approx(exponent, abs=1e-12)
    assert exact.at(300) == pytest.approx(300**exponent)
    assert str(exact) == f"{exponent:.2f} ± 0.01"


def test_a_line_needs_three_points():
    with pytest.raises(ValueError, match="2 points do not tell"):
        fits.line([1, 2], [1, 2])


def test_crossing():
    found = fits.crossing([1, 2, 4, 8], [[1], [2], [4], [8]], [[3], [3], [3], [3]])
    assert found.at == pytest.approx(3)
    assert found.low == found.at == found.high
    wide = fits.crossing([1, 2, 4, 8], [[1, 1.1], [2, 2.1], [4, 4.2], [8, 9]], [[3]] * 4)
    assert wide.low < 3 < wide.high
    assert fits.crossing([1, 2], [[1], [1]], [[2], [2]]) is None


def test_two_terms():
    shapes = [(100, 10), (10, 80), (50, 50), (400, 20)]
    costs = [6 * n * d * min(n, d) + 20 * min(n, d) ** 3 for n, d in shapes]
    assert fits.two_terms(shapes, costs) == pytest.approx((6, 20))


def cost(operation, n, d):
    """Return a known cost in place of a measured one."""
    least = min(n, d)
    return {"form": n * d * d, "eig": 9 * d**3, "svd": 6 * n * d * least + 20 * least**3,
            "pca": n * d * least}[operation]


@pytest.fixture
def document():
    """Results as they would be if every cost were its leading term, at 10 Gflop/s."""
    columns, rows = CROSSOVER.counted(quick=True)
    counts = {law.key: [cost(law.operation, *shape) for shape in law.counted(quick=True)]
              for law in LAWS}
    counts |= {f"crossover {operation}": [cost(operation, n, columns) for n in rows]
               for operation in ("form", "eig", "svd")}
    columns, rows = CROSSOVER.sizes(quick=True)
    series = [(law.key, operation, law.shapes(quick=True))
              for law in LAWS for operation in law.timed]
    series += [("crossover", operation, [(n, columns) for n in rows])
               for operation in ("form", "eig", "svd", "pca")]
    times = [{"law": key, "operation": operation, "who": who, "threads": threads,
              "seconds": [[cost(operation, *shape) / 1e10 / threads] * 2 for shape in shapes]}
             for threads in (1, 2) for key, operation, shapes in series
             for wanted, who in claims.CALLS if wanted == operation]
    ratio = np.geomspace(1, 1e14, 29)
    error = {name: (EPS * ratio ** (2 if "eig" in name else 1)).tolist()
             for name in accuracy.ROUTES}
    return {"format": claims.FORMAT, "quick": True, "machine": machine.describe(2), "load": None,
            "limits": None, "counts": counts, "times": times, "instructions": None,
            "accuracy": {"rows": 60, "columns": 16, "ratio": ratio.tolist(), "error": error}}


def test_verdicts_of_known_costs(document):
    assert verdicts.problems(document) == []
    text = verdicts.markdown(document)
    assert text.count("**Holds.**") == 5
    assert "Counted operations grow as d^(3.00 ± 0.01)" in text
    assert "16 of 16 exponents are the claimed ones" in text
    assert "as (σ₁/σᵢ)^2.00 eps by way of XᵀX, as (σ₁/σᵢ)^1.00 eps by the SVD" in text
    assert "fastdr keeps the digits of the SVD" in text
    assert "6.0 times fewer operations" in text
    for race in verdicts.races(document):
        if not race.ours:  # 6 x² + 20 x³ = x + 9 at x = N/d
            assert race.crossing.at == pytest.approx(0.6970, rel=0.01)
    assert "operations: eig(XᵀX) is cheaper from N = 0.70 d on; 2.6 times at N = d" in text


def test_a_wrong_count_fails_and_slow_seconds_are_small_print(document):
    slow = copy.deepcopy(document)
    for series in slow["times"]:
        if series["operation"] == "eig" and series["law"] != "crossover":
            series["seconds"] = [[d**2 * 1e-9] * 2 for d in (64, 96, 128, 192)]
    assert verdicts.problems(slow) == []
    text = verdicts.markdown(slow)
    assert "**Holds with small print.**" in text
    assert "LAPACK, 2 threads: d^(2.00 ± 0.01) for d = 64 … 192, not 3: the rate goes" in text
    for series in slow["times"]:
        series["seconds"] = [[each[0], 9 * each[0]] for each in series["seconds"]]
    text = verdicts.markdown(slow)
    assert "In seconds, 0 of 2 exponents are the claimed ones, 2 too uncertain to tell." in text
    wrong = copy.deepcopy(document)
    wrong["counts"]["eig d"] = [d**2 for d in (32, 48, 64, 96, 128, 192)]
    assert verdicts.problems(wrong) == ["eig d: operations grow as d^(2.00 ± 0.01), claimed was 3"]
    assert "**Does not hold**: operations grow as d^(2.00" in verdicts.markdown(wrong)
    wrong["accuracy"]["error"]["fastdr svd"] = wrong["accuracy"]["error"]["LAPACK eig(XᵀX)"]
    text = verdicts.markdown(wrong)
    assert "Not as claimed: fastdr svd" in text
    assert "fastdr does not keep the digits" in text


def test_runs_are_compared(document):
    assert verdicts.repeated(document) == ""
    document["again"] = [copy.deepcopy(document["times"]) for _ in range(2)]
    count = sum(series["law"] != "crossover" for series in document["times"])
    text = verdicts.repeated(document)
    assert f"in 3 runs, of which the first is shown. Of {2 * count} exponents of the" in text
    assert f"others {2 * count} lie within" in text
    assert f"and {2 * count} differ by no more than both intervals allow." in text
    for series in document["again"][1]:
        if series["operation"] == "eig" and series["law"] != "crossover":
            series["seconds"] = [[d**2 * 1e-9] * 2 for d in (64, 96, 128, 192)]
    text = verdicts.repeated(document)
    assert f"others {2 * count - 2} lie within" in text
    assert "not: LAPACK, 1 thread, eig d: 3.00 ± 0.01 and 2.00 ± 0.01; LAPACK, 2 threads" in text
    assert text in verdicts.markdown(document)


def test_rendering_a_file_again(document, tmp_path, monkeypatch):
    source = tmp_path / "claims.json"
    source.write_text(json.dumps(document))
    assert claims.main(["--from", str(source), "--out", str(tmp_path / "new")]) == 0
    written = {path.name for path in (tmp_path / "new").iterdir()}
    assert written == {"claims.md", *(f"claims-{name}.png" for name in
                                      ("operations", "seconds-1", "seconds-2", "crossover",
                                       "accuracy"))}
    monkeypatch.setattr(claims_plots, "save", lambda *_: None)
    document["counts"]["eig d"] = document["counts"]["eig d"][::-1]
    source.write_text(json.dumps(document))
    assert claims.main(["--from", str(source), "--out", str(tmp_path / "new")]) == 1


def test_figures_have_every_series(document):
    figure = claims_plots.laws(document, "seconds-2")
    drawn = sum(len(axes.get_legend().get_texts()) for axes in figure.axes if axes.get_legend())
    assert drawn == len([each for each in verdicts.exponents(document)
                         if each.kind == "seconds" and each.threads == 2])


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.key)
def test_laws_are_on_their_side(law):
    for shapes in (law.shapes(True), law.shapes(False), law.counted(True), law.counted(False)):
        assert len(shapes) >= fits.LEAST
        assert law.along(shapes) == sorted(law.along(shapes))
        for rows, columns in shapes:
            assert (rows < columns) == (law.side == "wide")


def test_points_take_turns():
    calls = []
    points = [claims.Point(lambda name=name: calls.append(name), []) for name in "AB"]
    claims.timed(points, claims.Effort(least=2, most=2, budget=60.0, sample=0.0, pause=0.0))
    assert calls == ["A", "B"] * 3
    assert [len(point.seconds) for point in points] == [2, 2]
    busy = claims.Point(lambda: calls.append("C"), [])
    claims.timed([busy], claims.Effort(least=2, most=2, budget=0.0, sample=0.0, pause=0.0))
    assert calls[6:] == ["C"]
    assert len(busy.seconds) == 1


def test_exact_singular_values():
    X = np.diag([3.0, 2.0, 0.5]) @ np.array([[0.6, 0.8, 0], [-0.8, 0.6, 0], [0, 0, 1]])
    assert [float(value) for value in accuracy.exact(X)] == pytest.approx([3, 2, 0.5], rel=2 * EPS)


def test_instructions_are_counted_or_refused():
    try:
        counter = instructions.Counter(instructions.SOFTWARE, instructions.TASK_CLOCK)
    except OSError as error:
        pytest.skip(f"perf_event_open: {error}")
    try:
        short, long = (counter.of(lambda n=n: sum(range(n))) for n in (10**4, 10**6))
    finally:
        counter.close()
    assert 0 < short < long


def test_the_routine_that_numpy_calls_is_found():
    assert instructions.routine("eig") is None or "dsyevd" in instructions.routine("eig")
