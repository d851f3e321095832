"""Runners: the confined processes whose calls are timed, each with its child and its outputs.

Whatever needs a process raises RunnerFailedError where that is gone, answers too late, or failed.
"""

import contextlib
import os
import secrets
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass, field

from stitch_tools.judge.timing.ring import OutputSampler
from stitch_tools.judge.timing.timed_process import Pipes, RunnerFailedError, TimedProcess
from stitch_tools.protocol.memory_faults import says_out_of_memory
from stitch_tools.protocol.messages import Operation, OperationFailedError
from stitch_tools.protocol.messages_candidate import StepReply
from stitch_tools.protocol.ring_messages import COLLECT, COLLECT_LATEST, RENEW, TOKEN_BITS, request
from stitch_tools.protocol.timing_messages import RingRequest, with_pipes
from stitch_tools.run.child import Child
from stitch_tools.run.child_outcome import ChildDied

_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0
_LAST_WORDS_S = 5.0
_REASON_CHARS = 500


@dataclass(kw_only=True)
class Runner(TimedProcess):
    """The program or one baseline in its child, over a ring of inputs.

    A *visit* lasts from `resume` to `pause`. Where outputs are sampled, one of them is taken in each visit.
    """

    child: Child
    request: RingRequest
    """What the child was asked for; its reply follows the end of the loop."""
    sampler: OutputSampler | None = None
    note: str = ""
    draws: int = 0
    """Draws that its inputs are renewed from between single calls; 0: they are left as they are."""
    tokens: dict[int, int] = field(default_factory=dict[int, int])
    """By slot, what its inputs were renewed with."""
    _resumed: bool = True
    _visit_start: int = 0
    _in_visit: bool = False

    def run_calls(self, calls: int, wake: Callable[[], None] | None = None) -> float:
        """Make a batch of calls; seconds from request to answer."""
        with self._explained():
            seconds = super().run_calls(calls, wake)
            slot = self.sampler.after_batch(self.slot, calls) if self.sampler and self._in_visit else None
            if slot is not None and self.sampler is not None:
                self._fetch(slot)
                self.sampler.offer(slot, self.tokens.get(slot, 0))
        return seconds

    def wake_and_run_calls(self, calls: int) -> float:
        """The same of a process that `halt` stopped, with what it takes to let it run."""
        return self.run_calls(calls, self.child.resume)

    def halt(self) -> None:
        """Stop the process between two batches outside of visits."""
        with self._explained():
            self.child.pause()

    def renew(self) -> None:
        """Give the next call inputs that never came before; no clock sees it."""
        if self.draws:
            self.renew_with(new_token())

    def renew_with(self, token: int) -> None:
        """Give the next call the inputs that this token stands for in its slot; 0: the slot's own."""
        with self._explained():
            self.ask(request(RENEW, token))
        self.tokens[self.slot] = token

    def take_one(self, calls: int) -> None:
        """Keep the outputs of one of the latest `calls` calls."""
        if self.sampler is None:
            return
        slot = self.sampler.choose(self.slot, calls)
        with self._explained():
            self._fetch(slot)
        self.sampler.take(slot, self.tokens.get(slot, 0))

    def fetch_latest(self, calls: int) -> float:
        """Seconds until the outputs of all the latest `calls` calls were copied; a program's one is kept."""
        with self._explained():
            seconds = self.ask(request(COLLECT_LATEST, calls))
        if self.sampler is not None:
            slot = self.sampler.choose(self.slot, calls)
            self.sampler.take(slot, self.tokens.get(slot, 0))
        return seconds

    def _fetch(self, slot: int) -> None:
        """Have the outputs of a slot brought into our memory, where calls do not write there."""
        if self.sampler is not None and not self.sampler.live:
            self.ask(request(COLLECT, slot))

    @contextlib.contextmanager
    def _explained(self) -> Generator[None]:
        """A process that ended says why."""
        try:
            yield
        except ChildDied as death:
            raise RunnerFailedError(self.name, death.outcome.describe()) from death
        except RunnerFailedError as failure:
            if failure.ended:
                self.take_reply(_LAST_WORDS_S)
            raise

    def resume(self) -> None:
        """Let it run; a sampled program gets one output poisoned first."""
        self._visit_start, self._in_visit = len(self.history), True
        if self.sampler is not None:
            self.sampler.before_visit(self.slot)
        self._let_run()

    def _let_run(self) -> None:
        if not self._resumed:
            with self._explained():
                self.child.resume()
            self._resumed = True

    def pause(self) -> None:
        """Stop it; a sampled program's output is then copied."""
        self._in_visit = False
        if self._resumed:
            self.halt()
            self._resumed = False
        if self.sampler is not None:
            calls = sum(calls for calls, _ in self.history[self._visit_start :])
            self.sampler.after_visit(calls, self.last_calls, self.tokens)

    def next_ring(self) -> None:
        """End the loop over the ring as it is; the process continues with other inputs in it."""
        self.next_loop()
        self.tokens.clear()
        if self.sampler is not None:
            self.sampler.samples.clear()

    def take_reply(self, timeout_s: float) -> None:
        """Take the child's reply, which follows the end of the loop."""
        take_reply(self.child, self.name, self.request, timeout_s)

    def finish(self) -> None:
        """End the loop."""
        self._let_run()
        self.stop()
        self.take_reply(_STOP_TIMEOUT_S)


def new_token() -> int:
    """What inputs are renewed with next; nobody can foresee it."""
    return 1 + secrets.randbelow(2**TOKEN_BITS - 1)


def start_runner(stack: ExitStack, name: str, child: Child, request: RingRequest) -> Runner:
    """A runner in a child that was sent its request and its pipes, and may still be at work on it."""
    pipes, far = Pipes.open()
    stack.callback(pipes.close)
    try:
        child.begin(with_pipes(request, far))
    except ChildDied as death:
        raise RunnerFailedError(name, death.outcome.describe()) from death
    finally:
        for fd in far:
            os.close(fd)
    return Runner(name, pipes, request.slots, child=child, request=request)


def wait_until_ready(runner: Runner, timeout_s: float) -> None:
    """Wait until the runner's first answer, which follows all preparation."""
    runner.timeout_s = timeout_s
    try:
        runner.run_calls(0)
    except RunnerFailedError as failure:
        if failure.late:
            runner.child.kill("timed_out")
            raise RunnerFailedError(runner.name, f"not ready within {timeout_s:.0f} s") from failure
        raise
    runner.timeout_s = _TIMEOUT_S


def take_reply(child: Child, name: str, request: Operation[object], timeout_s: float) -> None:
    """Take the reply to a request of ours that was begun. What it says is a claim."""
    try:
        reply = child.reply_to(request, timeout_s)
    except ChildDied as death:
        raise RunnerFailedError(name, death.outcome.describe()) from death
    except OperationFailedError as error:
        reason = f"{error.fault.kind}: {error.fault.message[:_REASON_CHARS]}"
        raise RunnerFailedError(name, reason) from error
    if isinstance(reply, StepReply) and reply.status != "ok":
        raise RunnerFailedError(name, step_reason(reply.step, reply.status, reply.message[:_REASON_CHARS]))


def step_reason(step: str, status: str, message: str) -> str:
    """Why a step of a program failed; that memory was missing is said in any case."""
    words = ": ".join(part for part in (step, message) if part)
    known = message and (status != "out_of_memory" or says_out_of_memory(message))
    return words if known else f"{words}: {status}"
