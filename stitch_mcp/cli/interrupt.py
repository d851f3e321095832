"""Ctrl-C: once stops after the current step, twice stops at once; cleanup is not interrupted."""

import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from stitch_mcp.cli.streams import tell_from_handler
from stitch_tools.errors import InterruptedRunError, RunInterrupt

_PEACE_S = 10.0


@contextmanager
def stop_on_interrupt() -> Generator[threading.Event]:
    """An event that the first Ctrl-C (or SIGTERM) sets; the second interrupts the current step.

    Further ones are ignored, also after the block: what is left to do is to clean up, to tell and to end. One
    that comes ten seconds later counts again, should what was going on have swallowed the second.

    Raises:
        InterruptedRunError: the second one came; its remedy resumes the run that was interrupted.
    """
    stop = threading.Event()
    left_in_peace_until = 0.0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal left_in_peace_until
        if not stop.is_set():
            stop.set()
            tell_from_handler("\nstopping after this step; press Ctrl-C again to stop at once")
        elif time.monotonic() >= left_in_peace_until and not _is_ending():
            # An ExitStack goes on with its next callback where nothing shows what the last one raised.
            left_in_peace_until = time.monotonic() + _PEACE_S
            raise KeyboardInterrupt

    # Python runs signal handlers in the main thread only, and refuses to set them elsewhere.
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except KeyboardInterrupt as error:
        # Only what was interrupted knows which run it was: others may work in the same workspace.
        remedies = error.remedies if isinstance(error, RunInterrupt) else ()
        hint = "" if remedies else "run the same command again"
        raise InterruptedRunError(
            "stopped at once; the finished steps are kept", hint=hint, remedies=remedies
        ) from error
    finally:
        for number, handler in before.items():
            # After an interruption further ones are ignored: what follows is cleaning up and printing the
            # result.
            signal.signal(number, signal.SIG_IGN if stop.is_set() else handler)


def _is_ending() -> bool:
    """Whether an interruption is on its way up: half of what cleans up would stay behind for ever."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, InterruptedRunError | KeyboardInterrupt):
            return True
        error = error.__context__
    return False
