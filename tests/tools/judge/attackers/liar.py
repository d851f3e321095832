"""A child that answers with anything but an answer. Not a test module."""

import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from stitch_tools.protocol.wire import Channel

_HEADER = struct.Struct(">4sI")


def _frame(text: bytes) -> bytes:
    return _HEADER.pack(b"STW1", len(text)) + text


def _descriptors(line: socket.socket, count: int, data: bytes) -> None:
    null = os.open("/dev/null", os.O_RDONLY)
    sent = socket.send_fds(line, [data], [null] * count)
    line.sendall(data[sent:])


def _close(line: socket.socket) -> None:
    line.shutdown(socket.SHUT_RDWR)
    time.sleep(60)


def _drop_by_drop(line: socket.socket) -> None:
    for byte in _frame(b'{"ok": true, "seq": 1}' + b" " * 2000):
        line.sendall(bytes([byte]))
        time.sleep(0.05)


def _answer(sequence: int) -> bytes:
    return _frame(b'{"ok": true, "seq": %d}' % sequence)


LIES: dict[str, Callable[[socket.socket, int], object]] = {
    "garbage": lambda line, _: line.sendall(os.urandom(512)),
    "truncated": lambda line, seq: line.sendall(_answer(seq)[:-3]),
    "huge_lengths": lambda line, _: line.sendall(_HEADER.pack(b"STW1", 32 << 20) + b"{}"),
    "too_huge_lengths": lambda line, _: line.sendall(_HEADER.pack(b"STW1", 2**32 - 1)),
    "wrong_json": lambda line, _: line.sendall(_frame(b'{"ok": True}')),
    "deep_json": lambda line, _: line.sendall(_frame(b'{"a":' * 300_000 + b"1" + b"}" * 300_000)),
    "a_list": lambda line, _: line.sendall(_frame(b"[1, 2]")),
    "wrong_sequence": lambda line, seq: line.sendall(_answer(seq + 1)),
    "no_sequence": lambda line, _: line.sendall(_frame(b'{"ok": true}')),
    "no_verdict": lambda line, seq: line.sendall(_frame(b'{"seq": %d}' % seq)),
    "verdict_of_another_type": lambda line, seq: line.sendall(_frame(b'{"ok": "yes", "seq": %d}' % seq)),
    "descriptors": lambda line, seq: _descriptors(line, 3, _answer(seq)),
    "too_many_descriptors": lambda line, seq: _descriptors(line, 40, _answer(seq)),
    "descriptors_and_silence": lambda line, seq: _descriptors(line, 16, _answer(seq)[:5]),
    "drop_by_drop": lambda line, _: _drop_by_drop(line),
    "closed": lambda line, _: _close(line),
    "twice": lambda line, seq: line.sendall(_answer(seq) + _answer(seq)),
    "truth": lambda line, seq: line.sendall(_answer(seq)),
}


def serve(channel: Channel, scratch: str) -> None:
    """Answer each request with the lie that it asks for."""
    while True:
        message: dict[str, Any] = channel.receive().message
        if message["op"] == "exit":
            return
        channel.sock.setblocking(True)
        if message["op"] == "send":
            channel.sock.sendall(bytes.fromhex(message["hex"]))
        else:
            LIES[message["op"]](channel.sock, message["seq"])
        channel.sock.setblocking(False)
