"""NVIDIA's compute-sanitizer: where it lies, and which words one of its tools is started with."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from stitch_tools.compile.toolchain import cuda_root, find_nvcc
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.models.sanitizer import SanitizerTool

NAME = "compute-sanitizer"
INSTALL_SANITIZER = (
    "install the toolkit's compute-sanitizer or `pip install nvidia-cuda-sanitizer-api`; "
    "or set CUDA_HOME to the toolkit's folder"
)
_HELP_LIMIT_S = 30.0
_MOST_FILTERS = 24
_MOST_RECORDS = 400
# Bytes that memcheck puts behind each allocation: without them an overrun lands in the neighbour, unseen.
_PADDING_BYTES = 512


@dataclass(frozen=True)
class ComputeSanitizer:
    """One that answered."""

    path: Path
    version: str
    help: str
    """What it says its options are; they differ between versions."""

    @property
    def folder(self) -> Path:
        """The folder with what it loads into a program; a link or script on PATH is followed."""
        return self.path.resolve().parent

    def command(self, tool: SanitizerTool, report: str, kernels: Sequence[str]) -> tuple[str, ...]:
        """The words before the program's own: XML into `report`; of kernels only `kernels`, where given."""
        words = [str(self.path), "--tool", tool, "--xml", "--save", report]
        words += ["--print-limit", str(_MOST_RECORDS), "--target-processes", "application-only"]
        words += self._option("strip-paths", "no") + self._option("show-backtrace", "device")
        words += self._option("check-exit-code", "no")
        if tool == "memcheck":
            words += self._option("padding", str(_PADDING_BYTES)) + self._option("report-api-errors", "no")
        if tool == "initcheck":
            words += self._option("initcheck-address-space", "all")
        # initcheck must see every kernel: what an unseen one writes would count as never written.
        if tool != "initcheck" and 0 < len(kernels) <= _MOST_FILTERS:
            option = self._filter_option()
            words += [word for name in kernels if option for word in (option, f"kns={name}")]
        return tuple(words)

    def _option(self, name: str, value: str) -> list[str]:
        return [f"--{name}", value] if re.search(rf"--{name}\b", self.help) else []

    def _filter_option(self) -> str | None:
        """The option that takes a part of a kernel's name; it was renamed more than once."""
        parts = re.split(r"^ {1,4}(?:-\w \[ )?--([\w-]+)", self.help, flags=re.MULTILINE)
        named = zip(parts[1::2], parts[2::2], strict=False)
        found = (name for name, text in named if "kns" in text and not name.endswith("exclude"))
        name = next(found, None)
        return None if name is None else f"--{name}"


def find_compute_sanitizer(
    prefixes: Sequence[Path] = (), env: Mapping[str, str] | None = None
) -> ComputeSanitizer:
    """compute-sanitizer: CUDA_HOME or CUDA_PATH, else PATH, nvcc's toolkit, else an interpreter's wheel.

    Args:
        prefixes: `sys.prefix` of interpreters whose wheel may be used, best first.
        env: environment to read; None is this process's own.

    Raises:
        EnvironmentMissingError: there is none that runs; the hint says how to get one.
    """
    env = os.environ if env is None else env
    for path in _candidates(prefixes, env):
        if path.is_file() and os.access(path, os.X_OK):
            found = _ask(path, path.stat().st_mtime_ns)
            if found is not None:
                return found
    raise EnvironmentMissingError("compute-sanitizer was not found", hint=INSTALL_SANITIZER)


def _candidates(prefixes: Sequence[Path], env: Mapping[str, str]) -> Iterator[Path]:
    roots = [Path(env[name]) for name in ("CUDA_HOME", "CUDA_PATH") if env.get(name)]
    yield from (path for root in roots for path in _in_toolkit(root))
    on_path = shutil.which(NAME, path=env.get("PATH"))
    if on_path is not None:
        yield Path(on_path)
    with contextlib.suppress(EnvironmentMissingError):
        yield from _in_toolkit(cuda_root(find_nvcc(env)))
    yield from _in_toolkit(Path("/usr/local/cuda"))
    sites = [path for prefix in prefixes for path in prefix.glob("lib/python3.*/site-packages")]
    for folder in (*sites, *map(Path, sys.path)):
        yield from sorted(folder.glob(f"nvidia/*/{NAME}/{NAME}"), reverse=True)


def _in_toolkit(root: Path) -> tuple[Path, Path]:
    # Not the script in bin/: it looks for the real program by ways that a sandbox may not allow.
    return root / NAME / NAME, root / "bin" / NAME


@lru_cache(maxsize=8)
def _ask(path: Path, _mtime_ns: int) -> ComputeSanitizer | None:
    texts: list[str] = []
    for option in ("--version", "--help"):
        try:
            done = subprocess.run(
                [str(path), option],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_HELP_LIMIT_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        if done.returncode != 0:
            return None
        texts.append(done.stdout)
    version = re.search(r"Version (\S+)", texts[0])
    return ComputeSanitizer(path, version[1] if version else "unknown", texts[1])
