"""Whose code an address belongs to: the process' executable mappings, sorted by owner."""

import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

NOBODY, OWN, TORCH, LIBRARY, PYTHON, BRIDGE, LIBC, HELPER, WAITING, UNNAMED = range(10)
"""Owners. PYTHON is interpreter and harness, BRIDGE is how ctypes calls; LIBC, HELPER (libm, libstdc++) and
UNNAMED (generated code) belong to whoever called them; in WAITING (parallel runtimes) threads wait."""

NAMED = (OWN, TORCH, LIBRARY, PYTHON, BRIDGE)
CALLERS = (OWN, BRIDGE, PYTHON)
_WAITING = ("libgomp", "libomp", "libiomp", "libpthread")
_HELPERS = ("libm.so", "libm-", "libmvec", "libstdc++", "libgcc_s")
_SYSTEM = ("/usr/", "/lib/", "/lib64/", "/opt/", "/nix/")


@dataclass(frozen=True)
class Mapping:
    """One executable mapping."""

    start: int
    end: int
    offset: int
    path: str
    """"" where it has no file."""

    @property
    def base(self) -> int:
        """Address at which the file's first byte would lie."""
        return self.start - self.offset


@dataclass(frozen=True)
class Belongings:
    """What makes an object the program's own, or a library that it was given."""

    files: tuple[str, ...]
    """The program's own binaries."""
    folders: tuple[str, ...]
    """Folders that it may write or came in: what is loaded from there is its own."""
    harness: tuple[str, ...]
    """Our own helpers."""


def executable_mappings() -> list[Mapping]:
    """The executable mappings of this process, by address."""
    found: list[Mapping] = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        start, _, end = fields[0].partition("-")
        # The page of old system calls lies above what a signed word holds; nobody works there.
        if "x" in fields[1] and int(end, 16) < 1 << 63:
            path = fields[5] if len(fields) > 5 else ""
            found.append(Mapping(int(start, 16), int(end, 16), int(fields[2], 16), path))
    return found


def own_files(mappings: Sequence[Mapping], belongings: Belongings) -> list[Mapping]:
    """The first executable mapping of each of the program's own binaries that are loaded."""
    firsts: dict[str, Mapping] = {}
    for mapping in mappings:
        if mapping.path and owner_of(mapping.path, belongings) == OWN:
            firsts.setdefault(mapping.path, mapping)
    return list(firsts.values())


def is_waiting(path: str) -> bool:
    """Whether this is a parallel runtime, in which threads wait for each other."""
    return path.rpartition("/")[2].startswith(_WAITING)


def owner_of(path: str, belongings: Belongings) -> int:
    """Whose code lies in a mapping of this file."""
    if not path or path.startswith(("/memfd:", "/dev/zero", "//anon")):
        return UNNAMED
    name = path.rpartition("/")[2]
    if path.startswith("[") or name.startswith("ld-linux") or path in belongings.harness:
        return PYTHON
    if name.startswith(("libc.so", "libc-")):
        return LIBC
    if name.startswith(_HELPERS):
        return HELPER
    if name.startswith("libffi"):
        return BRIDGE
    if is_waiting(path):
        return WAITING
    return _owner_by_place(path, belongings)


def _owner_by_place(path: str, belongings: Belongings) -> int:
    if path in belongings.files:
        return OWN
    if path.startswith(_torch_folder()) or _is_inductor(path):
        return TORCH
    # The program's folders come first: they may lie inside of an interpreter's prefix.
    if any(path.startswith(folder.rstrip("/") + "/") for folder in belongings.folders):
        return OWN
    packages, interpreter, prefixes = _interpreter_places()
    if path.startswith(packages):
        return LIBRARY
    if path.startswith(interpreter) or path.rpartition("/")[2].startswith("libpython"):
        return PYTHON
    return LIBRARY if path.startswith((*_SYSTEM, *prefixes)) else OWN


@cache
def _torch_folder() -> str:
    return str(Path(torch.__file__).resolve().parent) + "/"


@cache
def _interpreter_places() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Folders of packages, then files of the interpreter itself, then its prefixes."""
    paths = sysconfig.get_paths()
    packages = tuple(_real(paths[name]) + "/" for name in ("purelib", "platlib"))
    interpreter = (_real(sys.executable), *(_real(paths[name]) + "/" for name in ("stdlib", "platstdlib")))
    prefixes = tuple(_real(path) + "/" for path in {sys.prefix, sys.base_prefix} if path not in ("", "/"))
    return packages, interpreter, prefixes


def _real(path: str) -> str:
    return str(Path(path).resolve())


def _is_inductor(path: str) -> bool:
    # What torch.compile generates is PyTorch's work, wherever its cache lies.
    return "torch._inductor.codecache" in sys.modules and "/torchinductor" in path
