"""What tests of probes share: a context of a program whose rounds are over, with chosen times."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from stitch_tools.judge.timing.probes import ProbeContext
from stitch_tools.judge.timing.program_runners import LoadedProgram, RingPlan, load_program, start_ring
from stitch_tools.judge.timing.rounds import Rounds, Series
from stitch_tools.judge.timing.runners import Runner
from stitch_tools.judge.timing.setup import Setup
from stitch_tools.judge.timing.visits import Visit
from stitch_tools.machine.devices import resolve_target
from stitch_tools.machine.interference import snapshot
from stitch_tools.models.program import Build, Program
from stitch_tools.protocol.messages_reference import WeightsMade
from stitch_tools.run.reference_server import Inputs


def rounds_of(per_call_s: Mapping[str, float]) -> Rounds:
    """Rounds of one visit, in which calls of each contestant took so long."""
    series = {
        name: Series([Visit((seconds,), (seconds,), (1.0 + seconds,), (1.0,), seconds)])
        for name, seconds in per_call_s.items()
    }
    return Rounds(series, snapshot(), snapshot())


def probe_context(
    setup: Setup,
    loaded: LoadedProgram,
    program: Runner,
    draws: Sequence[Inputs],
    rounds: Rounds,
    others: Sequence[Runner] = (),
) -> ProbeContext:
    """What a probe is given after these rounds."""
    return ProbeContext(
        setup=setup,
        target=resolve_target(setup.task.target),
        loaded=loaded,
        program=program,
        runners=(program, *others),
        draws=draws,
        rounds=rounds,
        overhead_limit_s=None,
        cpu_s=None,
        say=lambda _: None,
    )


def start_program(
    stack: ExitStack,
    setup: Setup,
    program: Program,
    build: Build | None,
    *,
    weights: WeightsMade,
    draws: Sequence[Inputs],
    samples: int,
    graphed: bool = False,
) -> Runner:
    """A program, loaded and ready over a ring of the setup's length."""
    loaded = load_program(stack, setup, program, build, weights, graphed=graphed)
    return start_ring(stack, setup, loaded, RingPlan(setup.shape.slots, draws, samples))
