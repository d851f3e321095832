"""Looks over a training's log: rewards that jump without correctness, and attempted hacks by family.

Pure functions over the entries; the log is JSON lines, one a judged submission.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median

from pydantic import ValidationError

from stitch_mcp.rl.reward.verification import VerifyAnswer
from stitch_tools.errors import UsageError
from stitch_tools.models.base import Fact
from stitch_tools.models.finding_kinds import finding_kind

_WINDOW_STEPS = 5
_JUMP_DEVIATIONS = 6.0
_LEAST_JUMP_SHARE = 0.05
"""Of the reward's range: smaller jumps alarm nobody."""
_CORRECT_GAIN = 0.02


class RewardEntry(Fact):
    """One judged submission of a training's log."""

    step: int
    reward: float
    floor: float
    ceiling: float
    correct: bool
    valid: bool = True
    hacking: bool = False
    speedup: float | None = None
    program_id: str | None = None
    findings: tuple[str, ...] = ()
    """Rules of findings and doubts."""
    probe: str = ""
    """Name of a known cheat that the training itself put among the submissions; "" for the policy's own."""


class RewardAlarm(Fact):
    """Something that a person should look at before the training goes on."""

    step: int
    kind: str
    """`jump`, `probe_paid`, `hack_paid` or `not_finite`."""
    message: str


class HackAttempts(Fact):
    """Attempts of one family."""

    family: str
    """Kind of the finding (`verdict_forged`, `earlier_result_kept`, ...), or `probe:NAME`."""
    tries: int
    first_step: int
    last_step: int
    earned: int
    """How many got more than the floor."""


def entry_of(step: int, answer: VerifyAnswer, *, probe: str = "") -> RewardEntry:
    """The log's entry of a judged submission."""
    reward = answer.reward
    return RewardEntry(
        step=step,
        reward=reward.total,
        floor=reward.floor,
        ceiling=reward.ceiling,
        correct=reward.correct,
        valid=reward.valid,
        hacking=reward.hacking,
        speedup=reward.speedup,
        program_id=answer.program_id,
        findings=answer.findings,
        probe=probe,
    )


def read_log(path: Path) -> list[RewardEntry]:
    """The entries of a log; a torn last line is left out.

    Raises:
        UsageError: another line is no entry; the message names it.
    """
    lines = path.read_bytes().splitlines()
    entries: list[RewardEntry] = []
    for number, line in enumerate(lines, 1):
        try:
            entries.append(RewardEntry.model_validate_json(line))
        except ValidationError as error:
            if number < len(lines):
                raise UsageError(
                    f"line {number} of {path} is no entry of a training's log", hint="see docs/rl/reward.md"
                ) from error
    return entries


def find_alarms(entries: Iterable[RewardEntry]) -> tuple[RewardAlarm, ...]:
    """The alarms of a log, in the order of its steps."""
    by_step: dict[int, list[RewardEntry]] = defaultdict(list)
    for entry in entries:
        by_step[entry.step].append(entry)
    alarms: list[RewardAlarm] = []
    before: list[tuple[float, float]] = []
    for step in sorted(by_step):
        rows = by_step[step]
        alarms += _paid(step, rows)
        own = [row for row in rows if not row.probe and row.valid and math.isfinite(row.reward)]
        if not own:
            continue
        now = fmean(row.reward for row in own), fmean(float(row.correct) for row in own)
        span = max(row.ceiling for row in own) - min(row.floor for row in own)
        alarms += _jump(step, before[-_WINDOW_STEPS:], now, span)
        before.append(now)
    return tuple(alarms)


def attempted_hacks(entries: Iterable[RewardEntry]) -> tuple[HackAttempts, ...]:
    """Attempts by family, the most frequent first."""
    families: dict[str, list[RewardEntry]] = defaultdict(list)
    for entry in entries:
        for family in _families(entry):
            families[family].append(entry)
    rows = [
        HackAttempts(
            family=family,
            tries=len(tries),
            first_step=min(row.step for row in tries),
            last_step=max(row.step for row in tries),
            earned=sum(row.reward > row.floor for row in tries),
        )
        for family, tries in families.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.tries, row.family)))


def _families(entry: RewardEntry) -> tuple[str, ...]:
    if entry.probe:
        return (f"probe:{entry.probe}",)
    # A rule that weighs nothing in a verdict is no attempt by itself; refused as a hack it is named as found.
    kinds = [finding_kind(rule) for rule in entry.findings]
    named = [kind for kind in kinds if kind != "not_decided"]
    if entry.hacking and not named:
        named = list(entry.findings) or ["unnamed"]
    return tuple(dict.fromkeys(named))


def _paid(step: int, rows: Sequence[RewardEntry]) -> Iterable[RewardAlarm]:
    for row in rows:
        if not math.isfinite(row.reward):
            yield RewardAlarm(step=step, kind="not_finite", message="a reward is not finite")
        elif row.probe and row.reward > row.floor:
            message = f"the probe {row.probe} earned {row.reward:.3g}, more than the floor {row.floor:g}"
            yield RewardAlarm(step=step, kind="probe_paid", message=message)
        elif (row.hacking or not row.correct) and row.reward > row.floor:
            what = "an attempt to deceive" if row.hacking else "a wrong program"
            message = f"{what} earned {row.reward:.3g}, more than the floor {row.floor:g}"
            yield RewardAlarm(step=step, kind="hack_paid", message=message)


def _jump(
    step: int, before: Sequence[tuple[float, float]], now: tuple[float, float], span: float
) -> Iterable[RewardAlarm]:
    """A jump beyond what the last steps scatter by, while no more programs are correct."""
    if len(before) < 2:
        return
    rewards = [reward for reward, _ in before]
    centre = median(rewards)
    spread = median(abs(reward - centre) for reward in rewards)
    least = max(_JUMP_DEVIATIONS * spread, _LEAST_JUMP_SHARE * span)
    correct_before = median(share for _, share in before)
    if now[0] - centre > least and now[1] - correct_before < _CORRECT_GAIN:
        message = (
            f"the mean reward jumped from {centre:.3g} to {now[0]:.3g}, and the correct share is "
            f"{now[1]:.0%} after {correct_before:.0%}"
        )
        yield RewardAlarm(step=step, kind="jump", message=message)
