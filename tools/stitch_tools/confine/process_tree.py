"""What the processes below this one are and hold, read from /proc."""

import contextlib
import functools
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

_STATUS_BYTES = 1 << 14
_CLOCK_OF_SCHEDULER = 2
_HELD = re.compile(rb"^(RssAnon|RssShmem|Threads):\s*(\d+)", re.MULTILINE)


def descendants(pid: int, spare: frozenset[int] = frozenset()) -> list[int]:
    """All processes below `pid` (unreaped ones too), parents first; without the families of `spare`."""
    found = [pid]
    for parent in found:
        found += [child for child in _children(parent) if child not in spare]
    return found[1:]


def namespace_members() -> list[int]:
    """All processes that our /proc shows, except ourselves; at level full that is the namespace."""
    own = os.getpid()
    with os.scandir("/proc") as entries:
        return [int(entry.name) for entry in entries if entry.name.isdigit() and int(entry.name) != own]


@dataclass(frozen=True)
class Usage:
    """What one process holds."""

    resident_bytes: int
    """Anonymous and shared memory; mapped files are not counted."""
    threads: int


def usage(pid: int) -> Usage:
    """What the process holds now; nothing once it has ended."""
    try:
        # A watchdog asks many times a second: no more than one read, and no line of what it does not need.
        fd = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return Usage(0, 0)  # it ended while we looked
    try:
        text = os.read(fd, _STATUS_BYTES)
    except OSError:
        return Usage(0, 0)
    finally:
        os.close(fd)
    found = {name: int(number) for name, number in _HELD.findall(text)}
    return Usage((found.get(b"RssAnon", 0) + found.get(b"RssShmem", 0)) * 1024, found.get(b"Threads", 0))


def cpu_ns(pid: int) -> int | None:
    """CPU time of all threads of a process so far, to the nanosecond; None where it has ended."""
    try:
        return time.clock_gettime_ns(~pid << 3 | _CLOCK_OF_SCHEDULER)
    except OSError:
        return None


def is_running(pid: int) -> bool:
    """Whether any thread of a process runs, or waits for a CPU only."""
    with contextlib.suppress(OSError, IndexError):  # it ended while we looked
        for thread in Path(f"/proc/{pid}/task").iterdir():
            stat = (thread / "stat").read_text(encoding="utf-8", errors="replace")
            if stat.rpartition(")")[2].split()[0] == "R":
                return True
    return False


def signal_each(pids: list[int], number: int) -> None:
    """Send the signal to those that still exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_descendants(pid: int, spare: frozenset[int] = frozenset()) -> None:
    """Kill everything below `pid` but the families of `spare`, also what is being forked meanwhile."""
    for _ in range(100):
        targets = descendants(pid, spare)
        if not targets:
            return
        # Stopped first, so that no parent forks anew between our look and the blow.
        signal_each(targets, signal.SIGSTOP)
        signal_each(targets, signal.SIGKILL)
        _reap(targets)


def _reap(pids: list[int]) -> None:
    for pid in pids:
        # Not ours: its own parent is dead too, and it comes to us in the next round.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _children(pid: int) -> list[int]:
    return listed_children(pid) if _kernel_lists_children() else children_by_search(pid)


@functools.cache
def _kernel_lists_children() -> bool:
    own = os.getpid()
    return Path(f"/proc/{own}/task/{own}/children").exists()


def listed_children(pid: int) -> list[int]:
    """Children of all threads of the process, where the kernel keeps such a list."""
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children = (thread / "children").read_text(encoding="utf-8")
            found += [int(word) for word in children.split()]
    except (OSError, ValueError):
        return found  # it ended while we looked
    return found


def children_by_search(pid: int) -> list[int]:
    """The same, by asking every process for its parent."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name in parentheses may hold anything; after it come the state and the parent.
                after_name = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
                if int(after_name.split()[1]) == pid:
                    found.append(int(entry.name))
    return found
