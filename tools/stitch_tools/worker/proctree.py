"""What the processes below this one are and hold, read from /proc."""

import os
import signal


def descendants(pid: int) -> list[int]:
    """All living and ended-but-unreaped processes below `pid`, parents before children."""
    found = [pid]
    for parent in found:
        found += _children(parent)
    return found[1:]


def namespace_members() -> list[int]:
    """All processes that our /proc shows, except ourselves; at level full that is the namespace."""
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]


def resident_bytes(pid: int) -> int:
    """Anonymous and shared memory that the process holds, in bytes (files it merely reads are not counted)."""
    total_kib = 0
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as status:
            for line in status:
                if line.startswith(("RssAnon:", "RssShmem:")):
                    total_kib += int(line.split()[1])
    except (OSError, ValueError):
        return 0  # it ended while we looked
    return total_kib * 1024


def signal_each(pids: list[int], number: int) -> None:
    """Send the signal to those that still exist."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def kill_descendants(pid: int, spare: frozenset[int] = frozenset()) -> None:
    """Kill everything below `pid` but `spare`, also what is being forked meanwhile."""
    for _ in range(100):
        targets = [child for child in descendants(pid) if child not in spare]
        if not targets:
            return
        # Stopped first, so that no parent forks anew between our look and the blow.
        signal_each(targets, signal.SIGSTOP)
        signal_each(targets, signal.SIGKILL)
        _reap(targets)


def _reap(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass  # not ours: its own parent is dead too and it comes to us in the next round


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="utf-8") as children:
                found += [int(word) for word in children.read().split()]
    except (OSError, ValueError):
        return found  # it ended while we looked, or the kernel does not list children
    return found
