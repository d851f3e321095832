"""Ends a job's process with everything below it: first by asking, then by force. POSIX only."""

import contextlib
import os
import signal
import time
from pathlib import Path

from stitch_tools.confine.process_tree import descendants, signal_each

_ASK_S = 1.2
_POLL_S = 0.02


def process_start(pid: int) -> str:
    """When the process began, in the kernel's clock ticks; "" where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    # A zombie has ended: only its parent has not looked yet.
    return "" if fields[0] == "Z" else fields[19]


def end_tree(pid: int, started: str, *, ask_s: float = _ASK_S) -> None:
    """Nothing; the process and all below it have ended: it was asked first, and killed after `ask_s` seconds.

    Args:
        pid: the process.
        started: what `process_start` said of it; a later process of the same number is left alone.
        ask_s: seconds that it has to end by itself, which lets it remove its scratch folders.
    """
    if not started or process_start(pid) != started:
        return
    # Noted before the signal: once the parent is gone, its children can no longer be found through it.
    below = {child: process_start(child) for child in descendants(pid)}
    signal_each([pid], signal.SIGTERM)
    if not _ended(pid, started, ask_s):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)  # so that it starts nothing while what is below it is killed
        below |= {child: process_start(child) for child in descendants(pid)}
        signal_each([pid], signal.SIGKILL)
    # What it left behind is known by number from before; numbers that others have by now are spared.
    signal_each([child for child, start in below.items() if start == process_start(child)], signal.SIGKILL)
    _ended(pid, started, ask_s)


def _ended(pid: int, started: str, wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while process_start(pid) == started:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True
