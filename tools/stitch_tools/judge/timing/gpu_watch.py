"""The GPU's clocks and limits while it is timed, read between visits by a process of its own."""

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from stitch_tools.machine.isolation import BOOTSTRAP
from stitch_tools.models.conditions import GpuConditions


class _Reading(TypedDict):
    """What the process that reads answers (`worker/gpu_state.py`); None where the driver does not say."""

    sm_clock_mhz: int | None
    power_mw: int | None
    throttled: list[str] | None


_READING = TypeAdapter(_Reading)


class GpuWatch:
    """Readings of one GPU. What cannot be read is None, and nothing here ever fails a bench."""

    def __init__(self, uuid: str, library: Path | None = None, *, answer_s: float = 5.0) -> None:
        """Watch the GPU of this UUID through `library`, by default the driver's own NVML.

        A driver that takes longer than `answer_s` is not asked again.
        """
        self._answer_s = answer_s
        command = [sys.executable, "-I", "-S", str(BOOTSTRAP), "gpu_state", uuid]
        command += [str(library)] if library else []
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        self._readings: list[_Reading] = []
        # Its start takes longer than a reading, and is over when the rounds begin.
        self._gave_up = self._ask() is None

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
        reading = None if self._gave_up else self._ask()
        if reading is None:
            self._gave_up = True
        else:
            self._readings.append(reading)

    def conditions(self) -> GpuConditions | None:
        """What all readings say together; None where there is none."""
        if not self._readings:
            return None
        clocks = [value for row in self._readings if (value := row["sm_clock_mhz"]) is not None]
        power = [value for row in self._readings if (value := row["power_mw"]) is not None]
        reasons = [words for row in self._readings if (words := row["throttled"]) is not None]
        return GpuConditions(
            sm_clock_mhz=round(median(clocks)) if clocks else None,
            sm_clock_min_mhz=min(clocks, default=None),
            power_w=max(power) / 1000.0 if power else None,
            throttled=tuple(sorted({word for row in reasons for word in row})) if reasons else None,
            readings=len(self._readings),
        )

    def _ask(self) -> _Reading | None:
        """One answer; None where there is none in time, or it is none."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            return None
        try:
            stdin.write(b"\n")
            return _READING.validate_json(_line(stdout.fileno(), time.monotonic() + self._answer_s))
        except (OSError, ValueError):
            return None


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
