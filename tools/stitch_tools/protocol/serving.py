"""Answer requests over a channel: one handler an operation, an error is an answer too."""

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stitch_tools.protocol.wire import Channel, ChannelClosedError, Frame

_STANDARD_LIBRARY = str(Path(os.__file__).parent) + os.sep
_OWN_FOLDER = str(Path(__file__).resolve().parents[1]) + os.sep
_MAX_TRACEBACK_CHARS = 20_000


@dataclass(frozen=True)
class Request:
    """One question. Its descriptors are closed after the handler returns: map or dup what is to stay."""

    op: str
    message: dict[str, Any]
    blob: bytes = b""
    fds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reply:
    """The answer. Its descriptors are closed after they were sent."""

    message: dict[str, Any] = field(default_factory=dict)
    blob: bytes = b""
    fds: tuple[int, ...] = ()


Handler = Callable[[Request], Reply]


def serve_ops(channel: Channel, handlers: Mapping[str, Handler]) -> None:
    """Answer until `exit` is asked for or the peer is gone. `ping` is built in.

    A handler's exception becomes `{"ok": false, "error": {...}}`; only `SystemExit` passes through.
    """
    known: dict[str, Handler] = {"ping": lambda request: Reply({"pid": os.getpid()}), **handlers}
    while True:
        try:
            frame = channel.receive()
        except ChannelClosedError:
            return
        asked = str(frame.message.get("op"))
        reply = Reply() if asked == "exit" else _answer(known, asked, frame)
        message = {"ok": True, **reply.message, "seq": frame.message.get("seq")}
        try:
            channel.send(message, reply.blob, reply.fds)
        except ChannelClosedError:
            return
        finally:
            _close(reply.fds)
        if asked == "exit":
            return


def _answer(handlers: Mapping[str, Handler], op: str, frame: Frame) -> Reply:
    try:
        handler = handlers.get(op)
        if handler is None:
            raise ValueError(f"unknown operation {op!r}; known are {', '.join(sorted(handlers))}")
        return handler(Request(op, frame.message, frame.blob, frame.fds))
    except Exception as error:  # the worker's outermost frame: a fault of foreign code is an answer
        return Reply({"ok": False, "error": describe_error(error)})
    finally:
        _close(frame.fds)


def describe_error(error: BaseException) -> dict[str, Any]:
    """The error as JSON: kind, message, traceback, and file and line of the innermost frame outside ours."""
    kind = type(error).__name__
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error) or kind == "OutOfMemoryError":
        kind = "out_of_memory"
    file, line = user_place(error)
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return {
        "kind": kind,
        "message": str(error),
        "traceback": text[-_MAX_TRACEBACK_CHARS:],
        "file": file,
        "line": line,
    }


def user_place(error: BaseException) -> tuple[str | None, int | None]:
    """File and line of the innermost frame that is the user's; None where there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno
    place: tuple[str | None, int | None] = (None, None)
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if is_users(file):
            place = (file, line)
    return place


def is_users(file: str) -> bool:
    """Whether code of this file is neither ours nor torch's nor Python's own."""
    library = str(Path(getattr(sys.modules.get("torch"), "__file__", None) or "/nowhere/x").parent) + os.sep
    standard = file.startswith(_STANDARD_LIBRARY) and "-packages" not in file
    return not standard and not file.startswith((_OWN_FOLDER, library, "<"))


def _close(fds: tuple[int, ...]) -> None:
    for fd in fds:
        os.close(fd)
