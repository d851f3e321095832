"""Were the timed calls right? Outputs taken during the timed region, compared by the reference server."""

import mmap
import os
from collections.abc import Sequence
from contextlib import ExitStack

from stitch_tools.judge.correctness.check_wording import describe_undecided
from stitch_tools.judge.timing.ring import Sample
from stitch_tools.judge.timing.seats import Field, Loaded, Seat, seat_loaded
from stitch_tools.models import ReferenceFacts, Task
from stitch_tools.protocol import memory
from stitch_tools.protocol.layout import GUARD, GUARD_BYTE
from stitch_tools.protocol.ring_messages import donor_of
from stitch_tools.run.reference_server import (
    DrawUnavailable,
    DrawUndecided,
    Expectation,
    Inputs,
    ReferenceServer,
)
from stitch_tools.worker.reference.draw_kinds import mixed_kind

_FIRST_CALL = "its first call gave another result than the reference"


def recheck(
    judge: ReferenceServer,
    task: Task,
    facts: ReferenceFacts,
    seeds: Sequence[int],
    program: Seat,
    *,
    told: str = "a timed call gave another result than the check",
    once: bool = False,
) -> tuple[str | None, str | None]:
    """(what is wrong, why nothing could be compared), each None where there is nothing to say.

    `judge` must still hold the weights that the program was given. `told` begins the sentence on a wrong one.
    `once`: each sample is of the first call on its inputs, which may have changed them.
    """
    if facts.uses_rng:
        return None, "timed outputs were not re-checked: forward draws random numbers"
    if task.contract.buffers == "updated" and facts.mutated_buffers:
        return None, "timed outputs were not re-checked: buffers moved on with every call"
    samples = program.sampler.samples if program.sampler is not None else []
    if not samples:
        return "no output of the timed calls could be taken", None
    unchecked: str | None = None
    for sample in samples:
        try:
            problem, left_open = _compare(judge, sample, seeds, once=once)
        except DrawUndecided as reason:  # of this one; another sample may convict
            problem, left_open = None, str(reason)
        except _InputsMoveError:
            return None, "timed outputs were not re-checked: inputs changed with every call"
        except DrawUnavailable as reason:
            return None, f"timed outputs were not re-checked: {reason}"
        if problem is not None:
            return f"{told}: {problem}", None
        if left_open:
            unchecked = f"timed outputs were not all re-checked: {left_open}"
    return None, unchecked


def try_once(place: Field, judge: ReferenceServer, loaded: Loaded, draws: Sequence[Inputs]) -> str | None:
    """What is wrong with the output of one call, before anything is timed; None where nothing is.

    Raises:
        ContestantFailedError: the call failed.
    """
    with ExitStack() as stack:
        seat = seat_loaded(stack, place, loaded, draws[:1], slots=1, samples=1)
        seat.go(1)
        seat.take_one(1)
        seat.finish()
        return recheck(judge, place.task, place.facts, place.seeds[:1], seat, told=_FIRST_CALL, once=True)[0]


def drawn_kind(slot: int, token: int, seeds: Sequence[int]) -> str:
    """The draw that a timed call took: one of the seeds' own, or that with a stretch of another one."""
    return mixed_kind(token, seeds[donor_of(slot, token, len(seeds))]) if token else "own-1"


class _InputsMoveError(Exception):
    """The reference writes to its inputs: in a ring they are others each time they come round."""


def _compare(
    judge: ReferenceServer, sample: Sample, seeds: Sequence[int], *, once: bool
) -> tuple[str | None, str]:
    """What is wrong, and what of it was not compared and why."""
    kind = drawn_kind(sample.slot, sample.token, seeds)
    judge.make_draw(kind, seed=seeds[sample.slot % len(seeds)]).close()
    expectation = judge.expect()
    if expectation.inputs_written and not once:
        raise _InputsMoveError
    fd = memory.create(expectation.nbytes)
    try:
        _lay_down(fd, sample, expectation)
        comparison = judge.compare(fd, expectation)
    finally:
        os.close(fd)
    for row in comparison.outputs:
        if row.problem is not None:
            return f"output {row.output} {row.problem}", ""
    return None, describe_undecided(comparison.outputs)


def _lay_down(fd: int, sample: Sample, expectation: Expectation) -> None:
    parts = iter(sample.outputs)
    with mmap.mmap(fd, expectation.nbytes) as view:
        view[:] = bytes([GUARD_BYTE]) * expectation.nbytes
        for entry in expectation.layout:
            if entry["name"] != GUARD:
                view[entry["offset"] : entry["offset"] + entry["nbytes"]] = next(parts)
