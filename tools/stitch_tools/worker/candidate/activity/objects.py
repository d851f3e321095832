"""Which loaded files are the program's own code, and which of them reach past PyTorch's dispatcher."""

import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from stitch_tools.worker.elf import SHT_DYNSYM, open_elf

_SYSTEM = ("/usr/", "/lib/", "/lib64/", "/opt/", "/nix/")
# What any program links: no library that does the work instead of it.
_RUNTIMES = (
    *("ld-linux", "libc.", "libc-", "libm.", "libm-", "libmvec", "libstdc++", "libgcc_s"),
    *("libgomp", "libomp", "libiomp", "libpthread", "libdl.", "librt.", "libffi"),
)
# C++ functions and C functions that run an operator's code without a record of it: what PyTorch's profiler
# does not see. Operators that are called through the dispatcher (_ZN2at4_ops...) have records.
_PAST_DISPATCHER = re.compile(r"_ZN2at(?:3cpu|4cuda|6native)(\d+)(\w+)")
_C_FUNCTION = re.compile(rb"\baoti_torch_(?:cpu|cuda)_(\w+)")


@dataclass(frozen=True)
class CodeMapping:
    """Executable memory of this process."""

    start: int
    path: str
    """"" where it has no file."""


def executable_mappings() -> list[CodeMapping]:
    """The executable mappings of this process, by address."""
    result: list[CodeMapping] = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if "x" in fields[1]:
            path = fields[5] if len(fields) > 5 else ""
            # Memory files have names that lead nowhere: they hold generated code.
            named = path.startswith("/") and not path.startswith(("/memfd:", "/dev/zero"))
            result.append(CodeMapping(int(fields[0].partition("-")[0], 16), path if named else ""))
    return result


def own_files(own: Sequence[str]) -> list[str]:
    """The program's own binaries that are loaded; `own` are its files and folders."""
    paths = dict.fromkeys(mapping.path for mapping in executable_mappings() if mapping.path)
    return [path for path in paths if is_own(path, own)]


def is_own(path: str, own: Sequence[str]) -> bool:
    """Whether a loaded file is the program's own code: one of its own, or one from no known place."""
    if path.startswith(_torch_folder()) or _is_inductor(path):
        return False
    # The program's folders come first: they may lie inside of an interpreter's prefix.
    if any(path == place or path.startswith(place.rstrip("/") + "/") for place in own):
        return True
    return not path.startswith((*_SYSTEM, *_interpreter_folders()))


def libraries(paths: Iterable[str], own: Sequence[str]) -> list[str]:
    """Names of the files among these that may work for the program: not its own, nobody's runtime."""
    names: dict[str, None] = {}
    for path in paths:
        name = path.rpartition("/")[2]
        if path.startswith((_torch_folder(), *_standard_library())) or name.startswith(_RUNTIMES):
            continue
        if not is_own(path, own) and not _is_inductor(path):
            names[name] = None
    return list(names)


def past_dispatcher(paths: Iterable[str]) -> list[str]:
    """Names of the operators that these binaries can call without the profiler seeing it."""
    result = {name for path in paths for name in _reached_past(path) if _is_operator(name)}
    return sorted(result)


def _reached_past(path: str) -> Iterator[str]:
    try:
        elf = open_elf(path)
        imported = [symbol.name for symbol in elf.symbols(SHT_DYNSYM) if symbol.section == 0]
        # C functions are looked up by text as well as linked.
        named = [match[1].decode() for match in _C_FUNCTION.finditer(elf.data)]
    except (OSError, ValueError, IndexError):
        return  # its file is gone or damaged: nothing is known of it
    yield from named
    for symbol in imported:
        match = _PAST_DISPATCHER.match(symbol)
        if match is not None:
            yield match[2][: int(match[1])]


def _is_operator(name: str) -> bool:
    """Whether this is an operator's name (at::cuda::getCurrentCUDAStream, for one, is none)."""
    base = name.removesuffix("_outf").removesuffix("_out")
    return hasattr(torch.ops.aten, base)


@cache
def _torch_folder() -> str:
    return str(Path(torch.__file__).resolve().parent) + "/"


@cache
def _interpreter_folders() -> tuple[str, ...]:
    prefixes = {sys.prefix, sys.base_prefix} - {"", "/"}
    return (_real(sys.executable), *(f"{_real(path)}/" for path in prefixes))


@cache
def _standard_library() -> tuple[str, ...]:
    """The interpreter's own files; packages that lie below them are libraries, and are named apart."""
    paths = sysconfig.get_paths()
    return tuple(f"{_real(paths[name])}/lib-dynload/" for name in ("stdlib", "platstdlib"))


def _real(path: str) -> str:
    return str(Path(path).resolve())


def _is_inductor(path: str) -> bool:
    # What torch.compile generates is PyTorch's work, wherever its cache lies.
    return "torch._inductor.codecache" in sys.modules and "/torchinductor" in path
