"""Fixtures: dtypes, layouts, solver names, thread counts, data, and a clean process state."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg  # noqa: F401 - brings its own BLAS, which BLAS is to find
from hypothesis import HealthCheck, settings
from threadpoolctl import ThreadpoolController

import fastdr

settings.register_profile("ci", max_examples=25, deadline=None, derandomize=True, database=None,
                          suppress_health_check=[HealthCheck.too_slow,
                                                 HealthCheck.function_scoped_fixture])
settings.load_profile("ci")

DTYPES = ["f8", "f4", "f2", "u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "?"]
BLAS = ThreadpoolController().select(user_api="blas")
LAYOUTS = ["C", "F", "strided", "reversed", "readonly", "readonly-F", "memmap", "memmap-F",
           "swapped", "unaligned", "window", "paged"]
SOLVERS = ["auto", "lapack", "svd", "full", "covariance_eigh", "lanczos", "power"]


def laid_out(X, layout, folder):
    """Return an array equal to `X` whose memory is arranged as `layout` says."""
    rows, features = X.shape
    if layout in {"C", "readonly"}:
        array = np.array(X, order="C")
    elif layout in {"F", "readonly-F"}:
        array = np.array(X, order="F")
    elif layout == "strided":
        room = np.zeros((2 * rows + 1, 3 * features + 2), X.dtype)
        array = room[1::2, 2::3][:rows, :features]
        array[...] = X
    elif layout == "reversed":
        array = np.array(X[::-1, ::-1], order="C")[::-1, ::-1]
    elif layout in {"memmap", "memmap-F"}:
        order = "F" if layout.endswith("F") else "C"
        path = folder / f"rows-{layout}-{X.dtype.str[1:]}.bin"
        writer = np.memmap(path, X.dtype, "w+", shape=X.shape, order=order)
        writer[...] = X
        writer.flush()
        array = np.memmap(path, X.dtype, "r", shape=X.shape, order=order)
    elif layout == "swapped":
        array = X.astype(X.dtype.newbyteorder())
    elif layout == "unaligned":
        buffer = np.zeros(X.nbytes + 1, np.uint8)
        array = buffer[1:].view(X.dtype).reshape(X.shape)
        array[...] = X
    elif layout == "window":  # rows of a wider matrix: contiguous features, long row stride
        room = np.zeros((rows, features + 5), X.dtype)
        array = room[:, 3:3 + features]
        array[...] = X
    elif layout == "paged":  # rows whole pages apart, which meet in the same lines of a cache
        page = 4096 // X.itemsize
        array = np.zeros((rows, -(-features // page) * page), X.dtype)[:, :features]
        array[...] = X
    else:
        raise ValueError(layout)
    if layout.startswith("readonly"):
        array.setflags(write=False)
    return array


@pytest.fixture(autouse=True)
def _clean_threads():
    """Leave no thread setting behind."""
    yield
    fastdr.set_num_threads(None)


@pytest.fixture(autouse=True)
def _one_blas_thread(request):
    """Keep BLAS to one thread beside other workers, except where threads are what is tested.

    Two workers of two such threads each on two processors wait for each other: a small
    factorisation takes up to 16 times as long.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ or "thread" in request.node.nodeid:
        yield
        return
    with BLAS.limit(limits=1):
        yield


@pytest.fixture(params=DTYPES)
def dtype(request):
    """Every input dtype."""
    return np.dtype(request.param)


@pytest.fixture(params=["f8", "f4"])
def floating(request):
    """The two working dtypes."""
    return np.dtype(request.param)


@pytest.fixture(params=LAYOUTS)
def layout(request):
    """Every arrangement of a dense matrix in memory."""
    return request.param


@pytest.fixture(params=SOLVERS)
def solver(request):
    """Every value of svd_solver whose answer is exact to its tolerance."""
    return request.param


@pytest.fixture
def stored(tmp_path):
    """Function (X, layout) -> the same values in that layout."""
    return lambda X, layout: laid_out(X, layout, tmp_path)


@pytest.fixture
def rng():
    """A seeded generator, the same for every test."""
    return np.random.default_rng(20230814)


@pytest.fixture(scope="session")
def digits():
    """Handwritten digits (1797, 64): rank 61, three constant columns."""
    from sklearn.datasets import load_digits
    return load_digits().data


@pytest.fixture(scope="session")
def iris():
    """Iris measurements (150, 4)."""
    from sklearn.datasets import load_iris
    return load_iris().data


@pytest.fixture(scope="session")
def wine():
    """Wine analyses (178, 13), column scales 0.1 to 1000."""
    from sklearn.datasets import load_wine
    return load_wine().data


@pytest.fixture
def run_python():
    """Run a script in a fresh interpreter with a time-out; return its standard output."""
    def run(code, *, timeout=60, env=None):
        done = subprocess.run([sys.executable, "-P", "-W", "error", "-c", code], env=env,
                              capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout
    return run


@pytest.fixture
def run_example(tmp_path):
    """Run a script of examples/ with warnings as errors; its pictures go to tmp_path."""

    def run(name):
        script = Path(__file__).parent.parent / "examples" / f"{name}.py"
        if not script.exists():
            pytest.skip("examples are not beside the tests")
        done = subprocess.run([sys.executable, "-P", "-W", "error", script, tmp_path], text=True,
                              capture_output=True, env=os.environ | {"MPLCONFIGDIR": str(tmp_path)})
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
