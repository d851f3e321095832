"""The timed loop on the worker's side: reads a count from a pipe, makes that many calls, answers.

The C loop (native/src/runner.c) serves native programs; the Python loop serves everything that is Python
anyway (ModelNew, the reference, compiled baselines). Both speak the same 8-byte words, so the controller
cannot tell them apart. The clock is the controller's.
"""

import ctypes
import os
import struct
from collections.abc import Callable
from typing import Any

from stitch_tools.protocol.ring_messages import STOP, is_request

Service = Callable[[int, int], None]
"""Takes a request and the slot that the next call takes; see `ring_words`."""
STATUS_OK, STATUS_ERROR = 0, 1
_WORD = struct.Struct("=Q")
_CUDART_NAMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so")


_SERVICE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64)


class _Loop(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint64),
        ("forward", ctypes.c_void_p),
        ("handle", ctypes.c_void_p),
        ("ring", ctypes.c_void_p),
        ("slots", ctypes.c_uint64),
        ("device_type", ctypes.c_int32),
        ("request_fd", ctypes.c_int32),
        ("reply_fd", ctypes.c_int32),
        ("service", _SERVICE),
    ]


class NativeRunner:
    """The C loop. Create it before the candidate is loaded: it resolves its functions in the constructor."""

    def __init__(self, library: str, *, cuda: bool) -> None:
        self._library = ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        self._run: Any = self._library.stitch_runner_loop
        self._run.argtypes = [ctypes.POINTER(_Loop)]
        self._run.restype = ctypes.c_int32
        self._cuda = cuda
        if cuda:
            names = (ctypes.c_char_p * len(_CUDART_NAMES))(*(name.encode() for name in _CUDART_NAMES))
            status = self._library.stitch_runner_resolve(names, len(_CUDART_NAMES))
            if status != STATUS_OK:
                raise OSError("the CUDA runtime library was not found; is this a CUDA build of torch?")

    def serve(
        self,
        *,
        forward: int,
        handle: int,
        ring: int,
        slots: int,
        request_fd: int,
        reply_fd: int,
        service: Service,
    ) -> None:
        """Serve batches of calls until the controller stops; `forward`, `handle` and `ring` are addresses.

        Raises:
            RuntimeError: the loop refused its arguments.
            Exception: what `service` raised; the controller is told that it failed, and stops.
        """
        raised: list[Exception] = []

        def serve_request(word: int, slot: int) -> int:
            try:
                service(word, slot)
            except Exception as error:  # it would be lost in C; it is raised when the loop has ended
                raised.append(error)
                return STATUS_ERROR
            return STATUS_OK

        loop = _Loop(
            struct_size=ctypes.sizeof(_Loop),
            forward=forward,
            handle=handle,
            ring=ring,
            slots=slots,
            device_type=2 if self._cuda else 1,
            request_fd=request_fd,
            reply_fd=reply_fd,
            service=_SERVICE(serve_request),
        )
        status = self._run(ctypes.byref(loop))
        if status != STATUS_OK:
            raise RuntimeError(f"the timed loop refused to start (status {status})")
        if raised:
            raise raised[0]


def serve_python(
    call: Callable[[int], object],
    *,
    slots: int,
    request_fd: int,
    reply_fd: int,
    synchronize: Callable[[], object] | None = None,
    service: Service,
) -> None:
    """Serve calls of a Python callable that takes the slot's number. Exceptions, of `service` too, end it."""
    slot = 0
    while True:
        calls = read_word(request_fd)
        if calls is None or calls == STOP:
            return
        if is_request(calls):
            service(calls, slot)
            os.write(reply_fd, _WORD.pack(STATUS_OK))
            continue
        for _ in range(calls):
            call(slot)
            slot += 1
            if slot == slots:
                slot = 0
        if synchronize is not None:
            synchronize()
        os.write(reply_fd, _WORD.pack(STATUS_OK))


def read_word(fd: int) -> int | None:
    """The next 8-byte number, or None when the other end is closed."""
    data = b""
    while len(data) < _WORD.size:
        part = os.read(fd, _WORD.size - len(data))
        if not part:
            return None
        data += part
    return int(_WORD.unpack(data)[0])
