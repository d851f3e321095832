"""Make the Bench of one timing from its rounds and from what speaks against them: the outcome is set here."""

from collections.abc import Sequence
from dataclasses import dataclass

from stitch_tools.judge.timing.contestants import Contestants
from stitch_tools.judge.timing.options import not_timed
from stitch_tools.judge.timing.output_check import OutputCheck
from stitch_tools.judge.timing.probes.probe import ProbeReport
from stitch_tools.judge.timing.program_runners import PROGRAM, PROGRAM_GRAPHED, programs_among
from stitch_tools.judge.timing.rounds import Figure, Rounds
from stitch_tools.judge.timing.setup import Setup
from stitch_tools.judge.timing.statistics import CPU_NOISE, GPU_NOISE, outcome_of
from stitch_tools.judge.timing.wording import (
    describe_disturbance,
    describe_doubt,
    describe_not_compared,
    explain,
    timing_of,
)
from stitch_tools.models.conditions import GpuConditions
from stitch_tools.models.verdict import Bench, Ratio


@dataclass(frozen=True)
class TimingEvidence:
    """What one run of rounds, and the looks after it, showed."""

    rounds: Rounds
    reports: Sequence[ProbeReport]
    """Of the probes, in their order."""
    outputs: OutputCheck
    """Of the timed calls."""
    gpu: GpuConditions | None


def make_bench(
    evidence: TimingEvidence, contestants: Contestants, setup: Setup, *, program_id: str, device: str
) -> Bench:
    """The Bench: `unmeasured` for a wrong output, `inconclusive` for a doubt, else by the ratio to eager."""
    rounds, options = evidence.rounds, contestants.options
    noise = GPU_NOISE if setup.cuda else CPU_NOISE
    ratios = _ratios(rounds, contestants, noise)
    against = next((row for row in ratios if (row.baseline, row.contestant) == ("eager", PROGRAM)), None)
    interval = rounds.ratio("eager", PROGRAM, contestants.figure) if "eager" in rounds.series else None
    count = interval.count if interval is not None else 0
    outcome = against.outcome if against is not None else "inconclusive"
    message = explain(against, rounds=count, noise=noise, quick=options.quick)
    doubts = tuple(doubt for report in evidence.reports for doubt in report.doubts)
    words = describe_doubt(doubts[0]) if doubts else ""
    if doubts:
        outcome, message = "inconclusive", words
        ratios = [row.model_copy(update={"outcome": outcome}) for row in ratios]
    checks = [evidence.outputs, *(check for report in evidence.reports for check in report.outputs)]
    wrong = next((check.wrong for check in checks if check.wrong), "")
    if wrong:
        outcome, message, ratios = "unmeasured", f"a timed call {wrong}", []
    not_compared = next((text for check in checks if (text := describe_not_compared(check))), "")
    notes = [message, describe_disturbance(rounds), not_compared]
    timings = (timing_of(runner, rounds.series[runner.name]) for runner in contestants.runners)
    not_checked = [text for report in evidence.reports for text in report.not_checked]
    not_checked.append(not_timed(options))
    return Bench(
        program_id=program_id,
        task_id=setup.task.task_id,
        outcome=outcome,
        timings=(*timings, *contestants.absent),
        ratios=tuple(ratios),
        figure=contestants.figure,
        device=device,
        threads=None if setup.cuda else setup.session.threads,
        steal_share=rounds.steal_share,
        disturbed=rounds.disturbance().is_large,
        gpu=evidence.gpu,
        not_checked=tuple(filter(None, [*not_checked, setup.not_renewed, *_unprobed(contestants)])),
        sandbox=setup.session.sandbox_level,
        plane=setup.judge.plane,
        message="; ".join(note for note in notes if note),
        doubts=doubts,
        doubt=words,
        program_failed=bool(wrong),
    )


def _unprobed(contestants: Contestants) -> list[str]:
    """What is not known of the times of another program that stood beside the first one."""
    others = programs_among(runner.name for runner in contestants.runners)
    return [
        f"whether the times of {name} are what its calls cost: the probes look at the first program alone"
        for name in others
        if name not in (PROGRAM, PROGRAM_GRAPHED)
    ]


def _ratios(rounds: Rounds, contestants: Contestants, noise: float) -> list[Ratio]:
    """Those of every program to every baseline, and the program's to another one beside it."""
    names = [runner.name for runner in contestants.runners]
    programs = programs_among(names)
    pairs = [(baseline, ours) for ours in programs for baseline in names if baseline not in programs]
    pairs += [(other, PROGRAM) for other in programs if other not in (PROGRAM, PROGRAM_GRAPHED)]
    found = [
        ratio_of(rounds, baseline, ours, figure=contestants.figure, noise=noise) for baseline, ours in pairs
    ]
    return [row for row in found if row is not None]


def ratio_of(rounds: Rounds, baseline: str, contestant: str, *, figure: Figure, noise: float) -> Ratio | None:
    """The speedup with its interval and outcome; None where too few rounds were undisturbed.

    The slope between two batches is free of what a batch costs, and blind to work that is put off from one
    batch to another. The time of all batches of a visit is not: a gain by slopes that this one does not show
    is none.
    """
    interval = rounds.ratio(baseline, contestant, figure)
    if interval is None or interval.low is None or interval.high is None:
        return None
    outcome = outcome_of(interval, noise=noise)
    if outcome == "faster" and figure == "throughput_us":
        whole = rounds.whole_ratio(baseline, contestant)
        if whole is None or whole.low is None or whole.low <= 1.0:
            outcome = "inconclusive"
    return Ratio(
        baseline=baseline,
        contestant=contestant,
        speedup=interval.middle,
        low=interval.low,
        high=interval.high,
        outcome=outcome,
    )
