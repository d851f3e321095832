"""Compare outputs that were taken from timed calls with the reference."""

import mmap
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from stitch_tools.judge.correctness.check_wording import describe_undecided
from stitch_tools.judge.timing.program_runners import (
    LoadedProgram,
    NamedProgram,
    RingPlan,
    load_program,
    start_ring,
)
from stitch_tools.judge.timing.ring import Sample
from stitch_tools.judge.timing.runners import Runner
from stitch_tools.judge.timing.setup import Setup
from stitch_tools.protocol import memory
from stitch_tools.protocol.layout import GUARD, GUARD_BYTE
from stitch_tools.protocol.messages_reference import WeightsMade
from stitch_tools.protocol.ring_messages import donor_of
from stitch_tools.run.reference_server import (
    DrawUnavailable,
    DrawUndecided,
    Expectation,
    Inputs,
    ReferenceServer,
)
from stitch_tools.worker.reference.draw_kinds import mixed_kind


@dataclass(frozen=True)
class OutputCheck:
    """What the comparison of sampled outputs showed."""

    wrong: str = ""
    """What a wrong call did, for people, to follow the call's name; "" where none was seen."""
    not_compared: str = ""
    """Why some or all outputs were not compared, for people; "" where all were."""
    compared: int = 0
    """Samples of which at least a part was compared."""


def check_outputs(
    setup: Setup, runner: Runner, *, seeds: Sequence[int] | None = None, once: bool = False
) -> OutputCheck:
    """Compare the samples that a runner's calls left; the judge must still hold the program's weights.

    Args:
        setup: of the timing.
        runner: its loop has ended.
        seeds: of the draws that its ring holds; None: those of the setup.
        once: each sample is of the first call on its inputs, which may have changed them.
    """
    if setup.facts.uses_rng:
        return OutputCheck(not_compared="forward draws random numbers")
    if setup.task.contract.buffers == "updated" and setup.facts.mutated_buffers:
        return OutputCheck(not_compared="buffers changed with every call")
    samples = runner.sampler.samples if runner.sampler is not None else []
    if not samples:
        return OutputCheck("left no output that could be taken")
    seeds = setup.seeds if seeds is None else seeds
    not_compared, compared = "", 0
    for sample in samples:
        try:
            check = _compare(setup.judge, sample, seeds, once=once)
        except DrawUndecided as reason:  # of this one; another sample may be wrong
            check = OutputCheck(not_compared=str(reason))
        except DrawUnavailable as reason:
            return OutputCheck(not_compared=str(reason), compared=compared)
        if check.wrong:
            return check
        compared += check.compared
        not_compared = check.not_compared or not_compared
    return OutputCheck(not_compared=not_compared, compared=compared)


def check_first_call(setup: Setup, loaded: LoadedProgram, draws: Sequence[Inputs]) -> str:
    """What is wrong with the output of one call, before anything is timed; "" where nothing is.

    Raises:
        RunnerFailedError: the call failed.
    """
    with ExitStack() as stack:
        runner = start_ring(stack, setup, loaded, RingPlan(slots=1, draws=draws[:1], samples=1))
        runner.run_calls(1)
        runner.take_one(1)
        runner.finish()
        return check_outputs(setup, runner, seeds=setup.seeds[:1], once=True).wrong


def load_right(
    stack: ExitStack,
    setup: Setup,
    program: NamedProgram,
    weights: WeightsMade,
    draws: Sequence[Inputs],
    *,
    look: bool = True,
) -> tuple[LoadedProgram, str]:
    """The program, loaded, and what is wrong with its first call; that is not looked at without `look`.

    Raises:
        RunnerFailedError: it cannot be loaded, or the call failed.
    """
    made, built, name = program.program, program.build, program.name
    loaded = load_program(stack, setup, made, built, weights, name=name)
    wrong = check_first_call(setup, loaded, draws) if look else ""
    if wrong and loaded.given_weights:
        # It is right with what its constructor makes of the weights, as a check found.
        loaded = load_program(stack, setup, made, built, weights, load=False, name=name)
        wrong = check_first_call(setup, loaded, draws)
    return loaded, wrong


def drawn_kind(slot: int, token: int, seeds: Sequence[int]) -> str:
    """The draw that a timed call took: one of the seeds' own, or that with a stretch of another one."""
    return mixed_kind(token, seeds[donor_of(slot, token, len(seeds))]) if token else "own-1"


def _compare(judge: ReferenceServer, sample: Sample, seeds: Sequence[int], *, once: bool) -> OutputCheck:
    kind = drawn_kind(sample.slot, sample.token, seeds)
    judge.make_draw(kind, seed=seeds[sample.slot % len(seeds)]).close()
    expectation = judge.expect()
    if expectation.inputs_written and not once:  # in a ring they are others each time they come round
        return OutputCheck(not_compared="inputs changed with every call")
    fd = memory.create(expectation.nbytes)
    try:
        _lay_down(fd, sample, expectation)
        comparison = judge.compare(fd, expectation)
    finally:
        os.close(fd)
    for row in comparison.outputs:
        if row.problem is not None:
            return OutputCheck(f"gave another result than the reference: output {row.output} {row.problem}")
    return OutputCheck(not_compared=describe_undecided(comparison.outputs), compared=1)


def _lay_down(fd: int, sample: Sample, expectation: Expectation) -> None:
    parts = iter(sample.outputs)
    with mmap.mmap(fd, expectation.nbytes) as view:
        view[:] = bytes([GUARD_BYTE]) * expectation.nbytes
        for entry in expectation.layout:
            if entry["name"] != GUARD:
                view[entry["offset"] : entry["offset"] + entry["nbytes"]] = next(parts)
