"""The command that builds a native CUDA program."""

import re
from collections.abc import Sequence
from pathlib import Path

from stitch_tools.compile.toolchain import Compiler
from stitch_tools.errors import UsageError

DEFAULT_ARCH = "sm_90"

# --cudart static: a program then needs no libcudart of the toolkit's version beside the one that torch
# brought. Every copy of the runtime shares the driver's primary context, so streams and pointers of torch
# stay valid in it; its error state is its own (docs/decisions/0007-builds.md).
BASE = (
    "-std=c++17",
    # Of the host's code only: ptxas has its own default of 3. That code launches kernels, and g++ took half
    # of a build's time to optimise it.
    "-O1",
    "-lineinfo",
    "-Xptxas",
    "-v",
    "--cudart",
    "static",
    "-shared",
    "-Xcompiler",
    "-fPIC,-fvisibility=hidden,-Wall,-fmax-errors=20",
    "-Xlinker",
    "-z",
    "-Xlinker",
    "defs",
)


def nvcc_command(
    compiler: Compiler,
    host: Compiler,
    main: str,
    output: str,
    archs: Sequence[str],
    include_folders: Sequence[Path] = (),
) -> tuple[str, ...]:
    """The exact command; run in the folder with the program's files it writes `output` there."""
    code = [word for pair in code_options(archs) for word in ("-gencode", pair)]
    includes = ("-I.", *(f"-I{folder}" for folder in include_folders))
    base = BASE if host.kind == "gcc" else tuple(word.replace(",-fmax-errors=20", "") for word in BASE)
    return (*compiler.command, "-ccbin", host.command[0], *base, *code, *includes, "-o", output, main, "-ldl")


def archs_for(target: str, requested: Sequence[str] = ()) -> tuple[str, ...]:
    """The architectures to build: those requested, else the target's own, else the default; sorted.

    Raises:
        UsageError: a name is not like sm_90 or sm_90a.
    """
    named = tuple(requested) or (target.partition(":")[2] or DEFAULT_ARCH,)
    for arch in named:
        if not re.fullmatch(r"sm_\d{2,3}[af]?", arch):
            raise UsageError(f"{arch!r} is not a GPU architecture", hint="write it like sm_90 or sm_90a")
    return tuple(sorted(set(named), key=lambda arch: (len(arch.rstrip("af")), arch)))


def code_options(archs: Sequence[str]) -> tuple[str, ...]:
    """Values of -gencode for the architectures.

    Code for sm_90 is made as sm_90a, which has the instructions of its tensor cores (wgmma): the letter says
    that no other chip runs it, and there is no other chip of 9.x.
    """
    built = dict.fromkeys("sm_90a" if arch == "sm_90" else arch for arch in archs)
    return tuple(f"arch=compute_{arch.removeprefix('sm_')},code={arch}" for arch in built)


def requested_arch(built: str, archs: Sequence[str]) -> str:
    """The architecture among those requested that the compiler's own name stands for."""
    return "sm_90" if built == "sm_90a" and "sm_90a" not in archs else built
