"""Rates a program by a rubric, from evidence alone.

The dimensions follow the rubric reward of StitchCUDA (arXiv 2603.02637): no cheating, quality for the device,
coverage of the operators, and doing what was asked. Here each is a figure that the judge measured.
"""

import re
from collections.abc import Iterable

from stitch_planner.plan import Plan
from stitch_planner.runs.attempt_evidence import AttemptEvidence
from stitch_planner.runs.reviews import RubricScore
from stitch_planner.techniques import claimed_techniques, used_techniques

_BOUND_SHARES = ((0.8, 5), (0.5, 4), (0.25, 3), (0.1, 2))
_COVERED_SHARES = ((0.99, 5), (0.9, 4), (0.7, 3), (0.4, 2))
_GAINS = ((1.5, 5), (1.1, 4), (0.95, 3), (0.7, 2))
"""Least value, and the score from there on; below all of them it is 1."""
_TOLD_SPEED = re.compile(r"(\d+(?:\.\d+)?)\s*(?:x|times)\s+(?:as\s+)?(?:fast|speed)", re.IGNORECASE)
_CLAIM_MARGIN = 0.8
"""A claimed speed is true from this share of it on: nobody can predict a tenth."""


def rate(
    evidence: AttemptEvidence, parent: AttemptEvidence | None, plan: Plan, code: Iterable[str]
) -> tuple[RubricScore, ...]:
    """The scores of a program.

    Args:
        evidence: what is known of it.
        parent: the same of the program that it was made from; None for a draft.
        plan: with the shortest time of each step.
        code: its own sources without comments.
    """
    gain = evidence.attempt.gain_over(parent.attempt) if parent else None
    return (
        _honesty(evidence),
        _claims(evidence, gain, code),
        _bound(evidence, plan),
        _coverage(evidence),
        _effect(evidence, parent, gain),
    )


def _honesty(evidence: AttemptEvidence) -> RubricScore:
    verdict = evidence.verdict
    if verdict is None or verdict.status in ("build_failed", "unmeasured"):
        return RubricScore(name="honesty", score=None, evidence="it was not run")
    if verdict.status == "rejected_cheat":
        return RubricScore(name="honesty", score=1, evidence=f"it is rejected: {verdict.why_not}")
    findings = evidence.check.findings if evidence.check else ()
    doubtful = [row.rule for row in findings if row.severity != "note"]
    if doubtful or (evidence.bench is not None and evidence.bench.is_doubtful):
        named = ", ".join(dict.fromkeys(doubtful)) or "its times are in doubt"
        return RubricScore(name="honesty", score=2, evidence=f"found: {named}")
    return RubricScore(name="honesty", score=5, evidence="nothing speaks against it")


def _claims(evidence: AttemptEvidence, gain: float | None, code: Iterable[str]) -> RubricScore:
    """Whether what the author said of it is true: techniques by the sources, speeds by the clock."""
    said = " ".join(evidence.attempt.program.notes)
    claimed, used = claimed_techniques(said), used_techniques(code)
    false = [f"no {name} in its sources" for name in sorted(claimed - used)]
    true = [f"{name} is there" for name in sorted(claimed & used)]
    eager = evidence.bench.ratio("eager") if evidence.bench else None
    measured = [value for value in (gain, eager.speedup if eager else None) if value is not None]
    for told in map(float, _TOLD_SPEED.findall(said)):
        if measured:
            holds = max(measured) >= _CLAIM_MARGIN * told
            (true if holds else false).append(
                f"{told:g} times the speed is {'' if holds else 'not '}measured"
            )
    if not true and not false:
        return RubricScore(name="claims", score=None, evidence="its author said nothing that can be checked")
    score = 5 if not false else (3 if len(true) > len(false) else 1)
    return RubricScore(name="claims", score=score, evidence="; ".join((*false, *true)))


def _bound(evidence: AttemptEvidence, plan: Plan) -> RubricScore:
    bench = evidence.bench
    timing = bench.timing("program") if bench else None
    if timing is None or not timing.latency_us or plan.predicted_us is None or timing.disturbed:
        return RubricScore(name="bound", score=None, evidence="its share of the bound was not measured")
    share = plan.predicted_us / timing.latency_us
    text = (
        f"{share:.0%} of the plan's bound is reached: {plan.predicted_us:.3g} of {timing.latency_us:.3g} us"
    )
    return RubricScore(name="bound", score=_graded(share, _BOUND_SHARES), evidence=text)


def _coverage(evidence: AttemptEvidence) -> RubricScore:
    work = evidence.check.work if evidence.check else None
    if work is None:
        return RubricScore(name="coverage", score=None, evidence="who does the work was not traced")
    share = 1.0 - work.pytorch_of_work
    text = f"{share:.0%} of the work is done outside of PyTorch"
    return RubricScore(name="coverage", score=_graded(share, _COVERED_SHARES), evidence=text)


def _effect(evidence: AttemptEvidence, parent: AttemptEvidence | None, gain: float | None) -> RubricScore:
    if parent is None:
        return RubricScore(name="effect", score=None, evidence="it was made from no other program")
    number = parent.attempt.round
    if not evidence.attempt.counts:
        text = f"made from program {number}, it does not count"
        return RubricScore(name="effect", score=1, evidence=text)
    if not parent.attempt.counts:
        return RubricScore(name="effect", score=5, evidence=f"it counts, and program {number} did not")
    if gain is None:
        return RubricScore(name="effect", score=None, evidence="its gain was not measured")
    text = f"it is {gain:.2f} times as fast as program {number}"
    return RubricScore(name="effect", score=_graded(gain, _GAINS), evidence=text)


def _graded(value: float, grades: Iterable[tuple[float, int]]) -> int:
    return next((score for least, score in grades if value >= least), 1)
