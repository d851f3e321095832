"""Ctrl-C: once stops after the step in hand, twice at once."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from stitch_mcp.cli.streams import tell
from stitch_mcp.commands import resume_command
from stitch_mcp.history import newest_open_run
from stitch_tools.errors import InterruptedRunError


@contextmanager
def stop_on_interrupt(workspace: Path) -> Generator[threading.Event]:
    """An event that the first Ctrl-C (or SIGTERM) sets; the second ends the run of `workspace` at once.

    Raises:
        InterruptedRunError: the second one came; the hint says how to resume.
    """
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        tell("\nstopping after this step; press Ctrl-C again to stop at once")

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except KeyboardInterrupt as error:
        run_id = newest_open_run(workspace)
        hint = f"go on with: {resume_command(workspace, run_id)}" if run_id else "run the same command again"
        raise InterruptedRunError("stopped at once; the finished steps are kept", hint=hint) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
