"""README.md: its Python runs and prints what it shows; its commands and those of the docs exist."""

import doctest
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

README = Path(__file__).parent.parent / "README.md"
SHELL = README.parent / "docs" / "guide" / "shell.md"
pytestmark = pytest.mark.skipif(not README.exists(), reason="README.md is not beside the tests")


def blocks(language, page=README):
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"```(?:{{code-block}} )?{language}\n(.*?)```", text, re.DOTALL)


def test_python_blocks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "\n".join(blocks("python"))
    assert text.count(">>>") > 10
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    runner.run(doctest.DocTestParser().get_doctest(text, {}, "README.md", str(README), 0))
    assert runner.failures == 0


def test_the_two_commands_are_there_as_promised():
    text = "\n".join(blocks("bash"))
    assert 'pip install ".[cli,plot]" && fastdr demo\n' in text
    assert 'pip install ".[test]" && pytest\n' in text


@pytest.mark.parametrize("page", [README, SHELL], ids=["README", "docs"])
def test_shown_commands_work(page, tmp_path, monkeypatch):
    """Run each line ``fastdr …`` of a page in order, on small files of the names it uses.

    Those for a cluster are run by test_dask_cluster.py.
    """
    testing = pytest.importorskip("typer.testing")
    from fastdr.cli import application
    from fastdr.sinks import open_sink

    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(1).standard_normal((50, 12)) @ np.diag(np.arange(1.0, 13))
    for name in ("rows.csv", "rows.npy", "rows.parquet", "new.parquet"):
        with open_sink(name, [f"x{index}" for index in range(12)]) as sink:
            sink.write(X)
    with pytest.importorskip("h5py").File("big.h5", "w") as file:
        file["X"] = X
    Path("parts").mkdir()
    with open_sink("parts/1.parquet", ["height", "depth", "width"]) as sink:
        sink.write(X[:, :3])
    Path("docs.txt").write_text("real estate, houses\nhouses of brick\ngoals in a match\n")
    lines = [line for text in blocks("bash", page) for line in text.splitlines()
             if re.match(r"fastdr (?!demo)", line) and "--dask" not in line]
    assert len(lines) >= 4
    for line in lines:
        command = shlex.split(line.partition("  #")[0])[1:]
        outcome = testing.CliRunner().invoke(application(), command)
        assert outcome.exit_code == 0, f"{line}\n{outcome.output}"


def test_bench_table_has_its_place():
    text = README.read_text(encoding="utf-8")
    assert text.index("<!-- bench:begin -->") < text.index("<!-- bench:end -->")


def test_links_to_files_lead_somewhere():
    for target in re.findall(r"\]\((?!https?:|#)([^)]+)\)", README.read_text(encoding="utf-8")):
        assert (README.parent / target.partition("#")[0]).exists(), target
