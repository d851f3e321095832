"""What others did to this machine while a block ran: time stolen by the hypervisor, and waiting for a CPU.

Steal time comes from /proc/stat in clock ticks. Waiting comes from /proc/pressure/cpu: the microseconds in
which some runnable task had no CPU. All contestants but one are stopped and the one that runs has no more
threads than CPUs, so waiting means that a foreign process took part. None: the kernel does not say.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
WAITING_SHARE = 0.05
"""A block in which some task waited for a CPU longer than this share of the time is repeated."""


@dataclass(frozen=True)
class Snapshot:
    """The machine's counters at one moment."""

    at_s: float
    steal_ticks: int | None
    waited_us: int | None


def snapshot(proc: Path = PROC) -> Snapshot:
    """The counters now; about 30 us."""
    return Snapshot(time.monotonic(), _steal_ticks(proc / "stat"), _waited_us(proc / "pressure" / "cpu"))


def was_disturbed(before: Snapshot, after: Snapshot) -> bool:
    """Whether a block between the two has to be repeated."""
    if _rise(before.steal_ticks, after.steal_ticks):
        return True
    wall_us = (after.at_s - before.at_s) * 1e6
    return _rise(before.waited_us, after.waited_us) > WAITING_SHARE * wall_us


def steal_share(before: Snapshot, after: Snapshot) -> float | None:
    """Share of all CPUs' time that the hypervisor took between the two."""
    wall_s = after.at_s - before.at_s
    if before.steal_ticks is None or after.steal_ticks is None or wall_s <= 0.0:
        return None
    capacity = wall_s * os.sysconf("SC_CLK_TCK") * (os.cpu_count() or 1)
    return min(1.0, _rise(before.steal_ticks, after.steal_ticks) / capacity)


def waited_share(before: Snapshot, after: Snapshot) -> float | None:
    """Share of the time in which some task waited for a CPU."""
    wall_us = (after.at_s - before.at_s) * 1e6
    if before.waited_us is None or after.waited_us is None or wall_us <= 0.0:
        return None
    return min(1.0, _rise(before.waited_us, after.waited_us) / wall_us)


def _rise(before: int | None, after: int | None) -> int:
    return 0 if before is None or after is None else max(0, after - before)


def _steal_ticks(stat: Path) -> int | None:
    try:
        return int(stat.read_text(encoding="ascii").split("\n", 1)[0].split()[8])
    except (OSError, ValueError, IndexError):
        return None


def _waited_us(pressure: Path) -> int | None:
    try:
        first = pressure.read_text(encoding="ascii").split("\n", 1)[0]
        return int(first.rpartition("total=")[2])
    except (OSError, ValueError):
        return None
