"""Is the work done when a call returns, or when somebody fetches its outputs?

A program in Python gives its own tensors back, and its own process copies them for us: memory that computes
when it is read, or a function of ours that the program exchanged, could do the work there. The clock stands
then. So what a program saves by the clock it must also save, for the larger part, in calls whose outputs are
all fetched, beside a baseline whose outputs are fetched, too.
"""

from collections.abc import Sequence

from stitch_tools.judge.timing.blocks import Rounds
from stitch_tools.judge.timing.contestant import ContestantFailedError
from stitch_tools.judge.timing.seats import Seat

_HOLD_OUTPUTS = ("eager", "compile:default")
_ATTEMPTS = 3
_GROUP_S = 0.05
_KEPT_SHARE = 0.5
"""So much of what is saved by the clock must be left."""
_ABSOLUTE_S = 3e-6
"""By so much a call may save less for no reason."""
_GAIN = 1.05


def left_for_the_fetch(program: Seat, seats: Sequence[Seat], rounds: Rounds) -> str | None:
    """A sentence where what is saved by the clock is not saved once outputs are fetched; None where it is.

    Args:
        program: its outputs are fetched by its own process, or there is nothing to be said.
        seats: all contestants.
        rounds: what the clock said.

    Raises:
        ContestantFailedError: the program failed meanwhile.
    """
    sampler = program.sampler
    baseline = next((seat for seat in seats if seat.name in _HOLD_OUTPUTS), None)
    if sampler is None or sampler.live or baseline is None:
        return None
    program_s, baseline_s = (rounds.series[seat.name].throughput_s() for seat in (program, baseline))
    if baseline_s <= _GAIN * max(program_s, 0.0):
        return None
    calls = max(1, min(program.slots, baseline.slots, int(_GROUP_S / baseline_s)))
    claimed_s = calls * (baseline_s - max(program_s, 0.0))
    own_s = other_s = float("inf")
    for _ in range(_ATTEMPTS):
        sampler.wipe(program.slot, calls)
        own_s = min(own_s, _seconds(program, calls))
        try:
            # The first time it makes the memory that outputs go to.
            other_s = min(other_s, *(_seconds(baseline, calls) for _ in range(2)))
        except ContestantFailedError:
            return None  # nothing stands beside the program
        if other_s - own_s >= _KEPT_SHARE * claimed_s - calls * _ABSOLUTE_S:
            return None
    return (
        f"by the clock a call saves {claimed_s / calls * 1e6:.2f} us beside {baseline.name}, once outputs are"
        f" fetched {(other_s - own_s) / calls * 1e6:.2f} us: work is put off until somebody looks"
    )


def _seconds(seat: Seat, calls: int) -> float:
    """Of a go and of fetching all its outputs."""
    seat.resume()
    seat.go(0)
    seconds = seat.go(calls) + seat.fetch_latest(calls)
    seat.pause()
    return seconds
