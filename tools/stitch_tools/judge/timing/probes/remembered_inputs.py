"""Are calls quicker on inputs whose values came before?"""

import secrets
from dataclasses import dataclass
from statistics import median

from stitch_tools.judge.timing.call_overhead import work_s
from stitch_tools.judge.timing.probes.probe import ProbeContext, ProbeReport, Stage
from stitch_tools.judge.timing.runners import Runner, new_token
from stitch_tools.judge.timing.statistics import rank_chance
from stitch_tools.models.conditions import TimingDoubt

_ATTEMPTS = 3
_MOST, _FEWEST = 32, 6
_BUDGET_S = 1.0
_LONGER, _ABSOLUTE_S = 1.05, 1e-6
# Of one attempt where nothing is kept; a doubt needs all of them.
_CHANCE = 0.005


@dataclass(frozen=True)
class RememberedInputs:
    """Times single calls on new inputs and on known ones, where inputs are renewed (on a GPU)."""

    stage: Stage = "running"

    def look(self, context: ProbeContext) -> ProbeReport:
        """A doubt where something is kept by the values of inputs."""
        doubt = remembered_inputs(context.program, context.throughput_s, context.overhead_limit_s)
        return ProbeReport((doubt,) if doubt else ())


def remembered_inputs(runner: Runner, per_call_s: float, limit_s: float | None = None) -> TimingDoubt | None:
    """The doubt where calls take longer on new inputs than on ones that came before.

    Both kinds take turns at random, are written by the same copies into the same memory, and differ in
    nothing but that their values were seen before. `limit_s` is what an empty batch may cost.

    Raises:
        RunnerFailedError: the program failed meanwhile.
    """
    if runner.draws < 2:
        return None
    count = max(_FEWEST, min(_MOST, int(_BUDGET_S / max(per_call_s, 1e-6))))
    new_s, known_s = 0.0, 0.0
    for _ in range(_ATTEMPTS):
        new, known = _times(runner, count, limit_s)
        new_s, known_s = median(new), median(known)
        # Ranks, not quartiles: a busy moment in a quarter of the known calls hid a program that kept results.
        if new_s <= _LONGER * known_s + _ABSOLUTE_S or rank_chance(new, known) > _CHANCE:
            return None
    return TimingDoubt(rule="remembered_inputs", observed=new_s * 1e6, expected=known_s * 1e6)


def _times(runner: Runner, count: int, limit_s: float | None) -> tuple[list[float], list[float]]:
    """Seconds of at least `count` single calls on new inputs, and of as many on ones that came before."""
    new: list[float] = []
    known: list[float] = []
    tokens: dict[int, list[int]] = {}
    runner.resume()
    while len(known) < count:
        # In slots of one draw a token stands for the same values.
        seen = tokens.setdefault(runner.slot % runner.draws, [])
        again = bool(seen) and secrets.randbelow(2) == 1
        token = secrets.choice(seen) if again else new_token()
        runner.renew_with(token)
        empty_s = runner.run_calls(0)
        (known if again else new).append(work_s(empty_s, runner.run_calls(1), limit_s))
        if not again:
            seen.append(token)
    runner.pause()
    return new, known
