"""The machine, the versions and the threads of a run."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Collection, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import fastdr
from fastdr.threads import available_cpus

# Either would tie OpenBLAS to a kernel or a cache size that is not its best choice.
PINNED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
# Imported before threads are limited: a limit reaches only the libraries that are loaded.
LIBRARIES = {"scipy": "scipy.linalg", "sklearn": "sklearn.decomposition",
             "sklearnex": "sklearnex.decomposition", "torch": "torch", "faiss": "faiss"}
PACKAGES = ("numpy", "scipy", "scikit-learn", "scikit-learn-intelex", "torch", "dask-ml", "fbpca",
            "faiss-cpu", "python-picard", "gensim", "primme")


def unpinned(environment: Mapping[str, str]) -> dict[str, str] | None:
    """Return `environment` without both OpenBLAS settings, None if neither was there."""
    if not any(name in environment for name in PINNED):
        return None
    return {name: value for name, value in environment.items() if name not in PINNED}


def restart_unpinned(module: str, arguments: list[str]) -> None:
    """Start this program again without the settings that hold OpenBLAS back, if there are any.

    OpenBLAS reads them once, when it is loaded, so taking them off later would change nothing.
    """
    environment = unpinned(os.environ)
    if environment is not None:
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, "-m", module, *arguments], environment)


def set_threads(threads: int | None, packages: Collection[str] = tuple(LIBRARIES),
                ) -> tuple[int, Any]:
    """Give fastdr, BLAS, OpenMP and oneDAL `threads` threads, by default all usable CPUs.

    Loads the rivals in `packages`. Returns the number and the limiter, which must be kept alive
    as long as the limit shall hold.
    """
    threads = available_cpus() if threads is None else threads
    fastdr.set_num_threads(threads)
    for package, module in LIBRARIES.items():
        if package in packages and find_spec(package):
            import_module(module)
    if "sklearnex" in packages and find_spec("daal4py"):
        import_module("daal4py").daalinit(threads)
    from threadpoolctl import threadpool_limits

    return threads, threadpool_limits(threads)


def describe(threads: int) -> dict[str, Any]:
    """Return what a reader needs to judge the figures; no paths, no host names."""
    from threadpoolctl import threadpool_info

    blas = {(info["prefix"], info["version"], info.get("architecture"), info["num_threads"])
            for info in threadpool_info() if info["user_api"] == "blas"}
    return {
        "cpu": _cpu(), "cores": os.cpu_count(), "usable": available_cpus(), "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {"fastdr": fastdr.__version__} | {name: _version(name) for name in PACKAGES},
        "blas": [{"library": name, "version": number, "kernel": kernel, "threads": count}
                 for name, number, kernel, count in sorted(blas, key=str)],
        "isa": _isa(),
    }


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _isa() -> str:
    """Return the instruction set of fastdr's kernels, as its compiled module tells it."""
    try:
        isa = getattr(import_module("fastdr._dense"), "isa", None)
    except ImportError:
        return "not compiled"
    return str(isa() if callable(isa) else isa or "unknown")
