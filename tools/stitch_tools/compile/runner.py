"""Runs one compiler: isolated, with time and memory limits, bounded output, nothing left behind.

A compiler's input is a stranger's text. It gets no file but its own, no network, no descriptor, no secret of
the environment, and an end: the whole process group is killed at the time limit, and by the kernel should
this process die before that.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from stitch_tools.compile.confinement import compiler_level
from stitch_tools.errors import EnvironmentMissingError, SandboxError
from stitch_tools.machine.isolation import BOOTSTRAP
from stitch_tools.models.verdict import SandboxLevel
from stitch_tools.protocol.messages import decode, encode
from stitch_tools.protocol.messages_session import CompilerEnded, CompilerRun
from stitch_tools.protocol.wire import Frame
from stitch_tools.storage.store import storing

OUTPUT_LIMIT_BYTES = 4 << 20
FILE_LIMIT_BYTES = 2 << 30
SMALLEST_MEMORY_LIMIT_BYTES = 4 << 30
_CHUNK_BYTES = 1 << 16
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH")


@dataclass(frozen=True)
class Completed:
    """How one compiler run ended."""

    exit_code: int
    """Exit code; negative is the number of the signal that ended it."""
    output: str
    """Standard output and error in one text, cut at the limit."""
    timed_out: bool
    wall_s: float
    cpu_s: float
    """User + system seconds of the compiler and every process that it waited for."""
    level: SandboxLevel | None = None
    """Isolation that it ran in, None where this system has none."""


def _environment(scratch: Path) -> dict[str, str]:
    """The environment that a compiler gets: names from an allow-list, and its scratch folder as TMPDIR."""
    return {
        "PATH": os.defpath,
        **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        "LC_ALL": "C",
        "TMPDIR": str(scratch),
        "HOME": str(scratch),
        "SOURCE_DATE_EPOCH": "0",
    }


def refuse_full_disk(completed: Completed, folder: Path) -> None:
    """Tell a compiler that found no room in `folder`, which is our trouble, from one that refused its input.

    Raises:
        StoreError: the disk of the build cache is full.
        EnvironmentMissingError: this process may write small files only, and the compiler met that limit.
    """
    _refuse_small_files(completed)
    full = os.strerror(errno.ENOSPC)
    # The words alone prove nothing: `#error` prints what a source likes.
    if completed.exit_code != 0 and full in completed.output and _is_nearly_full(folder):
        with storing(folder, "STITCH_CACHE_DIR"):
            raise OSError(errno.ENOSPC, full)


def _refuse_small_files(completed: Completed) -> None:
    import resource  # not on every system where this module is imported

    largest, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    is_small = largest != resource.RLIM_INFINITY and largest < FILE_LIMIT_BYTES
    met = completed.exit_code == -signal.SIGXFSZ or os.strerror(errno.EFBIG) in completed.output
    if completed.exit_code != 0 and is_small and met:
        raise EnvironmentMissingError(
            f"the compiler may write files of {largest >> 10} KiB at most here, and needs larger ones",
            hint="raise the limit of a file's size: ulimit -f unlimited",
        )


def _is_nearly_full(folder: Path) -> bool:
    """Whether what one build may write could have had no room there."""
    disk = os.statvfs(folder)
    has_no_files = disk.f_files > 0 and disk.f_favail < 64
    return has_no_files or disk.f_bavail * disk.f_frsize < 2 * FILE_LIMIT_BYTES


def run_compiler(
    command: Sequence[str],
    *,
    folder: Path,
    scratch: Path,
    time_limit_s: float,
    readable: Sequence[str],
    level: SandboxLevel | None = None,
) -> Completed:
    """The result of running `command` in `folder`; every process that it started is gone afterwards.

    Args:
        command: the compiler and its arguments.
        folder: where it runs; this and `scratch`, its TMPDIR, are all that it may write.
        scratch: may be the same folder.
        time_limit_s: it is killed after this many seconds.
        readable: files and folders that it may read.
        level: its isolation; None is the strongest of this machine.

    Raises:
        OSError: the command cannot be started.
        SandboxError: its isolation could not be set up; it did not run.
        StoreError, EnvironmentMissingError: as in `refuse_full_disk`.
    """
    started = time.monotonic()
    level = compiler_level() if level is None else level
    told, report = os.pipe()
    with os.fdopen(told, encoding="utf-8") as answer:
        try:
            process = _start(command, folder, scratch, time_limit_s, readable, level, report)
        finally:
            os.close(report)
        assert process.stdout is not None
        collector = _Collector(process.stdout)
        # The wait leaves the leader a zombie, so that its group id cannot belong to anybody else yet.
        waiter = threading.Thread(
            target=os.waitid, args=(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT), daemon=True
        )
        waiter.start()
        try:
            waiter.join(max(0.0, started + time_limit_s - time.monotonic()))
            timed_out = waiter.is_alive()
        finally:
            _kill_group(process.pid)
        waiter.join()
        status, cpu_s = _reap(process)
        wall_s = time.monotonic() - started
        output = collector.finish()
        ended = _exit_code(answer.readline(), status, command)
    completed = Completed(ended, output, timed_out, wall_s, cpu_s, level)
    refuse_full_disk(completed, folder)
    return completed


def _start(
    command: Sequence[str],
    folder: Path,
    scratch: Path,
    time_limit_s: float,
    readable: Sequence[str],
    level: SandboxLevel | None,
    report: int,
) -> subprocess.Popen[bytes]:
    """The process that confines itself as asked and becomes `command` (confine/compiler_run.py)."""
    # Its own /proc shows the compiler's processes alone.
    own_proc = ("/proc",) if level == "full" else ()
    request = CompilerRun(
        command=tuple(command),
        folder=str(folder.absolute()),
        level=level,
        readable=(*readable, *own_proc),
        writable=tuple(dict.fromkeys(str(path.absolute()) for path in (folder, scratch))),
        limits=_limits(time_limit_s),
        report=report,
        parent=os.getpid(),
    )
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(BOOTSTRAP), "compile", json.dumps(encode(request).message)],
        cwd=folder,
        env=_environment(scratch),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=(report,),
    )


def _limits(time_limit_s: float) -> dict[str, int]:
    """Limits by name. Time on the CPU ends what the clock, with us, would not outlive."""
    return {
        "RLIMIT_CORE": 0,
        "RLIMIT_AS": _memory_limit_bytes(),
        "RLIMIT_CPU": int(time_limit_s) * (os.cpu_count() or 1) + 5,
        "RLIMIT_FSIZE": FILE_LIMIT_BYTES,
    }


def _exit_code(line: str, launcher: int, command: Sequence[str]) -> int:
    """How the compiler ended, by what its launcher told; where that was killed, how the launcher did.

    Raises:
        OSError: the compiler cannot be started.
        SandboxError: its isolation could not be set up.
    """
    ended = decode(CompilerEnded, Frame(json.loads(line))) if line.endswith("\n") else CompilerEnded()
    if ended.not_started is not None:
        raise OSError(ended.not_started, os.strerror(ended.not_started), command[0])
    if ended.not_isolated is not None:
        raise SandboxError(
            f"the compiler could not be isolated: {ended.not_isolated}",
            hint="`stitch-mcp doctor` names the level that works here",
        )
    return launcher if ended.status is None else os.waitstatus_to_exitcode(ended.status)


@dataclass
class _Collector:
    """Reads a pipe to its end in a thread and keeps the first part, so that a flood blocks nobody."""

    pipe: IO[bytes]
    kept: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while chunk := os.read(self.pipe.fileno(), _CHUNK_BYTES):
            self.kept += chunk[: OUTPUT_LIMIT_BYTES - len(self.kept)]

    def finish(self) -> str:
        """The text. Every writer is dead by now, so the pipe ends at once."""
        self._thread.join(timeout=5.0)
        if not self._thread.is_alive():
            self.pipe.close()
        return bytes(self.kept).decode("utf-8", "replace")


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        # PermissionError: some systems answer so for a group that holds only a zombie.
        return


def _reap(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime


def _memory_limit_bytes() -> int:
    """Three quarters of the machine's memory: a template bomb must not take the machine with it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(SMALLEST_MEMORY_LIMIT_BYTES, total * 3 // 4)
