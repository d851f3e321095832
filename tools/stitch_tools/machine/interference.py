"""What others did to this machine while a block ran: time stolen by the hypervisor, and waiting for a CPU.

Steal time comes from /proc/stat in clock ticks. Waiting comes from the kernel's pressure counters: the
microseconds in which some runnable task had no CPU. All contestants but one are stopped, and the one that
runs has no more threads than CPUs, so waiting means that a foreign process took part. The counter of our own
cgroup is asked, else that of the whole machine, which speaks about us on small machines only. Where calls run
on a GPU, the waiting of the two processes that matter is asked instead (`waits_of`).
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
# On a larger machine somebody always waits somewhere, on CPUs that are none of ours.
_SMALL_MACHINE_CPUS = 16
WAITING_SHARE = 0.05
"""A block in which some task waited for a CPU longer than this share of the time is repeated."""


@dataclass(frozen=True)
class Snapshot:
    """The machine's counters at one moment."""

    at_s: float
    steal_ticks: int | None
    waited_us: int | None


def snapshot(proc: Path = _PROC) -> Snapshot:
    """The counters now; about 30 us."""
    pressure = _own_pressure() if proc == _PROC else find_pressure(proc, proc / "cgroups", 1)
    waited = None if pressure is None else _waited_us(pressure)
    return Snapshot(time.monotonic(), _steal_ticks(proc / "stat"), waited)


def waits_of(pids: Sequence[int], proc: Path = _PROC) -> Callable[[], Snapshot] | None:
    """Counters like `snapshot`'s whose waiting is that of the main threads of these processes alone.

    Where calls run on a GPU, a CPU that somebody else waits for changes nothing, as long as the process that
    makes the calls, and we who ask for them, have one. None where the kernel does not count (schedstat).
    """
    files = [proc / str(pid) / "schedstat" for pid in pids]
    if any(_ready_us(file) is None for file in files):
        return None

    def read() -> Snapshot:
        waits = [_ready_us(file) for file in files]
        # A process that ended waits no more; its end is told elsewhere.
        waited = sum(wait for wait in waits if wait is not None)
        return Snapshot(time.monotonic(), _steal_ticks(proc / "stat"), waited)

    return read


def find_pressure(proc: Path, cgroups: Path, cpus: int) -> Path | None:
    """The pressure file that speaks about us: our own cgroup's, or a small machine's; else None."""
    machine = proc / "pressure" / "cpu"
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("0::"):
            own = cgroups / line.removeprefix("0::").lstrip("/") / "cpu.pressure"
            total = _waited_us(own)
            # Seen from a container its cgroup is "/" too: then only the figures tell it from the machine's.
            if total is not None and not _alike(total, _waited_us(machine)):
                return own
    return machine if cpus <= _SMALL_MACHINE_CPUS and machine.exists() else None


@lru_cache(maxsize=1)
def _own_pressure() -> Path | None:
    return find_pressure(_PROC, _CGROUPS, os.cpu_count() or 1)


def _alike(left: int, right: int | None) -> bool:
    return right is not None and abs(left - right) <= 0.01 * right


def was_disturbed(before: Snapshot, after: Snapshot) -> bool:
    """Whether a block between the two has to be repeated."""
    if _rise(before.steal_ticks, after.steal_ticks):
        return True
    return (waited_share(before, after) or 0.0) > WAITING_SHARE


def was_held_up(before: Snapshot, after: Snapshot) -> bool:
    """Whether others took so much of a longer time that a program can be far slower without any fault."""
    shares = steal_share(before, after), waited_share(before, after)
    return any(share is not None and share > WAITING_SHARE for share in shares)


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


def _ready_us(schedstat: Path) -> int | None:
    """How long a thread was ready to run and had no CPU: the second figure, in nanoseconds."""
    try:
        return int(schedstat.read_text(encoding="ascii").split()[1]) // 1000
    except (OSError, ValueError, IndexError):
        return None


def _waited_us(pressure: Path) -> int | None:
    try:
        first = pressure.read_text(encoding="ascii").split("\n", 1)[0]
        return int(first.rpartition("total=")[2])
    except (OSError, ValueError):
        return None
