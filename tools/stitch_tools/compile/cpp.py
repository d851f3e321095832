"""The command that builds a native C++ program for the CPU."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from stitch_tools.compile.toolchain import Compiler, native_architecture

# Not -ffast-math: NaN and infinity must come out as the reference's do, and sums keep their order unless the
# source says otherwise (`#pragma omp simd reduction`). What is switched off costs speed and changes no value.
MATHS = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
# A program is one translation unit: no vector that is wider than the processor's crosses an ABI's boundary.
_WARNINGS = ("-Wall", "-Wno-psabi")
BASE = ("-std=c++17", "-O3", "-march=native", "-fopenmp", *MATHS, "-fvisibility=hidden", *_WARNINGS)
SHARED = ("-shared", "-fPIC", "-Wl,-z,defs")


def cpp_command(
    compiler: Compiler, main: str, output: str, include_folders: Sequence[Path] = ()
) -> tuple[str, ...]:
    """The exact command; run in the folder with the program's files it writes `output` there."""
    quiet = (
        ("-fdiagnostics-color=never", "-fmax-errors=20")
        if compiler.kind == "gcc"
        else ("-fno-color-diagnostics", "-ferror-limit=20")
    )
    includes = ("-I.", *(f"-I{folder}" for folder in include_folders))
    return (
        *compiler.command,
        *BASE,
        *vector_width(compiler),
        *SHARED,
        *quiet,
        *includes,
        "-o",
        output,
        main,
        "-ldl",
    )


@lru_cache(maxsize=32)
def vector_width(compiler: Compiler) -> tuple[str, ...]:
    """Full-width vectors where the CPU has AVX-512; compilers prefer half width by default.

    Measured on a Zen 4 server (docs/decisions/0007-builds.md).
    """
    words = native_architecture(compiler).split()
    return ("-mprefer-vector-width=512",) if "-mavx512f" in words or "+avx512f" in words else ()
