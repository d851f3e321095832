"""Framed messages over a Unix socket: JSON and file descriptors. Used at both ends.

A frame is an 8-byte header (magic, length; network order) and a JSON object. Descriptors travel with the
header. The length is bounded, so a hostile peer cannot make us allocate.
"""

import array
import json
import math
import os
import select
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any

_HEADER = struct.Struct(">4sI")
_MAGIC = b"STW1"
MAX_JSON_BYTES = 32 << 20
MAX_FDS = 64
_CHUNK_BYTES = 1 << 20
_MOST_NESTED = 100


class ChannelClosedError(Exception):
    """The peer is gone."""


class ChannelTimeoutError(Exception):
    """Nothing complete arrived before the deadline."""


class ProtocolError(Exception):
    """The peer sent something that is not a frame, or one beyond the limits."""


@dataclass(frozen=True)
class Frame:
    """One message. The receiver owns `fds` and closes them."""

    message: dict[str, Any] = field(default_factory=dict)
    fds: tuple[int, ...] = ()
    pid: int | None = field(default=None, compare=False)
    """Sender's pid in the receiver's namespace, where the kernel passed credentials."""


def _parsed(text: bytearray) -> object:
    message = json.loads(text, parse_constant=_finite, parse_float=_finite)
    if _is_deep(message):
        raise ValueError("nested too deeply")
    if b"\\ud" in text.lower():
        # Half of a surrogate pair is no text: it could be neither stored nor printed.
        message = json.loads(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace"))
    return message


def _finite(text: str) -> float:
    """The number; NaN and infinity are no JSON: what holds one could not be stored."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a number")
    return number


def _is_deep(message: object) -> bool:
    """Whether values lie deeper in each other than any of ours: a step further on, writing it could fail."""
    level: list[Any] = [message] if isinstance(message, (dict, list)) else []
    for _ in range(_MOST_NESTED):
        inner = [value.values() if isinstance(value, dict) else value for value in level]
        level = [value for values in inner for value in values if isinstance(value, (dict, list))]
        if not level:
            return False
    return True


class Channel:
    """One end of a framed connection. Not thread-safe."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        # A peer that stops in the middle of a frame must not hold us beyond the deadline.
        sock.setblocking(False)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self.sock.fileno()

    def close(self) -> None:
        """Close the socket; the peer sees the end of the stream."""
        self.sock.close()

    def send(self, frame: Frame, timeout_s: float = 60.0) -> None:
        """Send one frame; its descriptors stay open here.

        Raises:
            ChannelClosedError: the peer is gone.
            ChannelTimeoutError: the peer does not read.
        """
        text = json.dumps(frame.message, allow_nan=False).encode("utf-8")
        deadline = time.monotonic() + timeout_s
        data = memoryview(_HEADER.pack(_MAGIC, len(text)) + text)
        try:
            if frame.fds:
                self._wait(select.POLLOUT, deadline)
                sent = socket.send_fds(self.sock, [data[: _HEADER.size]], list(frame.fds))
                data = data[sent:]
            while data:
                self._wait(select.POLLOUT, deadline)
                data = data[self.sock.send(data) :]
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosedError("the peer closed the connection") from error

    def receive(self, timeout_s: float | None = None) -> Frame:
        """The next frame; waits at most `timeout_s` seconds (None: for ever).

        Raises:
            ChannelClosedError: the peer is gone.
            ChannelTimeoutError: nothing complete arrived in time.
            ProtocolError: not a frame of ours.
            OSError: it brings more descriptors than this process may still open.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        fds: list[int] = []
        try:
            header, pid = self._read_header(deadline, fds)
            magic, size = _HEADER.unpack(header)
            if magic != _MAGIC or size > MAX_JSON_BYTES:
                raise ProtocolError("the peer sent something that is not a frame of ours")
            text = self._read_exactly(size, deadline)
            try:
                message = _parsed(text)
            except (ValueError, RecursionError) as error:  # too deeply nested is the latter
                raise ProtocolError("the peer sent a frame that is not JSON") from error
            if not isinstance(message, dict):
                raise ProtocolError("the peer sent JSON that is not an object")
        except BaseException as error:  # handed on: received descriptors must not leak
            for fd in fds:
                os.close(fd)
            if isinstance(error, ConnectionResetError):
                raise ChannelClosedError("the peer closed the connection") from error
            raise
        return Frame(message, tuple(fds), pid)

    def _wait(self, event: int, deadline: float | None) -> None:
        poller = select.poll()
        poller.register(self.sock, event)
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        if not poller.poll(remaining):
            raise ChannelTimeoutError("the peer did not answer in time")

    def _read_header(self, deadline: float | None, fds: list[int]) -> tuple[bytes, int | None]:
        space = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize) + socket.CMSG_SPACE(12)
        data, pid = b"", None
        while len(data) < _HEADER.size:
            self._wait(select.POLLIN, deadline)
            part, ancillary, flags, _ = self.sock.recvmsg(
                _HEADER.size - len(data), space, socket.MSG_CMSG_CLOEXEC
            )
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    received = array.array("i")
                    received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
                    fds.extend(received)
                elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                    pid = struct.unpack("3i", payload[:12])[0]
            if flags & socket.MSG_CTRUNC:
                # The kernel also drops those that this process may not open: then this fails, and says so.
                os.close(os.dup(self.sock.fileno()))
                raise ProtocolError("the peer sent too many descriptors")
            if not part:
                raise ChannelClosedError("the peer closed the connection")
            data += part
        return data, pid

    def _read_exactly(self, size: int, deadline: float | None) -> bytearray:
        data = bytearray()
        # Memory is taken for what has come, never for what a length field says.
        while len(data) < size:
            self._wait(select.POLLIN, deadline)
            part = self.sock.recv(min(size - len(data), _CHUNK_BYTES))
            if not part:
                raise ChannelClosedError("the peer closed the connection in the middle of a frame")
            data += part
        return data
