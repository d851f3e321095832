"""The GPU's clocks, limits and company while it is timed, read between visits by a process of its own."""

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self, cast

from stitch_tools.machine.isolation import BOOTSTRAP
from stitch_tools.models import GpuConditions

# A driver that takes longer is not asked again.
_ANSWER_S = 5.0


class GpuWatch:
    """Readings of one GPU. What cannot be read is None, and nothing here ever fails a bench."""

    def __init__(self, uuid: str, library: Path | None = None) -> None:
        """Watch the GPU of this UUID through `library`, by default the driver's own NVML."""
        command = [sys.executable, "-I", "-S", str(BOOTSTRAP), "gpu_state", uuid]
        command += [str(library)] if library else []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        self._first = self._ask()
        """Before anybody of ours used the device."""
        self._readings: list[dict[str, object]] = []
        self._gave_up = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process that reads."""
        with self._process as process:
            process.kill()

    def read(self) -> None:
        """Take one reading."""
        reading = self._ask() if self._first is not None and not self._gave_up else None
        if reading is None:
            self._gave_up = True
            return
        self._readings.append(reading)

    def conditions(self) -> GpuConditions | None:
        """What all readings say together; None where there is none."""
        if self._first is None or not self._readings:
            return None
        clocks, power = self._numbers("sm_clock_mhz"), self._numbers("power_mw")
        reasons = [row for reading in self._readings if (row := _words(reading.get("throttled"))) is not None]
        return GpuConditions(
            sm_clock_mhz=round(median(clocks)) if clocks else None,
            sm_clock_min_mhz=min(clocks, default=None),
            power_w=max(power) / 1000.0 if power else None,
            throttled=tuple(sorted({word for row in reasons for word in row})) if reasons else None,
            readings=len(self._readings),
            other_processes=_strangers(self._first.get("processes")),
        )

    def _numbers(self, name: str) -> list[int]:
        return [value for row in self._readings if (value := _number(row.get(name))) is not None]

    def _ask(self) -> dict[str, object] | None:
        """One answer; None where there is none in time, or it is none."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            return None
        try:
            stdin.write(b"\n")
            answer = cast(object, json.loads(_line(stdout.fileno(), time.monotonic() + _ANSWER_S)))
        except (OSError, ValueError):
            return None
        row = cast(dict[str, object], answer) if isinstance(answer, dict) else {}
        return None if not row or "problem" in row else row


def _strangers(pids: object, proc: Path = Path("/proc")) -> int | None:
    """How many of the processes are neither ours nor our children's; None where one of them is not seen here.

    In a container the driver may name processes by numbers of the host's.
    """
    if not isinstance(pids, list):
        return None
    count = 0
    for pid in cast(list[object], pids):
        line = _ancestors(pid, proc) if isinstance(pid, int) else []
        if not line:
            return None
        count += os.getpid() not in line
    return count


def _ancestors(pid: int, proc: Path) -> list[int]:
    """The process and those that it comes from, as far as they are seen; [] where it is not."""
    found: list[int] = []
    while pid > 0 and pid not in found:
        try:
            text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            break
        found.append(pid)
        # The name in parentheses may hold anything; the parent is the second field after it.
        pid = int(text.rpartition(")")[2].split()[1])
    return found


def _line(fd: int, until_s: float) -> bytes:
    """The next line of a pipe; what has come of it where its end or the time comes first."""
    data = b""
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([fd], [], [], max(0.0, until_s - time.monotonic()))
        part = os.read(fd, 4096) if ready else b""
        if not part:
            break
        data += part
    return data


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _words(value: object) -> list[str] | None:
    return [str(word) for word in cast(list[object], value)] if isinstance(value, list) else None
