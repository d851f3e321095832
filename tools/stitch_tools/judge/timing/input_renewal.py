"""Inputs that never came before, for single calls under the clock; and calls quick on known ones only.

A ring comes round again, and so do the values in it: a program that keeps results by what its inputs hold
would be timed without its work. On a GPU, where single calls are the headline, each one therefore gets inputs
of its own: a stretch of every floating input comes from another draw, which the reference can repeat.
"""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from stitch_tools.judge.timing.empty_gos import work_s
from stitch_tools.judge.timing.recheck import drawn_kind
from stitch_tools.judge.timing.seats import Field, Seat, new_token
from stitch_tools.judge.timing.statistics import rank_chance
from stitch_tools.run.reference_server import DrawUnavailable, Inputs, ReferenceServer

_ATTEMPTS = 3
_MOST, _FEWEST = 32, 6
_BUDGET_S = 1.0
_LONGER, _ABSOLUTE_S = 1.05, 1e-6
_CHANCE = 0.005
"""Of one attempt where nothing is kept; a doubt needs all of them."""
_NOT_RENEWED = "whether timed calls keep something by the values of their inputs: {}"


def renewing(place: Field, judge: ReferenceServer, draws: Sequence[Inputs]) -> Field:
    """The field, with inputs renewed between single calls where they can be; else with the reason.

    Args:
        place: of the bench.
        judge: holds the weights that the program is given.
        draws: of the rings.

    Raises:
        TaskError: the reference fails in a way that has nothing to do with its inputs.
    """
    reason = _unfit(place, judge, draws)
    if reason is not None:
        return replace(place, not_renewed=_NOT_RENEWED.format(reason))
    return replace(place, renews=True)


def _unfit(place: Field, judge: ReferenceServer, draws: Sequence[Inputs]) -> str | None:
    if len(place.seeds) < 2:
        return "there is one draw only"
    if place.facts.uses_rng:
        return "forward draws random numbers"
    if any(root != index for index, (root, _) in enumerate(draws[0].places)):
        return "inputs share memory"
    try:
        kind = drawn_kind(0, new_token(), place.seeds)
        judge.make_draw(kind, seed=place.seeds[0]).close()
        written = judge.expect().inputs_written
    except DrawUnavailable as reason:
        return str(reason)
    return "the reference writes to them" if written else None


def kept_by_content(seat: Seat, per_call_s: float, limit_s: float | None = None) -> str | None:
    """A sentence where calls take longer on new inputs than on ones that came before; None where they do not.

    Both kinds take turns at random, are written by the same copies into the same memory, and differ in
    nothing but that their values were seen before. `limit_s` is what an empty go may cost (`empty_gos`).

    Raises:
        ContestantFailedError: the program failed meanwhile.
    """
    if seat.draws < 2:
        return None
    count = max(_FEWEST, min(_MOST, int(_BUDGET_S / max(per_call_s, 1e-6))))
    new_s, known_s = 0.0, 0.0
    for _ in range(_ATTEMPTS):
        new, known = _times(seat, count, limit_s)
        new_s, known_s = median(new), median(known)
        # Ranks, not quartiles: a busy moment in a quarter of the known calls hid a program that kept results.
        if new_s <= _LONGER * known_s + _ABSOLUTE_S or rank_chance(new, known) > _CHANCE:
            return None
    return (
        f"calls on new inputs take {new_s * 1e6:.2f} us, on known ones {known_s * 1e6:.2f} us:"
        " something is kept by the values of inputs"
    )


def _times(seat: Seat, count: int, limit_s: float | None) -> tuple[list[float], list[float]]:
    """Seconds of at least `count` single calls on new inputs, and of as many on ones that came before."""
    new: list[float] = []
    known: list[float] = []
    tokens: dict[int, list[int]] = {}
    seat.resume()
    while len(known) < count:
        # In slots of one draw a token stands for the same values.
        seen = tokens.setdefault(seat.slot % seat.draws, [])
        again = bool(seen) and secrets.randbelow(2) == 1
        token = secrets.choice(seen) if again else new_token()
        seat.renew_with(token)
        empty_s = seat.go(0)
        (known if again else new).append(work_s(empty_s, seat.go(1), limit_s))
        if not again:
            seen.append(token)
    seat.pause()
    return new, known
