"""NVIDIA's nsys: where it lies, what it lacks, and how it records a subject inside the sandbox."""

import ctypes.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.models.profile import ProfileStatus
from stitch_tools.profile.profile_host import TABLES, HostRun, HostSetup, run_host
from stitch_tools.profile.recorded_trace import MOST_BYTES
from stitch_tools.run.tool_process import execute

INSTALL_NSYS = "install Nsight Systems, or the CUDA toolkit's Nsight Compute, which brings an nsys"
INSTALL_LIBDW = "install libdw1 and libelf1 (Debian, Ubuntu) or elfutils-libs (Fedora)"
_STEM = TABLES.removesuffix(".sqlite")
_VERSION_LIMIT_S = 60.0
_CONVERT_LIMIT_S = 120.0
_BUNDLED = ("/opt/nvidia/nsight-systems*/*/target-linux-x64/nsys", "/opt/nvidia/nsight-systems*/*/bin/nsys")
# Debian's package keeps the importer apart from the program.
_DEBIAN = Path("/usr/lib/nsight-systems")
_IN_NCU = "/opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys"
# What CUPTI and nsys say where another profiler has the device or process.
_BUSY = re.compile(
    r"MULTIPLE_SUBSCRIBERS|another (profiler|profiling)|already (being )?profil|NOT_COMPATIBLE|"
    r"session .*already|CUPTI_ERROR_HARDWARE_BUSY",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Nsys:
    """One that answered."""

    path: Path
    version: str
    has_libdw: bool
    """Whether its importer finds libdw: else a recording stays a .qdstrm file."""

    @property
    def folders(self) -> tuple[Path, ...]:
        """What it loads: its own folder, and the importer's beside it."""
        own = self.path.resolve().parent
        return own, own.parent

    def importer(self) -> Path | None:
        """The program that turns a .qdstrm file into a report."""
        for root in (self.path.resolve().parent.parent, self.path.parent.parent, _DEBIAN):
            for pattern in ("host-*/QdstrmImporter", "*/QdstrmImporter"):
                for found in sorted(root.glob(pattern)):
                    return found
        return None


@dataclass(frozen=True)
class Recording:
    """What became of recording a subject: a file of tables, or why there is none."""

    status: ProfileStatus
    """`profiled` where the file is there."""
    message: str = ""
    tables: Path | None = None
    run: HostRun | None = None


def find_nsys(env: Mapping[str, str] | None = None) -> Nsys:
    """nsys: STITCH_NSYS, else PATH, else below /opt/nvidia, else the one that comes with ncu.

    Raises:
        EnvironmentMissingError: there is none that runs; the hint says how to get one.
    """
    env = os.environ if env is None else env
    for path in _candidates(env):
        if path.is_file() and os.access(path, os.X_OK):
            version = _version(path, path.stat().st_mtime_ns)
            if version is not None:
                return Nsys(path, version, has_libdw=find_libdw(env))
    raise EnvironmentMissingError("nsys was not found", hint=INSTALL_NSYS)


def find_libdw(env: Mapping[str, str] | None = None) -> bool:
    """Whether the loader finds libdw.so.1, which nsys' importer needs."""
    env = os.environ if env is None else env
    folders = [Path(folder) for folder in env.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return any((folder / "libdw.so.1").exists() for folder in folders) or bool(ctypes.util.find_library("dw"))


def _candidates(env: Mapping[str, str]) -> Iterator[Path]:
    if env.get("STITCH_NSYS"):
        yield Path(env["STITCH_NSYS"])
    on_path = shutil.which("nsys", path=env.get("PATH"))
    if on_path is not None:
        # The command on PATH is often a script that looks for the newest: its target is what is confined.
        yield Path(on_path)
    yield _DEBIAN / "target-linux-x64" / "nsys"
    for pattern in (*_BUNDLED, _IN_NCU):
        yield from sorted(Path("/").glob(pattern.removeprefix("/")), reverse=True)
    ncu = shutil.which("ncu", path=env.get("PATH"))
    if ncu is not None:
        root = Path(ncu).resolve().parent
        for folder in (root, root.parent):
            yield from sorted(folder.glob("host/target-linux-x64/nsys"))


@lru_cache(maxsize=8)
def _version(path: Path, _mtime_ns: int) -> str | None:
    try:
        done = subprocess.run(
            [str(path), "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"(\d{4}(?:\.\d+)+)", done.stdout)
    return match[1] if match is not None else None


def record_with_nsys(
    setup: HostSetup, nsys: Nsys, *, limit_s: float, most_bytes: int = MOST_BYTES
) -> Recording:
    """Record the subject once; whatever goes wrong is a status.

    Args:
        setup: the subject.
        nsys: from `find_nsys`.
        limit_s: of the run.
        most_bytes: a larger recording is removed.

    Raises:
        SandboxError: nsys cannot work at this isolation level.
    """
    words = (
        *(str(nsys.path), "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none"),
        # From cudaProfilerStart to cudaProfilerStop; "stop" lets the subject live on to say how it went.
        *("--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--cuda-graph-trace=node"),
        *("--force-overwrite=true", "--export=sqlite", f"--output={setup.folder / _STEM}"),
    )
    run = run_host(
        setup,
        "nsys",
        limit_s=limit_s,
        prefix=words,
        readable=(*nsys.folders, *library_folders()),
        loopback=True,
    )
    failed = _failed(run, limit_s)
    if failed is not None:
        return failed
    problem = None if (setup.folder / TABLES).exists() else _convert(setup, nsys)
    if problem is not None:
        return Recording(*problem, run=run)
    return _bounded(setup, run, most_bytes)


def library_folders() -> tuple[Path, ...]:
    """Folders of LD_LIBRARY_PATH, where libdw may lie."""
    named = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return tuple(path for folder in named if folder and (path := Path(folder)).is_dir())


def _failed(run: HostRun, limit_s: float) -> Recording | None:
    failed = failure_of(run, limit_s)
    # nsys says of its own trouble: the subject then often does not run at all.
    said = f"{run.execution.stdout}\n{run.execution.stderr}"
    if failed is not None and _BUSY.search(said):
        return Recording("profiler_busy", "another profiler has the device or this process", run=run)
    return failed


def _bounded(setup: HostSetup, run: HostRun, most_bytes: int) -> Recording:
    """The recording, removed where it is too large to be read."""
    tables = setup.folder / TABLES
    size = tables.stat().st_size
    if size > most_bytes:
        tables.unlink()
        message = f"the recording has {size >> 20} MiB, more than {most_bytes >> 20}"
        return Recording("too_large", message, run=run)
    return Recording("profiled", tables=tables, run=run)


def failure_of(run: HostRun, limit_s: float) -> Recording | None:
    """Why the subject did not run through under a profiler; None where it did."""
    execution = run.execution
    if execution.done:
        return None
    message = execution.why_not_done(limit_s)
    if execution.timed_out:
        return Recording("timed_out", message, run=run)
    words = f"{execution.refusal or ''} {execution.trouble}"
    if "out_of_memory" in words or "out of memory" in words.lower():
        return Recording("out_of_memory", message, run=run)
    return Recording("crashed", message, run=run)


def _convert(setup: HostSetup, nsys: Nsys) -> tuple[ProfileStatus, str] | None:
    """Make the tables from what nsys left behind; None where they are there then, else why not."""
    report, stream = (setup.folder / f"{_STEM}.{suffix}" for suffix in ("nsys-rep", "qdstrm"))
    if not report.exists() and not stream.exists():
        return "region_not_entered", "nsys recorded nothing: no cudaProfilerStart was seen"
    importer = nsys.importer()
    if not report.exists() and importer is not None:
        _run_tool(setup, nsys, (str(importer), "-i", str(stream), "-o", str(report)))
    if report.exists():
        target = str(setup.folder / TABLES)
        export = ("export", "--type=sqlite", "--force-overwrite=true", f"--output={target}", str(report))
        _run_tool(setup, nsys, (str(nsys.path), *export))
    if (setup.folder / TABLES).exists():
        return None
    reason = "its importer was not found" if importer is None else "its importer failed"
    if not nsys.has_libdw:
        reason = "its importer needs libdw.so.1, which is not there"
    return "not_converted", f"nsys left a .qdstrm file: {reason}; {INSTALL_LIBDW}"


def _run_tool(setup: HostSetup, nsys: Nsys, words: tuple[str, ...]) -> None:
    execute(
        setup.session,
        words,
        files={},
        env={},
        fds=(),
        readable=(*nsys.folders, *library_folders(), Path("/etc/hosts")),
        limit_s=_CONVERT_LIMIT_S,
        writable=(setup.folder,),
        loopback=True,
    )
