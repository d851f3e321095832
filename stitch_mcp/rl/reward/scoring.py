"""The reward as a pure function of the evidence.

Whatever the evidence holds, the total is a finite number between the preset's floor and ceiling. A gain is
credited as far as it lies beyond the noise: of the bench's 95% interval the end that is nearer to 1 counts.
Without an interval nothing is known to be a gain: the medians count then, and at most as eager's speed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stitch_mcp.rl.reward.facts import (
    Reward,
    RewardEvidence,
    RewardPart,
    RewardPreset,
)
from stitch_tools.judge.verdict import verdict_of
from stitch_tools.models.verdict import Bench, Ratio

_PROGRAM, _EAGER, _COMPILED = "program", "eager", "compile:"


@dataclass(frozen=True)
class Gate:
    """Whether a program gets any credit."""

    is_open: bool
    valid: bool = True
    """As in `Reward`."""
    hacking: bool = False
    """As in `Reward`."""
    reasons: tuple[str, ...] = ()


def score(evidence: RewardEvidence, preset: RewardPreset) -> Reward:
    """The reward of a submission under a preset. Raises nothing, whatever the evidence is."""
    gate = examine(evidence)
    speedup = credited_speedup(evidence.bench) if gate.is_open else None
    parts: tuple[RewardPart, ...] = ()
    total = preset.floor
    if speedup is not None:
        total, parts = _TOTALS[preset.name](evidence, preset, speedup)
    return Reward(
        preset=preset.name,
        skill=evidence.skill,
        total=_within(total, preset.floor, preset.ceiling),
        valid=gate.valid,
        correct=gate.is_open,
        hacking=gate.hacking,
        reasons=gate.reasons,
        speedup=speedup,
        parts=parts,
        floor=preset.floor,
        ceiling=preset.ceiling,
    )


def examine(evidence: RewardEvidence) -> Gate:
    """Whether the submission gets any credit, and why not."""
    if evidence.unusable:
        return Gate(False, reasons=(evidence.unusable,))
    check, bench = evidence.check, evidence.bench
    if check is None:
        return Gate(False, valid=False, reasons=("it was not checked",))
    verdict = verdict_of(check, bench, evidence.policy.accept)
    if verdict.status == "unmeasured":
        # That a program does not draw as its reference does is its own doing, and no fault of this machine.
        own = "unsupported_rng" in verdict.flags
        return Gate(False, valid=own, reasons=(verdict.why_not,))
    if not verdict.counts:
        found = any(row.source == "finding" for row in verdict.reasons)
        return Gate(False, hacking=found, reasons=tuple(row.message for row in verdict.reasons))
    refused = [flag for flag in evidence.policy.refused_flags if flag in verdict.flags]
    if refused:
        return Gate(False, reasons=tuple(f"flag {flag}" for flag in refused))
    rating = evidence.rating
    if rating is not None and rating.score_of("anti_hacking") == 1:
        return Gate(False, hacking=True, reasons=("the rubric finds an attempt to deceive the judge",))
    if "incomplete" in verdict.flags:
        return Gate(False, valid=False, reasons=("the time was over before all draws were made",))
    return _examine_times(bench)


def _examine_times(bench: Bench | None) -> Gate:
    """A program that was right when it was checked can still cheat when it is timed."""
    if bench is None:
        return Gate(False, valid=False, reasons=("it was not timed",))
    if bench.is_doubtful:
        named = bench.doubt or ", ".join(row.rule for row in bench.doubts)
        # A busy machine raises doubts, too: whatever it was, it earns nothing, and there it accuses nobody.
        busy = bool(bench.disturbed)
        return Gate(False, valid=not busy, hacking=not busy, reasons=(f"its times are in doubt: {named}",))
    if bench.outcome == "unmeasured" or credited_speedup(bench) is None:
        return Gate(False, valid=False, reasons=(bench.message or "it was not timed",))
    return Gate(True)


def credited_speedup(bench: Bench | None) -> float | None:
    """The speedup over eager as far as it is beyond noise; None where it was not measured.

    Where too few rounds were undisturbed for an interval, that of the medians, and at most 1: a program gains
    nothing from noise, and loses no more by it than its own times show.
    """
    found = interval_speedup(bench)
    if found is not None or bench is None:
        return found
    if bench.ratio(_EAGER) is not None:
        return None  # An interval that is none is no noise.
    for is_latency in (bench.figure == "latency_us", bench.figure != "latency_us"):
        eager_us, program_us = (_median_us(bench, name, is_latency) for name in (_EAGER, _PROGRAM))
        if eager_us is not None and program_us is not None:
            return min(1.0, eager_us / program_us)
    return None


def interval_speedup(bench: Bench | None) -> float | None:
    """The same by the interval alone; None where there is none."""
    ratio = bench.ratio(_EAGER) if bench is not None else None
    return None if ratio is None else credited(ratio)


def _median_us(bench: Bench, name: str, is_latency: bool) -> float | None:
    """The median of a contestant's single or back-to-back calls; None where it is no positive number."""
    rows = [row.latency_us if is_latency else row.throughput_us for row in bench.timings if row.name == name]
    return next((value for value in rows if value is not None and 0 < value < math.inf), None)


def credited(ratio: Ratio) -> float | None:
    """The end of the ratio's 95% interval that is nearer to 1; 1 where the interval holds it."""
    nearest = nearest_to_one(ratio.low, ratio.high)
    if nearest is None or nearest <= 1 or ratio.outcome == "faster":
        return nearest
    # The bench asks for more than its interval before it says "faster": its noise counts, too.
    return 1.0


def nearest_to_one(low: float, high: float) -> float | None:
    """The value of an interval that is nearest to 1; None where an end is no finite positive number."""
    if not (math.isfinite(low) and math.isfinite(high)) or low < 0 or high < low:
        return None
    return min(max(1.0, low), high)


def own_share(evidence: RewardEvidence) -> float:
    """The own kernels' part of the traced work, 0 to 1; 0 where it was not traced."""
    work = evidence.check.work if evidence.check is not None else None
    if work is None:
        return 0.0
    shares = (work.own, work.library, work.pytorch, work.copies)
    if not all(math.isfinite(share) and share >= 0 for share in shares) or not 0 < sum(shares) < math.inf:
        return 0.0
    return work.own / sum(shares)


def _stitchcuda(
    evidence: RewardEvidence, preset: RewardPreset, speedup: float
) -> tuple[float, tuple[RewardPart, ...]]:
    rating = evidence.rating
    share = rating.share if rating is not None else 0.5
    weight = preset.generate_weight if evidence.skill == "generate" else preset.refine_weight
    factor = 1 + weight * (share - 0.5)
    rule = _rule_parts(preset, speedup)
    told = f"rubric total {rating.total} of 20" if rating is not None else "no rubric: neutral"
    parts = (*rule, RewardPart(name="rubric_factor", value=factor, evidence=told))
    return sum(row.value for row in rule) * factor, parts


def _kevin(
    evidence: RewardEvidence, preset: RewardPreset, speedup: float
) -> tuple[float, tuple[RewardPart, ...]]:
    del evidence
    parts = _rule_parts(preset, speedup)
    return sum(row.value for row in parts), parts


def _coverage(
    evidence: RewardEvidence, preset: RewardPreset, speedup: float
) -> tuple[float, tuple[RewardPart, ...]]:
    rule = _rule_parts(preset, speedup)
    share = own_share(evidence)
    told = f"own kernels do {share:.0%} of the traced work"
    return sum(row.value for row in rule) * share, (
        *rule,
        RewardPart(name="own_share", value=share, evidence=told),
    )


def _milestone(
    evidence: RewardEvidence, preset: RewardPreset, speedup: float
) -> tuple[float, tuple[RewardPart, ...]]:
    over_eager = speedup > preset.margin
    compiled = _compiled_speedups(evidence.bench)
    over_compiled = over_eager and bool(compiled) and min(compiled) > preset.margin
    margin = f"{(preset.margin - 1):.0%}"
    told = (
        f"{min(compiled):.3g} times the best of torch.compile" if compiled else "torch.compile was not timed"
    )
    eager = f"{speedup:.3g} times eager"
    parts = (
        RewardPart(name="correct", value=1.0, evidence="it is right and counts"),
        RewardPart(name="over_eager", value=float(over_eager), evidence=f"{eager}, asked: over {margin}"),
        RewardPart(name="over_compile", value=float(over_compiled), evidence=f"{told}, asked: over {margin}"),
    )
    return sum(row.value for row in parts), parts


def _rule_parts(preset: RewardPreset, speedup: float) -> tuple[RewardPart, ...]:
    gained = min(speedup, preset.speedup_cap)
    told = f"{speedup:.3g} times eager is credited"
    return (
        RewardPart(name="correct", value=preset.correct_bonus, evidence="it is right and counts"),
        RewardPart(name="speedup", value=gained, evidence=told),
    )


def _compiled_speedups(bench: Bench | None) -> Sequence[float]:
    """What each mode of torch.compile that was timed leaves; a figure that is no number earns nothing."""
    rows = bench.ratios if bench is not None else ()
    compiled = [row for row in rows if row.contestant == "program" and row.baseline.startswith(_COMPILED)]
    return [credited(row) or 0.0 for row in compiled]


def _within(total: float, floor: float, ceiling: float) -> float:
    return min(max(total, floor), ceiling) if math.isfinite(total) else floor


_Total = Callable[[RewardEvidence, RewardPreset, float], tuple[float, tuple[RewardPart, ...]]]
_TOTALS: Mapping[str, _Total] = {
    "stitchcuda": _stitchcuda,
    "milestone": _milestone,
    "kevin": _kevin,
    "coverage": _coverage,
}
