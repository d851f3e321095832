"""Does every timed call do its work? What the clock cannot tell: work that is left out or moved away."""

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from stitch_tools.confine.process_tree import descendants
from stitch_tools.judge.timing.blocks import Visit
from stitch_tools.judge.timing.empty_gos import work_s
from stitch_tools.judge.timing.seats import Seat

_ATTEMPTS = 3
_BLOCK_S = 0.05
_LONGER = 1.5
"""Calls into wiped outputs may take so many times what timed calls take; no honest program comes near."""
_SHORTER = 0.8
"""The slope of a block may be this share of its whole time per call at least."""
_SHORTER_THAN_ALL = 0.6
"""And this share of the time per call of all gos of a visit, where first calls after a switch take longer."""
_FEWEST_BLOCKS = 5
_REPEATED = 0.10
"""Above this share of the baselines' visits others make blocks be repeated."""
_BUSIER = 1.2
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def kept_results(seat: Seat, per_call_s: float, limit_s: float | None = None) -> str | None:
    """A sentence where calls take much longer once their outputs are wiped; None where they do not.

    A ring comes round again with the same inputs: a program that finds its old outputs in place can leave
    them there. Only where each call writes straight into our memory can they be wiped. `limit_s` is what an
    empty go may cost it (`empty_gos`).

    Raises:
        ContestantFailedError: the program failed meanwhile.
    """
    sampler = seat.sampler
    if sampler is None or not sampler.live or per_call_s <= 0.0:
        return None
    calls = max(1, min(seat.slots, int(_BLOCK_S / per_call_s)))
    shortest = float("inf")
    for _ in range(_ATTEMPTS):
        first = seat.slot
        sampler.wipe(first, calls)
        seat.resume()
        floor = seat.go(0)
        shortest = min(shortest, work_s(floor, seat.go(calls), limit_s) / calls)
        seat.pause()
        seat.take_one(calls)
    if shortest <= _LONGER * per_call_s + sampler.settle_s / calls:
        return None
    return (
        f"calls into poisoned outputs take {shortest * 1e6:.2f} us, timed ones {per_call_s * 1e6:.2f} us:"
        " either results are kept from call to call, or the machine was disturbed"
    )


def moved_work(visits: Sequence[Visit], others: Sequence[Visit] = ()) -> str | None:
    """A sentence where the slope between k and 2k calls is far below the time of both; None where it is not.

    Work that is put off from each long go to the next short one leaves the slope, and not the sum. Only
    visits that nobody disturbed are looked at, as for the figures: a program could disturb the others itself.
    What is done in other gos of a visit, empty ones too, leaves both, and not the time of all of them. That
    holds blocks, too, which were repeated: where this happens to `others`, visits of the baselines, it is no
    doing of the program's, and only visits without a repetition tell.
    """
    slopes = [slope for visit in visits if visit.clean for slope in visit.slopes_s]
    wholes = [whole for visit in visits if visit.clean for whole in visit.wholes_s]
    if len(slopes) < _FEWEST_BLOCKS:
        return None
    forced = sum(map(_was_repeated, others)) > _REPEATED * len(others)
    totals = [v.total_s for v in visits if v.clean and not (forced and _was_repeated(v))]
    slope, whole = median(slopes), median(wholes)
    told = f"the slope of blocks says {slope * 1e6:.2f} us per call"
    if slope < _SHORTER * whole:
        return f"{told}, their whole time {whole * 1e6:.2f} us"
    if totals and slope < _SHORTER_THAN_ALL * median(totals):
        return f"{told}, the time of all gos of a visit {median(totals) * 1e6:.2f} us"
    return None


def _was_repeated(visit: Visit) -> bool:
    return not visit.clean or visit.repeats > 0 or visit.disturbed > 0


def cpu_seconds(pid: int) -> float | None:
    """CPU time so far of a child's process, and of all that it started; None where it is gone.

    Its parent is an init of its own, which gets what lost its parent.
    """
    fields = _stat(pid)
    if fields is None:
        return None
    family = [int(fields[1])]
    family += descendants(family[0])
    # User and system time, and both again of children that it waited for.
    ticks = sum(int(word) for fields in filter(None, map(_stat, family)) for word in fields[11:15])
    return ticks / _TICKS_PER_S


def _stat(pid: int) -> list[str] | None:
    """What the kernel says of a process, from its state on; None where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # The name in parentheses may hold anything.


def too_many_cpus(cpu_s: float, history: Sequence[tuple[int, float]], threads: int) -> str | None:
    """A sentence where the program used more CPU time than its threads can; None where it did not."""
    wall_s = sum(seconds for _, seconds in history)
    if cpu_s <= _BUSIER * threads * wall_s + 0.5:
        return None
    allowed = f"{threads} threads are" if threads > 1 else "one thread is"
    return f"the program kept {cpu_s / wall_s:.1f} CPUs busy, where {allowed} allowed"
