"""A fingerprint of what results depend on beside their inputs: equal calls are one job where it is equal."""

import json
import os
import platform
import shutil
import sys
from collections.abc import Generator
from dataclasses import asdict
from pathlib import Path

from stitch_mcp import __version__
from stitch_mcp.config import Config
from stitch_tools.models.base import sha256_hex

_VARIABLES = (
    "CONDA_PREFIX",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CXX",
    "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
    "PATH",
    "VIRTUAL_ENV",
)
_NO_PART = ("origins", "confirm")
"""Fields of the settings that no result depends on."""
_COMPILERS = ("g++", "clang++", "nvcc")
_PACKAGES = (
    "lib/python3*/site-packages",
    "lib64/python3*/site-packages",
    # Debian's own Python has them elsewhere.
    "lib/python3*/dist-packages",
    "local/lib/python3*/dist-packages",
)
"""Where an environment keeps its packages."""


def fingerprint(config: Config) -> str:
    """A hash over version, machine, settings, variables and files of compilers and interpreters, packages."""
    settings = {name: str(value) for name, value in asdict(config).items() if name not in _NO_PART}
    variables = {name: os.environ.get(name, "") for name in _VARIABLES}
    variables |= {name: value for name, value in os.environ.items() if _is_setting(name)}
    prefixes = [config.python, os.environ.get("STITCH_PYTHON"), str(config.workspace / ".venv")]
    prefixes += [variables["VIRTUAL_ENV"], variables["CONDA_PREFIX"], sys.prefix]
    packages = [row for prefix in prefixes if prefix for row in _installed(Path(prefix))]
    machine = [__version__, platform.node(), platform.release(), sys.version]
    parts = [*machine, settings, variables, packages, list(_compilers())]
    return sha256_hex(json.dumps(parts, sort_keys=True).encode("utf-8"))[:16]


def _is_setting(name: str) -> bool:
    return name.startswith("STITCH_") and name not in ("STITCH_CONFIRM", "STITCH_MCP_TOKEN")


def _installed(prefix: Path) -> list[tuple[str, int]]:
    """The package folders of an environment (or of the interpreter in it), with their times of change."""
    roots = [prefix, prefix.parent.parent]
    folders = [folder for root in roots for pattern in _PACKAGES for folder in sorted(root.glob(pattern))]
    return [(str(folder), folder.stat().st_mtime_ns) for folder in folders]


def _compilers() -> Generator[tuple[str, int, int]]:
    """The files of compilers, links followed, with time of change and size; an update leaves their names."""
    # A path may hold spaces, and `ccache g++-13` is two words.
    named = [text for name in ("STITCH_CXX", "CXX") if (text := os.environ.get(name, ""))]
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates = [*named, *(word for text in named for word in text.split()), *_COMPILERS]
    candidates += [f"{home}/bin/nvcc" for home in homes if home]
    for name in candidates:
        if compiler := shutil.which(name):
            path = Path(compiler).resolve()
            yield str(path), path.stat().st_mtime_ns, path.stat().st_size
