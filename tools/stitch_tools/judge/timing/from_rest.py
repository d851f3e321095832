"""Do calls take as long on inputs that lie there only when the clock runs?

Inputs that never came before (`unseen`) are copied into the ring by the program's own process, and lie there
a moment before they are timed: a program that keeps its results by value could compute these meanwhile. Here
we write them, into memory that we share with it, while it stands still, and the clock runs before it does.
"""

import mmap
import os
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from stitch_tools.confine.free_memory import available_bytes
from stitch_tools.judge.timing.recheck import recheck
from stitch_tools.judge.timing.seats import Field, Seat, seat_ring
from stitch_tools.judge.timing.unseen import Unseen
from stitch_tools.protocol import memory
from stitch_tools.run.reference_server import Inputs, ReferenceServer

_GROUPS, _MOST_CALLS, _GROUP_S = 3, 10, 0.02
_COPIES = 4
"""Draws, the memory that we share, outputs, and what the reference server makes of one."""
_LONGER = 1.5
_ABSOLUTE_S = 3e-6
_WAKING_S = 1e-3
"""What the time until a process runs again may vary by, for a whole group."""
_SEED_BITS = 62
_NO_MEMORY = "no inputs were written with the clock running: there is no memory for them"


class _NoMemoryError(Exception):
    """The machine has no memory for what we would share: nothing of the program's doing."""


def try_from_rest(
    place: Field,
    judge: ReferenceServer,
    program: Seat,
    draws: Sequence[Inputs],
    *,
    per_call_s: float,
    limit_s: float | None = None,
) -> Unseen:
    """Whether calls on such inputs are as right and as quick as timed ones.

    Args:
        place: of the bench, on a CPU.
        judge: holds the weights that the program was given.
        program: its loop has ended.
        draws: that its ring was made of.
        per_call_s: time per call in the rounds.
        limit_s: what an empty go may cost it (`empty_gos`).

    Raises:
        ContestantFailedError: the program failed.
    """
    if program.child is None or program.sampler is None or place.cuda:
        return Unseen()
    calls = max(1, min(_MOST_CALLS, int(_GROUP_S / max(per_call_s, 1e-9)), place.shape.slots // _GROUPS))
    count = min(_GROUPS * calls, place.shape.slots)
    if _COPIES * count * (place.shape.nbytes // place.shape.slots) > available_bytes() // 2:
        return Unseen()  # which `unseen` says
    with ExitStack() as stack:
        fresh: list[Inputs] = []
        seeds = [secrets.randbits(_SEED_BITS) for _ in range(count)]
        for number, seed in enumerate(seeds, 1):
            fresh.append(judge.make_draw(f"own-{number}", seed=seed))
            stack.callback(fresh[-1].close)
        known = [draws[slot % len(draws)] for slot in range(count)]
        if any(old.manifest != new.manifest for old, new in zip(known, fresh, strict=True)):
            return Unseen()  # their shapes vary: they do not fit
        try:
            slots = [_shared_copy(stack, draw) for draw in known]
        except _NoMemoryError:
            return Unseen(unchecked=_NO_MEMORY)
        seat = seat_ring(
            stack,
            place,
            program.child,
            program.name,
            slots,
            slots=count,
            samples=_GROUPS,
            live=program.sampler.live,
            in_place=True,
        )
        try:
            new_s = _quickest(seat, slots, fresh, calls, limit_s)
        except _NoMemoryError:
            seat.go_from_rest(0)  # it stands still
            seat.finish()
            return Unseen(unchecked=_NO_MEMORY)
        seat.finish()
        wrong, unchecked = recheck(judge, place.task, place.facts, seeds, seat, once=True)
    if new_s <= _LONGER * max(0.0, per_call_s) + _ABSOLUTE_S + _WAKING_S / calls:
        return Unseen(wrong, unchecked=unchecked)
    doubt = (
        f"calls on inputs that are there only when the clock runs take {new_s * 1e6:.2f} us, timed ones"
        f" {per_call_s * 1e6:.2f} us: what was timed is not what a call on new inputs costs"
    )
    return Unseen(wrong, doubt, unchecked)


def _quickest(
    seat: Seat, slots: Sequence[Inputs], fresh: Sequence[Inputs], calls: int, limit_s: float | None
) -> float:
    """Seconds per call in the quickest group."""
    seat.go(len(slots))  # what is prepared by address is ready then, and every page of the inputs is mapped
    floors: list[float] = []
    groups: list[float] = []
    wakings: list[float] = []
    for first in range(0, len(slots) - calls + 1, calls):
        seat.rest()
        floors.append(seat.go_from_rest(0))
        wakings.append(seat.woken_s)
        seat.rest()
        for slot in range(first, first + calls):
            _write(slots[slot].fds[0], fresh[slot].fds[0])
        groups.append(seat.go_from_rest(calls))
        wakings.append(seat.woken_s)
        seat.take_one(calls)
    floor_s = min(floors)
    if limit_s is not None:
        # Without a namespace each thread is looked at before the signals: milliseconds where there are many.
        floor_s = min(floor_s, limit_s + min(wakings) + _WAKING_S)
    return max(0.0, min(groups) - floor_s) / calls


def _shared_copy(stack: ExitStack, draw: Inputs) -> Inputs:
    """The same inputs in memory that can be written to."""
    try:
        fd = memory.create(os.fstat(draw.fds[0]).st_size)
    except OSError as error:
        raise _NoMemoryError from error
    copy = replace(draw, fds=(fd,))
    stack.callback(copy.close)
    _write(fd, draw.fds[0])
    return copy


def _write(fd: int, source_fd: int) -> None:
    size = os.fstat(source_fd).st_size
    try:
        # Draws are sealed: before Linux 6.7 the kernel maps sealed memory only privately.
        source = mmap.mmap(source_fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        with source, memoryview(source) as view:
            memory.write_at(fd, view, 0)
    except OSError as error:
        raise _NoMemoryError from error
