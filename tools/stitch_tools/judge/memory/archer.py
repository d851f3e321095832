"""LLVM's OpenMP runtime with Archer, which tells ThreadSanitizer in which order OpenMP's threads work.

GNU's runtime orders its threads by futexes, of which ThreadSanitizer knows nothing: every parallel loop would
look like a race. LLVM's answers to the calls that g++ compiles for GNU's, so the program needs no other
compiler, and Archer annotates its barriers, regions and locks.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.worker.elf import SHT_DYNSYM, open_elf

INSTALL_ARCHER = "install LLVM's OpenMP runtime with Archer (Debian, Ubuntu: libomp-dev; conda: llvm-openmp)"
_RUNTIMES = ("libomp.so", "libomp.so.5")
_ARCHER = "libarcher.so"
_CALLS = ("GOMP_", "omp_", "__kmpc_")
AT_WORK = "Archer detected OpenMP application with TSan"
"""What Archer prints when it is asked to say that it is there."""


@dataclass(frozen=True)
class Archer:
    """Both libraries, of one version."""

    runtime: Path
    """LLVM's OpenMP runtime."""
    tool: Path
    """What the runtime loads to annotate its threads' order."""


def calls_openmp(program: Path) -> bool:
    """Whether a built program calls an OpenMP runtime.

    Raises:
        OSError, ValueError: the file cannot be read.
    """
    symbols = open_elf(program).symbols(SHT_DYNSYM)
    return any(symbol.section == 0 and symbol.name.startswith(_CALLS) for symbol in symbols)


def find_archer(prefixes: Sequence[Path] = (), system: Sequence[Path] | None = None) -> Archer:
    """The libraries of the first root that has both.

    Args:
        prefixes: roots that are looked at first, as an interpreter's prefix.
        system: the roots after them; None is clang's own, and where distributions put LLVM.

    Raises:
        EnvironmentMissingError: they are not installed.
    """
    for root in (*prefixes, *(_system_roots() if system is None else system)):
        for folder in (root / "lib", root / "lib64", root / "lib" / "x86_64-linux-gnu"):
            tool = folder / _ARCHER
            runtime = next((folder / name for name in _RUNTIMES if (folder / name).is_file()), None)
            if runtime is not None and tool.is_file():
                return Archer(runtime.resolve(), tool.resolve())
    raise EnvironmentMissingError(
        "no OpenMP runtime is here whose order ThreadSanitizer sees (libomp with libarcher)",
        hint=INSTALL_ARCHER,
    )


def _system_roots() -> list[Path]:
    clang = shutil.which("clang++")
    own = [] if clang is None else [Path(clang).resolve().parents[1]]
    # The newest of several versions first: as text llvm-9 would come after llvm-14.
    versions = sorted(Path("/usr/lib").glob("llvm-*"), key=lambda path: (len(path.name), path.name))
    return [*own, *reversed(versions), Path("/usr/local"), Path("/usr")]
