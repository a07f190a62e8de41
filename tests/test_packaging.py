"""What is installed and shipped: import cost, compiled modules, types, contents of the sdist."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import fastdr

ROOT = Path(__file__).parent.parent
HEAVY = {"numba", "sklearn", "dask", "distributed", "pandas", "pyarrow", "matplotlib", "typer",
         "safetensors", "tqdm", "threadpoolctl"}


def modules_after(code):
    """Return the top-level modules and the fastdr modules loaded by `code` in a new process."""
    done = subprocess.run([sys.executable, "-P", "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
                          capture_output=True, text=True, check=True)
    names = done.stdout.split()
    return {name.partition(".")[0] for name in names} | {
        name for name in names if name.startswith(("fastdr.", "scipy."))}


def test_import_loads_nothing_heavy():
    loaded = modules_after("import fastdr")
    assert not loaded & (HEAVY | {"scipy", "scipy.linalg", "numpy"})
    assert not [name for name in loaded if name.startswith("fastdr.")]


@pytest.mark.parametrize("name", ["project", "reconstruct", "reconstruction_error", "covariance",
                                  "moments", "set_num_threads", "num_threads", "AccuracyWarning"])
def test_plain_functions_load_neither_scikit_learn_nor_scipy(name):
    loaded = modules_after(f"import fastdr; fastdr.{name}")
    assert not loaded & (HEAVY | {"scipy.linalg"})


def test_small_calls_need_no_scikit_learn():
    loaded = modules_after("import fastdr; fastdr.covariance([[0.0, 1.0], [2.0, 5.0]])")
    assert not loaded & (HEAVY - {"threadpoolctl"})


def test_models_load_without_scikit_learn():
    assert not modules_after("import fastdr; fastdr.load") & (HEAVY - {"safetensors"})


def test_public_names():
    assert {"PCA", "LinearModel", "Moments", "AccuracyWarning", "covariance", "moments", "project",
            "reconstruct", "reconstruction_error", "load", "set_num_threads", "get_num_threads",
            "num_threads"} <= set(fastdr.__all__) <= set(dir(fastdr))
    with pytest.raises(AttributeError, match="module 'fastdr' has no attribute 'Pca'"):
        _ = fastdr.Pca


def test_version_is_that_of_the_distribution():
    assert importlib.metadata.version("fastdr") == fastdr.__version__


def test_types_are_shipped_for_every_compiled_module():
    folder = Path(fastdr.__file__).parent
    assert (folder / "py.typed").exists()
    compiled = {path.name.partition(".")[0] for path in folder.glob("_*.so")}
    assert compiled
    assert compiled <= {path.stem for path in folder.glob("*.pyi")}


@pytest.mark.skipif(not (ROOT / "CHANGELOG.md").exists(), reason="not beside the sources")
def test_changelog_has_the_version_or_is_unreleased():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[({re.escape(fastdr.__version__)}|Unreleased)\]", text, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.optional
@pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="not beside the sources")
@pytest.mark.skipif(not all(map(importlib.util.find_spec, ("setuptools", "Cython"))),
                    reason="needs setuptools and Cython")
def test_sdist_has_the_native_sources_and_nothing_generated(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(
        ".git", ".*_cache", "build", "dist", "*.egg-info", "*-env", "fastdr-demo", "__pycache__"))
    for name in ("src_ext/_dense.c", "src_ext/_dense.html", "fastdr/_stale.so", "tests/x.pyc"):
        (copy / name).touch()
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-P", "-c", code, tmp_path], cwd=copy, check=True,
                   capture_output=True, env=os.environ | {"PYTHONWARNINGS": "ignore"})
    (archive,) = tmp_path.glob("fastdr-*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    for wanted in ("src_ext/*.pyx", "src_ext/tile/*.[ch]", "tests/*.py", "tests/*.c", "bench/*.py",
                   "docs/*.md", "docs/*.py", "docs/guide/*.md", "examples/*", "fastdr/*.py",
                   "fastdr/*.pyi", "fastdr/*.pxd", "fastdr/include/*.h", "fastdr/py.typed", "*.md",
                   "LICENSE", "setup.py", "pyproject.toml"):
        found = {path.relative_to(ROOT).as_posix() for path in ROOT.glob(wanted)}
        assert found
        assert found <= names, f"missing: {found - names}"
    generated = {name for name in names if re.search(r"\.(so|pyd|o|pyc|html)$|^build/", name)
                 or re.fullmatch(r"src_ext/[^/]*\.c(pp)?", name)}
    assert not generated
