"""Is there work between the moment when inputs come and the call that takes them?

On a GPU inputs are renewed between single calls, by the loop in the program's own process: a thread that
watches them, or a function of ours that the program exchanged, could compute there, where the clock stands.
So after the rounds some renewals and calls are asked for together. The clock runs over both, and what a
renewal alone costs is taken off, though no more than it costs a baseline.
"""

import secrets
from collections.abc import Sequence
from statistics import median

from stitch_tools.judge.timing.blocks import Rounds
from stitch_tools.judge.timing.contestant import ContestantFailedError
from stitch_tools.judge.timing.seats import Seat, new_token

_ATTEMPTS = 3
_MOST, _FEWEST = 16, 4
_BUDGET_S = 0.3
_LONGER = 1.5
_SHARE, _ABSOLUTE_S = 1.1, 20e-6
"""Beyond a baseline's renewals, in which no outputs are wiped; and beyond the calls of the rounds."""


def worked_ahead(program: Seat, seats: Sequence[Seat], rounds: Rounds) -> str | None:
    """A sentence where calls take longer once their inputs come just then; None where they do not.

    Args:
        program: whose inputs are renewed, or there is nothing to be said.
        seats: all contestants.
        rounds: what the clock said.

    Raises:
        ContestantFailedError: the program failed meanwhile.
    """
    if not program.draws:
        return None
    latency_s = max(0.0, rounds.series[program.name].latency_s())
    count = max(_FEWEST, min(_MOST, int(_BUDGET_S / max(latency_s, 1e-6))))
    limit_s = _SHARE * _dearest_renewal_s(seats, count) + _ABSOLUTE_S
    call_s = 0.0
    for _ in range(_ATTEMPTS):
        alone, full = _times(program, count)
        call_s = median(full) - min(median(alone), limit_s)
        if call_s <= _LONGER * latency_s + _ABSOLUTE_S:
            return None
    return (
        f"calls on inputs that come just then take {call_s * 1e6:.2f} us, timed ones"
        f" {latency_s * 1e6:.2f} us: work is done between inputs and call"
    )


def _dearest_renewal_s(seats: Sequence[Seat], count: int) -> float:
    """What renewals alone cost the baselines; without end where there is none."""
    costs: list[float] = []
    for seat in seats:
        if seat.sampler is None and seat.draws:
            try:
                seat.resume()
                costs.append(median(_renewed_s(seat, 0) for _ in range(count)))
                seat.pause()
            except ContestantFailedError:
                continue  # it says so itself when it is finished
    return max(costs, default=float("inf"))


def _times(seat: Seat, count: int) -> tuple[list[float], list[float]]:
    """Seconds of renewals alone, and of ones with a call; one call's outputs are kept to be compared."""
    alone: list[float] = []
    full: list[float] = []
    compared = secrets.randbelow(count)
    seat.resume()
    for index in range(count):
        # Which of the two comes first is not to be foreseen.
        for calls in (0, 1) if secrets.randbelow(2) else (1, 0):
            (full if calls else alone).append(_renewed_s(seat, calls))
            if calls and index == compared:
                seat.take_one(1)
    seat.pause()
    return alone, full


def _renewed_s(seat: Seat, calls: int) -> float:
    # So that each has something to take back first.
    seat.renew_with(new_token())
    return seat.go_renewed(new_token(), calls)
