"""Do calls take as long on inputs that never came before? Those of a ring come again and again.

The same worker serves a small second ring after the timed rounds: once around with inputs that it knows,
then, in the same memory, with new ones. Whatever a program prepares by address is ready by then. Where new
values take longer all the same, what was timed is not what a call costs: results that are looked up by value
do that, and tables that are made for values. Some outputs are compared, too.
"""

import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from stitch_tools.confine.free_memory import available_bytes
from stitch_tools.judge.timing.empty_gos import least_work_s
from stitch_tools.judge.timing.recheck import recheck
from stitch_tools.judge.timing.seats import Field, Seat, first_go, seat_ring
from stitch_tools.run.reference_server import Inputs, ReferenceServer

_GROUPS = 5
"""Each of new inputs; the quickest counts."""
_MOST_CALLS = 10
"""Of one group: a message can only carry so many draws."""
_GROUP_S = 0.02
_SAMPLES = 5
"""Outputs that are compared at most: each needs the oracle once more."""
_LONGER = 1.5
"""New inputs may take so many times what calls took in the rounds."""
_ABSOLUTE_S = 3e-6
_READY_TIMEOUT_S = 60.0
_COPIES = 3
"""The draws, the ring, and what the reference server makes of one."""
_SEED_BITS = 62


@dataclass(frozen=True)
class Unseen:
    """What new inputs showed; None where there is nothing to say."""

    wrong: str | None = None
    doubt: str | None = None
    unchecked: str | None = None


def at_best_of_two(attempt: Callable[[], Unseen]) -> Unseen:
    """What an attempt shows, or another one with inputs of its own where the first one's times raise a doubt.

    The calls take a few milliseconds: one busy moment of the machine would have everything timed again.
    """
    first = attempt()
    if first.doubt is None or first.wrong is not None:
        return first
    return attempt()


def try_unseen(
    place: Field,
    judge: ReferenceServer,
    program: Seat,
    draws: Sequence[Inputs],
    *,
    per_call_s: float,
    latency_s: float = 0.0,
    limit_s: float | None = None,
) -> Unseen:
    """Whether a program whose rounds are over is as right and as quick on inputs that it has never seen.

    Args:
        place: of the bench.
        judge: holds the weights that the program was given.
        program: its loop has ended.
        draws: that its ring was made of.
        per_call_s: time per call in the rounds, of many in a row.
        latency_s: ... of a call by itself.
        limit_s: what an empty go may cost it (`empty_gos`).

    Raises:
        ContestantFailedError: the program failed.
    """
    if program.child is None or program.sampler is None:
        return Unseen()
    slots = place.shape.slots
    # What a GPU is given after it idled takes twice as long: outputs were fetched between the groups.
    waking = 1 if place.cuda and slots > 1 else 0
    most = min(_MOST_CALLS, int(_GROUP_S / max(per_call_s, 1e-9)), slots // _GROUPS - waking)
    calls = max(1, most)
    count = min(_GROUPS * (calls + waking), slots)
    if _COPIES * count * (place.shape.nbytes // place.shape.slots) > available_bytes() // 2:
        return Unseen(unchecked="no inputs but those of the ring were timed: there is no memory for others")
    seeds = [secrets.randbits(_SEED_BITS) for _ in range(count)]
    with ExitStack() as stack:
        unseen: list[Inputs] = []
        for number, seed in enumerate(seeds, 1):
            unseen.append(judge.make_draw(f"own-{number}", seed=seed))
            stack.callback(unseen[-1].close)
        if any(new.manifest != draws[slot % len(draws)].manifest for slot, new in enumerate(unseen)):
            return Unseen(unchecked="no inputs but those of the ring were timed: their shapes vary")
        seat = seat_ring(
            stack,
            place,
            program.child,
            program.name,
            draws,
            slots=count,
            samples=_SAMPLES,
            # On a GPU another process would come between the groups, and some are shorter than that takes.
            live=program.sampler.live and not place.cuda,
            unseen=unseen,
        )
        seat.go(count)
        seat.next_ring()
        first_go(seat, _READY_TIMEOUT_S)
        new_s = _quickest(seat, calls, count // (calls + waking), waking, limit_s)
        seat.finish()
        wrong, unchecked = recheck(judge, place.task, place.facts, seeds, seat, once=True)
    # The first of a few calls in a row takes as long as one by itself.
    timed_s = max(per_call_s, per_call_s + (latency_s - per_call_s) / calls, 0.0)
    return Unseen(wrong, _describe(timed_s, new_s), unchecked)


def _quickest(seat: Seat, calls: int, groups: int, waking: int, limit_s: float | None) -> float:
    """Seconds per call in the quickest group, each after so many calls that nobody times."""
    pairs: list[tuple[float, float]] = []
    for _ in range(groups):
        if waking:
            seat.go(waking)
        empty_s = seat.go(0)
        pairs.append((empty_s, seat.go(calls)))
        seat.take_one(calls)
    return least_work_s(pairs, limit_s) / calls


def _describe(timed_s: float, new_s: float) -> str | None:
    if new_s <= _LONGER * timed_s + _ABSOLUTE_S:
        return None
    return (
        f"calls on inputs that never came before take {new_s * 1e6:.2f} us, timed ones"
        f" {timed_s * 1e6:.2f} us: what was timed is not what a call on new inputs costs"
    )
