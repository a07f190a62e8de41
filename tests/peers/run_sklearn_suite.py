"""Run the tests of the installed scikit-learn with fastdr in the place of its classes.

``python tests/peers/run_sklearn_suite.py [class ...]``. Exit code 1 if a test fails that
known_differences.toml does not list, or one passes that it lists, or fewer than 95 % of all pass.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tomllib
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import sklearn
from sklearn.utils.fixes import parse_version

import fastdr
from fastdr.backend import REPLACED

LISTED = Path(__file__).with_name("known_differences.toml")
FILES = {
    "PCA": "sklearn.decomposition.tests.test_pca",
    "IncrementalPCA": "sklearn.decomposition.tests.test_incremental_pca",
    "TruncatedSVD": "sklearn.decomposition.tests.test_truncated_svd",
    "FastICA": "sklearn.decomposition.tests.test_fastica",
    "LinearDiscriminantAnalysis": "sklearn.tests.test_discriminant_analysis",
}
LEAST = 0.95  # of the tests that are not skipped


class Outcomes:
    """A pytest plugin that keeps the outcome of each test, as file.py::test[case]."""

    def __init__(self) -> None:
        self.of: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.rpartition("/")[2]
        if report.when == "call" or report.outcome != "passed":
            earlier = self.of.get(name)
            self.of[name] = "failed" if "failed" in (earlier, report.outcome) else report.outcome


def reasons() -> dict[str, str]:
    """Return the tests listed for the installed version, by pattern, with the reason of each."""
    listed = tomllib.loads(LISTED.read_text(encoding="utf-8"))
    return {f"{file}::{test}": entry["reason"] for file, tests in listed.items()
            for test, entry in tests.items()
            if parse_version(sklearn.__version__) < parse_version(entry.get("before", "99"))}


def literally(pattern: str) -> str:
    """Return a pattern in which only * is special."""
    return pattern.replace("[", "[[]").replace("?", "[?]")


def judged(outcomes: dict[str, str], listed: dict[str, str], least: float = LEAST) -> list[str]:
    """Return what is wrong: failures without a reason, reasons without a failure, too many."""
    ran = Counter(outcome for outcome in outcomes.values() if outcome != "skipped")
    wrong = []
    excused = set()
    for pattern in listed:
        matched = {name for name in outcomes if fnmatchcase(name, literally(pattern))}
        excused |= matched
        wrong += [f"listed, but it passes: {name}" for name in sorted(matched)
                  if outcomes[name] == "passed"]
    wrong += [f"fails, and is not listed: {name}" for name, outcome in outcomes.items()
              if outcome == "failed" and name not in excused]
    if ran["passed"] < least * ran.total() or not ran["passed"]:
        wrong.append(f"only {ran['passed']} of {ran.total()} tests pass")
    return wrong


def run(classes: list[str], chosen: str = "", quiet: bool = True
        ) -> tuple[dict[str, str], list[str]]:
    """Run the tests of `classes` patched; return the outcome of each, and what is wrong."""
    plugin = Outcomes()
    os.environ.setdefault("SKLEARN_RUN_FLOAT32_TESTS", "1")
    home = str(Path(sklearn.__file__).parent)
    arguments = ["-c", os.devnull, "--rootdir", home, "-p", "no:cacheprovider", "-p", "no:xdist",
                 "-q", "--tb", "no" if quiet else "short", "-k", chosen, "--pyargs"]
    with fastdr.patched(), contextlib.chdir(home):  # away from conftest.py and settings of ours
        code = pytest.main([*arguments, *(FILES[name] for name in classes)], plugins=[plugin])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return plugin.of, [f"pytest ended with {code!r}"]
    return plugin.of, judged(plugin.of, reasons(), 0 if chosen else LEAST)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("classes", nargs="*", metavar="class", help=f"of {', '.join(FILES)}")
    parser.add_argument("-k", default="", metavar="EXPRESSION",
                        help="only tests that pytest chooses by this; their share is not judged")
    parser.add_argument("--verbose", action="store_true", help="show the traceback of failures")
    given = parser.parse_args()
    ours = [name for name in FILES if name in REPLACED]
    unknown = set(given.classes) - set(ours)
    if unknown:
        parser.error(f"not replaced by fastdr: {', '.join(sorted(unknown))}")
    outcomes, wrong = run(given.classes or ours, given.k, quiet=not given.verbose)
    counts = Counter(outcomes.values())
    print(f"scikit-learn {sklearn.__version__}: " +
          ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items())))
    print("\n".join(wrong))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
