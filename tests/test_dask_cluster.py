"""A real cluster: processes over TCP, workers that are killed, a scheduler that goes away."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import fastdr
from fastdr import PCA, IncrementalPCA, LinearDiscriminantAnalysis, TruncatedSVD

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of Dask, as it shuts down
ROWS, FEATURES = 600, 12


@pytest.fixture(scope="module", params=[1, 2], ids="{} thread(s)".format)
def client(request, tmp_path_factory):
    """Three worker processes; those that die, two at most, take seconds to start again."""
    folder = str(tmp_path_factory.mktemp("dask"))
    with dask.config.set({"distributed.comm.timeouts.connect": "30s",
                          "temporary-directory": folder}), distributed.LocalCluster(
            n_workers=3, threads_per_worker=request.param, processes=True, protocol="tcp",
            dashboard_address=None) as cluster, distributed.Client(cluster) as client:
        assert cluster.scheduler_address.startswith("tcp://")
        yield client


@pytest.fixture
def X(rng):
    return rng.standard_normal((ROWS, FEATURES)) * np.arange(FEATURES, 0, -1) + 100


def lazily(X):
    return da.from_array(X, chunks=(50, X.shape[1]))


def die_once(block, marker, value):
    """Kill the process that computes this chunk, the first time."""
    if len(block) and block[0, 0] == value:
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return block
        os.kill(os.getpid(), signal.SIGKILL)
    return block


def deadly(lazy, marker):
    """Return the rows; whoever computes the seventh chunk first is killed by it."""
    value = float(lazy[300, 0].compute(scheduler="synchronous"))
    return lazy.map_blocks(die_once, str(marker), value, dtype=lazy.dtype, meta=lazy._meta)


def here(function):
    """Return what `function` does without the cluster."""
    with dask.config.set(scheduler="synchronous"):
        return function()


@pytest.mark.parametrize("client", [2], indirect=True, ids="{} thread(s)".format)
def test_every_estimator_as_in_one_process(client, X, rng):
    lazy, y = lazily(X), rng.integers(0, 3, ROWS)
    sparse = lazily(X * (rng.random(X.shape) < 0.2)).map_blocks(sp.csr_array)
    for estimator, rows, name in (
            (PCA(3), lazy, "components_"), (IncrementalPCA(3), lazy, "components_"),
            (TruncatedSVD(3), lazy, "components_"), (PCA(3), sparse, "components_"),
            (LinearDiscriminantAnalysis(), lazy, "coef_")):
        expected = here(lambda: getattr(estimator.fit(rows, y), name))  # noqa: B023
        np.testing.assert_array_equal(getattr(estimator.fit(rows, y), name), expected)
        scores = estimator.transform(rows)
        assert isinstance(scores, da.Array)
        np.testing.assert_array_equal(scores.compute(), here(scores.compute))


def test_a_worker_killed_in_the_middle_of_a_fit(client, X, tmp_path):
    lazy = lazily(X)
    expected = here(lambda: PCA(3).fit(lazy))
    found = PCA(3).fit(deadly(lazy, tmp_path / "died"))
    assert (tmp_path / "died").exists()
    np.testing.assert_array_equal(found.components_, expected.components_)
    np.testing.assert_array_equal(found.explained_variance_, expected.explained_variance_)


@pytest.mark.parametrize("client", [2], indirect=True, ids="{} thread(s)".format)
def test_a_worker_killed_in_the_middle_of_an_iteration(client, X, tmp_path, monkeypatch):
    monkeypatch.setattr("fastdr.dask_source.SCATTER", 5)
    lazy = lazily(X)
    expected = here(lambda: PCA(1, svd_solver="lanczos").fit(lazy))
    assert expected.report_["method"] == "lanczos(rows)"
    found = PCA(1, svd_solver="lanczos").fit(deadly(lazy, tmp_path / "died"))
    assert (tmp_path / "died").exists()
    np.testing.assert_array_equal(found.components_, expected.components_)


@pytest.mark.parametrize("client", [1], indirect=True, ids="{} thread(s)".format)
def test_a_worker_killed_in_the_middle_of_a_transform(client, X, tmp_path):
    lazy = lazily(X)
    pca = PCA(3).fit(X)
    scores = pca.transform(deadly(lazy, tmp_path / "died")).compute()
    assert (tmp_path / "died").exists()
    np.testing.assert_array_equal(scores, pca.transform(X))


def test_nan_names_chunk_and_row(client, X):
    X[421, 3] = np.nan
    with pytest.raises(ValueError, match="chunk 8: Input X contains NaN at row 421, column 3"):
        PCA(2).fit(lazily(X))


def start(*arguments):
    return subprocess.Popen([sys.executable, "-P", "-m", *arguments], stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)


def ended(*processes):
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    """A scheduler and a worker as the commands `dask scheduler` and `dask worker` start them."""
    folder = tmp_path_factory.mktemp("scheduler")
    file = folder / "scheduler.json"
    first = start("dask", "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
                  "--scheduler-file", str(file))
    second = start("dask", "worker", "--scheduler-file", str(file), "--no-dashboard",
                   "--nthreads", "2", "--no-nanny", "--local-directory", str(folder))
    try:
        deadline = time.monotonic() + 60
        while not file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield first, second, json.loads(file.read_text())["address"]
    finally:
        ended(second, first)


def command(*arguments, cwd=None):
    return subprocess.Popen([sys.executable, "-P", "-c", "from fastdr.cli import main; main()",
                             *map(str, arguments)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, cwd=cwd)


def outcome(process):
    """Return exit code, standard output and errors."""
    told = process.communicate(timeout=100)
    return process.returncode, *told


def test_the_commands_of_the_readme(scheduler, X, tmp_path):
    readme = Path(__file__).resolve().parent.parent / "README.md"
    lines = [line for line in readme.read_text("utf-8").splitlines() if "--dask tcp:" in line
             and line.startswith("fastdr ")]
    assert [line.split()[1] for line in lines] == ["fit", "transform"]
    np.save(tmp_path / "rows.npy", X)
    for line in lines:
        code, text, errors = outcome(command(
            *line.replace("tcp://first:8786", scheduler[2]).split()[1:], cwd=tmp_path))
        assert (code, errors) == (0, "")
        assert "600 rows x " in text
    model = fastdr.load(tmp_path / "ten.fdr")
    np.testing.assert_allclose(model.variances, PCA(10).fit(X).explained_variance_, rtol=1e-12)
    np.testing.assert_array_equal(np.load(tmp_path / "scores.npy"), model.transform(X))


def test_the_command_names_faults_of_rows_on_a_cluster(scheduler, X, tmp_path):
    X[421, 3] = np.nan
    np.save(tmp_path / "rows.npy", X)
    code, _, errors = outcome(command("fit", tmp_path / "rows.npy", "-o", tmp_path / "m.fdr",
                                      "--dask", scheduler[2]))
    assert code == 1
    assert errors.startswith("fastdr: error: ")
    assert errors.count("\n") == 1
    assert "row 421, column 3 is nan" in errors
    assert not (tmp_path / "m.fdr").exists()




def test_a_scheduler_that_goes_away_leaves_the_fit_as_it_was(scheduler, X, tmp_path):
    """Last of those that use it."""
    process, worker, address = scheduler
    fitted = PCA(2).fit(X)
    before = dict(vars(fitted))
    np.save(tmp_path / "rows.npy", X)
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        client = distributed.Client(address, timeout=20)
        try:
            client.wait_for_workers(1, timeout=30)
            worker.send_signal(signal.SIGSTOP)  # what is asked for now is never computed
            other = command("fit", tmp_path / "rows.npy", "-o", tmp_path / "m.fdr",
                            "--dask", address)
            while not client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)):
                assert other.poll() is None
                time.sleep(0.1)
            threading.Timer(1.0, process.kill).start()
            with client.as_current(), pytest.raises(
                    ConnectionError, match="connection to the Dask scheduler was lost"):
                fitted.fit(lazily(X))
        finally:
            client.close(timeout=1)
    assert vars(fitted) == before
    code, text, errors = outcome(other)
    assert (code, text) == (1, "")
    assert errors.startswith("fastdr: error: the connection to the Dask scheduler was lost")
    assert errors.count("\n") == 1
    assert not (tmp_path / "m.fdr").exists()
