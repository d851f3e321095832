"""The server over standard input and output.

The transport is ours: the SDK's drops what is no message without an answer, reads lines of any length, and
waits for its reading thread at the end, which no signal wakes.
"""

import logging
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial

import anyio
import anyio.to_thread
import mcp_types as types
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from anyio.from_thread import BlockingPortal
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from stitch_mcp.server.app import build_server
from stitch_mcp.server.bounded_lines import TooLong, split_lines
from stitch_mcp.server.malformed import answer_to_malformed, has_id
from stitch_mcp.server.server_context import ServerContext

MAX_LINE_BYTES = 32 << 20
"""More than any call needs: what it may carry inline is bounded far below."""
_READ_BYTES = 1 << 16
_END_S = 4.0
"""After so long an end that hangs, in a call or on a client that reads nothing, is no longer waited for."""
_AT_ONCE_BYTES = getattr(select, "PIPE_BUF", 0)
"""Windows has none, and cannot poll a pipe."""
_LOG = logging.getLogger(__name__)
_Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
_Outgoing = MemoryObjectSendStream[SessionMessage]


async def serve_stdio(server_context: ServerContext) -> None:
    """Serve until standard input ends, nobody reads what is said, or SIGINT or SIGTERM comes.

    The jobs end with it; they can be resumed.
    """
    server = build_server(server_context)
    with _bounded_end() as begin_end:
        try:
            async with _ended_by_signals(begin_end), _messages(begin_end) as (reading, writing):
                await server.run(reading, writing, server.create_initialization_options())
        except* BrokenPipeError:
            # Its lifespan has ended the jobs; they can be resumed.
            _LOG.warning("the client is gone")


@contextmanager
def _bounded_end() -> Generator[threading.Event]:
    """An event to set when the end begins: the process ends by force where the block goes on for long."""
    begun, over = threading.Event(), threading.Event()

    def watch() -> None:
        begun.wait()
        if not over.wait(_END_S):
            # Jobs see that we are gone, and end.
            os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield begun
    finally:
        over.set()
        begun.set()


@asynccontextmanager
async def _ended_by_signals(begin_end: threading.Event) -> AsyncGenerator[None]:
    """Cancels the block at the first SIGINT or SIGTERM; further ones change nothing."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as group:

            async def listen() -> None:
                async for number in signals:
                    begin_end.set()
                    _LOG.warning("%s: the server ends; its jobs can be resumed", signal.Signals(number).name)
                    group.cancel_scope.cancel()

            group.start_soon(listen)
            yield
            group.cancel_scope.cancel()


@asynccontextmanager
async def _messages(begin_end: threading.Event) -> AsyncGenerator[tuple[_Incoming, _Outgoing]]:
    """The client's messages, and where to put ours."""
    with _taken(0, os.open(os.devnull, os.O_RDONLY)) as stdin, _taken(1, os.dup(2)) as stdout:
        incoming, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        writing, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        lines_in, lines = anyio.create_memory_object_stream[bytes | TooLong](0)
        async with BlockingPortal() as portal, lines, anyio.create_task_group() as group:
            # A daemon: nothing wakes it from its read, and the process must not wait for it.
            threading.Thread(target=_feed, args=(stdin, lines_in, portal), daemon=True).start()
            group.start_soon(_read, lines, incoming, writing, begin_end)
            group.start_soon(_write, outgoing, stdout)
            yield reading, writing


@contextmanager
def _taken(fd: int, instead: int) -> Generator[int]:
    """A private copy of a standard stream, in whose place something else stands meanwhile.

    So no print and no child's output reaches the client, and no child reads what the client says.
    """
    own = os.dup(fd)
    os.dup2(instead, fd)
    os.close(instead)
    try:
        yield own
    finally:
        sys.stdout.flush()
        # The copy stays open: the reading thread may stand in it.
        os.dup2(own, fd)


def _feed(fd: int, lines: MemoryObjectSendStream[bytes | TooLong], portal: BlockingPortal) -> None:
    """Pass on the lines of `fd`, each as soon as the one before was taken."""
    # The server may end first: then nobody takes them.
    with suppress(RuntimeError, CancelledError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        with suppress(OSError):
            for line in split_lines(partial(os.read, fd, _READ_BYTES), MAX_LINE_BYTES):
                portal.call(lines.send, line)
        portal.call(lines.aclose)


async def _read(
    lines: ObjectReceiveStream[bytes | TooLong],
    incoming: MemoryObjectSendStream[SessionMessage | Exception],
    writing: _Outgoing,
    begin_end: threading.Event,
) -> None:
    """Pass on what is a message, and answer what is none."""
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with incoming:
            async for line in lines:
                error: ValidationError | None = None
                if isinstance(line, bytes):
                    if not line.strip():
                        continue
                    try:
                        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValidationError as found:
                        error = found
                    else:
                        if not (isinstance(message, types.JSONRPCNotification) and has_id(line)):
                            await incoming.send(SessionMessage(message))
                            continue
                await _refuse(line, error, writing)
            begin_end.set()


async def _refuse(
    line: bytes | TooLong, error: ValidationError | None, writing: ObjectSendStream[SessionMessage]
) -> None:
    answer = answer_to_malformed(line, MAX_LINE_BYTES, error)
    _LOG.warning("a line is no message: %s", answer.error.message if answer else "a broken answer")
    if answer is not None:
        await writing.send(SessionMessage(answer))


async def _write(outgoing: MemoryObjectReceiveStream[SessionMessage], fd: int) -> None:
    """Write each message as a line."""
    async with outgoing:
        async for session_message in outgoing:
            text = session_message.message.model_dump_json(by_alias=True, exclude_unset=True)
            data = text.encode("utf-8") + b"\n"
            if fits(fd, len(data)):
                os.write(fd, data)  # A turn of a thread costs more.
            else:
                await anyio.to_thread.run_sync(_write_all, fd, data)


def fits(fd: int, size: int) -> bool:
    """Whether so many bytes can be written at once and without waiting, as far as can be told beforehand."""
    if size > _AT_ONCE_BYTES or not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return False
    # A pipe that can be written to has room for so much, and takes it whole.
    pipe = select.poll()
    pipe.register(fd, select.POLLOUT)
    return bool(pipe.poll(0))


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
