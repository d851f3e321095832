"""Which compilers this machine has: the C++ compiler and nvcc, their versions, and whether they fit together.

Looked for once per process and file: a compiler that was replaced on disk is noticed by its time stamp.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from stitch_tools.errors import EnvironmentMissingError

CompilerKind = Literal["gcc", "clang", "nvcc"]

OLDEST_GCC = 9
OLDEST_CLANG = 10
NEWEST_GCC_NAMES = tuple(f"g++-{number}" for number in range(15, OLDEST_GCC - 1, -1))
INSTALL_CPP = (
    "install one: `apt install g++`, `dnf install gcc-c++` or `conda install gxx`; "
    "or name it with STITCH_CXX=/path/to/g++"
)
INSTALL_OPENMP = (
    "install LLVM's OpenMP for it: `apt install libomp-dev`, `dnf install libomp-devel` or "
    "`conda install llvm-openmp`; or name a g++ with STITCH_CXX=/path/to/g++"
)
INSTALL_NVCC = (
    "install the CUDA toolkit, or `pip install nvidia-cuda-nvcc` beside the CUDA wheels of torch; "
    "or set CUDA_HOME to the toolkit's folder"
)


@dataclass(frozen=True)
class Compiler:
    """One compiler that answered with its version."""

    command: tuple[str, ...]
    """Program, and the arguments that CXX carried after it."""
    kind: CompilerKind
    version: tuple[int, ...]
    version_line: str
    """What the compiler says about itself, one line."""

    @property
    def path(self) -> Path:
        """The program file."""
        return Path(self.command[0])

    @property
    def major(self) -> int:
        """First number of the version."""
        return self.version[0]


def find_cpp_compiler(env: Mapping[str, str] | None = None) -> Compiler:
    """The C++ compiler: STITCH_CXX, else CXX, else g++ or clang++ on PATH, newest numbered g++ last.

    A CXX that is no g++ or clang++ may be meant for other builds: it is passed over.

    Raises:
        EnvironmentMissingError: there is none, or only ones that are too old or lack OpenMP, or STITCH_CXX or
            CXX names a program that is not there; the hint says how to get one.
    """
    env = os.environ if env is None else env
    chosen = env.get("STITCH_CXX", "").strip()
    if chosen:
        compiler = _probe(_split_command(chosen, env))
        if compiler is None:
            raise EnvironmentMissingError(
                f"STITCH_CXX={chosen} is not a g++ or clang++ that runs", hint=INSTALL_CPP
            )
        _refuse_unfit(compiler)
        return compiler
    _refuse_missing_cxx(env)
    unfit: Compiler | None = None
    for command in _candidate_commands(env):
        compiler = _probe(command)
        if compiler is None:
            continue
        if _problem(compiler) is None:
            return compiler
        unfit = unfit or compiler
    if unfit is not None:
        _refuse_unfit(unfit)
    raise EnvironmentMissingError("no C++ compiler was found (g++ or clang++)", hint=INSTALL_CPP)


def cxx_problem(env: Mapping[str, str] | None = None) -> str | None:
    """Why the compiler that CXX names is passed over; None where it is taken, or none is named."""
    env = os.environ if env is None else env
    cxx = env.get("CXX", "").strip()
    if not cxx or env.get("STITCH_CXX", "").strip():
        return None
    compiler = _probe(_split_command(cxx, env))
    if compiler is None:
        return f"CXX={cxx} is not a g++ or clang++ that runs"
    problem = _problem(compiler)
    return f"CXX={cxx}: {problem[0]}" if problem else None


def find_nvcc(env: Mapping[str, str] | None = None) -> Compiler:
    """nvcc: CUDA_HOME or CUDA_PATH, else PATH, else /usr/local/cuda, else the pip wheels of this interpreter.

    Raises:
        EnvironmentMissingError: there is none; the hint says how to get one.
    """
    env = os.environ if env is None else env
    for path in _nvcc_paths(env):
        compiler = _probe((str(path),))
        if compiler is not None and compiler.kind == "nvcc":
            return compiler
    raise EnvironmentMissingError("no CUDA compiler was found (nvcc)", hint=INSTALL_NVCC)


def cuda_root(nvcc: Compiler) -> Path:
    """The toolkit's folder, in which `include` lies (a wrapper script on PATH is followed by `--dryrun`)."""
    resolved = Path(nvcc.command[0]).resolve()
    root = resolved.parent.parent
    if (root / "include" / "cuda_runtime.h").is_file():
        return root
    return _top_of_dryrun(nvcc.command[0]) or root


def host_compiler_problem(nvcc: Compiler, host: Compiler) -> str | None:
    """Why this nvcc refuses that host compiler, in one sentence, or None where it fits.

    The limits are read from the toolkit's own header, so that no table of ours can be out of date.
    """
    header = cuda_root(nvcc) / "include" / "crt" / "host_config.h"
    try:
        text = header.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    if host.kind == "gcc":
        limits = [int(number) for number in re.findall(r"__GNUC__\s*>\s*(\d+)", text)]
        newest = max(limits, default=None)
    else:
        limits = [int(number) for number in re.findall(r"__clang_major__\s*>=\s*(\d+)", text)]
        newest = max(limits) - 1 if limits else None
    if newest is None or host.major <= newest:
        return None
    name = "g++" if host.kind == "gcc" else "clang++"
    limit = f"nvcc {_dotted(nvcc.version)} supports {name} up to {newest}"
    return f"{limit}, and {host.path} is {_dotted(host.version)}"


@lru_cache(maxsize=32)
def native_architecture(compiler: Compiler) -> str:
    """What `-march=native` means for this compiler on this machine: its expanded flags as one string.

    Part of the cache key, so that a cache on a shared disk never hands out another machine's code.
    """
    completed = ask_compiler([*compiler.command, "-march=native", "-###", "-E", "-x", "c++", "/dev/null"])
    if completed is None:
        return ""
    # The line of the compiler proper; gcc echoes its arguments in COLLECT_GCC_OPTIONS as well.
    lines = [line for line in completed.splitlines() if "-quiet" in line or "-target-cpu" in line]
    words = shlex.split(lines[-1]) if lines else []
    return " ".join(word for word in words if not word.startswith("/"))


def _candidate_commands(env: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    cxx = env.get("CXX", "").strip()
    if cxx:
        yield _split_command(cxx, env)
    for name in ("g++", "clang++", *NEWEST_GCC_NAMES):
        found = shutil.which(name, path=env.get("PATH"))
        if found is not None:
            yield (found,)


def _refuse_missing_cxx(env: Mapping[str, str]) -> None:
    """Refuse a CXX whose program is not there: whoever set it would not want another one in silence."""
    cxx = env.get("CXX", "").strip()
    if cxx and shutil.which(_split_command(cxx, env)[0]) is None:
        raise EnvironmentMissingError(
            f"CXX={cxx} names a program that is not there",
            hint="unset CXX, or name a g++ or clang++ with it, or with STITCH_CXX for stitch-mcp alone",
        )


def _split_command(text: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """The command of CXX: a path may hold spaces, and `ccache g++` is two words."""
    if Path(text).is_file():
        return (text,)
    try:
        words = shlex.split(text)
    except ValueError:
        words = [text]
    if not words:
        return (text,)
    return (shutil.which(words[0], path=env.get("PATH")) or words[0], *words[1:])


def _nvcc_paths(env: Mapping[str, str]) -> Iterator[Path]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if env.get(name):
            yield Path(env[name]) / "bin" / "nvcc"
    found = shutil.which("nvcc", path=env.get("PATH"))
    if found is not None:
        yield Path(found)
    yield Path("/usr/local/cuda/bin/nvcc")
    yield from sorted(Path("/usr/local").glob("cuda-*/bin/nvcc"), reverse=True)
    yield Path("/opt/cuda/bin/nvcc")
    for folder in sys.path:
        yield from sorted(Path(folder).glob("nvidia/*/bin/nvcc"), reverse=True)


def _probe(command: tuple[str, ...]) -> Compiler | None:
    program = shutil.which(command[0])
    if program is None:
        return None
    stamp = Path(program).stat()
    return _probe_file((program, *command[1:]), stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=64)
def _probe_file(command: tuple[str, ...], _mtime_ns: int, _size: int) -> Compiler | None:
    text = ask_compiler([*command, "--version"])
    return None if text is None else parse_version(command, text)


def parse_version(command: tuple[str, ...], text: str) -> Compiler | None:
    """The compiler that printed `text` for `--version`, or None when it is none that we know."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    release = re.search(r"release [\d.]+, V(\d+(?:\.\d+)+)", text)
    if release is not None:
        line = next(line for line in lines if release.group(0) in line)
        return Compiler(command, "nvcc", _numbers(release.group(1)), f"nvcc: {line}")
    clang = re.search(r"clang version (\d+(?:\.\d+)*)", lines[0])
    if clang is not None:
        return Compiler(command, "clang", _numbers(clang.group(1)), lines[0])
    gcc = re.search(r"(\d+\.\d+\.\d+)", lines[0])
    if gcc is not None and "Free Software Foundation" in text:
        return Compiler(command, "gcc", _numbers(gcc.group(1)), lines[0])
    return None


def ask_compiler(command: list[str]) -> str | None:
    """Both output streams of a short command without a source of anybody's; None when it cannot be run."""
    try:
        completed = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=False,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if completed.returncode != 0:
        return None
    return (completed.stdout + completed.stderr).decode("utf-8", "replace")


@lru_cache(maxsize=8)
def _top_of_dryrun(program: str) -> Path | None:
    text = ask_compiler([program, "--dryrun", "-E", "-x", "cu", "/dev/null"])
    found = re.search(r"^#\$ TOP=(.+)$", text or "", re.MULTILINE)
    return Path(found.group(1).strip()).resolve() if found else None


def _problem(compiler: Compiler) -> tuple[str, str] | None:
    """Why no program can be built by this compiler, and what to do; None where one can."""
    oldest = OLDEST_GCC if compiler.kind == "gcc" else OLDEST_CLANG
    if compiler.kind == "nvcc":
        return f"{compiler.path} is nvcc, not a C++ compiler", INSTALL_CPP
    if compiler.major < oldest:
        found = f"{compiler.path} is version {_dotted(compiler.version)}, and {oldest} or newer is needed"
        return found, INSTALL_CPP
    if compiler.kind == "clang" and not _has_openmp(compiler):
        return f"{compiler.path} has no OpenMP (omp.h)", INSTALL_OPENMP
    return None


@lru_cache(maxsize=32)
def _has_openmp(clang: Compiler) -> bool:
    """Whether LLVM's OpenMP is installed: g++ comes with its own, clang without."""
    command = [*clang.command, "-fopenmp", "-E", "-x", "c++", "-include", "omp.h", os.devnull]
    return ask_compiler(command) is not None


def _refuse_unfit(compiler: Compiler) -> None:
    problem = _problem(compiler)
    if problem is not None:
        raise EnvironmentMissingError(f"the C++ compiler cannot be used: {problem[0]}", hint=problem[1])


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)
