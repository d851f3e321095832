"""Start the program under the clock: load it into a worker, lay out its ring, serve its calls."""

import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from stitch_tools.compile.host_build import build_runner
from stitch_tools.judge.timing.device_ring import DeviceRing, DeviceRingError
from stitch_tools.judge.timing.ring import OutputRing, OutputSampler, Ring
from stitch_tools.judge.timing.runners import (
    Runner,
    start_runner,
    step_reason,
    take_reply,
    wait_until_ready,
)
from stitch_tools.judge.timing.setup import Setup
from stitch_tools.judge.timing.timed_process import RunnerFailedError
from stitch_tools.models.program import Build, Program
from stitch_tools.protocol.messages import Fd
from stitch_tools.protocol.messages_reference import WeightsMade
from stitch_tools.protocol.timing_messages import LoadLoop, TimeProgram
from stitch_tools.run.candidate_worker import Answer, Worker, reset_state
from stitch_tools.run.child import Child
from stitch_tools.run.child_outcome import ChildDied
from stitch_tools.run.reference_server import Inputs

PROGRAM = "program"
PROGRAM_GRAPHED = "program:cudagraph"
"""The program replayed from a CUDA graph with its inputs copied in, as the baseline `cudagraph` is."""
_LOAD_TIMEOUT_S = 300.0
_READY_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class NamedProgram:
    """A program with its build, and the name that it is timed under."""

    name: str
    program: Program
    build: Build | None


def beside(program: Program, build: Build | None) -> NamedProgram:
    """Another program, to be timed beside the first one."""
    return NamedProgram(f"{PROGRAM}:{program.program_id[:16]}", program, build)


def programs_among(names: Iterable[str]) -> list[str]:
    """Those of these contestants that are programs, and no baselines of ours: none of them is trusted."""
    return [name for name in names if name.partition(":")[0] == PROGRAM]


@dataclass(frozen=True)
class LoadedProgram:
    """A program that was loaded and given its weights."""

    name: str
    child: Child
    native: bool
    live: bool
    """Whether it writes its outputs straight into our memory."""
    graphed: bool
    """Whether its forward is captured in a CUDA graph before it is timed."""
    given_weights: bool = False
    """Whether the reference's weights were loaded over those that it constructed."""


@dataclass(frozen=True)
class RingPlan:
    """What a loaded program's ring holds."""

    slots: int
    draws: Sequence[Inputs]
    """Slot i gets a copy of draw i modulo their number."""
    samples: int = 0
    """Outputs that are kept at most."""
    unseen: Sequence[Inputs] = ()
    """Put into the same memory once the loop was ended (`Runner.next_ring`)."""
    in_place: bool = False
    """The draws, one for each slot, are the inputs themselves, in memory that we write to (CPU)."""


def load_program(
    stack: ExitStack,
    setup: Setup,
    program: Program,
    build: Build | None,
    weights: WeightsMade,
    *,
    graphed: bool = False,
    load: bool = True,
    name: str = "",
) -> LoadedProgram:
    """The program in a worker of its own, ready for rings.

    `load` as in `Worker.init`; `name` is its own where it is not the program that the timing is about.

    Raises:
        RunnerFailedError: it cannot be loaded or initialised.
    """
    name = name or (PROGRAM_GRAPHED if graphed else PROGRAM)
    is_native = program.format == "native"
    # Python programs, and a native one that replays from a CUDA graph, are called by a Python loop.
    loop = build_runner(setup.cache_dir) if is_native and not graphed else None
    try:
        worker = stack.enter_context(
            Worker(
                setup.session,
                setup.task,
                program,
                build,
                setup.store,
                readable=[loop] if loop is not None else [],
                reset=reset_state(setup.task.contract, setup.facts),
                cache_dir=setup.cache_dir,
            )
        )
        if loop is not None:
            # Before the program, which could else put its own functions in front of the driver's.
            request = LoadLoop(str(loop), setup.cuda)
            worker.child.begin(request)
            take_reply(worker.child, name, request, _LOAD_TIMEOUT_S)
        _need(name, worker.load(_LOAD_TIMEOUT_S))
        with setup.alone():
            answer = worker.init(weights, _LOAD_TIMEOUT_S, load=load)
        _need(name, answer)
        if worker.extensions is not None:
            worker.extensions.end_builds()
    except ChildDied as death:
        raise RunnerFailedError(name, death.outcome.describe()) from death
    # Only a native program writes its outputs straight into memory of ours.
    live = is_native and not graphed and (not setup.cuda or setup.shares_memory)
    return LoadedProgram(name, worker.child, is_native, live, graphed, answer.loaded)


def start_ring(stack: ExitStack, setup: Setup, loaded: LoadedProgram, plan: RingPlan) -> Runner:
    """A loaded program over a ring, ready.

    Raises:
        RunnerFailedError: it cannot be prepared.
    """
    ring = _ring(setup, plan.slots, live=loaded.live)
    stack.callback(ring.close)
    updated = setup.facts.mutated_buffers if setup.task.contract.buffers == "updated" else ()
    request = TimeProgram(
        slots=plan.slots,
        outputs=ring.request,
        inputs=[draw.manifest for draw in plan.draws],
        unseen=[draw.manifest for draw in plan.unseen],
        structure=plan.draws[0].structure,
        output_structure=json.loads(setup.facts.output_structure),
        state=list(updated),
        graphed=loaded.graphed,
        in_place=plan.in_place,
        outputs_fd=Fd(ring.fd),
        draw_fds=tuple(Fd(draw.fds[0]) for draw in (*plan.draws, *plan.unseen)),
    )
    with setup.alone():  # the ring's shapes are planned for here, which a program may do by timing, too
        runner = start_runner(stack, loaded.name, loaded.child, request)
        runner.note = "" if loaded.native else "timed by a Python loop"
        seen_at_once = loaded.live and (not setup.cuda or isinstance(ring, DeviceRing))
        reach = 1 if loaded.graphed else None
        runner.sampler = OutputSampler(ring, limit=plan.samples, live=seen_at_once, reach=reach)
        runner.draws = len(plan.draws) if setup.renews_inputs else 0
        wait_until_ready(runner, _READY_TIMEOUT_S)
    return runner


def _ring(setup: Setup, slots: int, *, live: bool) -> Ring:
    """Where the program's outputs go: on a GPU into its own memory, where they are to be seen at once."""
    if live and setup.cuda:
        try:
            return DeviceRing(setup.judge, setup.facts.outputs, slots)
        except DeviceRingError:  # the worker copies them, then
            pass
    return OutputRing(setup.facts.outputs, slots)


def _need(name: str, answer: Answer) -> None:
    if not answer.ok:
        raise RunnerFailedError(name, step_reason(answer.step, answer.status, answer.message))
