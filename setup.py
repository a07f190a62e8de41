"""Build the compiled modules; everything else is in pyproject.toml."""

import os
import platform
import sys
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CHECKED = os.environ.get("FASTDR_CHECKED") == "1"
# Build the AVX-512 tiles from AVX2 instructions, to test their logic on a machine without them.
EMULATE = os.environ.get("FASTDR_EMULATE") == "1"
X86 = platform.machine().lower() in {"x86_64", "amd64"}
TILE_FLAGS = {"base": [], "avx2": ["-mavx2", "-mfma", "-mf16c"],
              "avx512": ["-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mfma", "-mf16c",
                         "-mprefer-vector-width=512"]}
if EMULATE:
    TILE_FLAGS["avx512"] = TILE_FLAGS["avx2"]
# Python's own -g would make the modules four times as large; a profiler needs lines only.
UNIX = ["-O3", "-g1", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math",
        "-Wno-psabi"]
# Extensions with a family of C files, one file for each instruction set: folder, prefix.
FAMILIES = {"fastdr._dense": ("tile", "tile"), "fastdr._network": ("network", "network"),
            "fastdr._pointwise": ("pointwise", "contrast")}
INCLUDE = ["src_ext", *(f"src_ext/{folder}" for folder, _ in FAMILIES.values()), "fastdr/include",
           numpy.get_include()]


class BuildTiles(build_ext):
    """Compile each file of a family with the flags of its instruction set, then link them."""

    def finalize_options(self):
        """Build as many modules at a time as there are processors, unless told otherwise."""
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def build_extension(self, ext):
        """Build `ext`; the objects of its family join it."""
        unix = self.compiler.compiler_type != "msvc"
        flags = UNIX if unix else ["/O2", "/std:c11"]
        ext.extra_compile_args = flags
        if ext.name in FAMILIES:
            ext.extra_objects = [
                self.compiler.compile([str(source)], output_dir=self.build_temp,
                                      include_dirs=ext.include_dirs, macros=ext.define_macros,
                                      extra_postargs=flags + TILE_FLAGS[isa] * unix)[0]
                for isa, source in tiles(unix, *FAMILIES[ext.name])]
        super().build_extension(ext)


def tiles(unix, folder, prefix):
    """Pairs of instruction set and file that this machine's compiler can build."""
    names = ["base", "avx2", "avx512"] if X86 and unix else ["base"]
    return [(name, Path("src_ext") / folder / f"{prefix}_{name}.c") for name in names]


def extension(source):
    """Describe one compiled module of fastdr."""
    macros = [("FASTDR_X86", "1")] if X86 and sys.platform != "win32" else []
    macros += [("FASTDR_EMULATE", "1")] if EMULATE else []
    return Extension(f"fastdr.{source.stem}", [str(source)], include_dirs=INCLUDE,
                     define_macros=macros, depends=[*map(str, Path("src_ext").rglob("*.[ch]")),
                                                    *map(str, Path("fastdr/include").iterdir())])


setup(
    ext_modules=cythonize(
        [extension(source) for source in sorted(Path("src_ext").glob("*.pyx"))],
        include_path=["src_ext", "."], build_dir="build/cython", language_level=3,
        compiler_directives={
            "boundscheck": CHECKED, "wraparound": False, "initializedcheck": CHECKED,
            "cdivision": not CHECKED, "freethreading_compatible": True, "autotestdict": False,
            "auto_pickle": False,
        }),
    cmdclass={"build_ext": BuildTiles},
)
