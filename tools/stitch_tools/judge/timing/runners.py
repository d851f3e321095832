"""Runners: the confined processes whose calls are timed, each with its child and its outputs.

Whatever needs a process raises RunnerFailedError where that is gone, answers too late, or failed.
"""

import contextlib
import secrets
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import cast

from stitch_tools.judge.timing.ring import OutputSampler
from stitch_tools.judge.timing.timed_process import Pipes, RunnerFailedError, TimedProcess
from stitch_tools.protocol.ring_messages import COLLECT, COLLECT_LATEST, RENEW, TOKEN_BITS, request
from stitch_tools.run.child import Child
from stitch_tools.run.child_outcome import ChildDied
from stitch_tools.worker.timing_messages import TimeBaseline, TimeProgram, to_message

_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0
_LAST_WORDS_S = 5.0
_REASON_CHARS = 500


@dataclass
class Runner(TimedProcess):
    """The program or one baseline in its child, over a ring of inputs.

    A *visit* lasts from `resume` to `pause`. Where outputs are sampled, one of them is taken in each visit.
    """

    child: Child | None = None
    sampler: OutputSampler | None = None
    note: str = ""
    draws: int = 0
    """Draws that its inputs are renewed from between single calls; 0: they are left as they are."""
    tokens: dict[int, int] = field(default_factory=dict[int, int])
    """By slot, what its inputs were renewed with."""
    _resumed: bool = True
    _visit_start: int = 0
    _in_visit: bool = False

    @property
    def pid(self) -> int:
        """Of the process on this machine; 0 where there is none."""
        return self.child.pid if self.child is not None else 0

    def run_calls(self, calls: int) -> float:
        """Make a batch of calls; seconds from request to answer. A process that ended says why."""
        with self._explained():
            seconds = super().run_calls(calls)
            slot = self.sampler.after_batch(self.slot, calls) if self.sampler and self._in_visit else None
            if slot is not None and self.sampler is not None:
                self._fetch(slot)
                self.sampler.fetched(slot, self.tokens.get(slot, 0))
        return seconds

    def wake_and_run_calls(self, calls: int) -> float:
        """See `TimedProcess`; the process was stopped by `halt`."""
        seconds: list[float] = []
        with self._explained():
            self._survive(lambda: seconds.append(TimedProcess.wake_and_run_calls(self, calls)))
        return seconds[0]

    def halt(self) -> None:
        """Stop the process between two batches outside of visits."""
        self._survive(self.process.pause)

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
        except RunnerFailedError as failure:
            if failure.ended and self.child is not None:
                take_answer(self.child, self.name, _LAST_WORDS_S)
            raise

    def resume(self) -> None:
        """Let it run; a sampled program gets one output poisoned first."""
        self._visit_start, self._in_visit = len(self.history), True
        if self.sampler is not None:
            self.sampler.before_visit(self.slot)
        self._let_run()

    def _let_run(self) -> None:
        if not self._resumed:
            self._survive(self.process.resume)
            self._resumed = True

    def pause(self) -> None:
        """Stop it; a sampled program's output is then copied."""
        self._in_visit = False
        if self._resumed:
            self._survive(self.process.pause)
            self._resumed = False
        if self.sampler is not None:
            calls = sum(calls for calls, _ in self.history[self._visit_start :])
            self.sampler.after_visit(calls, self.last_calls, self.tokens)

    def _survive(self, act: Callable[[], None]) -> None:
        try:
            act()
        except ChildDied as death:
            raise RunnerFailedError(self.name, death.outcome.describe()) from death

    def next_ring(self) -> None:
        """End the loop over the ring as it is; the process continues with other inputs in it."""
        self.next_loop()
        self.tokens.clear()
        if self.sampler is not None:
            self.sampler.samples.clear()

    def finish(self) -> None:
        """End the loop."""
        if self.child is not None:
            self._let_run()
            self.stop()
            take_answer(self.child, self.name, _STOP_TIMEOUT_S)


def new_token() -> int:
    """What inputs are renewed with next; nobody can foresee it."""
    return 1 + secrets.randbelow(2**TOKEN_BITS - 1)


def start_runner(
    stack: ExitStack,
    name: str,
    child: Child,
    request: TimeProgram | TimeBaseline,
    fds: tuple[int, ...] = (),
) -> Runner:
    """A runner in a child that was sent its request and its pipes, and may still be at work on it."""
    pipes = Pipes.open()
    stack.callback(pipes.close)
    try:
        child.ask(to_message(request), fds=(*pipes.far, *fds))
    except ChildDied as death:
        raise RunnerFailedError(name, death.outcome.describe()) from death
    finally:
        pipes.close_far()
    return Runner(name, child, pipes, request.slots, child=child)


def wait_until_ready(runner: Runner, timeout_s: float) -> None:
    """Wait until the runner's first answer, which follows all preparation."""
    if runner.child is None:
        return
    runner.timeout_s = timeout_s
    try:
        runner.run_calls(0)
    except RunnerFailedError as failure:
        if failure.late:
            runner.child.kill("timed_out")
            raise RunnerFailedError(runner.name, f"not ready within {timeout_s:.0f} s") from failure
        raise
    runner.timeout_s = _TIMEOUT_S


def take_answer(child: Child, name: str, timeout_s: float) -> None:
    """Take the answer to the request that runs the loop."""
    try:
        message = child.answer(timeout_s).message
    except ChildDied as death:
        raise RunnerFailedError(name, death.outcome.describe()) from death
    refuse_failure(name, message)


def refuse_failure(name: str, message: Mapping[str, object]) -> None:
    """Check the answer to a request of ours; nothing in it is believed to have the right type."""
    if not message["ok"]:
        error = message.get("error")
        fields = cast(dict[str, object], error) if isinstance(error, dict) else {}
        raise RunnerFailedError(name, f"{fields.get('kind')}: {str(fields.get('message'))[:_REASON_CHARS]}")
    if message.get("status", "ok") != "ok":
        raise RunnerFailedError(name, f"{message.get('step')}: {str(message.get('message'))[:_REASON_CHARS]}")
