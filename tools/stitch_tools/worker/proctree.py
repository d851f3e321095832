"""What the processes below this one are and hold, read from /proc."""

import contextlib
import os
import signal
from pathlib import Path


def descendants(pid: int, spare: frozenset[int] = frozenset()) -> list[int]:
    """All processes below `pid` (unreaped ones too), parents first; without the families of `spare`."""
    found = [pid]
    for parent in found:
        found += [child for child in _children(parent) if child not in spare]
    return found[1:]


def namespace_members() -> list[int]:
    """All processes that our /proc shows, except ourselves; at level full that is the namespace."""
    own = os.getpid()
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and int(entry.name) != own
    ]


def resident_bytes(pid: int) -> int:
    """Anonymous and shared memory that the process holds, in bytes (mapped files not counted)."""
    total_kib = 0
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(("RssAnon:", "RssShmem:")):
                total_kib += int(line.split()[1])
    except (OSError, ValueError):
        return 0  # it ended while we looked
    return total_kib * 1024


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
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children = (thread / "children").read_text(encoding="utf-8")
            found += [int(word) for word in children.split()]
    except (OSError, ValueError):
        return found  # it ended while we looked, or the kernel does not list children
    return found
