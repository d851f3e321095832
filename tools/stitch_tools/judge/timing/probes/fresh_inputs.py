"""Do calls take as long, and are they as right, on inputs that never came before?

The same worker serves a small second ring after the timed rounds: once around with inputs that it knows,
then, in the same memory, with new ones. Whatever a program prepares by address is ready by then. Where new
values take longer all the same, what was timed is not what a call costs: results that are looked up by value
do that, and tables that are made for values.

Such inputs are copied into the ring by the program's own process, and lie there a moment before they are
timed: a program that keeps its results by value could compute these meanwhile. So on a CPU there is another
look, at *late* inputs: we write them, into memory that we share with the program, while it is stopped, and
the clock runs before it does.
"""

import mmap
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from stitch_tools.judge.timing.call_overhead import least_work_s
from stitch_tools.judge.timing.output_check import check_outputs
from stitch_tools.judge.timing.probes.probe import ProbeContext, ProbeReport, Stage
from stitch_tools.judge.timing.program_runners import RingPlan, start_ring
from stitch_tools.judge.timing.runners import Runner, wait_until_ready
from stitch_tools.judge.timing.setup import own_draws
from stitch_tools.models.conditions import DoubtRule, TimingDoubt
from stitch_tools.protocol import memory
from stitch_tools.protocol.free_memory import available_bytes
from stitch_tools.run.reference_server import Inputs

# Groups of calls on new inputs; the quickest counts.
_GROUPS, _LATE_GROUPS = 5, 3
# Of one group: a message can only carry so many draws.
_MOST_CALLS = 10
_GROUP_S = 0.02
# Outputs that are compared at most: each needs the oracle once more.
_SAMPLES = 5
# New inputs may take so many times what calls took in the rounds.
_LONGER = 1.5
_ABSOLUTE_S = 3e-6
# What the time until a process runs again may vary by, for a whole group.
_WAKING_S = 1e-3
_READY_TIMEOUT_S = 60.0
# Of each slot: draws, ring, what the judge makes of one; for late inputs also the memory that we share.
_COPIES, _LATE_COPIES = 3, 4
_SEED_BITS = 62
NO_MEMORY = "no inputs but those of the ring were timed: there is no memory for others"
SHAPES_VARY = "no inputs but those of the ring were timed: their shapes vary"


@dataclass(frozen=True)
class FreshInputs:
    """Times and checks calls on inputs that never came before, on a CPU also on ones that come late."""

    stage: Stage = "finished"

    def look(self, context: ProbeContext) -> ProbeReport:
        """Doubts where new inputs take longer, and what is wrong with outputs."""
        if context.program.sampler is None:
            return ProbeReport()
        attempts = [try_new_inputs] if context.setup.cuda else [try_new_inputs, try_late_inputs]
        reports = [best_of_two(partial(attempt, context)) for attempt in attempts]
        # Where others ran beside us a batch takes milliseconds more than its calls; that proves nothing.
        doubts = () if context.others_disturb else tuple(row for report in reports for row in report.doubts)
        return ProbeReport(
            doubts,
            outputs=tuple(row for report in reports for row in report.outputs),
            not_checked=tuple(row for report in reports for row in report.not_checked),
        )


def best_of_two(attempt: Callable[[], ProbeReport]) -> ProbeReport:
    """What an attempt shows, or another one with inputs of its own where the first one's times raise a doubt.

    The calls take a few milliseconds: one busy moment of the machine would have everything timed again.
    """
    first = attempt()
    if not first.doubts or any(check.wrong for check in first.outputs):
        return first
    return attempt()


def try_new_inputs(context: ProbeContext) -> ProbeReport:
    """Time and check calls on new inputs that the program's process copied into its ring.

    Raises:
        RunnerFailedError: the program failed.
    """
    setup, draws, per_call_s = context.setup, context.draws, context.throughput_s
    slots = setup.shape.slots
    # What a GPU is given after it idled takes twice as long: outputs were fetched between the groups.
    waking = 1 if setup.cuda and slots > 1 else 0
    calls = _calls_of_group(per_call_s, slots // _GROUPS - waking)
    count = min(_GROUPS * (calls + waking), slots)
    if _needs_too_much(context, _COPIES * count):
        return ProbeReport(not_checked=(NO_MEMORY,))
    seeds = [secrets.randbits(_SEED_BITS) for _ in range(count)]
    with ExitStack() as stack:
        new = own_draws(stack, setup.judge, seeds)
        if not _alike(new, draws):
            return ProbeReport(not_checked=(SHAPES_VARY,))
        # On a GPU another process would come between the groups, and some are shorter than that takes.
        loaded = replace(context.loaded, live=context.loaded.live and not setup.cuda)
        runner = start_ring(stack, setup, loaded, RingPlan(count, draws, _SAMPLES, unseen=new))
        with setup.alone():
            # Twice: a program may prepare a graph for addresses that come again (docs/decisions/0041).
            runner.run_calls(2 * count)
            runner.next_ring()
            wait_until_ready(runner, _READY_TIMEOUT_S)
            groups = count // (calls + waking)
            new_s = quickest_on_new(runner, calls, groups, waking, context.overhead_limit_s)
        runner.finish()
        check = check_outputs(setup, runner, seeds=seeds, once=True)
    # The first of a few calls in a row takes as long as one by itself.
    timed_s = max(per_call_s, per_call_s + (context.latency_s - per_call_s) / calls, 0.0)
    return ProbeReport(_doubts("slow_on_new_inputs", new_s, timed_s), (check,))


def quickest_on_new(runner: Runner, calls: int, groups: int, waking: int, limit_s: float | None) -> float:
    """Seconds per call in the quickest group, each after so many calls that nobody times."""
    pairs: list[tuple[float, float]] = []
    for _ in range(groups):
        if waking:
            runner.run_calls(waking)
        empty_s = runner.run_calls(0)
        pairs.append((empty_s, runner.run_calls(calls)))
        runner.take_one(calls)
    return least_work_s(pairs, limit_s) / calls


def try_late_inputs(context: ProbeContext) -> ProbeReport:
    """Time and check calls on inputs that are written while the program is stopped (CPU).

    Raises:
        RunnerFailedError: the program failed.
    """
    setup = context.setup
    calls = _calls_of_group(context.throughput_s, setup.shape.slots // _LATE_GROUPS)
    count = min(_LATE_GROUPS * calls, setup.shape.slots)
    if _needs_too_much(context, _LATE_COPIES * count):
        return ProbeReport()  # which the other look says
    seeds = [secrets.randbits(_SEED_BITS) for _ in range(count)]
    with ExitStack() as stack:
        new = own_draws(stack, setup.judge, seeds)
        if not _alike(new, context.draws):
            return ProbeReport()  # which the other look says
        known = (context.draws[slot % len(context.draws)] for slot in range(count))
        slots = [_shared_copy(stack, draw) for draw in known]
        runner = start_ring(stack, setup, context.loaded, RingPlan(count, slots, _LATE_GROUPS, in_place=True))
        pairs = [(slot.fds[0], draw.fds[0]) for slot, draw in zip(slots, new, strict=True)]
        late_s = quickest_on_late(runner, pairs, calls, context.overhead_limit_s)
        runner.finish()
        check = check_outputs(setup, runner, seeds=seeds, once=True)
    doubts = _doubts("slow_on_late_inputs", late_s, max(0.0, context.throughput_s), _WAKING_S / calls)
    return ProbeReport(doubts, (check,))


def quickest_on_late(
    runner: Runner, slots: Sequence[tuple[int, int]], calls: int, limit_s: float | None
) -> float:
    """Seconds per call in the quickest group. `slots`: memory of a slot, and of what is written there."""
    # What is prepared by address is ready then, and every page of the inputs is mapped.
    runner.run_calls(len(slots))
    empty: list[float] = []
    groups: list[float] = []
    wakings: list[float] = []
    for first in range(0, len(slots) - calls + 1, calls):
        runner.halt()
        empty.append(runner.wake_and_run_calls(0))
        wakings.append(runner.woken_s)
        runner.halt()
        for slot_fd, new_fd in slots[first : first + calls]:
            copy_memory(slot_fd, new_fd)
        groups.append(runner.wake_and_run_calls(calls))
        wakings.append(runner.woken_s)
        runner.take_one(calls)
    overhead_s = min(empty)
    if limit_s is not None:
        # Without a namespace each thread is looked at before the signals: milliseconds where there are many.
        overhead_s = min(overhead_s, limit_s + min(wakings) + _WAKING_S)
    return max(0.0, min(groups) - overhead_s) / calls


def _calls_of_group(per_call_s: float, most: int) -> int:
    return max(1, min(_MOST_CALLS, int(_GROUP_S / max(per_call_s, 1e-9)), most))


def _needs_too_much(context: ProbeContext, slots: int) -> bool:
    return slots * context.setup.slot_bytes > available_bytes() // 2


def _alike(new: Sequence[Inputs], draws: Sequence[Inputs]) -> bool:
    """Whether new draws fit into the memory of known ones."""
    return all(row.manifest == draws[slot % len(draws)].manifest for slot, row in enumerate(new))


def _doubts(rule: DoubtRule, new_s: float, timed_s: float, more_s: float = 0.0) -> tuple[TimingDoubt, ...]:
    if new_s <= _LONGER * timed_s + _ABSOLUTE_S + more_s:
        return ()
    return (TimingDoubt(rule=rule, observed=new_s * 1e6, expected=timed_s * 1e6),)


def _shared_copy(stack: ExitStack, draw: Inputs) -> Inputs:
    """The same inputs in memory that can be written to."""
    fd = memory.create(os.fstat(draw.fds[0]).st_size)
    copy = replace(draw, fds=(fd,))
    stack.callback(copy.close)
    copy_memory(fd, draw.fds[0])
    return copy


def copy_memory(fd: int, source_fd: int) -> None:
    """Copy all bytes of one shared memory into another one.

    Raises:
        OSError: the system has no page for one of them.
    """
    # Draws are sealed: before Linux 6.7 the kernel maps sealed memory only privately.
    size = os.fstat(source_fd).st_size
    source = mmap.mmap(source_fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    with source, memoryview(source) as view:
        memory.write_at(fd, view, 0)
