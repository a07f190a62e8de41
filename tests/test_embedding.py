"""Models inside other programs, each a project of its own against the fastdr that is installed.

What README.md shows is what is built here.
"""

import itertools
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import fastdr
from fastdr import LinearModel

README = Path(__file__).parent.parent / "README.md"
INSTALLED = str(Path(fastdr.__file__).parent.parent)
EPS = np.finfo(float).eps


@pytest.fixture
def model(tmp_path):
    """Twenty features, twelve axes, saved under the name that README.md uses."""
    rng = np.random.default_rng(1)
    axes = np.linalg.qr(rng.standard_normal((20, 12)))[0].T
    made = LinearModel(rng.standard_normal(20), axes, np.linspace(3, 1, 12), whiten="pca",
                       scale=rng.uniform(0.5, 2, 20))
    made.save(tmp_path / "wide.fdr")
    return made


def shown(language):
    """The code block of README.md in that language."""
    (block,) = re.findall(rf"```{language}\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    return block


def run(command, folder, **environment):
    """Run a command in a project's folder; the fastdr under test is found as an installed one."""
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=300,
                          env=os.environ | {"PYTHONPATH": INSTALLED} | environment, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def program(text):
    """Text as it stands in a file."""
    return textwrap.dedent(text).lstrip()


SETUP = program("""
    import fastdr
    from Cython.Build import cythonize
    from setuptools import Extension, setup

    setup(ext_modules=cythonize([Extension("inner", ["inner.pyx"],
                                           include_dirs=[fastdr.get_include()])],
                                language_level=3))
""")
MORE_CYTHON = program("""
    from fastdr._serve cimport (
        fastdr_error_f4, fastdr_inverse_row_f8, fastdr_model, fastdr_project_row_f8,
    )

    cdef double corner(const fastdr_model *m, const double *x, double *z, double *back,
                       double *work) noexcept nogil:
        fastdr_project_row_f8(m, x, 1, z, work)
        fastdr_inverse_row_f8(m, z, 1, back, work)
        return back[0]

    def corners(Projector p, const double[:, ::1] rows, double[::1] room, double[::1] out):
        cdef Py_ssize_t i
        cdef double *z = &room[0]
        cdef double *back = z + p.linear.outputs
        with nogil:
            for i in range(rows.shape[0]):
                out[i] = corner(&p.linear, &rows[i, 0], z, back, back + p.linear.features)

    def errors(Projector p, const float[:, ::1] rows, double[::1] out, double[::1] work):
        with nogil:
            fastdr_error_f4(&p.linear, &rows[0, 0], rows.shape[0], &out[0], &work[0])
""")
USE_CYTHON = program("""
    import threading
    import numpy as np, fastdr, inner

    model = fastdr.load("wide.fdr")
    p = model.projector()
    X = model.mean + np.random.default_rng(0).standard_normal((500, 20))
    Z = model.transform(X)
    back = model.inverse_transform(Z)
    size = 50 * np.finfo(float).eps

    def check():
        out, work, room, firsts = np.empty((500, 12)), np.empty(12), np.empty(44), np.empty(500)
        inner.scores(p, X, out, work)
        np.testing.assert_allclose(out, Z, rtol=0, atol=size * abs(Z).max())
        inner.corners(p, X, room, firsts)
        np.testing.assert_allclose(firsts, back[:, 0], rtol=0, atol=size * abs(back).max())
        errors, single = np.empty(500), X.astype("f4")
        inner.errors(p, single, errors, work)
        np.testing.assert_allclose(errors, [p.error(x) for x in single], rtol=size)
        done.append(1)

    done = []
    threads = [threading.Thread(target=check) for _ in range(8)]
    [t.start() for t in threads]; [t.join() for t in threads]
    print("right", len(done))
""")


@pytest.mark.skipif(not README.exists(), reason="README.md is not beside the tests")
def test_cython(model, tmp_path):
    (tmp_path / "inner.pyx").write_text(
        "# cython: boundscheck=False\n" + shown("cython") + MORE_CYTHON)
    (tmp_path / "setup.py").write_text(SETUP)
    (tmp_path / "use.py").write_text(USE_CYTHON)
    run([sys.executable, "setup.py", "-q", "build_ext", "-i"], tmp_path, CFLAGS="-O0")
    assert "right 8" in run([sys.executable, "use.py"], tmp_path)


USE_C = r"""
#include <stdio.h>
int main(void) {
    double row[20], score;
    for (int i = 0; i < 20; i++)
        row[i] = i;
    if (first_score(row, &score)) return 1;
    printf("%a\n", score);
    return 0;
}
"""


@pytest.mark.skipif(not README.exists(), reason="README.md is not beside the tests")
@pytest.mark.parametrize("flags", [["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O3"], ["-O0"]])
def test_c(model, tmp_path, flags):
    (tmp_path / "app.c").write_text(shown("c") + USE_C)
    run([os.environ.get("CC", "cc"), *flags, "-Wall", "-Wextra", "-Werror", "app.c",
         f"-I{fastdr.get_include()}", "-lm", "-o", "app"], tmp_path)
    score = float.fromhex(run([tmp_path / "app"], tmp_path).strip())
    x = np.arange(20.0)
    size = float(np.linalg.norm((x - model.mean) / model.scale))
    assert abs(score - model.projector()(x)[0]) <= 20 * EPS * size
    (tmp_path / "wide.fdr").unlink()
    assert subprocess.run([tmp_path / "app"], cwd=tmp_path, check=False).returncode == 1


USE_NUMBA = program("""
    import threading
    import numpy as np, fastdr
    from numba import njit
    from fastdr import jit

    @njit(nogil=True)
    def inside(m, rows, scores, back):
        nearest = 0
        for i in range(len(rows)):                 # row by row
            jit.project(m, rows[i], scores[i])
            if jit.error(m, rows[i]) < jit.error(m, rows[nearest]):
                nearest = i
        jit.inverse(m, scores, back)               # all at once
        return nearest

    model = fastdr.load("wide.fdr")
    X = model.mean + np.random.default_rng(0).standard_normal((500, 20))
    Z = model.transform(X)
    size = 50 * np.finfo(float).eps

    def check():
        scores, back = np.empty((500, 12)), np.empty((500, 20))
        nearest = inside(model.jit(), X, scores, back)
        assert nearest == np.argmin(model.reconstruction_error(X, per_row=True))
        np.testing.assert_allclose(scores, Z, rtol=0, atol=size * abs(Z).max())
        np.testing.assert_allclose(back, model.inverse_transform(Z), rtol=0, atol=size * 10)
        done.append(1)

    done = []
    threads = [threading.Thread(target=check) for _ in range(8)]
    [t.start() for t in threads]; [t.join() for t in threads]
    print("right", len(done))
""")


def test_numba(model, tmp_path):
    (tmp_path / "use.py").write_text(USE_NUMBA)
    assert "right 8" in run([sys.executable, "use.py"], tmp_path)


def test_numba_without_compilation_and_without_a_cache_folder(model, tmp_path):
    (tmp_path / "use.py").write_text(USE_NUMBA)
    assert "right 8" in run([sys.executable, "use.py"], tmp_path, NUMBA_DISABLE_JIT="1",
                            HOME="/nonexistent", NUMBA_CACHE_DIR="")
    assert not list(Path(fastdr.__file__).parent.rglob("*.nb[ic]"))


def test_compiled_functions_agree_with_the_projector(model):
    """One test: each further process would compile the functions again."""
    from fastdr import jit

    for dtype, whiten in itertools.product(["f8", "f4"], [False, "pca", "zca"]):
        kept = LinearModel(model.mean, model.components.astype(dtype), model.variances,
                           whiten=whiten, rank=10, scale=model.scale)
        m, p = kept.jit(), kept.projector()
        X = model.mean + np.random.default_rng(2).standard_normal((6, 20))
        size = 50 * EPS * float(np.abs(X - model.mean).max() + np.abs(model.mean).max())
        Z, back = np.empty((6, p.n_outputs)), np.empty((6, 20))
        jit.project(m, X, Z)
        jit.inverse(m, Z, back)
        for x, z, y, error in zip(X, Z, back, jit.error(m, X), strict=True):
            np.testing.assert_allclose(z, p(x), rtol=0, atol=size)
            np.testing.assert_allclose(y, p.inverse(z), rtol=0, atol=size)
            assert abs(error - p.error(x)) <= 20 * size
    single = np.empty(p.n_outputs, "f4")
    jit.project(m, X[0].astype("f4"), single)
    np.testing.assert_allclose(single, p(X[0].astype("f4")), rtol=0,
                               atol=size * np.finfo("f4").eps / EPS)
    short, narrow = X[:, :5].copy(), Z[:, :3].copy()
    for wrong in (lambda: jit.project(m, short, Z), lambda: jit.project(m, X, Z[:3]),
                  lambda: jit.inverse(m, narrow, back), lambda: jit.error(m, short[0])):
        with pytest.raises(ValueError, match="the model's shape"):
            wrong()
