"""The server over standard input and output: the SDK's transport, with an end that signals can begin.

The SDK's transport leaves two things to its user. It waits at its end for a thread that reads, which no
signal wakes; and it answers no line that is not valid JSON, so that a client may wait for ever.
"""

import json
import logging
import os
import signal
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import cast

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from stitch_mcp.server.app import build_server
from stitch_mcp.server.refusals import explain_surrogate, lone_surrogate
from stitch_mcp.server.server_context import ServerContext

_END_S = 4.0
"""After so long an end that hangs, in a call or on a client that reads nothing, is no longer waited for."""
_LOG = logging.getLogger(__name__)


async def serve_stdio(server_context: ServerContext) -> None:
    """Serve until standard input ends, nobody reads what is written, or SIGINT or SIGTERM comes.

    The jobs end with it; they can be resumed.
    """
    server = build_server(server_context)
    with _bounded_end() as begin_end:
        try:
            async with stdio_server() as (reading, writing), anyio.create_task_group() as group:
                # No buffer: a client that sends faster than we answer is slowed down by the pipe, and memory
                # stays bounded.
                incoming, messages = anyio.create_memory_object_stream[SessionMessage | Exception](0)
                group.start_soon(_read, reading, incoming, writing.send, begin_end)
                try:
                    async with _ended_by_signals(begin_end) as signalled:
                        await server.run(messages, writing, server.create_initialization_options())
                finally:
                    # Set on every way out, since the limit on the end's duration starts with it.
                    begin_end.set()
                if signalled.is_set():
                    # The SDK would wait for its reading thread. The server's lifespan has ended the jobs.
                    os._exit(0)
                group.cancel_scope.cancel()
        except* BrokenPipeError:
            _LOG.warning("the client is gone")


@contextmanager
def _bounded_end() -> Generator[threading.Event]:
    """An event to set when the end begins: the process ends by force where the block goes on for long."""
    started, over = threading.Event(), threading.Event()

    def watch() -> None:
        started.wait()
        if not over.wait(_END_S):
            # Jobs see that we are gone, and end.
            os._exit(0)

    # A thread, not a task: it has to work while the event loop waits for a blocked thread.
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield started
    finally:
        over.set()
        started.set()


@asynccontextmanager
async def _ended_by_signals(begin_end: threading.Event) -> AsyncGenerator[threading.Event]:
    """Cancels the block at the first SIGINT or SIGTERM, which sets the event; further ones change nothing."""
    signalled = threading.Event()
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with anyio.create_task_group() as group:

            async def listen() -> None:
                async for number in signals:
                    begin_end.set()
                    signalled.set()
                    _LOG.warning("%s: the server ends; its jobs can be resumed", signal.Signals(number).name)
                    group.cancel_scope.cancel()

            group.start_soon(listen)
            yield signalled
            group.cancel_scope.cancel()


async def _read(
    reading: AsyncIterable[SessionMessage | Exception],
    incoming: MemoryObjectSendStream[SessionMessage | Exception],
    send: Callable[[SessionMessage], Awaitable[None]],
    begin_end: threading.Event,
) -> None:
    """Pass on messages, and answer lines that are none."""
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with incoming:
            async for message in reading:
                if isinstance(message, Exception):
                    answer = answer_to_malformed(message)
                    _LOG.warning("a line is no message: %s", answer.error.message)
                    await send(SessionMessage(answer))
                else:
                    await incoming.send(message)
            begin_end.set()


def answer_to_malformed(fault: Exception) -> types.JSONRPCError:
    """The error for a line that the SDK's parser refused, under the line's id where it can be read."""
    problem = fault.errors(include_url=False)[0] if isinstance(fault, ValidationError) else None
    if problem is None or problem["type"] != "json_invalid":
        reason = f"this line is no JSON-RPC message: {problem['msg'] if problem else type(fault).__name__}"
        return _error(None, types.INVALID_REQUEST, reason)
    # Python's parser takes half of a surrogate pair, as a model's cut-off text has it, and so finds the id.
    try:
        message: object = json.loads(problem["input"])
    except (ValueError, RecursionError):
        return _error(None, types.PARSE_ERROR, f"this line is not JSON: {problem['msg']}")
    fields = cast("dict[str, object]", message) if isinstance(message, dict) else {}
    own_id = fields.get("id")
    # JSON-RPC allows a text or a number; an answer under an id that cannot be encoded could not be sent.
    if not isinstance(own_id, str | int) or isinstance(own_id, bool) or lone_surrogate(own_id) is not None:
        own_id = None
    where = lone_surrogate(fields.get("params"))
    if where is None:
        return _error(own_id, types.PARSE_ERROR, f"this line cannot be read: {problem['msg']}")
    return _error(own_id, types.INVALID_PARAMS, explain_surrogate(where))


def _error(own_id: str | int | None, code: int, message: str) -> types.JSONRPCError:
    return types.JSONRPCError(jsonrpc="2.0", id=own_id, error=types.ErrorData(code=code, message=message))
