"""One confined process, seen from the controller."""

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TypeVar, cast

from stitch_tools.errors import WorkerError
from stitch_tools.protocol.messages import (
    Exit,
    Operation,
    OperationFailedError,
    decode_one_of,
    decode_reply,
    encode,
)
from stitch_tools.protocol.messages_session import ChildEnded, InitFailed, KillTree, PauseTree, ResumeTree
from stitch_tools.protocol.wire import (
    Channel,
    ChannelClosedError,
    ChannelTimeoutError,
    Frame,
    ProtocolError,
)
from stitch_tools.run.child_outcome import (
    CRASH_SIGNALS,
    ChildDied,
    ChildTimeout,
    Outcome,
    OutcomeKind,
    signal_name,
)

_GRACE_S = 2.0
_STANDSTILL_S = 15.0
_CLOSE_RACE_S = 0.25
_REPORTS = (ChildEnded, InitFailed)

ReplyT = TypeVar("ReplyT")


class Child:
    """A running child. Not thread-safe; every method but `kill` may find that it has died."""

    def __init__(
        self,
        channel: Channel,
        control: Channel,
        pidfd: int,
        pid: int,
        scratch: str,
        on_end: Callable[[], None],
        *,
        gives_descriptors: bool = True,
    ) -> None:
        """`gives_descriptors`: whether its answers may hold some; else one that does is no answer."""
        self.channel = channel
        self.pid = pid
        """Pid on the host."""
        self.scratch = scratch
        self._control = control
        self._pidfd = pidfd
        self._on_end = on_end
        self._gives_descriptors = gives_descriptors
        self._outcome: Outcome | None = None
        self._sequence = 0
        self._exit_asked = False

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def call(self, operation: Operation[ReplyT], timeout_s: float = 60.0) -> ReplyT:
        """The child's reply. The caller owns the descriptors in it.

        Raises:
            OperationFailedError: the operation failed; the child goes on.
            ChildTimeout: no answer before the deadline; the child was killed.
            ChildDied: the child ended, or sent something else than such a reply and was killed for it.
        """
        deadline = time.monotonic() + timeout_s
        self.begin(operation, timeout_s)
        return self.reply_to(operation, _remaining(deadline))

    def begin(self, operation: Operation[object], timeout_s: float = 60.0) -> None:
        """Send a request without waiting for its reply; `reply_to` must follow.

        Raises:
            ChildTimeout: the child does not read; it was killed.
            ChildDied: the child has ended.
        """
        self._send(encode(operation), timeout_s)

    def reply_to(self, operation: Operation[ReplyT], timeout_s: float = 60.0) -> ReplyT:
        """The reply to the operation that was begun last. Raises as `call`."""
        frame = self._receive(timeout_s)
        try:
            return decode_reply(cast("type[ReplyT]", operation.reply), frame)
        except (OperationFailedError, ProtocolError) as error:
            for fd in frame.fds:
                os.close(fd)
            if isinstance(error, ProtocolError):
                raise ChildDied(self._finish("protocol", detail=str(error))) from error
            raise

    def request(
        self, message: dict[str, object], fds: tuple[int, ...] = (), *, timeout_s: float = 60.0
    ) -> Frame:
        """The frame that a request without a type is answered with. Raises as `call`."""
        deadline = time.monotonic() + timeout_s
        self._send(Frame(message, fds=fds), timeout_s)
        return self._receive(_remaining(deadline))

    def _send(self, frame: Frame, timeout_s: float) -> None:
        if self._outcome is not None:
            raise ChildDied(self._outcome)
        self._sequence += 1
        with self._fatal_trouble():
            numbered = replace(frame, message={**frame.message, "seq": self._sequence})
            self.channel.send(numbered, timeout_s)

    def _receive(self, timeout_s: float) -> Frame:
        """The answer to what was sent last. The caller owns the descriptors in it."""
        if self._outcome is not None:
            raise ChildDied(self._outcome)
        deadline = time.monotonic() + timeout_s
        with self._fatal_trouble():
            self._await_answer(deadline)
            frame = self.channel.receive(_remaining(deadline))
        self._verify(frame)
        return frame

    @contextlib.contextmanager
    def _fatal_trouble(self) -> Generator[None]:
        """Trouble on the channel ends the child and becomes its outcome."""
        try:
            yield
        except ChannelTimeoutError:
            raise ChildTimeout(self._finish("timed_out")) from None
        except ChannelClosedError:
            raise ChildDied(self._finish("closed_descriptors", _CLOSE_RACE_S)) from None
        except ProtocolError:
            raise ChildDied(self._finish("protocol")) from None

    def _await_answer(self, deadline: float) -> None:
        """Wait until the channel has something; a report of the end while nothing is there ends the wait."""
        poller = select.poll()
        poller.register(self.channel, select.POLLIN)
        poller.register(self._control, select.POLLIN)
        ready = dict(poller.poll(_remaining(deadline) * 1000))
        if not ready:
            raise ChannelTimeoutError("the child did not answer in time")
        # An answer that was sent before the end still counts.
        if self.channel.fileno() not in ready:
            raise ChannelClosedError("the child ended")

    def _verify(self, frame: Frame) -> None:
        kind: OutcomeKind | None = None
        # Old answers, answers to nothing and answers by others must never pass for this one.
        is_answer = frame.message.get("seq") == self._sequence and isinstance(frame.message.get("ok"), bool)
        if not is_answer or (frame.fds and not self._gives_descriptors):
            kind = "protocol"
        elif frame.pid is not None and frame.pid != self.pid:
            kind = "forked"
        if kind:
            for fd in frame.fds:
                os.close(fd)
            raise ChildDied(self._finish(kind))

    def is_alive(self) -> bool:
        """Whether it still runs, as far as is known without asking it."""
        if self._outcome is None and _readable(self._control, 0):
            self._finish("closed_descriptors", _CLOSE_RACE_S)
        return self._outcome is None

    def pause(self) -> None:
        """Stop the child and everything it started; returns when it stands still.

        Raises:
            ChildDied: it had ended.
        """
        self._tell(PauseTree())

    def resume(self) -> None:
        """Let it go on.

        Raises:
            ChildDied: it had ended, or had not stood still, and was killed for it.
        """
        if self._tell(ResumeTree()):
            raise ChildDied(self._finish("went_on"))

    def kill(self, kind: OutcomeKind = "killed", *, grace_s: float = 0.0) -> Outcome:
        """How it ended; one that still runs is ended with its tree, after `grace_s` to end by itself.

        `kind` is the reason if it did not.
        """
        return self._outcome or self._finish(kind, grace_s)

    def close(self) -> None:
        """Ask it to end, insist after a moment, and forget its scratch folder."""
        if self._outcome is None and not self._exit_asked:
            try:
                self._exit_asked = True
                self.channel.send(Frame({**encode(Exit()).message, "seq": 0}), timeout_s=0.1)
            except (ChannelClosedError, ChannelTimeoutError):
                pass
        if self._outcome is None:
            self._finish("killed", _GRACE_S)

    def _tell(self, operation: Operation[ReplyT]) -> ReplyT:
        """What the init answers; its report of the end may come instead."""
        if self._outcome is not None:
            raise ChildDied(self._outcome)
        try:
            self._control.send(encode(operation))
            frame = self._control.receive(_STANDSTILL_S)
            if "op" not in frame.message:
                return decode_reply(cast("type[ReplyT]", operation.reply), frame)
            # The child may have ended just before: then the report comes in place of the reply.
            report = decode_one_of(_REPORTS, frame)
        except (ChannelClosedError, ChannelTimeoutError, ProtocolError, OperationFailedError):
            raise ChildDied(self._finish("killed")) from None
        raise ChildDied(self._record(report, "killed"))

    def _finish(self, kind: OutcomeKind, wait_s: float = 0.0, detail: str = "") -> Outcome:
        """End the child (after `wait_s` in which it may end by itself) and remember how."""
        # The channel closes a moment before the init can tell how the process ended.
        report = self._receive_report(wait_s) if wait_s else None
        if report is None:
            with contextlib.suppress(ChannelClosedError, ChannelTimeoutError):
                self._control.send(encode(KillTree()), timeout_s=0.5)
            report = self._receive_report(_GRACE_S)
        return self._record(report, kind, detail)

    def _receive_report(self, timeout_s: float) -> ChildEnded | InitFailed | None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                frame = self._control.receive(max(0.0, deadline - time.monotonic()))
                if "op" in frame.message:  # else a reply that nobody waits for any more
                    return decode_one_of(_REPORTS, frame)
            except (ChannelClosedError, ChannelTimeoutError, ProtocolError):
                return None

    def _record(self, report: ChildEnded | InitFailed | None, kind: OutcomeKind, detail: str = "") -> Outcome:
        self._release()
        if isinstance(report, ChildEnded):
            self._outcome = Outcome(
                kind=self._judge(report, kind),
                exit_code=report.exit_code,
                signal_name=signal_name(report.signal),
                output_tail=report.output_tail,
                detail=detail,
            )
        elif report is not None:
            fault = report.fault
            self._outcome = Outcome(
                "early_exit", output_tail=f"{fault.kind}: {fault.message}\n{fault.traceback}"
            )
        else:
            self._outcome = Outcome(kind, detail=detail)
        return self._outcome

    def _judge(self, report: ChildEnded, kind: OutcomeKind) -> OutcomeKind:
        if report.reason == "killed":
            return kind
        if report.reason is not None:
            return report.reason
        name = signal_name(report.signal)
        if name is None:
            return "exited" if self._exit_asked and report.exit_code == 0 else "early_exit"
        if name == "SIGABRT" and "bad_alloc" in report.output_tail:
            return "out_of_memory"
        return "crashed" if name in CRASH_SIGNALS else "signaled"

    def _release(self) -> None:
        """Make sure that nothing is left, and close what belongs to the child."""
        try:
            # The init: at level full the kernel ends everything below it before it is gone itself.
            if not _readable(self._pidfd, 0.5):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                if not _readable(self._pidfd, 5.0):
                    raise WorkerError(
                        f"process {self.pid} does not end",
                        hint="it waits in the kernel, where a driver may hang: look at dmesg",
                    )
        except ProcessLookupError:
            pass
        finally:
            os.close(self._pidfd)
            self.channel.close()
            self._control.close()
            self._on_end()


def _remaining(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def _readable(thing: Channel | int, timeout_s: float) -> bool:
    poller = select.poll()
    poller.register(thing, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))
