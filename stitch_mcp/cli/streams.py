"""Standard streams that are closed, full or without a reader do not end the work."""

import contextlib
import os
import sys
from pathlib import Path
from typing import TextIO


def open_closed_streams() -> None:
    """Put the null device where stdin, stdout or stderr is closed.

    The next file that is opened would take the free number, and get what we or a child print.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(number)
        except OSError:
            # The kernel gives the lowest free number, which need not be this one.
            handle = os.open(os.devnull, os.O_RDWR)
            os.dup2(handle, number)
            if handle != number:
                os.close(handle)
            os.set_inheritable(number, True)
        setattr(sys, name, Path(os.devnull).open("w" if number else "r", encoding="utf-8"))  # noqa: SIM115 # stays open


def tell(text: str) -> None:
    """Print a line on stderr; one that cannot be written is lost."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        give_up(sys.stderr)


def tell_from_handler(text: str) -> None:
    """Print a line on stderr from a signal handler; one that cannot be written is lost.

    A signal may come while the main thread writes to the same stream, which then refuses a second writer
    (RuntimeError): the line goes past its buffer.
    """
    with contextlib.suppress(OSError, ValueError):  # ValueError: closed
        os.write(sys.stderr.fileno(), f"{text}\n".encode())


def flush(stream: TextIO) -> None:
    """Write what `stream` still holds; what cannot be written is lost."""
    try:
        stream.flush()
    except OSError:
        give_up(stream)


def give_up(stream: TextIO) -> None:
    """Send what `stream` still holds nowhere: Python would write it at exit, and fail again."""
    with contextlib.suppress(OSError):
        handle = os.open(os.devnull, os.O_WRONLY)
        os.dup2(handle, stream.fileno())
        os.close(handle)
