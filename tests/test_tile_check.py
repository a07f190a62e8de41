"""Kernels as C alone: here, and for aarch64 by a cross compiler and an emulator, if installed.

Debian and Ubuntu have both: ``apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user``.
"""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from fastdr._dense import available_isas

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src_ext"
TILE = SOURCES / "tile"
FLAGS = ["-O3", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math",
         "-Wno-psabi"]
X86 = {"base": [], "avx2": ["-mavx2", "-mfma", "-mf16c"],
       "avx512": ["-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mfma", "-mf16c"]}
X86_NAMES = {"x86_64", "AMD64"}
TARGETS = {"native": (["cc", "gcc"], None),
           "aarch64": (["aarch64-linux-gnu-gcc"], ["qemu-aarch64", "qemu-aarch64-static"])}


def installed(names):
    """Path of the first of these programs that there is, or None."""
    return next(filter(None, map(shutil.which, names)), None)


@pytest.mark.skipif(not TILE.exists(), reason="the sources are not beside the tests")
@pytest.mark.parametrize("target", TARGETS)
def test_tiles_agree_with_loops_in_long_double(target, tmp_path):
    if target == "native" and platform.machine() in X86_NAMES:
        pytest.skip("these tiles are among those of every instruction set")
    compilers, emulators = TARGETS[target]
    compiler, emulator = installed(compilers), emulators and installed(emulators)
    if compiler is None or (emulators and emulator is None):
        pytest.skip(f"no compiler or emulator for {target}")
    program = tmp_path / "check"
    linked = ["-static"] if emulator else []  # the emulator has no libraries of that machine
    subprocess.run([compiler, *FLAGS, *linked, f"-I{TILE}", ROOT / "tests" / "tile_check.c",
                    TILE / "tile_base.c", "-lm", "-o", program], check=True)
    done = subprocess.run([*filter(None, [emulator]), program], capture_output=True, text=True,
                          check=False, timeout=300)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("base tiles: 5")
    assert done.stdout.endswith(" 0 failures\n")


@pytest.mark.skipif(not TILE.exists(), reason="the sources are not beside the tests")
@pytest.mark.skipif(platform.machine() not in X86_NAMES, reason="not x86")
def test_tiles_of_every_instruction_set_agree_with_loops(tmp_path):
    compiler = installed(["gcc"])
    if compiler is None:
        pytest.skip("no compiler")
    common = [compiler, *FLAGS, "-DFASTDR_X86", f"-I{TILE}"]
    for isa, flags in X86.items():
        subprocess.run([*common, *flags, "-c", TILE / f"tile_{isa}.c", "-o",
                        tmp_path / f"{isa}.o"], check=True)
    program = tmp_path / "check"
    subprocess.run([*common, ROOT / "tests" / "tile_check.c",
                    *(tmp_path / f"{isa}.o" for isa in X86), "-lm", "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout
    assert done.stdout.split(" tiles:")[0].split() == available_isas()
    assert done.stdout.endswith(" 0 failures\n")


@pytest.mark.skipif(not TILE.exists(), reason="the sources are not beside the tests")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["network/network_base.c", "pointwise/contrast_base.c"])
def test_the_other_kernels_compile(name, target, tmp_path):
    compiler = installed(TARGETS[target][0])
    if compiler is None:
        pytest.skip(f"no compiler for {target}")
    compiled = tmp_path / "kernels.o"
    subprocess.run([compiler, *FLAGS, "-Wall", "-Werror", f"-I{TILE}", "-c", SOURCES / name, "-o",
                    compiled], check=True)
    assert compiled.stat().st_size
