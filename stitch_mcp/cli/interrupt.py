"""Ctrl-C: once stops after the step in hand, twice at once; what cleans up afterwards is left in peace."""

import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from stitch_mcp.cli.streams import tell
from stitch_tools.errors import InterruptedRunError


@contextmanager
def stop_on_interrupt() -> Generator[threading.Event]:
    """An event that the first Ctrl-C (or SIGTERM) sets; the second ends at once what is going on.

    Further ones are ignored, also after the block: what is left to do is to clean up, to tell and to end.

    Raises:
        InterruptedRunError: the second one came; the hint says how to resume, as the run's note does.
    """
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if not stop.is_set():
            stop.set()
            tell("\nstopping after this step; press Ctrl-C again to stop at once")
        elif not _is_ending():
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except KeyboardInterrupt as error:
        # Only what was interrupted knows which run it was: others may work in the same workspace.
        hint = next(iter(getattr(error, "__notes__", ())), "run the same command again")
        raise InterruptedRunError("stopped at once; the finished steps are kept", hint=hint) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if stop.is_set() else handler)


def _is_ending() -> bool:
    """Whether an interruption is on its way up: half of what cleans up would stay behind for ever."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, InterruptedRunError | KeyboardInterrupt):
            return True
        error = error.__context__
    return False
