"""Answer requests over a channel: one handler an operation, an error is an answer too."""

import os
import sys
import traceback
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from stitch_tools.protocol.memory_faults import is_out_of_memory
from stitch_tools.protocol.messages import Done, Exit, Fault, Operation, Ping, decode, encode
from stitch_tools.protocol.wire import Channel, ChannelClosedError, Frame

_STANDARD_LIBRARY = str(Path(os.__file__).parent) + os.sep
_OWN_FOLDER = str(Path(__file__).resolve().parents[1]) + os.sep
_MAX_TRACEBACK_CHARS = 20_000

OperationT = TypeVar("OperationT", bound=Operation[object])


Handler = Callable[[Frame], Frame]
"""Answers a request's frame. Both frames' descriptors are closed afterwards: map or dup what is to stay."""
Handlers = Mapping[str, Handler]


def on(kind: type[OperationT], handler: Callable[[OperationT], object]) -> dict[str, Handler]:
    """A typed handler under its operation's name. It returns the operation's reply or a `Fault`."""

    def answer(request: Frame) -> Frame:
        reply = handler(decode(kind, request))
        wanted = cast("type[object]", typing.get_origin(kind.reply) or kind.reply)
        if not isinstance(reply, (wanted, Fault)):
            raise TypeError(f"{kind.op} is answered with {wanted.__name__}, not {type(reply).__name__}")
        return encode(reply)

    return {kind.op: answer}


def serve_ops(channel: Channel, handlers: Handlers) -> None:
    """Answer until `Exit` is asked for or the peer is gone. `Ping` is built in.

    A handler's exception becomes a `Fault`; only `SystemExit` passes through.
    """
    known = {**on(Ping, lambda _: os.getpid()), **on(Exit, lambda _: Done()), **handlers}
    while True:
        try:
            frame = channel.receive()
        except ChannelClosedError:
            return
        asked = str(frame.message.get("op"))
        reply = _answer(known, asked, frame)
        message = {"ok": True, **reply.message, "seq": frame.message.get("seq")}
        try:
            channel.send(replace(reply, message=message))
        except ChannelClosedError:
            return
        finally:
            _close(reply.fds)
        if asked == Exit.op:
            return


def _answer(handlers: Handlers, op: str, frame: Frame) -> Frame:
    try:
        handler = handlers.get(op)
        if handler is None:
            raise ValueError(f"unknown operation {op!r}; known are {', '.join(sorted(handlers))}")
        return handler(frame)
    except Exception as error:  # the worker's outermost frame: a fault of foreign code is an answer
        return encode(describe_error(error))
    finally:
        _close(frame.fds)


def describe_error(error: BaseException) -> Fault:
    """The error with its traceback, and file and line of the innermost frame outside our code."""
    kind = type(error).__name__
    if is_out_of_memory(error):
        kind = "out_of_memory"
    file, line = user_place(error)
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return Fault(kind, str(error), file, line, traceback=text[-_MAX_TRACEBACK_CHARS:])


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
