"""Time batches of calls of one process, from request to answer on our clock, through a pair of pipes."""

import contextlib
import os
import select
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from stitch_tools.protocol.ring_messages import STOP

_WORD = struct.Struct("=Q")
_ENDED = "the process ended during timing"
# A native program's own status (worker/runtime/abi.py), below what the loop adds to it.
_ABI_BITS, _OUT_OF_MEMORY = 0xFFFF, 3


class RunnerFailedError(Exception):
    """The process ended, hung, or reported an error inside the timed region; `reason` is for people."""

    def __init__(self, name: str, reason: str, *, ended: bool = False, late: bool = False) -> None:
        """`ended`: the process closed its end; `late`: no answer before the deadline."""
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason
        self.ended = ended
        self.late = late


@dataclass
class Pipes:
    """Our ends of the request and reply pipes."""

    request_write: int
    reply_read: int

    @classmethod
    def open(cls) -> "tuple[Pipes, tuple[int, int]]":
        """A new pair, closed on exec, and the process' ends: where it reads requests, and where it answers.

        Whoever opens them closes the latter ones, so that the process' death shows as the end of the stream.
        """
        request_read, request_write = os.pipe2(os.O_CLOEXEC)
        reply_read, reply_write = os.pipe2(os.O_CLOEXEC)
        return cls(request_write, reply_read), (request_read, reply_write)

    def close(self) -> None:
        """Close what is open."""
        for fd in (self.request_write, self.reply_read):
            if fd >= 0:
                os.close(fd)
        self.request_write = self.reply_read = -1


@dataclass
class TimedProcess:
    """A process that makes calls over a ring. `slots` is the ring's length, `slot` the next one.

    Whatever asks it for something raises RunnerFailedError where it is gone, answers too late, or failed.
    """

    name: str
    pipes: Pipes
    slots: int
    timeout_s: float = 120.0
    slot: int = 0
    last_calls: int = 0
    """Calls of the latest batch."""
    woken_s: float = 0.0
    """What the latest waking took until its signals were sent, for a process that was stopped."""
    history: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    """(calls, seconds) of every batch."""

    def run_calls(self, calls: int, wake: Callable[[], None] | None = None) -> float:
        """Make a batch of calls; seconds from request to answer, with those of `wake`, which lets it run."""
        status, elapsed_s = self._exchange(calls, wake)
        if status:
            named = " (out_of_memory)" if status & _ABI_BITS == _OUT_OF_MEMORY else ""
            raise RunnerFailedError(self.name, f"a timed call failed with status {status}{named}")
        self.slot = (self.slot + calls) % self.slots
        self.last_calls = calls
        self.history.append((calls, elapsed_s))
        return elapsed_s

    def ask(self, request: int) -> float:
        """Have something done between batches (`worker.ring_words`); its seconds enter no figure."""
        status, elapsed_s = self._exchange(request)
        if status:
            raise RunnerFailedError(self.name, f"what was asked for between calls failed ({status})")
        return elapsed_s

    def _exchange(self, word: int, wake: Callable[[], None] | None = None) -> tuple[int, float]:
        """The answer to the word, and the seconds until it came."""
        # An answer that waits already would take no time at all.
        if self._poll(0.0) & select.POLLIN:
            raise RunnerFailedError(self.name, "it answered before it was asked")
        start = time.perf_counter_ns()
        self._send(word)
        if wake is not None:
            began = time.perf_counter_ns()
            wake()
            self.woken_s = (time.perf_counter_ns() - began) * 1e-9
        status = self._answer()
        return status, (time.perf_counter_ns() - start) * 1e-9

    def _send(self, word: int) -> None:
        try:
            os.write(self.pipes.request_write, _WORD.pack(word))
        except OSError as error:
            raise RunnerFailedError(self.name, _ENDED, ended=True) from error

    def _poll(self, timeout_s: float) -> int:
        """Events of the reply pipe: 0 where none came in time."""
        poller = select.poll()
        poller.register(self.pipes.reply_read, select.POLLIN)
        return next((event for _, event in poller.poll(timeout_s * 1000.0)), 0)

    def _answer(self) -> int:
        data, deadline = b"", time.monotonic() + self.timeout_s
        while len(data) < _WORD.size:
            if not self._poll(max(0.0, deadline - time.monotonic())):
                raise RunnerFailedError(self.name, f"no answer within {self.timeout_s:.0f} s", late=True)
            part = os.read(self.pipes.reply_read, _WORD.size - len(data))
            if not part:
                raise RunnerFailedError(self.name, _ENDED, ended=True)
            data += part
        return int(_WORD.unpack(data)[0])

    def next_loop(self) -> None:
        """End this loop where another follows on the same pipes; that one begins at slot 0."""
        self._send(STOP)
        self.slot = 0

    def stop(self) -> None:
        """End the loop; the process then answers the request that started the loop."""
        with contextlib.suppress(OSError):  # it may be gone already, which is what we want
            os.write(self.pipes.request_write, _WORD.pack(STOP))
        self.pipes.close()
