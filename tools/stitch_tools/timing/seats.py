"""Contestants in confined children: the program in a worker, each baseline in a server of its own."""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from stitch_tools.check.candidate import Answer, Worker
from stitch_tools.check.reference import Inputs, ReferenceServer, Weights
from stitch_tools.errors import EnvironmentMissingError, TaskError
from stitch_tools.host_build import build_runner
from stitch_tools.models import Build, Program, ReferenceFacts, Task
from stitch_tools.processes.child import Child
from stitch_tools.processes.outcome import ChildDied
from stitch_tools.processes.session import TargetSession
from stitch_tools.store import Store, storing
from stitch_tools.timing.contestant import ContestantFailedError, PipeContestant, Pipes
from stitch_tools.timing.ring import OutputRing, RingShape, Sampler
from stitch_tools.user_cache import SIZE_CAP_BYTES, evict_unused, user_cache_dir

PROGRAM = "program"
PROGRAM_GRAPHED = "program:cudagraph"
"""The program replayed from a CUDA graph with its inputs copied in, as the baseline `cudagraph` is."""
_COMPILE_ENV = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""Inductor's pool of compile processes would run beside the clock."""
_SPARED_S = 3600.0  # compiled baselines this fresh may belong to a bench that runs now
_LOAD_TIMEOUT_S = 300.0
_FIRST_GO_TIMEOUT_S = 300.0
_GO_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0
_LAST_WORDS_S = 5.0


@dataclass
class Seat(PipeContestant):
    """A contestant with its child. `close` ends both."""

    child: Child | None = None
    sampler: Sampler | None = None
    note: str = ""
    log: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(calls, nanoseconds) that the process itself noted: a claim."""
    _resumed: bool = True
    _visit_start: int = 0

    @property
    def pid(self) -> int:
        """Of the process on this machine; 0 where there is none."""
        return self.child.pid if self.child is not None else 0

    def go(self, calls: int) -> float:
        """Seconds from "go" to "done"; a process that ended says why.

        Raises:
            ContestantFailedError: the process is gone, answers too late, or a call failed.
        """
        try:
            return super().go(calls)
        except ContestantFailedError as failure:
            if failure.ended and self.child is not None:
                answer_of(self.child, self.name, _LAST_WORDS_S)
            raise

    def resume(self) -> None:
        """Let it run; a sampled program gets one output poisoned first."""
        self._visit_start = len(self.history)
        if self.sampler is not None:
            self.sampler.before_visit(self.slot)
        if not self._resumed:
            self._survive(self.process.resume)
            self._resumed = True

    def pause(self) -> None:
        """Stop it; a sampled program's output is then copied."""
        if self._resumed:
            self._survive(self.process.pause)
            self._resumed = False
        if self.sampler is not None:
            calls = sum(calls for calls, _ in self.history[self._visit_start :])
            self.sampler.after_visit(calls, self.last_calls)

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
        if self.sampler is not None:
            self.sampler.samples.clear()

    def finish(self) -> None:
        """End the loop and fetch what it noted.

        Raises:
            ContestantFailedError: the process died, or its handler failed.
        """
        if self.child is None:
            return
        if not self._resumed:
            self._survive(self.process.resume)
            self._resumed = True
        self.stop()
        message = answer_of(self.child, self.name, _STOP_TIMEOUT_S)
        if self.sampler is not None:
            self.sampler.at_end(sum(calls for calls, _ in self.history))
        try:
            self.log = [(int(calls), int(ns)) for calls, ns in message.get("log", [])]
        except (TypeError, ValueError, OverflowError) as error:
            raise ContestantFailedError(self.name, "its notes make no sense") from error
        if message.get("loop") == "python" and self.name == PROGRAM:
            self.note = "timed by a Python loop"


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

    @property
    def cuda(self) -> bool:
        """Whether the contestants run on a GPU."""
        return self.task.target != "cpu"


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
    runner, note = (None, "") if graphed else _runner(place.cache_dir)
    try:
        worker = stack.enter_context(
            Worker(
                place.session,
                place.task,
                program,
                build,
                place.store,
                readable=[runner] if runner is not None else [],
            )
        )
        if runner is not None:
            request = {"op": "timed_runner", "library": str(runner), "cuda": place.cuda}
            _need_ok(worker.child.request(request).message)
        _need(name, worker.load(_LOAD_TIMEOUT_S))
        _need(name, worker.init(weights, _LOAD_TIMEOUT_S))
    except ChildDied as death:
        raise ContestantFailedError(name, death.outcome.describe()) from death
    # Only a native program on a CPU writes its outputs straight into our memory.
    return Loaded(name, worker.child, program.format == "native" and not place.cuda, graphed, note)


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
) -> Seat:
    """A loaded program over a ring of these draws, ready; of the draws in `unseen` once it was stopped.

    Raises:
        ContestantFailedError: it cannot be prepared.
    """
    ring = OutputRing(place.facts.outputs, slots)
    stack.callback(ring.close)
    updated = place.facts.mutated_buffers if place.task.contract.buffers == "updated" else ()
    message = {
        "op": "timed_program",
        "slots": slots,
        "outputs": ring.request,
        "inputs": [draw.manifest for draw in draws],
        "unseen": [draw.manifest for draw in unseen],
        "structure": draws[0].structure,
        "state": list(updated),
        "graphed": graphed,
    }
    seat = _start(stack, name, child, message, slots, (ring.fd, *_fds(draws), *_fds(unseen)))
    seat.sampler = Sampler(ring, limit=samples, live=live)
    first_go(seat, _FIRST_GO_TIMEOUT_S)
    return seat


def seat_baseline(stack: ExitStack, place: Field, kind: str, *, compile_limit_s: float) -> Seat:
    """One baseline, built and ready, in a reference server of its own.

    Raises:
        ContestantFailedError: it cannot be built here, or not within the limit.
    """
    folder = _inductor_folder(place)
    caches = {"TRITON_CACHE_DIR": str(folder / "triton")}
    # Inductor does not quote its compile commands: where a shell would split the path, nothing is kept.
    if re.fullmatch(r"[\w/.+-]+", str(folder)):
        caches["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    try:
        server = stack.enter_context(
            ReferenceServer(
                place.session, place.task, place.store, writable=[folder], env={**caches, **_COMPILE_ENV}
            )
        )
        server.set_weights().close()
    except TaskError as error:
        raise ContestantFailedError(kind, error.message) from error
    message = {
        "op": "timed_baseline",
        "baseline": kind,
        "slots": place.shape.slots,
        "seeds": list(place.seeds),
    }
    seat = _start(stack, kind, server.child, message, place.shape.slots, ())
    first_go(seat, compile_limit_s)
    return seat


def _start(
    stack: ExitStack, name: str, child: Child, message: dict[str, Any], slots: int, fds: tuple[int, ...]
) -> Seat:
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
        return None, f"timed by a Python loop: {error.message}"


def _inductor_folder(place: Field) -> Path:
    """Where compiled baselines are kept. One folder a task: a reference could poison what it can write."""
    root = place.cache_dir or user_cache_dir()
    folder = root / "inductor" / f"{place.session.torch_version}-{place.task.task_id[:16]}"
    with storing(folder, "STITCH_CACHE_DIR"):
        (folder / "triton").mkdir(parents=True, exist_ok=True)
        os.utime(folder)  # the time of last use
    evict_unused(folder.parent.iterdir(), SIZE_CAP_BYTES, keep=folder, spared_s=_SPARED_S)
    return folder


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
