"""The command: what it writes and prints, its exit codes, and what an interruption leaves."""

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import warnings
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

import fastdr
from fastdr.files import SUFFIXES, open_source
from fastdr.sinks import open_sink

testing = pytest.importorskip("typer.testing")
from fastdr.cli import application  # noqa: E402

COMMAND = [sys.executable, "-P", "-c", "from fastdr.cli import main; main()"]
NAMES = ["a", "b", "c", "d"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def X():
    return np.random.default_rng(2).standard_normal((60, 4)) * [4, 3, 2, 1] + 1e4


def write(path, X, columns=None):
    with open_sink(path, columns) as sink:
        for start in range(0, len(X), 25):
            sink.write(X[start:start + 25])


def read(path):
    return np.concatenate(list(open_source(path).blocks()))


def run(*arguments):
    """Run the command in this process; return its outcome."""
    return testing.CliRunner().invoke(application(), [str(text) for text in arguments])


def ok(*arguments):
    outcome = run(*arguments)
    assert outcome.exit_code == 0, outcome.output
    assert max(map(len, outcome.stdout.splitlines()), default=0) <= 80
    return outcome.stdout


def bad(words, *arguments, code=1):
    outcome = run(*arguments)
    assert outcome.exit_code == code, outcome.output
    assert outcome.stdout == ""
    if code == 1:
        assert outcome.stderr.startswith("fastdr: error: ")
        assert outcome.stderr.count("\n") == 1
    assert words in outcome.stderr, outcome.stderr


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_fit_transform_reconstruct_in_every_format(X, suffix):
    write(f"rows{suffix}", X, NAMES)
    text = ok("fit", f"rows{suffix}", "-k", 2, "-o", "m.fdr")
    assert "60 rows x 4 features, 2 components" in text
    pca = fastdr.PCA(2).fit(X)
    np.testing.assert_allclose(fastdr.load("m.fdr").variances, pca.explained_variance_, rtol=1e-12)
    assert ok("transform", "m.fdr", f"rows{suffix}", "-o", f"z{suffix}") == (
        f"60 rows x 2 columns written to z{suffix}\n")
    Z = pca.transform(X)
    np.testing.assert_allclose(read(f"z{suffix}"), Z, atol=1e-9)
    if suffix in {".csv", ".csv.gz", ".parquet"}:
        assert open_source(f"z{suffix}").columns == ["pc1", "pc2"]
    text = ok("reconstruct", "m.fdr", f"rows{suffix}", "-o", f"back{suffix}")
    np.testing.assert_allclose(read(f"back{suffix}"), pca.inverse_transform(Z), atol=1e-9)
    assert f"{pca.reconstruction_error(X):.6g}" in text
    ok("reconstruct", "m.fdr", f"z{suffix}", "--scores", "-o", f"again{suffix}")
    np.testing.assert_allclose(read(f"again{suffix}"), read(f"back{suffix}"), atol=1e-9)
    if suffix in {".csv", ".csv.gz", ".parquet"}:
        assert open_source(f"again{suffix}").columns == NAMES


@pytest.mark.parametrize(("given", "kept"), [("1", 1), ("0.9", None), ("mle", None), (None, 4)])
def test_components(X, given, kept):
    write("rows.npy", X)
    ok("fit", "rows.npy", "-o", "m.fdr", *(["-k", given] if given else []))
    n_components = {"0.9": 0.9, "mle": "mle"}.get(given, kept)
    assert len(fastdr.load("m.fdr").variances) == fastdr.PCA(n_components).fit(X).n_components_


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_no_components(X, suffix):
    write("rows.npy", X)
    ok("fit", "rows.npy", "-k", 0, "-o", "m.fdr")
    assert ok("transform", "m.fdr", "rows.npy", "-o", f"z{suffix}").startswith("60 rows x 0 col")
    for memory in ([], ["--memory", "1kB"]):
        ok("reconstruct", "m.fdr", f"z{suffix}", "--scores", "-o", "back.npy", *memory)
        np.testing.assert_allclose(read("back.npy"), np.tile(X.mean(axis=0), (60, 1)))
    bad("0 feature(s)", "fit", f"z{suffix}", "-o", "n.fdr")


def test_options_reach_the_estimator(X):
    write("rows.npy", X)
    ok("fit", "rows.npy", "-o", "m.fdr", "--whiten", "zca", "--standardize", "--solver", "svd",
       "--threads", 1)
    assert fastdr.get_num_threads() == 1
    model = fastdr.load("m.fdr")
    assert model.whiten == "zca"
    assert model.scale is not None
    expected = fastdr.PCA(whiten="zca", standardize=True, svd_solver="svd").fit(X).transform(X)
    np.testing.assert_allclose(model.transform(X), expected, atol=1e-12)


def test_members(X):
    np.savez("rows.npz", first=X, second=X[:, :3])
    bad("choose one member", "fit", "rows.npz", "-o", "m.fdr")
    ok("fit", "rows.npz", "--member", "second", "-o", "m.fdr")
    assert len(fastdr.load("m.fdr").mean) == 3


def test_json_is_one_object_for_machines(X):
    write("rows.csv", X, NAMES)
    found = json.loads(ok_json("fit", "rows.csv", "-k", 2, "-o", "m.fdr", "--json"))
    pca = fastdr.PCA(2).fit(X)
    assert found["model"] == "m.fdr"
    assert (found["rows"], found["features"], found["components"]) == (60, 4, 2)
    np.testing.assert_allclose(found["variances"], pca.explained_variance_)
    np.testing.assert_allclose(found["ratios"], pca.explained_variance_ratio_)
    described = json.loads(ok_json("info", "m.fdr", "--json"))
    assert {name: found[name] for name in described} == described
    outcome = json.loads(ok_json("transform", "m.fdr", "rows.csv", "-o", "z.npy", "--json"))
    assert outcome == {"output": "z.npy", "rows": 60, "columns": 2}
    outcome = json.loads(ok_json("reconstruct", "m.fdr", "rows.csv", "-o", "b.npy", "--json"))
    assert outcome["mean_squared_distance"] == pytest.approx(pca.reconstruction_error(X))


def ok_json(*arguments):
    outcome = run(*arguments)
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout.count("\n") == 1
    return outcome.stdout


@pytest.mark.parametrize("scale", [1e200, 1e-200])
@pytest.mark.parametrize("k", [2, 4])
def test_variances_that_no_float_holds(X, scale, k):
    write("rows.npy", (X - 1e4) * scale)
    found = json.loads(ok_json("fit", "rows.npy", "-k", k, "-o", "m.fdr", "--json"))
    assert found["variances"] == [None if scale > 1 else 0.0] * k
    known = json.loads(ok_json("info", "m.fdr", "--json"))
    assert known["total_variance"] == (None if scale > 1 else 0.0)
    assert known["ratios"] == found["ratios"]
    text = ok("info", "m.fdr")
    assert "inf" not in text
    told = re.search(r"^ +1 +(\S+) +\d\.\de[+-]\d{3} ", text, re.MULTILINE)[1]
    true = np.linalg.eigvalsh(np.cov(X, rowvar=False))
    assert float(Decimal(told) / Decimal(scale)**2) == pytest.approx(true[-1], rel=1e-6)
    total = re.search(r"^total variance  (\S+)$", text, re.MULTILINE)[1]
    assert float(Decimal(total) / Decimal(scale)**2) == pytest.approx(true.sum(), rel=1e-4)
    assert re.search(r"intervals at most [1-9]\.\de[+-]\d{3}\s+wide", text)


@pytest.mark.parametrize("scale", [1e200, 1, 1e-200])
@pytest.mark.parametrize("options", [[], ["--standardize"]])
def test_losses_that_no_float_holds(X, scale, options):
    X = X - 1e4
    write("rows.npy", X * scale)
    ok("fit", "rows.npy", "-k", 2, "-o", "m.fdr", *options)
    told = re.search(r"original rows: (\S+)$", ok("reconstruct", "m.fdr", "rows.npy", "-o",
                                                  "back.npy"), re.MULTILINE)[1]
    true = np.square(X - read("back.npy") / scale).sum(axis=1).mean()
    assert float(Decimal(told) / Decimal(scale)**2) == pytest.approx(true, rel=1e-5)  # 6 digits
    told = json.loads(ok_json("reconstruct", "m.fdr", "rows.npy", "-o", "back.npy", "--json"))
    assert told["mean_squared_distance"] == (
        pytest.approx(true, rel=1e-9) if scale == 1 else None if scale > 1 else 0.0)


def test_info(X):
    write("rows.npy", np.hstack([X] * 4))
    ok("fit", "rows.npy", "-o", "m.fdr")
    text = ok("info", "m.fdr")
    assert "rows            60\n" in text
    assert "rank            4\n" in text
    assert "(6 more)" in text
    assert "more)" not in ok("info", "m.fdr", "--all")


def test_faults_are_one_line_and_exit_code_1(X):
    bad("none.npy: no such file", "fit", "none.npy", "-o", "m.fdr")
    bad("unknown suffix '.txt'; allowed are .npy,", "fit", "x.txt", "-o", "m.fdr")
    Path("x.csv").write_text("a,b\n1,2\n3,\n")
    bad("x.csv: line 3, column 2 ('b') is blank", "fit", "x.csv", "-o", "m.fdr")
    write("rows.npy", X)
    bad("--components 9 must be between 0 and", "fit", "rows.npy", "-k", 9, "-o", "m.fdr")
    assert not Path("m.fdr").exists()
    bad("m.fdr", "info", "m.fdr")
    Path("m.fdr").write_text("not a model")
    bad("m.fdr", "info", "m.fdr")
    bad("m.fdr", "transform", "m.fdr", "rows.npy", "-o", "z.npy")
    bad("no such", "fit", "rows.npy", "-o", "none/m.fdr")


@pytest.mark.parametrize("command", [["fit"], ["transform", "none.fdr"],
                                     ["reconstruct", "none.fdr"], ["plot", "none.fdr"]])
@pytest.mark.parametrize(("output", "words"), [
    (".", "is a directory"), ("folder.png", "is a directory"), ("none/z.png", "no such directory"),
    ("pipe.png", "is a device, a pipe")])
def test_outputs_are_judged_before_anything_is_read(command, output, words):
    Path("folder.png").mkdir()
    if output == "pipe.png":
        if not hasattr(os, "mkfifo"):
            pytest.skip("Windows has no pipes in folders")
        os.mkfifo(output)
    bad(f"error: {output}: {words}", *command, "none.npy", "-o", output)


@pytest.mark.parametrize(("command", "output"), [
    ("fit rows.npy", "rows.npy"), ("fit link.npy", "rows.npy"), ("fit rows.npy", "link.npy"),
    ("fit folder", "folder/part.npy"), ("fit words.txt --text", "words.txt"),
    ("transform m.npy rows.npy", "m.npy"), ("transform m.npy rows.npy", "rows.npy"),
    ("reconstruct m.npy rows.npy", "rows.npy"), ("reconstruct m.npy rows.npy", "m.npy"),
    ("plot m.npy rows.npy", "rows.npy"), ("plot m.npy", "m.npy"),
    ("plot m.npy rows.npy --labels words.txt", "words.txt")])
def test_what_is_read_is_not_written_over(X, command, output):
    write("rows.npy", X)
    fastdr.PCA(2).fit(X).model_.save("m.npy")
    Path("words.txt").write_text("one text")
    Path("link.npy").symlink_to("rows.npy")
    Path("folder").mkdir()
    write("folder/part.npy", X)
    before = Path(output).read_bytes()
    bad("and would be replaced; write to another file", *command.split(), "-o", output)
    assert Path(output).read_bytes() == before


def test_outputs_beside_what_is_read(X):
    Path("folder").mkdir()
    write("folder/part.npy", X)
    for _ in range(2):
        ok("fit", "folder", "-o", "folder/m.fdr")
        ok("transform", "folder/m.fdr", "folder", "-o", "folder/z.csv")


def test_headers_that_are_numbers(X):
    np.savetxt("years.csv", X, "%.17g", ",", header="2019,2020,2021,2022", comments="")
    assert "60 rows x 4 features" in ok("fit", "years.csv", "-k", 2, "-o", "m.fdr", "--header")
    assert fastdr.load("m.fdr").feature_names == ("2019", "2020", "2021", "2022")
    assert "61 rows" in ok("fit", "years.csv", "-k", 2, "-o", "n.fdr", "--no-header")
    assert ok("plan", "years.csv", "--header")
    for command in ("transform", "reconstruct"):
        assert "60 rows" in ok(command, "m.fdr", "years.csv", "--header", "-o", "z.npy")
    Path("whole.csv").write_text("0,1\n2,3\n4,7\n")
    bad("whole.csv: line 1, 0,1, may be names or a row", "fit", "whole.csv", "-o", "m.fdr")


def test_columns_must_be_those_of_the_fit(X):
    write("rows.csv", X, NAMES)
    ok("fit", "rows.csv", "-k", 2, "-o", "m.fdr")
    write("other.csv", X, ["a", "c", "b", "d"])
    bad("other.csv: column 2 is 'c', but the model was fitted to 'b' there",
        "transform", "m.fdr", "other.csv", "-o", "z.csv")
    write("three.npy", X[:, :3])
    bad("three.npy: has 3 columns, but the model was fitted to 4 features",
        "reconstruct", "m.fdr", "three.npy", "-o", "z.csv")
    bad("Z has 3 columns, but this model has 2",
        "reconstruct", "m.fdr", "three.npy", "--scores", "-o", "z.csv")
    assert not Path("z.csv").exists()


def test_names_with_commas_are_quoted(X):
    write("rows.csv", X, ["a,b", "c", 'd"', "e"])
    for given, names in (("c, e", ["c", "e"]), ('"a,b",e', ["a,b", "e"]), ('d"', ['d"'])):
        ok("fit", "rows.csv", "--columns", given, "-k", 1, "-o", "m.fdr")
        assert fastdr.load("m.fdr").feature_names == tuple(names)
    bad("rows.csv: has no column ''", "fit", "rows.csv", "--columns", "", "-o", "m.fdr")
    bad("--columns", "fit", "rows.csv", "--columns", "c\ne", "-o", "m.fdr", code=2)


def test_faulty_rows_are_named_by_their_place_in_the_file(X, monkeypatch):
    write("rows.parquet", X, NAMES)
    ok("fit", "rows.parquet", "-o", "m.fdr")
    X[57, 2] = np.nan
    write("bad.parquet", X, NAMES)
    Path("z.npy").write_bytes(b"old")
    monkeypatch.setattr("fastdr.files.default_rows", lambda *_: 40)  # batches of ten rows
    where = "bad.parquet: row 57, column 2 ('c') is nan; remove or impute"
    bad(where, "fit", "bad.parquet", "-o", "n.fdr")
    bad(where, "transform", "m.fdr", "bad.parquet", "-o", "z.npy")
    assert Path("z.npy").read_bytes() == b"old"
    assert not Path("n.fdr").exists()


def test_warnings_are_one_line(X, monkeypatch):
    fastdr.PCA().fit(X).model_.save("m.fdr")

    def doubtful(path):
        warnings.warn("of two\nlines: n_components=3", fastdr.AccuracyWarning, stacklevel=1)
        return fastdr.load(path)

    monkeypatch.setattr("fastdr.cli.load_values", doubtful)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        outcome = run("info", "m.fdr")
    assert outcome.stderr == "fastdr: warning: of two lines: --components 3\n"
    assert outcome.exit_code == 0
    assert "certificate: proved" in outcome.stdout


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
def test_missing_cells(X, suffix):
    X[[3, 40], [1, 2]] = np.nan
    path = Path(f"rows{suffix}")
    if suffix == ".csv":
        np.savetxt(path, X, "%.17g", ",")
        path.write_text(path.read_text().replace("nan", ""))
    elif suffix == ".parquet":
        pytest.importorskip("pandas").DataFrame(X, columns=NAMES).to_parquet(path)
    else:
        np.save(path, X)
    assert "60 rows x 4 features, 2 components" in ok("fit", path, "-k", 2, "--missing",
                                                      "-o", "m.fdr")
    pca = fastdr.PCA(2, missing="em").fit(X)
    np.testing.assert_allclose(fastdr.load("m.fdr").components, pca.components_, atol=1e-12)
    ok("transform", "m.fdr", path, "--missing", "-o", "z.npy")
    np.testing.assert_allclose(np.load("z.npy"), pca.transform(X), atol=1e-9)
    for command in (["fit", path, "-k", 2, "-o", "n.fdr"],
                    ["transform", "m.fdr", path, "-o", "z.npy"]):
        outcome = run(*command)
        assert outcome.exit_code == 1
        assert "remove or impute" in outcome.stderr.lower()
    bad("--missing reads all rows here", "fit", path, "-k", 2, "--missing", "-o", "n.fdr", "--dask",
        "tcp://127.0.0.1:1")


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
def test_advice_is_of_options_that_a_command_has(X, suffix):
    pandas = pytest.importorskip("pandas")
    fastdr.PCA().fit(X).model_.save("m.fdr")
    X[3, 1] = np.nan
    frame = pandas.DataFrame(X, columns=NAMES)
    if suffix == ".npy":
        np.save("gap.npy", X)
    else:
        (frame.to_csv if suffix == ".csv" else frame.to_parquet)(f"gap{suffix}", index=False)
    for command in (["fit"], ["transform", "m.fdr"]):
        bad("first, or let them be missing (missing=True, --missing).", *command, f"gap{suffix}",
            "-o", "z.npy")
    for command, output in ((["reconstruct", "m.fdr"], "z.npy"),
                            (["plot", "m.fdr", "--kind", "scores"], "z.png")):
        bad("first.\n", *command, f"gap{suffix}", "-o", output)


def test_an_infinity_is_named_among_missing_cells(X):
    X[[3, 5], [1, 2]] = np.nan, np.inf
    np.save("x.npy", X)
    bad("x.npy: row 5, column 2 is inf; remove or impute such values first.", "fit", "x.npy",
        "--missing", "-k", 2, "-o", "m.fdr")


@pytest.mark.parametrize("arguments", [
    ["fit", "rows.npy"], ["fit", "-o", "m.fdr"], ["fit", "rows.npy", "-o", "m.fdr", "-k", "1.5"],
    ["fit", "rows.npy", "-o", "m.fdr", "-k", "some"], ["fit", "rows.npy", "-o", "m", "--bad"],
    ["fit", "rows.npy", "-o", "m.fdr", "--whiten", "no"], ["nonsense"],
    ["fit", "rows.npy", "-o", "m.fdr", "--threads", "0"], ["transform", "m.fdr", "rows.npy"],
    ["fit", "rows.npy", "-o", "m.fdr", "-k", "-1"], ["fit", "rows.npy", "-o", "m.fdr", "-k", "nan"],
    ["plan", "rows.npy", "-k", "-1"], ["plan", "rows.npy", "--memory", "much"],
    ["fit", "rows.npy", "-o", "m.fdr", "--memory", "0"],
    ["transform", "m.fdr", "rows.npy", "-o", "z.npy", "--memory", "-1MB"],
    ["reconstruct", "m.fdr", "rows.npy", "-o", "z.npy", "--memory", "1 meter"],
    ["fit", "rows.npy", "-o", "m.fdr", "--checkpoint", "nan"],
    ["fit", "rows.npy", "-o", "m.fdr", "--dask-timeout", "nan"],
    ["fit", "rows.npy", "-o", "m.fdr", "--weighting", "none"],
    *(["fit", "texts.txt", "--text", "-o", "m.fdr", *option] for option in (
        ["--whiten", "pca"], ["--standardize"], ["--solver", "svd"], ["--missing"], ["--no-header"],
        ["--member", "X"], ["--columns", "a"], ["--memory", "1GB"], ["--dask", "tcp://h"])),
])
def test_usage_is_exit_code_2(X, arguments):
    write("rows.npy", X)
    fastdr.PCA(2).fit(X).model_.save("m.fdr")
    bad("Usage: ", *arguments, code=2)


@pytest.mark.parametrize("options", [[], ["--missing"], ["-k", "1", "--solver", "lanczos"]])
@pytest.mark.parametrize("name", ["one.npy", "one.csv"])
def test_a_single_row(X, name, options):
    write(name, X[:1])
    bad(f"error: {name}: has 1 row; at least two are needed.", "fit", name, "-o", "m.fdr", *options)


def test_options_are_called_as_in_the_shell(X):
    X[1:, 1], X[0] = np.nan, 3
    np.save("x.npy", X)
    bad("column 1 varies (24.6 % of all cells are missing). Leave such columns out.\n", "fit",
        "x.npy", "--missing", "-k", 1, "-o", "m.fdr")
    X[:, 1], X[2] = 1, np.nan
    np.save("x.npy", X)
    bad("Leave such rows out.\n", "fit", "x.npy", "--missing", "-k", 1, "-o", "m.fdr")
    write("rows.npy", X[3:])
    bad("with --solver 'lanczos'; use", "fit", "rows.npy", "-k", "mle", "--solver", "lanczos",
        "-o", "m.fdr")


def test_help_fits_80_columns():
    for name in ([], ["fit"], ["transform"], ["reconstruct"], ["info"], ["demo"]):
        assert "Usage: " in ok(*name, "--help")


def test_the_installed_script():
    script = Path(sysconfig.get_path("scripts")) / "fastdr"
    if not script.exists():
        pytest.skip("fastdr is not installed with its script")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"fastdr {fastdr.__version__}\n"


def test_the_module():
    done = subprocess.run([sys.executable, "-P", "-m", "fastdr", "--version"], capture_output=True,
                          text=True, check=True)
    assert done.stdout == f"fastdr {fastdr.__version__}\n"


INTERRUPTED = """
import sys
class Finder:
    def find_spec(self, name, *_):
        if name == "fastdr.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
from fastdr.__main__ import main
main()
"""


def test_an_interruption_while_modules_are_imported():
    done = subprocess.run([sys.executable, "-P", "-c", INTERRUPTED], check=False, text=True,
                          capture_output=True)
    assert done.stderr == "fastdr: interrupted; nothing was written\n"
    assert done.returncode == 130


@pytest.mark.parametrize("options", [["--all"], ["--json"], []])
def test_nobody_reads_what_is_printed(X, options):
    fastdr.PCA().fit(X).model_.save("m.fdr")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, "info", "m.fdr", *options], stdout=writer, check=False,
                          stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 1


def test_without_typer():
    code = "import sys; sys.modules['typer'] = None; from fastdr.cli import main; main()"
    done = subprocess.run([sys.executable, "-P", "-c", code, "info", "m.fdr"], check=False,
                          capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == ('fastdr: the command line needs typer; run: pip install "fastdr[cli]"\n')


def test_progress_goes_to_stderr_when_asked(X):
    write("rows.npy", X)
    quiet = run("fit", "rows.npy", "-o", "m.fdr")
    assert quiet.stderr == ""  # not a terminal
    shown = run("transform", "m.fdr", "rows.npy", "-o", "z.npy", "--progress")
    assert "60.0/60.0" in shown.stderr
    assert shown.stdout == "60 rows x 4 columns written to z.npy\n"


def start(*arguments):
    """Start the command and wait until it has begun to write."""
    # In the background or under nohup we may ignore these, and our children would inherit that.
    def heed():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    process = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True,
                               preexec_fn=heed)
    for _ in range(6000):
        if list(Path().glob(".z.csv.*.part")):
            return process
        time.sleep(0.01)
    process.kill()
    raise AssertionError("did not begin to write")


@pytest.mark.parametrize(("number", "code"), [
    (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)])
def test_interruption_leaves_the_old_output(X, number, code):
    write("rows.npy", X)
    ok("fit", "rows.npy", "-o", "m.fdr")
    np.lib.format.open_memmap("big.npy", "w+", "f8", (4_000_000, 4)).flush()
    Path("z.csv").write_text("old")
    process = start("transform", "m.fdr", "big.npy", "-o", "z.csv")
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert Path("z.csv").read_text() == "old"
    if number != signal.SIGKILL:
        assert not list(Path().glob(".z.csv.*"))
    if number == signal.SIGINT:
        assert errors == "fastdr: interrupted; nothing was written\n"


LIMITED = """
import resource, sys
import fastdr.cli, sklearn.decomposition, scipy.linalg
import numpy as np
fastdr.PCA().fit(np.eye(3) + 1).transform(np.eye(3))
used = int(next(l for l in open("/proc/self/status") if l.startswith("VmData")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (used + (150 << 20),) * 2)
fastdr.cli.main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_DATA as Linux counts it")
def test_files_larger_than_the_memory_allowed():
    rows = np.lib.format.open_memmap("big.npy", "w+", "f8", (600_000, 64))  # 293 MiB, sparse
    rows[:200] = np.random.default_rng(0).standard_normal((200, 64))
    rows.flush()
    for arguments in (["fit", "big.npy", "-k", "3", "-o", "m.fdr"],
                      ["transform", "m.fdr", "big.npy", "-o", "z.npy"],
                      ["reconstruct", "m.fdr", "big.npy", "-o", "back.npy"]):
        done = subprocess.run([sys.executable, "-P", "-c", LIMITED, *arguments], check=False,
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert np.load("back.npy", mmap_mode="r").shape == (600_000, 64)
    assert len(fastdr.load("m.fdr").variances) == 3


def test_demo(tmp_path):
    pytest.importorskip("matplotlib")
    text = ok("demo", "--output", "out")
    assert "1797 rows x 64 features" in text
    assert {path.name for path in Path("out").iterdir()} == {
        "digits.fdr", "digits.npy", "scree.png", "digits.png"}
    assert fastdr.load("out/digits.fdr").rank == 61
    losses = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()
              and len(line.split()) == 4]
    assert [int(row[0]) for row in losses] == [1, 2, 4, 8, 16, 32, 61]
    for row in losses:  # seed S10: the loss is the sum of the eigenvalues left out
        assert float(row[1]) == pytest.approx(float(row[2]), abs=1e-9)
        assert float(row[3]) < 1e-13
    for line in text.splitlines():  # what it proposes to do next works
        if line.startswith("  fastdr "):
            ok(*line.split()[1:])


def test_demo_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    outcome = run("demo", "--output", "out")
    assert outcome.exit_code == 0
    assert 'need matplotlib; run: pip install "fastdr[plot]"' in outcome.stderr
    assert {path.name for path in Path("out").iterdir()} == {"digits.fdr", "digits.npy"}


def test_plan_tells_what_a_fit_would_do(X):
    write("rows.npy", X)
    printed = ok("plan", "rows.npy", "-k", "2")
    assert "60 rows x 4 features" in printed
    for name in ("solver", "works on", "passes", "flops", "memory", "time", "proof"):
        assert f"\n{name} " in printed
    known = json.loads(run("plan", "rows.npy", "-k", "2", "--solver", "lanczos",
                           "--json").stdout)
    assert known["solver"] == "lanczos"
    assert known["seconds"] > 0
    assert not Path("model.fdr").exists()
    X[0, 1] = np.nan
    write("gaps.npy", X)
    assert "if cells are missing, em" in " ".join(ok("plan", "gaps.npy", "--missing").split())
    bad("nothing fits in 1 kB beyond the data: 4 axes need lapack on covariance",
        "plan", "rows.npy", "--memory", "1kB")
    bad("nothing fits in 1 kB", "fit", "rows.npy", "-o", "model.fdr", "--memory", "1kB")


def test_variances_have_certified_intervals(X):
    write("rows.npy", X)
    for printed in (ok("fit", "rows.npy", "-k", "2", "-o", "model.fdr"), ok("info", "model.fdr")):
        assert "certified +/-" in printed
        assert "certificate: proved (complete)" in printed
    told = json.loads(run("info", "model.fdr", "--json").stdout)["certificate"]
    true = np.linalg.eigvalsh(np.cov(X, rowvar=False))[:1:-1]
    assert (np.array(told["lower"]) <= true).all()
    assert (true <= np.array(told["upper"])).all()


@pytest.mark.parametrize("rule", ["mle", "gavish-donoho", "parallel"])
def test_rules_choose_the_number(X, rule):
    write("rows.npy", X)
    known = json.loads(run("fit", "rows.npy", "-k", rule, "-o", "model.fdr", "--json").stdout)
    assert known["components"] == fastdr.PCA(rule).fit(X).n_components_
