"""Find the Python that the user's reference runs in; torch is looked for there, never imported here."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from stitch_tools.errors import EnvironmentMissingError

MINIMUM_PYTHON = (3, 10)
MINIMUM_TORCH = (2, 6)
_PROBE_TIMEOUT_S = 30.0

Source = Literal["option", "STITCH_PYTHON", "workspace .venv", "VIRTUAL_ENV", "CONDA_PREFIX", "set-up", "own"]

# Left in our own environment by scripts/setup: the path of an interpreter that had torch already.
_TARGET_FILE = ".stitch-target"

# Reads the version file of torch instead of importing it: 30 ms instead of seconds.
_PROBE = """
import importlib.util, json, os, runpy, sys
spec, version = importlib.util.find_spec("torch"), None
if spec is not None and spec.origin:
    try:
        version = runpy.run_path(os.path.join(os.path.dirname(spec.origin), "version.py"))["__version__"]
    except Exception:  # a file of somebody else's torch is executed: it may raise anything
        version = None
folders = [path for path in sys.path if os.path.basename(path).endswith("-packages")]
print(json.dumps([sys.executable, list(sys.version_info[:3]), version and str(version), folders]))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python that was run once."""

    path: str
    python_version: str
    torch_version: str | None
    source: Source
    packages: tuple[Path, ...] = field(default=(), compare=False, repr=False)
    """The folders that it takes packages from: its own, the user's, those of the Python below it."""

    @property
    def prefix(self) -> Path:
        """Its `sys.prefix`: the folder above the one that it lies in, links not followed."""
        return Path(self.path).parent.parent


def find_interpreter(option: str | None, workspace: Path, *, need_torch: bool = True) -> Interpreter:
    """The target interpreter, for a workspace and the caller's option.

    The order: option, STITCH_PYTHON, workspace .venv, VIRTUAL_ENV, CONDA_PREFIX, what scripts/setup found,
    our own. One that was named (the first two) must fit; of the others the first that fits is taken.

    Raises:
        EnvironmentMissingError: none fits; the hint names the fix.
    """
    reasons: list[str] = []
    for path, source in _candidates(option, workspace):
        try:
            found = probe(path, source)
            _require(found, need_torch)
        except EnvironmentMissingError as error:
            if source in ("option", "STITCH_PYTHON"):
                raise
            reasons.append(f"{source}: {error.message}")
            continue
        return found
    raise EnvironmentMissingError(
        "no Python with torch was found (" + "; ".join(reasons) + ")",
        hint='install torch in one of them (pip install "torch>=2.6"), or name another with --python',
    )


def probe(path: str, source: Source = "option") -> Interpreter:
    """What the interpreter at `path` says about itself.

    Raises:
        EnvironmentMissingError: it is not there, does not run, or is not Python.
    """
    fix = "name a Python >= 3.10 with torch >= 2.6 by --python or STITCH_PYTHON"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            [path, "-c", _PROBE],
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=_PROBE_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd=os.sep,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentMissingError(f"{path} cannot be run: {error}", hint=fix) from error
    try:
        executable, version, torch_version, *packages = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError) as error:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise EnvironmentMissingError(f"{path} is not a usable Python: {last}", hint=fix) from error
    folders = tuple(Path(folder) for group in packages for folder in group)
    return Interpreter(executable or path, ".".join(map(str, version)), torch_version, source, folders)


def _candidates(option: str | None, workspace: Path) -> Iterator[tuple[str, Source]]:
    if option:
        yield _as_executable(option), "option"
        return
    if named := os.environ.get("STITCH_PYTHON"):
        yield _as_executable(named), "STITCH_PYTHON"
        return
    folders: tuple[tuple[str | Path | None, Source], ...] = (
        (workspace / ".venv", "workspace .venv"),
        (os.environ.get("VIRTUAL_ENV"), "VIRTUAL_ENV"),
        (os.environ.get("CONDA_PREFIX"), "CONDA_PREFIX"),
    )
    for folder, source in folders:
        if folder and (path := Path(folder) / "bin" / "python").exists():
            yield str(path), source
    if named := _target_of_setup(Path(sys.prefix)):
        yield _as_executable(named), "set-up"
    yield sys.executable, "own"


def _target_of_setup(prefix: Path) -> str:
    """What `scripts/setup` wrote into the environment at `prefix`, "" where torch lies in that itself."""
    try:
        return (prefix / _TARGET_FILE).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _as_executable(named: str) -> str:
    """The path of an interpreter given by path, by environment folder, or by a name on PATH."""
    path = Path(named).expanduser()
    if path.is_dir():
        return str(path / "bin" / "python")
    return str(path) if os.sep in named else named


def _require(found: Interpreter, need_torch: bool) -> None:
    if _numbers(found.python_version) < MINIMUM_PYTHON:
        raise EnvironmentMissingError(
            f"{found.path} is Python {found.python_version}, at least 3.10 is needed",
            hint="name a newer one with --python",
        )
    if not need_torch:
        return
    install = f'{found.path} -m pip install "torch>=2.6"'
    if found.torch_version is None:
        raise EnvironmentMissingError(f"{found.path} has no torch", hint=f"run: {install}, or use --python")
    if _numbers(found.torch_version) < MINIMUM_TORCH:
        raise EnvironmentMissingError(
            f"{found.path} has torch {found.torch_version}, at least 2.6 is needed", hint=f"run: {install}"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:2])
