"""A fingerprint of what results depend on beside their inputs: equal calls are one job where it is equal."""

import json
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path

from stitch_mcp import __version__
from stitch_mcp.config import Config
from stitch_tools.models import sha256_hex

_VARIABLES = (
    "CONDA_PREFIX",
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "CXX",
    "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
    "PATH",
    "VIRTUAL_ENV",
)
_NO_PART = ("origins", "confirm")
"""Fields of the settings that no result depends on."""


def fingerprint(config: Config) -> str:
    """A hash over version, machine, settings, variables of compilers and interpreters, and packages."""
    settings = {name: str(value) for name, value in asdict(config).items() if name not in _NO_PART}
    variables = {name: os.environ.get(name, "") for name in _VARIABLES}
    variables |= {name: value for name, value in os.environ.items() if _is_setting(name)}
    prefixes = [config.python, os.environ.get("STITCH_PYTHON"), str(config.workspace / ".venv")]
    prefixes += [variables["VIRTUAL_ENV"], variables["CONDA_PREFIX"], sys.prefix]
    packages = [row for prefix in prefixes if prefix for row in _installed(Path(prefix))]
    parts = [__version__, platform.node(), platform.release(), sys.version, settings, variables, packages]
    return sha256_hex(json.dumps(parts, sort_keys=True).encode("utf-8"))[:16]


def _is_setting(name: str) -> bool:
    return name.startswith("STITCH_") and name not in ("STITCH_CONFIRM", "STITCH_MCP_TOKEN")


def _installed(prefix: Path) -> list[tuple[str, int]]:
    """The package folders of an environment (or of the interpreter in it), with their times of change."""
    roots = [prefix, prefix.parent.parent]
    folders = [folder for root in roots for folder in sorted(root.glob("lib/python3*/site-packages"))]
    return [(str(folder), folder.stat().st_mtime_ns) for folder in folders]
