"""scikit-learn's own tests with fastdr in the place of its classes: see tests/peers."""

import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).parent / "peers" / "run_sklearn_suite.py"


@pytest.mark.parametrize("judged", [
    ({"a.py::t[1]": "failed", "a.py::u": "passed"}, ["a.py::t[*]"], []),
    ({"a.py::t[1]": "failed", "a.py::t[2]": "passed"}, ["a.py::t[*]"], ["listed, but it passes"]),
    ({"a.py::t": "failed", "a.py::u": "passed"}, [], ["fails, and is not listed"]),
    ({"a.py::t": "skipped"}, ["a.py::t"], []),
    ({}, [], ["only 0 of 0"])], ids=str)
def test_the_judge(judged, monkeypatch):
    monkeypatch.syspath_prepend(RUNNER.parent)
    import run_sklearn_suite
    outcomes, listed, wrong = judged
    many = {f"b.py::{number}": "passed" for number in range(30)} if len(outcomes) else {}
    found = run_sklearn_suite.judged(outcomes | many, dict.fromkeys(listed, "why"))
    assert len(found) == len(wrong)
    assert all(text.startswith(words) for text, words in zip(found, wrong, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("names", [["PCA", "IncrementalPCA"], ["TruncatedSVD"], ["FastICA"],
                                   ["LinearDiscriminantAnalysis"]], ids=" ".join)
def test_scikit_learns_tests_pass(names):
    chosen = ["-k", "not test_pca_sparse"] if "PCA" in names else []  # a minute of its own code
    done = subprocess.run([sys.executable, str(RUNNER), *names, *chosen], capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
