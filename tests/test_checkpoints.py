"""A pass that stops goes on where it was, to the bit; moments in files come back to the bit."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fastdr
from fastdr import Moments, open_rows
from fastdr.checkpoints import CheckpointedSource, origin_of
from fastdr.persistence import load_moments, save
from fastdr.sources import ArraySource, BlockSource

COMMAND = [sys.executable, "-P", "-c", "from fastdr.cli import main; main()"]
PARTS = ("count", "weight", "square_weight", "mean", "scatter", "rest")


@pytest.fixture
def X(rng):
    return rng.standard_normal((1000, 4)) + 1e6


def assert_equal(found, expected):
    for name in PARTS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def breaking(X, after, step=100):
    """Return the rows in blocks, and an error after so many of them."""
    def blocks():
        for start in range(0, len(X), step):
            if start >= after:
                raise OSError("the disk is gone")
            yield X[start:start + step]

    return BlockSource(blocks, X.shape[1], len(X), X.dtype)


@pytest.mark.parametrize("dtype", ["f8", "f4", "u1"])
def test_a_broken_pass_goes_on_to_the_bit(X, tmp_path, dtype):
    X = (X - 1e6 + 10).astype(dtype)
    path, origin = tmp_path / "m.checkpoint", {"rows of": "test"}
    whole = Moments.of_source(breaking(X, len(X)))
    for after in (300, 300, 700):
        source = CheckpointedSource(breaking(X, after), path, origin, every=0)
        with pytest.raises(OSError, match="disk"):
            Moments.of_source(source)
        assert source.resumed()[0] == after
    source = CheckpointedSource(breaking(X, len(X)), path, origin, every=0)
    assert_equal(Moments.of_source(source), whole)
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.checkpoint"]
    expected = fastdr.PCA(2).fit(breaking(X, len(X)))
    np.testing.assert_array_equal(fastdr.PCA(2).fit(source).components_, expected.components_)
    source.remove()
    source.remove()
    assert not path.exists()


def test_rows_that_were_read_are_not_read_again(X, tmp_path):
    path = tmp_path / "m.checkpoint"
    save(Moments.of(X[:300]), path, {"origin": {}, "rows": 300, "precision": None})
    X[:300] = np.nan
    found = Moments.of_source(CheckpointedSource(ArraySource(X), path, {}))
    assert found.count == 1000
    X[555, 2] = np.nan
    with pytest.raises(ValueError, match="NaN at row 555, column 2"):
        Moments.of_source(CheckpointedSource(open_rows(X, block_rows=100), path, {}))
    with pytest.raises(ValueError, match="within a block"):
        Moments.of_source(CheckpointedSource(open_rows(X, block_rows=77), path, {}))


def test_checkpoints_of_other_rows_are_not_used(X, tmp_path):
    path = tmp_path / "m.checkpoint"
    for report, moments in (({"origin": {"a": 1}, "rows": 10, "precision": None}, X[:10]),
                            ({"origin": {}, "rows": 10, "precision": "double"}, X[:10]),
                            ({"origin": {}, "rows": None, "precision": None}, X[:10]),
                            ({"origin": {}, "rows": 10, "precision": None}, X[:10, :2]), ({}, X)):
        save(Moments.of(moments), path, report)
        source = CheckpointedSource(ArraySource(X), path, {})
        assert source.resumed() == (0, None)
        assert Moments.of_source(source).count == 1000


def test_a_checkpoint_that_is_none(X, tmp_path):
    path = tmp_path / "m.checkpoint"
    fastdr.PCA().fit(X).model_.save(path)
    model = path.read_bytes()
    for content in (b"", b"nonsense", model[:200], model):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"cannot be used.*Remove .*m.checkpoint to begin"):
            Moments.of_source(CheckpointedSource(ArraySource(X), path, {}))


def test_an_origin_changes_with_the_files(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"12")
    before = [origin_of(tmp_path), origin_of(tmp_path / "a.npy", member="x")]
    assert before == [origin_of(tmp_path), origin_of(tmp_path / "a.npy", member="x")]
    assert before[1] != origin_of(tmp_path / "a.npy", member="y")
    (tmp_path / "a.npy").write_bytes(b"123")
    assert before[0] != origin_of(tmp_path)
    assert before[1] != origin_of(tmp_path / "a.npy", member="x")


def test_an_output_among_the_rows_does_not_change_their_origin(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"12")
    before = origin_of(tmp_path, tmp_path / "m.fdr")
    for name in ("m.fdr", "m.fdr.checkpoint", ".m.fdr.checkpoint.7-0a.part"):
        (tmp_path / name).write_bytes(b"123")
    assert origin_of(tmp_path, tmp_path / "m.fdr") == before
    (tmp_path / "m.fdr.npy").write_bytes(b"123")
    assert origin_of(tmp_path, tmp_path / "m.fdr") != before


def test_a_fit_that_makes_no_checkpoint_leaves_that_of_another(X, tmp_path, monkeypatch):
    testing = pytest.importorskip("typer.testing")
    from fastdr.cli import application

    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    choices = dict.fromkeys(("member", "columns", "memory", "header"))
    origin = origin_of(Path("x.npy"), **choices)
    for solver, words in (("svd", ""), ("lapack", "fastdr: going on from row 300, see m.fdr")):
        save(Moments.of(X[:300]), "m.fdr.checkpoint",
             {"origin": origin, "rows": 300, "precision": None})
        done = testing.CliRunner().invoke(application(), [
            "fit", "x.npy", "-k", "2", "--solver", solver, "-o", "m.fdr"])
        assert done.exit_code == 0, done.output
        assert done.stderr.startswith(words)
        assert bool(done.stderr) == bool(words) == (not Path("m.fdr.checkpoint").exists())


def test_moments_in_files(X, tmp_path):
    weights = np.arange(1000.0) / 7
    parts = [Moments.of(X[:400], weights[:400]), Moments.of(X[400:], weights[400:])]
    for index, part in enumerate(parts):
        part.save(tmp_path / f"{index}.fdr")
        assert_equal(fastdr.load(tmp_path / f"{index}.fdr"), part)
    assert_equal(fastdr.load(tmp_path / "0.fdr") + fastdr.load(tmp_path / "1.fdr"),
                 parts[0] + parts[1])
    stream = fastdr.IncrementalPCA(2).partial_fit(fastdr.load(tmp_path / "0.fdr"))
    assert stream.n_samples_seen_ == 399
    assert load_moments(tmp_path / "0.fdr")[1] == {}


@pytest.mark.parametrize(("change", "words"), [
    ({"count": 0}, "count 0"), ({"weight": -1.0}, "impossible"), ({"weight": np.inf}, "impossible"),
    ({"square_weight": 0.0}, "impossible"), ({"rest": np.zeros(3)}, "other shapes"),
    ({"scatter": np.eye(3)}, "other shapes"), ({"scatter": -np.eye(4)}, "not be negative")],
    ids=str)
def test_impossible_moments_are_refused(X, tmp_path, change, words):
    parts = {name: getattr(Moments.of(X), name) for name in PARTS} | change
    Moments(**parts).save(tmp_path / "m.fdr")
    with pytest.raises(ValueError, match=words):
        fastdr.load(tmp_path / "m.fdr")
    parts["mean"] = np.full(4, np.nan)
    with pytest.raises(ValueError, match="mean contains NaN"):
        Moments(**parts).save(tmp_path / "m.fdr")


def started(*arguments):
    """Start the command and wait for its first checkpoint."""
    # Started in the background, we may ignore Ctrl-C and let our children inherit that.
    process = subprocess.Popen(
        [*COMMAND, *arguments], stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
    for _ in range(60_000):
        if Path("m.fdr.checkpoint").exists():
            return process
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    process.kill()
    raise AssertionError("made no checkpoint")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_command_goes_on_after_a_kill(rng, tmp_path, monkeypatch, number):
    pytest.importorskip("typer")
    monkeypatch.chdir(tmp_path)
    rows = np.lib.format.open_memmap("big.npy", "w+", "f8", (250_000, 64))  # 128 MB, sparse
    rows[::5_000] = rng.standard_normal((50, 64))
    rows.flush()
    fastdr.PCA(1).fit(rng.standard_normal((9, 2))).model_.save("m.fdr")
    old = Path("m.fdr").read_bytes()
    arguments = ["fit", "big.npy", "-k", "3", "-o", "m.fdr", "--checkpoint", "0",
                 "--memory", "80MB"]
    process = started(*arguments)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == {signal.SIGKILL: -9, signal.SIGINT: 130}[number]
    if number == signal.SIGINT:
        assert errors == "fastdr: interrupted; the same command goes on from m.fdr.checkpoint\n"
    assert Path("m.fdr").read_bytes() == old
    Path(".m.fdr.checkpoint.7-0a.part").touch()  # as of one killed while it saved
    done = subprocess.run([*COMMAND, *arguments], check=True, capture_output=True, text=True)
    assert done.stderr.startswith("fastdr: going on from row ")
    assert not Path("m.fdr.checkpoint").exists()
    resumed = fastdr.load("m.fdr")
    plain = fastdr.PCA(3).fit(CheckpointedSource(
        open_rows("big.npy", memory=20_000_000), Path("other"), {})).model_
    np.testing.assert_array_equal(resumed.components, plain.components)
    np.testing.assert_array_equal(resumed.variances, plain.variances)
    assert {entry.name for entry in Path().glob("*fdr*")} == {"m.fdr"}


def test_the_command_reads_every_kind(rng, tmp_path, monkeypatch):
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    testing = pytest.importorskip("typer.testing")
    h5py = pytest.importorskip("h5py")
    from fastdr.cli import application

    def run(*arguments):
        outcome = testing.CliRunner().invoke(application(), list(arguments))
        assert outcome.exit_code == 0, outcome.output
        return outcome

    monkeypatch.chdir(tmp_path)
    X = rng.standard_normal((300, 3)) * [3, 2, 1]
    expected = fastdr.PCA(2).fit(X).model_
    with h5py.File("x.h5", "w") as file:
        file["one"], file["two"] = X, X[:, :2]
    Path("parts").mkdir()
    for index in range(3):
        part = dict(zip("pqr", X[index::3].T, strict=True))
        parquet.write_table(pyarrow.table(part | {"s": ["x"] * 100}), f"parts/{index}.parquet")
    for arguments in (["x.h5", "--member", "one"], ["parts", "--columns", "p,q, r"],
                      ["parts", "--columns", "p,q,r", "--memory", "60MB", "--progress"]):
        fitted = run("fit", *arguments, "-k", "2", "-o", "m.fdr")
        assert "/s" not in fitted.stdout  # 7 kB in no time say nothing of speed
        np.testing.assert_allclose(fastdr.load("m.fdr").variances, expected.variances, rtol=1e-12)
        run("transform", "m.fdr", *[text for text in arguments if text != "--progress"],
            "-o", "z.npy", "--progress")
    assert "MB/s" in run("transform", "m.fdr", "x.h5", "--member", "one", "-o", "z.npy",
                         "--progress").stderr
    np.testing.assert_allclose(np.abs(np.load("z.npy")), np.abs(
        fastdr.load("m.fdr").transform(X)), rtol=0, atol=0)
    np.save("long.npy", np.tile(X, (200, 1)))  # 1.4 MB
    fitted = run("fit", "long.npy", "-o", "m.fdr", "--progress")
    assert "rows/s" in fitted.stdout
    assert "MB/s" in fitted.stdout
    assert "reading rows:   0%" in fitted.stderr
    assert "/60.0k" in fitted.stderr
    assert '"rows_per_second": null' in run("fit", "x.h5", "--member", "one", "-o", "m.fdr",
                                            "--json").stdout
    refused = testing.CliRunner().invoke(application(), [
        "fit", "parts", "--columns", "p,q", "--memory", "100B", "-o", "m.fdr"])
    assert refused.exit_code == 1
    assert "memory=25 bytes are too few" in refused.stderr
