"""NVIDIA's Nsight Compute: where it lies, the script that runs it, and what its output means."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.models.profile import ProfileStatus
from stitch_tools.profile.permission import is_refused

INSTALL_NCU = (
    "install the toolkit's Nsight Compute (the package cuda-nsight-compute-13-0 of NVIDIA's repository, or "
    "nsight-compute), or put its folder on PATH"
)
RAW, SOURCE, RULES = "report.raw.csv", "report.source.csv", "report.rules.csv"
"""Files that the script leaves: the metrics a launch, the figures a source line, and what ncu's rules say."""
_CAPTURE = "capture"
_VERSION = re.compile(r"^Version (\d+(?:\.\d+)+)", re.MULTILINE)
_VERSION_LIMIT_S = 30.0
_UNKNOWN_METRICS = re.compile(r"Failed to find metrics?:?\s+(?:regex:)?([\w.,\s]+)")
_NO_KERNELS = "No kernels were profiled"
_IN_USE = re.compile(r"already in use|another (?:tool|profiler)|ERR_NVGPUCTRPERM.*in use", re.IGNORECASE)
_ERROR = re.compile(r"^==ERROR==\s*(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Ncu:
    """One that answered."""

    path: Path
    version: str
    """ "2025.3.1"; "" where it does not say."""

    @property
    def folder(self) -> Path:
        """The installation, which the profiled process loads libraries of; links are followed."""
        return self.path.resolve().parent

    @property
    def is_installation(self) -> bool:
        """Whether the folder holds more of ncu than this file."""
        return any((self.folder / name).is_dir() for name in ("target", "sections", "extras"))


@dataclass(frozen=True)
class NcuRequest:
    """What one run of ncu collects."""

    metrics: Sequence[str]
    kernels: Sequence[str] = ()
    """Bare names of the kernels that are looked at; () is all."""
    launches: int = 16
    """At most so many launches, from the first one in the profiled region on."""
    of_each: bool = False
    """Whether `launches` counts for each kernel and launch configuration by itself."""
    lines: bool = True
    """Whether source lines are wanted, too: they cost one more pass."""
    sections: Sequence[str] = ()
    """Sections of ncu whose rules are applied; () is none."""
    region: bool = True
    """Whether the program calls cuProfilerStart, before which nothing is collected."""


def find_ncu(env: Mapping[str, str] | None = None) -> Ncu:
    """The ncu on PATH, else CUDA_HOME's, else the newest of the usual folders.

    A toolkit's `bin/ncu` is a script that looks for an installation elsewhere, which a confined process may
    not read: one that lies in its own installation is preferred.

    Raises:
        EnvironmentMissingError: there is none that runs; the hint says how to get one.
    """
    env = os.environ if env is None else env
    elsewhere: Ncu | None = None
    for path in _candidates(env):
        if path.is_file() and os.access(path, os.X_OK):
            found = _ask(path, path.stat().st_mtime_ns)
            if found is not None and found.is_installation:
                return found
            elsewhere = elsewhere or found
    if elsewhere is not None:
        return elsewhere
    raise EnvironmentMissingError("Nsight Compute (ncu) was not found", hint=INSTALL_NCU)


def script(ncu: Ncu, request: NcuRequest) -> str:
    """A shell script that profiles the program given as its arguments, and writes RAW, SOURCE and RULES.

    Exit code and output of the run itself come first: what is exported afterwards says nothing new about it.
    """
    collect = [str(ncu.path), *_collect_words(request), "-f", "-o", _CAPTURE]
    report = [str(ncu.path), "--import", f"{_CAPTURE}.ncu-rep", "--csv", "--print-units", "base"]
    raw = [*report, "--page", "raw"]
    source = [*report, "--page", "source", "--print-source", "cuda"]
    lines = [
        f'{shlex.join(collect)} "$@"',
        "status=$?",
        f"[ -f {_CAPTURE}.ncu-rep ] || exit $status",
        f"{shlex.join(raw)} > {RAW} || exit 1",
    ]
    if request.lines:
        lines.append(f"{shlex.join(source)} > {SOURCE} 2>&1")
    if request.sections:
        lines.append(f"{shlex.join([*report, '--page', 'details'])} > {RULES} 2>&1")
    return "\n".join([*lines, "exit $status"]) + "\n"


def _collect_words(request: NcuRequest) -> list[str]:
    words = ["--target-processes", "all", "--clock-control", "none", "--cache-control", "none"]
    if request.region:
        words += ["--profile-from-start", "off"]
    if request.kernels:
        names = "|".join(sorted(map(re.escape, request.kernels)))
        words += ["--kernel-name-base", "function", "--kernel-name", f"regex:^({names})$"]
    if request.of_each:
        words += ["--filter-mode", "per-launch-config"]
    words += ["--launch-count", str(request.launches), "--metrics", ",".join(request.metrics)]
    sections = dict.fromkeys((*request.sections, *(("SourceCounters",) if request.lines else ())))
    for section in sections:
        words += ["--section", section]
    return words


def unknown_metrics(output: str) -> tuple[str, ...]:
    """Metrics that this ncu or this device does not know: a run without them succeeds."""
    found = (re.split(r"[,\s]+", match.group(1)) for match in _UNKNOWN_METRICS.finditer(output))
    names = (name.strip(".,") for group in found for name in group)
    return tuple(dict.fromkeys(name for name in names if "__" in name))


def refusal(output: str) -> tuple[ProfileStatus, str] | None:
    """What ncu says went wrong as status and sentence; None where it names nothing.

    The status is one of a profile: permission_denied, no_kernels, profiler_busy, crashed.
    """
    if is_refused(output):
        return "permission_denied", "this user may not read the GPU's counters"
    if _IN_USE.search(output):
        return "profiler_busy", "another profiler uses the GPU's counters"
    if _NO_KERNELS in output:
        return "no_kernels", "the program launched none of the kernels that were asked for"
    errors = _ERROR.findall(output)
    return ("crashed", f"ncu: {errors[0].strip()[:300]}") if errors else None


def _candidates(env: Mapping[str, str]) -> Iterator[Path]:
    found = shutil.which("ncu", path=env.get("PATH"))
    if found:
        yield Path(found)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if env.get(name):
            yield Path(env[name]) / "bin" / "ncu"
            yield from _newest(Path(env[name]), "nsight-compute-*/ncu")
    yield from _newest(Path("/opt/nvidia/nsight-compute"), "*/ncu")
    yield from _newest(Path("/usr/local"), "cuda*/bin/ncu")
    yield Path("/usr/lib/nsight-compute/ncu")


def _newest(folder: Path, pattern: str) -> list[Path]:
    def key(path: Path) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", str(path))]

    return sorted(folder.glob(pattern), key=key, reverse=True)


@lru_cache(maxsize=8)
def _ask(path: Path, changed_ns: int) -> Ncu | None:
    """What this file says of itself; asked again when the file has changed."""
    try:
        completed = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=_VERSION_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = _VERSION.search(completed.stdout)
    return Ncu(path, version.group(1) if version else "")
