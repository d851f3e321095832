"""Contestants in confined children: the program in a worker, each baseline in a server of its own."""

import contextlib
import json
import secrets
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from stitch_tools.compile.host_build import build_runner
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.judge.timing.contestant import ContestantFailedError, PipeContestant, Pipes
from stitch_tools.judge.timing.device_ring import DeviceRing, DeviceRingError
from stitch_tools.judge.timing.ring import OutputRing, Ring, RingShape, Sampler
from stitch_tools.models import Build, Program, ReferenceFacts, Task
from stitch_tools.protocol.ring_messages import COLLECT, COLLECT_LATEST, RENEW, TOKEN_BITS, request
from stitch_tools.run.candidate_worker import Answer, Worker
from stitch_tools.run.child import Child
from stitch_tools.run.child_outcome import ChildDied
from stitch_tools.run.reference_server import Inputs, ReferenceServer, Weights
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store

PROGRAM = "program"
PROGRAM_GRAPHED = "program:cudagraph"
"""The program replayed from a CUDA graph with its inputs copied in, as the baseline `cudagraph` is."""
_LOAD_TIMEOUT_S = 300.0
_FIRST_GO_TIMEOUT_S = 300.0
_GO_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0
_LAST_WORDS_S = 5.0
_PYTHON_LOOP = "timed by a Python loop"


@dataclass
class Seat(PipeContestant):
    """A contestant with its child. `close` ends both."""

    child: Child | None = None
    sampler: Sampler | None = None
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

    def go(self, calls: int) -> float:
        """Seconds from "go" to "done"; a process that ended says why.

        Raises:
            ContestantFailedError: the process is gone, answers too late, or a call failed.
        """
        with self._explained():
            seconds = super().go(calls)
            slot = self.sampler.after_go(self.slot, calls) if self.sampler and self._in_visit else None
            if slot is not None and self.sampler is not None:
                self._fetch(slot)
                self.sampler.fetched(slot, self.tokens.get(slot, 0))
        return seconds

    def go_from_rest(self, calls: int) -> float:
        """See `PipeContestant`; the process was stopped by `rest`.

        Raises:
            ContestantFailedError: the process is gone, answers too late, or a call failed.
        """
        seconds: list[float] = []
        with self._explained():
            self._survive(lambda: seconds.append(PipeContestant.go_from_rest(self, calls)))
        return seconds[0]

    def rest(self) -> None:
        """Stop the process, between two gos that are no visit.

        Raises:
            ContestantFailedError: the process is gone.
        """
        self._survive(self.process.pause)

    def renew(self) -> None:
        """Give the next call inputs that never came before; no clock sees it.

        Raises:
            ContestantFailedError: the process is gone, or failed.
        """
        if self.draws:
            self.renew_with(new_token())

    def renew_with(self, token: int) -> None:
        """Give the next call the inputs that this token stands for in its slot; 0: the slot's own.

        Raises:
            ContestantFailedError: the process is gone, or failed.
        """
        with self._explained():
            self.ask(request(RENEW, token))
        self.tokens[self.slot] = token

    def take_one(self, calls: int) -> None:
        """Keep the outputs of one of the latest `calls` calls.

        Raises:
            ContestantFailedError: the process is gone, or failed.
        """
        if self.sampler is None:
            return
        slot = self.sampler.choose(self.slot, calls)
        with self._explained():
            self._fetch(slot)
        self.sampler.take(slot, self.tokens.get(slot, 0))

    def fetch_latest(self, calls: int) -> float:
        """Seconds until the outputs of all the latest `calls` calls were copied; a program's one is kept.

        Raises:
            ContestantFailedError: the process is gone, or failed.
        """
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
        except ContestantFailedError as failure:
            if failure.ended and self.child is not None:
                answer_of(self.child, self.name, _LAST_WORDS_S)
            raise

    def resume(self) -> None:
        """Let it run; a sampled program gets one output poisoned first."""
        self._visit_start, self._in_visit = len(self.history), True
        if self.sampler is not None:
            self.sampler.before_visit(self.slot)
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
            raise ContestantFailedError(self.name, death.outcome.describe()) from death

    def next_ring(self) -> None:
        """End the loop over the ring as it is; the process goes on with other inputs in it.

        Raises:
            ContestantFailedError: the process is gone.
        """
        self.next_loop()
        self.tokens.clear()
        if self.sampler is not None:
            self.sampler.samples.clear()

    def finish(self) -> None:
        """End the loop.

        Raises:
            ContestantFailedError: the process died, or its handler failed.
        """
        if self.child is None:
            return
        if not self._resumed:
            self._survive(self.process.resume)
            self._resumed = True
        self.stop()
        answer_of(self.child, self.name, _STOP_TIMEOUT_S)


def new_token() -> int:
    """What inputs are renewed with next; nobody can foresee it."""
    return 1 + secrets.randbelow(2**TOKEN_BITS - 1)


def answer_of(child: Child, name: str, timeout_s: float) -> dict[str, Any]:
    """The answer to the request that runs the loop, as a contestant's failure where it is one."""
    try:
        message = child.answer(timeout_s).message
    except ChildDied as death:
        raise ContestantFailedError(name, death.outcome.describe()) from death
    if not message["ok"]:
        raise ContestantFailedError(name, _error_text(message))
    if message.get("status", "ok") != "ok":
        raise ContestantFailedError(name, f"{message.get('step')}: {str(message.get('message'))[:500]}")
    return message


def first_go(seat: Seat, timeout_s: float) -> None:
    """Wait until the contestant is ready: its first answer follows all preparation.

    Raises:
        ContestantFailedError: with the reason that the process gave, where it gave one.
    """
    if seat.child is None:
        return
    seat.go_timeout_s = timeout_s
    try:
        seat.go(0)
    except ContestantFailedError as failure:
        if failure.late:
            seat.child.kill("timed_out")
            raise ContestantFailedError(seat.name, f"not ready within {timeout_s:.0f} s") from failure
        raise
    seat.go_timeout_s = _GO_TIMEOUT_S


@dataclass(frozen=True)
class Field:
    """What all contestants of one bench share."""

    session: TargetSession
    task: Task
    store: Store
    facts: ReferenceFacts
    shape: RingShape
    seeds: tuple[int, ...]
    """Of the draws; the program never sees them."""
    cache_dir: Path | None
    judge: ReferenceServer | None = None
    """Owns the outputs of programs on a GPU, where both can map them; None: the worker copies them."""
    renews: bool = False
    """Whether single calls get inputs that never came before."""
    not_renewed: str = ""
    """What was not checked since they do not."""
    begun: dict[str, Seat] = field(default_factory=dict[str, Seat])
    """Baselines that get ready while something else is done."""

    @property
    def cuda(self) -> bool:
        """Whether the contestants run on a GPU."""
        return self.task.target != "cpu"

    @property
    def shares_memory(self) -> bool:
        """Whether program and judge can map the same memory of the GPU."""
        return self.judge is not None and self.judge.plane == "device"


def deal(
    stack: ExitStack, judge: ReferenceServer, seeds: Sequence[int]
) -> tuple[Weights, tuple[Inputs, ...]]:
    """Fresh weights, which `judge` then has too, and one draw of the task's own inputs per seed."""
    weights = judge.set_weights()
    stack.callback(weights.close)
    draws = tuple(judge.make_draw(f"own-{number}", seed=seed) for number, seed in enumerate(seeds, 1))
    for draw in draws:
        stack.callback(draw.close)
    return weights, draws


@dataclass(frozen=True)
class Loaded:
    """A program that was loaded and given its weights."""

    name: str
    child: Child
    live: bool
    """Whether it writes its outputs straight into our memory."""
    graphed: bool
    """Whether its forward is captured in a CUDA graph before it is timed."""
    note: str


def load_program(
    stack: ExitStack,
    place: Field,
    program: Program,
    build: Build | None,
    weights: Weights,
    *,
    graphed: bool = False,
) -> Loaded:
    """The program in a worker of its own, ready for rings.

    Raises:
        ContestantFailedError: it cannot be loaded or initialised.
    """
    name = PROGRAM_GRAPHED if graphed else PROGRAM
    is_native = program.format == "native"
    runner, note = None, ""
    if not is_native:
        note = _PYTHON_LOOP
    elif not graphed:
        runner, note = _runner(place.cache_dir)
    try:
        worker = stack.enter_context(
            Worker(
                place.session,
                place.task,
                program,
                build,
                place.store,
                readable=[runner] if runner is not None else [],
                cache_dir=place.cache_dir,
            )
        )
        if runner is not None:
            request = {"op": "timed_runner", "library": str(runner), "cuda": place.cuda}
            _need_ok(worker.child.request(request).message)
        _need(name, worker.load(_LOAD_TIMEOUT_S))
        _need(name, worker.init(weights, _LOAD_TIMEOUT_S))
    except ChildDied as death:
        raise ContestantFailedError(name, death.outcome.describe()) from death
    # Only a native program writes its outputs straight into memory of ours.
    live = is_native and not graphed and (not place.cuda or place.shares_memory)
    return Loaded(name, worker.child, live, graphed, note)


def seat_loaded(
    stack: ExitStack,
    place: Field,
    loaded: Loaded,
    draws: Sequence[Inputs],
    *,
    samples: int,
    slots: int | None = None,
) -> Seat:
    """A loaded program over a ring of the field's length, or of `slots`. Its outputs go into our memory.

    Raises:
        ContestantFailedError: it cannot be prepared.
    """
    seat = seat_ring(
        stack,
        place,
        loaded.child,
        loaded.name,
        draws,
        slots=slots or place.shape.slots,
        samples=samples,
        live=loaded.live,
        graphed=loaded.graphed,
    )
    seat.note = loaded.note
    return seat


def seat_program(
    stack: ExitStack,
    place: Field,
    program: Program,
    build: Build | None,
    *,
    weights: Weights,
    draws: Sequence[Inputs],
    samples: int,
    graphed: bool = False,
) -> Seat:
    """The program, loaded and ready.

    `graphed` captures its forward in a CUDA graph first, which only a native program on a GPU can have.

    Raises:
        ContestantFailedError: it cannot be loaded, initialised or prepared.
    """
    loaded = load_program(stack, place, program, build, weights, graphed=graphed)
    return seat_loaded(stack, place, loaded, draws, samples=samples)


def seat_ring(
    stack: ExitStack,
    place: Field,
    child: Child,
    name: str,
    draws: Sequence[Inputs],
    *,
    slots: int,
    samples: int,
    live: bool,
    graphed: bool = False,
    unseen: Sequence[Inputs] = (),
    in_place: bool = False,
) -> Seat:
    """A loaded program over a ring of these draws, ready; of the draws in `unseen` once it was stopped.

    `in_place`: the draws, one for each slot, are the inputs themselves, in memory that we write to (CPU).

    Raises:
        ContestantFailedError: it cannot be prepared.
    """
    ring = _ring(place, slots, live=live)
    stack.callback(ring.close)
    updated = place.facts.mutated_buffers if place.task.contract.buffers == "updated" else ()
    message = {
        "op": "timed_program",
        "slots": slots,
        "outputs": ring.request,
        "inputs": [draw.manifest for draw in draws],
        "unseen": [draw.manifest for draw in unseen],
        "structure": draws[0].structure,
        "output_structure": json.loads(place.facts.output_structure),
        "state": list(updated),
        "graphed": graphed,
        "in_place": in_place,
    }
    seat = start(stack, name, child, message, slots, (ring.fd, *_fds(draws), *_fds(unseen)))
    seen_at_once = live and (not place.cuda or isinstance(ring, DeviceRing))
    seat.sampler = Sampler(ring, limit=samples, live=seen_at_once, reach=1 if graphed else None)
    seat.draws = len(draws) if place.renews else 0
    first_go(seat, _FIRST_GO_TIMEOUT_S)
    return seat


def _ring(place: Field, slots: int, *, live: bool) -> Ring:
    """Where the program's outputs go: on a GPU into its own memory, where they are to be seen at once."""
    if live and place.cuda and place.judge is not None:
        try:
            return DeviceRing(place.judge, place.facts.outputs, slots)
        except DeviceRingError:  # the worker copies them, then
            pass
    return OutputRing(place.facts.outputs, slots)


def start(
    stack: ExitStack, name: str, child: Child, message: dict[str, Any], slots: int, fds: tuple[int, ...]
) -> Seat:
    """A contestant in a child that has got its message and its pipes and may still be at work on it.

    Raises:
        ContestantFailedError: the child died.
    """
    pipes = Pipes.open()
    stack.callback(pipes.close)
    try:
        child.ask(message, fds=(*pipes.far, *fds))
    except ChildDied as death:
        raise ContestantFailedError(name, death.outcome.describe()) from death
    finally:
        pipes.close_far()
    return Seat(name, child, pipes, slots, child=child)


def _fds(draws: Sequence[Inputs]) -> tuple[int, ...]:
    return tuple(draw.fds[0] for draw in draws)


def _runner(cache_dir: Path | None) -> tuple[Path | None, str]:
    try:
        return build_runner(cache_dir), ""
    except EnvironmentMissingError as error:
        return None, f"{_PYTHON_LOOP}: {error.message}"


def _need(name: str, answer: Answer) -> None:
    if not answer.ok:
        raise ContestantFailedError(name, f"{answer.step}: {answer.message or answer.status}")


def _need_ok(message: dict[str, Any]) -> None:
    if not message["ok"]:
        raise ContestantFailedError(PROGRAM, f"timed loop: {_error_text(message)}")


def _error_text(message: dict[str, Any]) -> str:
    """What a failed request says; nothing in it is believed to have the right type."""
    error = message.get("error")
    fields = cast(dict[str, object], error) if isinstance(error, dict) else {}
    return f"{fields.get('kind')}: {str(fields.get('message'))[:500]}"
