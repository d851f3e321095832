"""One process under the clock: gos through a pair of pipes, measured from "go" to "done" on our side."""

import contextlib
import os
import select
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from stitch_tools.protocol.ring_messages import STOP

_WORD = struct.Struct("=Q")


class ContestantFailedError(Exception):
    """The process ended, hung, or reported an error inside the timed region; `reason` is for people."""

    def __init__(self, name: str, reason: str, *, ended: bool = False, late: bool = False) -> None:
        """`ended`: the process closed its end; `late`: no answer before the deadline."""
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason
        self.ended = ended
        self.late = late


class Pausable(Protocol):
    """The process behind a contestant."""

    def pause(self) -> None:
        """Stop it with all its threads and children."""
        ...

    def resume(self) -> None:
        """Let it run again."""
        ...


@dataclass
class Pipes:
    """The four ends of the go and done pipes. The far ends are handed to the process, then closed here."""

    go_write: int
    done_read: int
    go_read: int | None
    done_write: int | None

    @classmethod
    def open(cls) -> "Pipes":
        """A new pair, closed on exec."""
        go_read, go_write = os.pipe2(os.O_CLOEXEC)
        done_read, done_write = os.pipe2(os.O_CLOEXEC)
        return cls(go_write, done_read, go_read, done_write)

    @property
    def far(self) -> tuple[int, int]:
        """What the process gets: the end that it reads counts from, the end that it answers on."""
        if self.go_read is None or self.done_write is None:
            raise ValueError("the far ends are closed")
        return self.go_read, self.done_write

    def close_far(self) -> None:
        """Close our copies of the process' ends, so that its death shows as the end of the stream."""
        for fd in (self.go_read, self.done_write):
            if fd is not None:
                os.close(fd)
        self.go_read = self.done_write = None

    def close(self) -> None:
        """Close everything that is open."""
        self.close_far()
        for fd in (self.go_write, self.done_read):
            if fd >= 0:
                os.close(fd)
        self.go_write = self.done_read = -1


@dataclass
class PipeContestant:
    """A process that serves gos. `slots` is the length of its ring; `slot` is the one the next call takes."""

    name: str
    process: Pausable
    pipes: Pipes
    slots: int
    go_timeout_s: float = 120.0
    slot: int = 0
    last_calls: int = 0
    """Calls of the latest go."""
    woken_s: float = 0.0
    """What the latest waking took until its signals were out, for a process that stood still."""
    history: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    """(calls, seconds) of every go."""

    def go(self, calls: int) -> float:
        """Seconds from "go" to "done" for `calls` calls.

        Raises:
            ContestantFailedError: the process is gone, answers too late, or a call failed.
        """
        return self._timed(calls)

    def go_from_rest(self, calls: int) -> float:
        """The same of a process that stands still, with what it takes to let it run: it had no time before.

        Raises:
            ContestantFailedError: the process is gone, answers too late, or a call failed.
        """
        return self._timed(calls, wake=self.process.resume)

    def _timed(self, calls: int, wake: Callable[[], None] | None = None) -> float:
        status, elapsed = self._exchange(calls, wake=wake)
        if status:
            raise ContestantFailedError(self.name, f"a timed call failed with status {status}")
        self.slot = (self.slot + calls) % self.slots
        self.last_calls = calls
        self.history.append((calls, elapsed))
        return elapsed

    def ask(self, request: int) -> float:
        """Have something done between gos (`worker.ring_words`); the seconds that it took enter no figure.

        Raises:
            ContestantFailedError: the process is gone, answers too late, or could not do it.
        """
        status, elapsed = self._exchange(request)
        if status:
            raise ContestantFailedError(self.name, f"what was asked for between calls failed ({status})")
        return elapsed

    def _exchange(self, word: int, wake: Callable[[], None] | None = None) -> tuple[int, float]:
        """The answer to the word, and the seconds until it came. `wake` lets the process run first."""
        if self._has_answered():
            raise ContestantFailedError(self.name, "it answered before it was asked")
        start = time.perf_counter_ns()
        try:
            os.write(self.pipes.go_write, _WORD.pack(word))
        except OSError as error:
            raise ContestantFailedError(self.name, "the process ended during timing", ended=True) from error
        if wake is not None:
            began = time.perf_counter_ns()
            wake()
            self.woken_s = (time.perf_counter_ns() - began) * 1e-9
        status = self._answer()
        return status, (time.perf_counter_ns() - start) * 1e-9

    def _has_answered(self) -> bool:
        """Whether an answer that nobody has asked for is waiting: the next one would take no time at all."""
        poller = select.poll()
        poller.register(self.pipes.done_read, select.POLLIN)
        return any(event & select.POLLIN for _, event in poller.poll(0))

    def _answer(self) -> int:
        poller = select.poll()
        poller.register(self.pipes.done_read, select.POLLIN)
        data, deadline = b"", time.monotonic() + self.go_timeout_s
        while len(data) < _WORD.size:
            if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000.0):
                raise ContestantFailedError(
                    self.name, f"no answer within {self.go_timeout_s:.0f} s", late=True
                )
            part = os.read(self.pipes.done_read, _WORD.size - len(data))
            if not part:
                raise ContestantFailedError(self.name, "the process ended during timing", ended=True)
            data += part
        return int(_WORD.unpack(data)[0])

    def pause(self) -> None:
        """Stop the process with all its threads and children."""
        self.process.pause()

    def resume(self) -> None:
        """Let it run again."""
        self.process.resume()

    def next_loop(self) -> None:
        """Ask this loop to end where another follows on the same pipes; that one begins at slot 0.

        Raises:
            ContestantFailedError: the process is gone.
        """
        try:
            os.write(self.pipes.go_write, _WORD.pack(STOP))
        except OSError as error:
            raise ContestantFailedError(self.name, "the process ended during timing", ended=True) from error
        self.slot = 0

    def stop(self) -> None:
        """Ask the loop to end; the process then answers the request that started the loop."""
        with contextlib.suppress(OSError):  # it may be gone already, which is what we want
            os.write(self.pipes.go_write, _WORD.pack(STOP))
        self.pipes.close()
