"""Builds an exported program at its first use, into a cache folder of the user."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_TIME_LIMIT_S = 900.0
_LAST_LINES = 5


class BuildError(Exception):
    """The program cannot be built here; the message says why."""


def cache_folder() -> Path:
    """Where libraries are kept: STITCH_EXPORT_CACHE, else a folder of the user's cache."""
    named = os.environ.get("STITCH_EXPORT_CACHE", "")
    base = os.environ.get("XDG_CACHE_HOME", "") or str(Path.home() / ".cache")
    return Path(named) if named else Path(base) / "stitch-export"


def built_library(folder: Path, spec: dict[str, Any]) -> Path:
    """The program's shared library, built unless an equal build is in the cache.

    Args:
        folder: the exported package.
        spec: its export.json.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    program = folder / "program"
    command = [_compiler(spec), *spec["flags"], *_vector_width(spec)]
    library = cache_folder() / f"{spec['name']}-{_key(program, folder, command)}.so"
    if library.is_file():
        return library
    includes = ["-I.", f"-I{folder / 'include'}"]
    includes += [f"-I{Path(sys.prefix) / 'include'}"] if spec["libraries"] else []
    try:
        library.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=library.parent) as place:
            output = Path(place) / library.name
            _run([*command, *includes, "-o", str(output), spec["main"], "-ldl"], program)
            # Renamed when it is whole: another process may build the same at this moment.
            output.replace(library)
    except OSError as error:
        raise BuildError(f"the build failed: {error}") from error
    return library


def _compiler(spec: dict[str, Any]) -> str:
    is_cuda = spec["device"] == "cuda"
    variable, names = ("NVCC", ("nvcc",)) if is_cuda else ("CXX", ("g++", "clang++"))
    named = os.environ.get(variable, "")
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    candidates = [named] if named else [*names, *(f"{home}/bin/nvcc" for home in homes if is_cuda)]
    for name in candidates:
        if found := shutil.which(name):
            return found
    raise BuildError(f"there is no compiler ({', '.join(candidates)}): install one, or name it in {variable}")


def _vector_width(spec: dict[str, Any]) -> list[str]:
    # As the certified build: compilers prefer half width where the CPU has AVX-512.
    wide = spec["device"] == "cpu" and " avx512f " in _processor()
    return ["-mprefer-vector-width=512"] if wide else []


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((f"{line} " for line in lines if line.startswith(("flags", "Features"))), "")


def _key(program: Path, folder: Path, command: list[str]) -> str:
    """Hash of all that decides what the build gives, the processor included: a home folder may be shared."""
    version = subprocess.run([command[0], "--version"], capture_output=True, check=False).stdout
    parts = [json.dumps(command).encode(), version, platform.machine().encode(), _processor().encode()]
    for root in (program, folder / "include"):
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            parts += [str(path.relative_to(root)).encode(), path.read_bytes()]
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:20]


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_TIME_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} took longer than {_TIME_LIMIT_S:.0f} s") from error
    if done.returncode != 0:
        words = "\n".join(done.stderr.strip().splitlines()[:_LAST_LINES])
        raise BuildError(f"{command[0]} failed with exit code {done.returncode}: {words}")
