"""Cases C88 to C93: hangs, fork, re-entrance, over-subscription, import cost.

Whatever may hang runs in a process of its own with a time-out.
"""

import os
import stat
import sys

import pytest

QUIET = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}


def test_c88_fits_beside_a_thread_that_uses_blas(run_python):
    out = run_python("""
import threading, numpy as np, fastdr
X = np.random.default_rng(0).standard_normal((20_000, 200))
stop = threading.Event()
def blas():
    A = np.random.default_rng(1).standard_normal((300, 300))
    while not stop.is_set():
        A @ A
    np.linalg.svd(A)
def fits():
    for _ in range(20):
        fastdr.PCA(60).fit(X)
beside, worker = threading.Thread(target=blas), threading.Thread(target=fits)
beside.start(); worker.start()
worker.join(); stop.set(); beside.join()
print("done")
""", timeout=60, env=QUIET)
    assert "done" in out


def test_c88_the_blas_limit_is_given_back_after_parallel_fits(run_python):
    out = run_python("""
import threading, numpy as np, fastdr
from threadpoolctl import threadpool_limits, threadpool_info
def counts():
    return [p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"]
X = np.random.default_rng(0).standard_normal((2000, 120))
fastdr.PCA(5).fit(X)
threadpool_limits(2, "blas")
before = counts()
workers = [threading.Thread(target=lambda: [fastdr.PCA(5, svd_solver=s).fit(X)
           for s in ("lapack", "svd") * 5]) for _ in range(4)]
[w.start() for w in workers]; [w.join() for w in workers]
print(before == counts())
""", env=QUIET)
    assert "True" in out


FORK = """
import multiprocessing, os, sys, warnings, numpy as np, fastdr
warnings.simplefilter("ignore", DeprecationWarning)
X = np.random.default_rng(0).standard_normal((20_000, 100))
fastdr.set_num_threads(4)
expected = fastdr.PCA(5).fit(X).components_
def child():
    found = fastdr.PCA(5).fit(X).components_
    sys.exit(0 if (found == expected).all() else 3)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_c89_children_forked_after_parallel_work_fit_too(run_python):
    out = run_python(FORK + """
context = multiprocessing.get_context("fork")
children = [context.Process(target=child) for _ in range(2)]
[c.start() for c in children]; [c.join(30) for c in children]
print([c.exitcode for c in children])
[c.kill() for c in children if c.exitcode is None]
""", timeout=90)
    assert "[0, 0]" in out


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_c89_a_child_that_never_calls_us_ends(run_python):
    out = run_python(FORK + """
pid = os.fork()
if pid == 0:
    os._exit(0)
print(os.waitpid(pid, 0)[1], (fastdr.PCA(5).fit(X).components_ == expected).all())
""")
    assert "0 True" in out


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_c89_forked_while_another_thread_is_fitting(run_python):
    out = run_python(FORK + """
import threading
stop = threading.Event()
def busy():
    while not stop.is_set():
        fastdr.PCA(5).fit(X)
worker = threading.Thread(target=busy); worker.start()
codes = []
context = multiprocessing.get_context("fork")
for _ in range(5):
    process = context.Process(target=child); process.start(); process.join(30)
    codes.append(process.exitcode)
    if process.exitcode is None: process.kill()
stop.set(); worker.join()
print(codes)
""", timeout=170)
    assert "[0, 0, 0, 0, 0]" in out


def test_c89_spawned_workers_of_joblib(run_python, tmp_path):
    script = tmp_path / "spawned.py"
    script.write_text("""
import numpy as np, fastdr
from joblib import Parallel, delayed
def fit(seed):
    X = np.random.default_rng(seed).standard_normal((3000, 50))
    return fastdr.PCA(3).fit(X).explained_variance_
if __name__ == "__main__":
    fit(0)
    found = Parallel(n_jobs=2, backend="loky")(delayed(fit)(i) for i in range(4))
    print(all((a == fit(i)).all() for i, a in enumerate(found)))
""")
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    assert "True" in run_python(code, timeout=120)


def test_c89_a_process_started_by_spawn(tmp_path):
    import subprocess
    script = tmp_path / "spawn.py"
    script.write_text("""
import multiprocessing, numpy as np, fastdr
X = np.random.default_rng(0).standard_normal((5000, 40))
def child(queue):
    queue.put(fastdr.PCA(3).fit(X).components_)
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    found = queue.get(timeout=60)
    process.join(60)
    print((found == fastdr.PCA(3).fit(X).components_).all())
""")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True,
                          timeout=120)
    assert "True" in done.stdout, done.stderr


def test_c90_threads_that_fit_at_once_get_the_serial_result(run_python):
    out = run_python("""
import threading, numpy as np, fastdr
data = [np.random.default_rng(i).standard_normal((4000, 60)) for i in range(4)]
serial = [fastdr.PCA(5).fit(X).components_ for X in data]
found = [None] * 4
def fit(i):
    for _ in range(5):
        found[i] = fastdr.PCA(5).fit(data[i]).components_
workers = [threading.Thread(target=fit, args=(i,)) for i in range(4)]
[w.start() for w in workers]; [w.join() for w in workers]
print(all((a == b).all() for a, b in zip(found, serial)))
""")
    assert "True" in out


def test_c91_parallel_cross_validation_does_not_multiply_threads(run_python):
    out = run_python("""
import threading, time, numpy as np, joblib, fastdr
from sklearn.linear_model import Ridge
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
fastdr.set_num_threads(2)
rng = np.random.default_rng(0)
X, y = rng.standard_normal((8000, 100)), rng.standard_normal(8000)
most = 0
stop = threading.Event()
def watch():
    global most
    while not stop.is_set():
        ours = [t for t in threading.enumerate() if t.name.startswith("fastdr")]
        most = max(most, len(ours)); time.sleep(0.001)
watcher = threading.Thread(target=watch); watcher.start()
with joblib.parallel_backend("threading", n_jobs=2):
    cross_validate(make_pipeline(fastdr.PCA(10), Ridge()), X, y, cv=6)
stop.set(); watcher.join()
print("most", most)
""", timeout=60)
    assert int(out.split()[-1]) <= 2


def test_c91_the_environment_and_the_callers_limit_are_respected(run_python):
    out = run_python("""
import threading, numpy as np, fastdr
X = np.random.default_rng(0).standard_normal((50_000, 60))
fastdr.PCA(5).fit_transform(X)
print(fastdr.get_num_threads(), sum(t.name.startswith("fastdr") for t in threading.enumerate()))
""", env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert out.split()[-2:] == ["1", "0"]


def test_c92_eight_threads_by_a_hundred_fits_equal_serial(run_python):
    out = run_python("""
import numpy as np, fastdr
from concurrent.futures import ThreadPoolExecutor
data = [np.random.default_rng(i).standard_normal((100, 100)) for i in range(8)]
serial = [fastdr.PCA(10).fit(X) for X in data]
def fits(i):
    return all((fastdr.PCA(10).fit(data[i]).components_ == serial[i].components_).all()
               for _ in range(100))
with ThreadPoolExecutor(8) as pool:
    print(list(pool.map(fits, range(8))))
""", timeout=120)
    assert out.count("True") == 8


HEAVY = ("numba", "sklearn", "dask", "matplotlib", "typer", "pandas", "pyarrow", "tqdm")


@pytest.mark.parametrize("use", [
    "", "fastdr.covariance([[0., 1.], [2., 3.]])",
    "fastdr.project([[0., 1.]], [[1., 0.]]); fastdr.reconstruct([[2.]], [[1., 0.]])",
    "fastdr.moments([[0., 1.], [2., 3.]]); fastdr.reconstruction_error([[0., 1.]], [[1., 0.]])",
    "fastdr.get_num_threads()", "fastdr.Moments"])
def test_c93_the_functional_core_loads_nothing_heavy(run_python, use):
    out = run_python(f"""
import sys, numpy, scipy
before = set(sys.modules)
import fastdr
{use}
print(sorted(m for m in {HEAVY!r} if m in sys.modules))
loaded = set(sys.modules) - before
assert "scipy.sparse" in loaded or "numpy.random" not in loaded  # of which it has need
""")
    assert out.strip().endswith("[]")


def test_c93_import_loads_no_module_of_its_own_but_the_package(run_python):
    out = run_python("import sys, fastdr; print(sorted(m for m in sys.modules if 'fastdr' in m))")
    assert "['fastdr']" in out


def test_c93_names_are_listed_and_a_wrong_one_is_refused(run_python):
    out = run_python("""
import fastdr
print(set(fastdr.__all__) <= set(dir(fastdr)))
try:
    fastdr.nothing
except AttributeError as error:
    print(error)
""")
    assert "True" in out
    assert "nothing" in out


def test_c93_no_file_is_written_and_no_compiler_runs(run_python, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(stat.S_IRUSR | stat.S_IXUSR)
    out = run_python("""
import sys, numpy as np, fastdr
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numba", "llvmlite"):
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Refuse())
X = np.random.default_rng(0).standard_normal((50, 4))
model = fastdr.PCA(2).fit(X)
print(model.inverse_transform(model.transform(X)).shape)
""", env={**os.environ, "HOME": str(home), "NUMBA_DISABLE_JIT": "1",
          "PYTHONDONTWRITEBYTECODE": "1"})
    assert "(50, 4)" in out
    assert not list(home.iterdir())


SERVE = """
import multiprocessing, os, sys, threading
import numpy as np, fastdr
from fastdr import LinearModel

rng = np.random.default_rng(0)
axes = np.linalg.qr(rng.standard_normal((300, 40)))[0].T
p = LinearModel(rng.standard_normal(300), axes, np.ones(40)).projector()
X = rng.standard_normal((20_000, 300))
Z, one = p(X), [p(x) for x in X[:50]]           # the batch has started the pool

def right():
    out = np.empty(40)
    return (p(X) == Z).all() and all((p.into(x, out) == z).all() for x, z in zip(X, one))
def child(projector):
    same = all((projector(x) == z).all() for x, z in zip(X, one))
    os._exit(0 if same and (projector(X) == Z).all() and right() else 1)
def codes(method):
    context = multiprocessing.get_context(method)
    children = [context.Process(target=child, args=(p,)) for _ in range(2)]
    [c.start() for c in children]; [c.join(60) for c in children]
    found = [c.exitcode for c in children]
    [c.kill() for c in children if c.exitcode is None]
    return found
"""


def test_c90_sixty_four_threads_share_a_projector(run_python):
    out = run_python(SERVE + """
fastdr.set_num_threads(4)
found = []
start = threading.Barrier(64)
def work():
    start.wait()
    for _ in range(20):
        found.append(all((p(x) == z).all() for x, z in zip(X, one)))
    found.append(right())
threads = [threading.Thread(target=work) for _ in range(64)]
[t.start() for t in threads]; [t.join() for t in threads]
print(len(found), all(found))
""", timeout=120)
    assert "1344 True" in out


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_c89_a_projector_in_children_however_they_start(run_python, tmp_path):
    script = tmp_path / "serve.py"
    script.write_text(SERVE + """
if __name__ == "__main__":
    print(*(codes(method) for method in ("fork", "spawn", "forkserver")))
""")
    done = run_python(f"""
import subprocess, sys
print(subprocess.run([sys.executable, {str(script)!r}], capture_output=True, text=True))
""", timeout=170)
    assert "[0, 0] [0, 0] [0, 0]" in done


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_c89_forked_while_the_pool_projects(run_python):
    out = run_python("import warnings; warnings.simplefilter('ignore', DeprecationWarning)" + SERVE
                     + """
fastdr.set_num_threads(4)
stop = threading.Event()
def busy():
    while not stop.is_set():
        p(X); p(X[0])
workers = [threading.Thread(target=busy) for _ in range(2)]
[w.start() for w in workers]
statuses = []
for _ in range(8):
    pid = os.fork()
    if pid == 0:
        child(p)
    statuses.append(os.waitpid(pid, 0)[1])
stop.set(); [w.join() for w in workers]
print(statuses)
""", timeout=120)
    assert "[0, 0, 0, 0, 0, 0, 0, 0]" in out
