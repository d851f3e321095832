"""Does the program's own clock agree with ours? Its word decides nothing; a disagreement makes us doubt."""

from collections.abc import Sequence

from stitch_tools.judge.timing.seats import Seat

RELATIVE = 0.05
ABSOLUTE_S = 3e-6


_GO_COST_S = 100e-6
"""What a go may cost us beyond what the process sees: two pipe transfers and a wake-up."""


def per_call_s(entries: Sequence[tuple[int, float]]) -> float | None:
    """Seconds per call in the quickest of the longest gos, where a go itself weighs least, or None.

    The quickest one, since a wake-up that a busy machine delays lengthens our time and not the process' own.
    """
    longest = max((calls for calls, _ in entries), default=0)
    if not longest:
        return None
    return min(seconds / calls for calls, seconds in entries if calls == longest)


def disagreement(seat: Seat) -> str | None:
    """A sentence where the two clocks differ by more than max(5%, 3 us) per call; None where they agree."""
    claimed = [(calls, nanoseconds * 1e-9) for calls, nanoseconds in seat.log]
    if not claimed:
        return None
    # The process keeps the latest few thousand gos; ours are cut to the same ones.
    ours = seat.history[-len(claimed) :]
    theirs, mine = per_call_s(claimed), per_call_s(ours)
    if theirs is None or mine is None:
        return None
    allowed = max(RELATIVE * mine, ABSOLUTE_S) + _GO_COST_S / max(calls for calls, _ in ours)
    if abs(mine - theirs) <= allowed:
        return None
    return f"the program's clock says {theirs * 1e6:.2f} us per call, ours says {mine * 1e6:.2f} us"
