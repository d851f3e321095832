"""A worker that is a process of this machine: an order a line on its stdin, lines of JSON on its stdout.

It answers an order with any number of lines `{"note": "what it does"}` and then one `{"answer": {...}}` or
`{"failure": {"code": ..., "message": ..., "hint": ...}}`.
"""

import contextlib
import json
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

from stitch_mcp.backends.pool import Note, WorkerFailureError, WorkerHungError, WorkerLostError
from stitch_mcp.backends.pool_status import WAITS_FOR_DEVICE, WAITS_TO_BUILD
from stitch_mcp.jobs.tree import end_tree, process_start
from stitch_tools.models.base import Fact

AnswerT = TypeVar("AnswerT", bound=Fact)
WARM_UP = b"{}"
"""An order that starts what orders need, and is answered by `{}`."""
_START_LIMIT_S = 180.0


class WorkerProcess(Generic[AnswerT]):
    """One worker process, started with its first order and again after a fault."""

    def __init__(
        self,
        command: Sequence[str],
        head: bytes,
        read: Callable[[bytes], AnswerT],
        *,
        name: str,
        limit_s: float,
        device: str | None = None,
    ) -> None:
        """A worker that is not started yet.

        Args:
            command: what is started.
            head: the first line that it receives.
            read: makes an answer of its JSON; a ValueError says that it is none.
            name: for people.
            limit_s: seconds that an order may take; waits for the device or a place to build do not count.
            device: value of CUDA_VISIBLE_DEVICES; None: as here.
        """
        self.name = name
        self._command = tuple(command)
        self._head = head
        self._read = read
        self._limit_s = limit_s
        self._device = device
        self._process: subprocess.Popen[bytes] | None = None
        self._started = ""
        self._rest = b""
        self._is_closed = False
        self._starting = threading.Lock()
        self._asking = threading.Lock()

    def warm_up(self) -> None:
        """Start the process, and what its orders need; see `PoolWorker`."""
        with self._asking:
            self._asked(WARM_UP, lambda _: None, _START_LIMIT_S)

    def run(self, order: Fact, note: Note) -> AnswerT:
        """The process' answer to an order; see `PoolWorker`."""
        return self.run_line(order.canonical_json(), note)

    def run_line(self, order: bytes, note: Note) -> AnswerT:
        """The same for an order that is JSON already."""
        with self._asking:
            answer = self._asked(order, note, self._limit_s)
            try:
                return self._read(answer)
            except ValueError as error:
                self._end()
                raise WorkerLostError("the worker's answer is none") from error

    def close(self) -> None:
        """End the process, and start none again: a thread may still be asking."""
        with self._starting:
            self._is_closed = True
            process = self._process
        if process is not None:
            end_tree(process.pid, self._started)
        # The pipes are closed once nobody reads them.
        with self._asking:
            self._end()

    def _asked(self, order: bytes, note: Note, limit_s: float) -> bytes:
        """The JSON of the answer to a line."""
        with self._starting:
            process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(order + b"\n")
            process.stdin.flush()
        except OSError as error:
            self._end()
            raise WorkerLostError("the worker ended before it was asked") from error
        try:
            return self._answer(process, note, limit_s)
        except (WorkerLostError, WorkerHungError):
            self._end()
            raise

    def _answer(self, process: "subprocess.Popen[bytes]", note: Note, limit_s: float) -> bytes:
        left_s, is_waiting = limit_s, False
        while True:
            begun_s = time.monotonic()
            line = self._line(process, None if is_waiting else left_s)
            if not is_waiting:
                left_s -= time.monotonic() - begun_s
            if line is None:
                raise WorkerHungError(f"no answer within {limit_s:g} s")
            message = _message(line)
            if "failure" in message:
                failure = message["failure"]
                raise WorkerFailureError(failure["code"], failure["message"], failure["hint"])
            if "answer" in message:
                return json.dumps(message["answer"]).encode("utf-8")
            is_waiting = message["note"] in (WAITS_FOR_DEVICE, WAITS_TO_BUILD)
            note(message["note"])

    def _end(self) -> None:
        """End the process with all below it."""
        process, self._process, self._rest = self._process, None, b""
        if process is None:
            return
        end_tree(process.pid, self._started)
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        process.wait()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._is_closed:
            raise WorkerLostError("the pool was closed")
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        environment = dict(os.environ)
        if self._device is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self._device
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            # Ctrl-C reaches us alone.
            start_new_session=True,
        )
        self._started = process_start(self._process.pid)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # Seen when it is asked.
            self._process.stdin.write(self._head + b"\n")
            self._process.stdin.flush()
        return self._process

    def _line(self, process: "subprocess.Popen[bytes]", wait_s: float | None) -> bytes | None:
        """The next line, read as it comes, so that the process' end is seen; None after `wait_s` of silence.

        Args:
            process: who writes it.
            wait_s: None: as long as it takes.
        """
        assert process.stdout is not None
        handle = process.stdout.fileno()
        deadline_s = None if wait_s is None else time.monotonic() + wait_s
        with selectors.DefaultSelector() as selector:
            selector.register(handle, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if (left_s is not None and left_s <= 0) or not selector.select(left_s):
                    return None
                piece = os.read(handle, 1 << 16)
                if not piece:
                    raise WorkerLostError("the worker ended without an answer")
                self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def _message(line: bytes) -> dict[str, Any]:
    """One of the worker's lines.

    Raises:
        WorkerLostError: it is none.
    """
    try:
        message = json.loads(line)
    except ValueError as error:
        raise WorkerLostError("the worker wrote what is no message") from error
    known = isinstance(message, dict) and (
        {"note", "answer", "failure"} & set(cast("dict[str, Any]", message))
    )
    if not known:
        raise WorkerLostError("the worker wrote what is no message")
    return cast("dict[str, Any]", message)
