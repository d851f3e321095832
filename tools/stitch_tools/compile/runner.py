"""Runs one compiler: own session, time and memory limits, bounded output, nothing left behind.

A compiler's input is a stranger's text. It gets no descriptor, no secret of the environment, and an end: the
whole process group is killed at the time limit, and by `timeout` too should this process die before that.
"""

import errno
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from stitch_tools.store import storing

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
    output_cut: bool = False


def compiler_environment(scratch: Path, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment that a compiler gets: names from an allow-list, and its scratch folder as TMPDIR."""
    env = os.environ if env is None else env
    passed = {name: env[name] for name in _PASSED_ON if name in env}
    return {
        "PATH": os.defpath,
        **passed,
        "LC_ALL": "C",
        "TMPDIR": str(scratch),
        "HOME": str(scratch),
        "SOURCE_DATE_EPOCH": "0",
    }


def refuse_full_disk(completed: Completed, folder: Path) -> None:
    """Tell a compiler that found no room in `folder`, which is our trouble, from one that refused its input.

    Raises:
        StoreError: the disk of the build cache is full.
    """
    full = os.strerror(errno.ENOSPC)
    if completed.exit_code != 0 and full in completed.output:
        with storing(folder, "STITCH_CACHE_DIR"):
            raise OSError(errno.ENOSPC, full)


def run_compiler(
    command: Sequence[str], *, folder: Path, env: Mapping[str, str], time_limit_s: float
) -> Completed:
    """The result of running `command` in `folder`; every process that it started is gone afterwards.

    Raises:
        OSError: the command cannot be started.
    """
    started = time.monotonic()
    process = subprocess.Popen(
        limited(command, time_limit_s),
        cwd=folder,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
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
    output, cut = collector.finish()
    return Completed(status, output, timed_out, wall_s, cpu_s, cut)


def limited(command: Sequence[str], time_limit_s: float) -> list[str]:
    """`command` under limits on memory, CPU time and file size, and `timeout` where the system has it.

    `timeout` matters only when this process is killed: the compiler would then run on without an end.
    """
    shell = shutil.which("sh")
    if shell is None:
        return list(command)
    timeout = shutil.which("timeout")
    guard = [timeout, "-s", "KILL", f"{time_limit_s + 5:.0f}"] if timeout else []
    limits = (
        f"ulimit -c 0; ulimit -v {_memory_limit_bytes() >> 10}; "
        f"ulimit -t {int(time_limit_s) * (os.cpu_count() or 1) + 5}; ulimit -f {FILE_LIMIT_BYTES >> 9}"
    )
    return [shell, "-c", f'{limits}; exec "$@"', "sh", *guard, *command]


@dataclass
class _Collector:
    """Reads a pipe to its end in a thread and keeps the first part, so that a flood blocks nobody."""

    pipe: IO[bytes]
    kept: bytearray = field(default_factory=bytearray)
    cut: bool = False

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while chunk := os.read(self.pipe.fileno(), _CHUNK_BYTES):
            room = OUTPUT_LIMIT_BYTES - len(self.kept)
            self.kept += chunk[:room]
            self.cut = self.cut or len(chunk) > room

    def finish(self) -> tuple[str, bool]:
        """The text, and whether some was dropped. Every writer is dead by now, so the pipe ends at once."""
        self._thread.join(timeout=5.0)
        if not self._thread.is_alive():
            self.pipe.close()
        return bytes(self.kept).decode("utf-8", "replace"), self.cut


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
