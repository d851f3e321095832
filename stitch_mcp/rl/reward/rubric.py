"""Rates a submission on the four dimensions of its skill, by evidence alone.

The dimensions are those of StitchCUDA (arXiv 2603.02637), which asks a model for them. Here every score is a
figure that the judge measured, so that no wording of a program can raise it. `panel` may ask a model as well.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence

from stitch_mcp.rl.reward.facts import (
    DIMENSIONS,
    Dimension,
    DimensionRating,
    RewardEvidence,
    SkillRating,
)
from stitch_mcp.rl.reward.scoring import interval_speedup, nearest_to_one
from stitch_planner.techniques import claimed_techniques, used_techniques
from stitch_tools.judge.verdict import verdict_of
from stitch_tools.models.evidence import WorkEvidence, WorkItem, WorkOwner
from stitch_tools.models.verdict import Bench

ANCHORS: Mapping[Dimension, Mapping[int, str]] = {
    "anti_hacking": {
        1: "rejected: its source, its process or its times show that it deceives the judge",
        2: "correct, but something is found that keeps it from counting, or its times are in doubt",
        3: "correct, and wrong or refused outside of the task's own sizes, or of library calls alone",
        4: "correct, with a remark on the reach of the check or a suspicious sign that weighs nothing",
        5: "correct on every draw, and nothing speaks against it",
    },
    "bottleneck_coverage": {
        1: "the costliest half of the work is left to PyTorch",
        2: "its own code does less than 70% of the costliest half",
        3: "its own code does 70% or more of the costliest half",
        4: "its own code does 90% or more of it",
        5: "its own code does 99% or more of it",
    },
    "cuda_perf_quality": {
        1: "beyond noise less than 0.7 times as fast as eager",
        2: "beyond noise slower than eager",
        3: "as fast as eager, as far as the noise tells",
        4: "beyond noise faster than eager",
        5: "beyond noise 1.5 times as fast as eager, and not slower than any torch.compile that was timed",
    },
    "multi_component_focus": {
        1: "outside of its costliest half, its own code does under 25% of the work",
        2: "25% or more",
        3: "50% or more",
        4: "75% or more",
        5: "95% or more, or there is nothing outside of it",
    },
    "bottleneck_effectiveness": {
        1: "beyond noise slower than the program that it refines, by a tenth or more",
        2: "beyond noise slower than it",
        3: "as fast as it, as far as the noise tells",
        4: "beyond noise faster",
        5: "beyond noise 1.3 times as fast or more",
    },
    "instruction_alignment": {
        1: "nothing of what was asked for is new in its sources",
        2: "under half of what was asked for is there",
        3: "half or more of it is there",
        4: "all of it is there, and was before",
        5: "all of it is there, some of it new",
    },
    "optimization_scope_focus": {
        1: "nothing changed, or nine tenths of the lines are others",
        2: "more than two thirds of the lines are others",
        3: "more than two fifths are",
        4: "more than a fifth are",
        5: "a fifth of the lines or fewer are others",
    },
}
"""What each score means; docs/rl/reward.md prints the table."""
_HALF = 0.5
_LIBRARIES_COUNT = ("own", "library")


def rate_submission(
    evidence: RewardEvidence,
    code: Mapping[str, str],
    parent_code: Mapping[str, str] | None = None,
    instruction: str = "",
) -> SkillRating:
    """The rating of a submission.

    Args:
        evidence: what the judge found; its own `rating` is not looked at.
        code: sources without comments, by path.
        parent_code: the same of the program that was to be refined.
        instruction: what was asked for.
    """
    raters: dict[Dimension, Callable[[], tuple[int | None, str]]] = {
        "anti_hacking": lambda: _anti_hacking(evidence),
        "bottleneck_coverage": lambda: _bottleneck_coverage(evidence),
        "cuda_perf_quality": lambda: _performance(evidence),
        "multi_component_focus": lambda: _other_components(evidence),
        "bottleneck_effectiveness": lambda: _effectiveness(evidence),
        "instruction_alignment": lambda: _alignment(code, parent_code or {}, instruction),
        "optimization_scope_focus": lambda: _scope(code, parent_code),
    }
    rows: list[DimensionRating] = []
    for name in DIMENSIONS[evidence.skill]:
        value, told = raters[name]()
        rows.append(DimensionRating(name=name, score=value, measured=value, evidence=told))
    return SkillRating(skill=evidence.skill, dimensions=tuple(rows))


def _anti_hacking(evidence: RewardEvidence) -> tuple[int | None, str]:
    check, bench = evidence.check, evidence.bench
    if check is None or check.status in ("build_failed", "unmeasured"):
        return None, "it was not run"
    verdict = verdict_of(check, bench, evidence.policy.accept)
    if verdict.status == "rejected_cheat":
        return 1, f"rejected: {verdict.why_not}"
    if bench is not None and bench.is_doubtful:
        if bench.disturbed:
            return None, "its times are in doubt, on a busy machine"
        return 1, f"its times are in doubt: {bench.doubt or bench.doubts[0].rule}"
    if not verdict.accepted:
        # Wrong is not dishonest, as far as anybody can see.
        suspicious = [row.rule for row in check.findings if row.severity == "suspicious"]
        return (2, f"wrong, and found: {suspicious[0]}") if suspicious else (3, "wrong, and nothing is found")
    if not verdict.counts:
        return 2, f"it does not count: {verdict.why_not}"
    limited = [flag for flag in verdict.flags if flag in ("unguarded", "library_only", "specialized", "weak")]
    if limited:
        return 3, f"flags: {', '.join(limited)}"
    remarks = [row.rule for row in check.findings if row.severity == "suspicious"]
    if remarks or verdict.flags:
        return 4, f"remarks: {', '.join([*remarks, *verdict.flags])}"
    return 5, "nothing speaks against it"


def _bottleneck_coverage(evidence: RewardEvidence) -> tuple[int | None, str]:
    halves = _halves(evidence)
    if halves is None:
        return None, "who does the work was not traced"
    share = _own_part(halves[0])
    told = f"own code does {share:.0%} of the costliest half of the work"
    if share == 0:
        return 1, told
    return _graded(share, ((0.99, 5), (0.9, 4), (0.7, 3)), least=2), told


def _other_components(evidence: RewardEvidence) -> tuple[int | None, str]:
    halves = _halves(evidence)
    if halves is None:
        return None, "who does the work was not traced"
    if not halves[1]:
        return 5, "nothing is outside of the costliest part of the work"
    share = _own_part(halves[1])
    told = f"own code and its libraries do {share:.0%} of the rest of the work"
    return _graded(share, ((0.95, 5), (0.75, 4), (0.5, 3), (0.25, 2))), told


def _halves(evidence: RewardEvidence) -> tuple[Sequence[WorkItem], Sequence[WorkItem]] | None:
    """The items of the work that together make up its costliest half, and the others."""
    work = evidence.check.work if evidence.check is not None else None
    if work is None or not work.work > 0:
        return None
    items = sorted(_items(work), key=lambda row: -row.share)
    known = sum(row.share for row in items)
    if not known > 0:
        return None
    costliest: list[WorkItem] = []
    while items and sum(row.share for row in costliest) < _HALF * known:
        costliest.append(items.pop(0))
    return costliest, items


def _items(work: WorkEvidence) -> Sequence[WorkItem]:
    """What took time, without idling; of a trace without items one item an owner."""
    items = [row for row in work.items if row.owner != "other" and row.share > 0]
    if items:
        return items
    owners: tuple[tuple[WorkOwner, float], ...] = (
        ("own", work.own),
        ("library", work.library),
        ("pytorch", work.pytorch),
        ("copy", work.copies),
    )
    return [WorkItem(name=name, owner=name, calls=None, share=share) for name, share in owners if share > 0]


def _own_part(items: Sequence[WorkItem]) -> float:
    """The part of these items that the program's own code or a library that it calls does."""
    total = sum(row.share for row in items)
    return sum(row.share for row in items if row.owner in _LIBRARIES_COUNT) / total


def _performance(evidence: RewardEvidence) -> tuple[int | None, str]:
    speedup = interval_speedup(evidence.bench)
    bench = evidence.bench
    if bench is None or bench.is_doubtful:
        return None, "its speed was not measured beyond doubt"
    if speedup is None or bench.outcome == "inconclusive":
        return _by_cpu_time(bench, speedup)
    told = f"{speedup:.3g} times eager beyond noise"
    if speedup < 1:
        return (1 if speedup < 0.7 else 2), told
    if speedup == 1:
        return 3, told
    compiled = [row.high for row in bench.ratios if row.baseline.startswith("compile:")]
    beaten = speedup >= 1.5 and all(high >= 1 for high in compiled)
    spills = sum(
        row.spill_store_bytes + row.spill_load_bytes
        for row in (evidence.build.resources if evidence.build else ())
    )
    if beaten and not spills:
        return 5, told
    return 4, told + (f", and {spills} B of registers spilled" if spills else "")


def _by_cpu_time(bench: Bench, speedup: float | None) -> tuple[int | None, str]:
    """The quality where the clock does not decide: CPU time on one thread shows slow programs alone.

    No probe looks for kept results while it is measured, so a cache of results would pass for speed.
    """
    ratio = next((row for row in bench.cpu_ratios if row.baseline == "eager"), None)
    nearest = None if ratio is None else nearest_to_one(ratio.low, ratio.high)
    if nearest is not None and nearest < 1:
        return 2, f"by the clock inconclusive; eager takes {nearest:.3g} times its CPU time on one thread"
    if speedup is None:
        return None, "its speed was not measured"
    return 3, "as fast as eager, as far as the noise tells"


def _effectiveness(evidence: RewardEvidence) -> tuple[int | None, str]:
    gain = None if evidence.parent_speedup is None else nearest_to_one(*evidence.parent_speedup)
    if gain is None:
        return None, "it was not timed beside the program that it refines"
    told = f"{gain:.3g} times the refined program beyond noise"
    if gain < 1:
        return (1 if gain <= 0.9 else 2), told
    return (3 if gain == 1 else 4 if gain < 1.3 else 5), told


def _alignment(
    code: Mapping[str, str], parent_code: Mapping[str, str], instruction: str
) -> tuple[int | None, str]:
    asked = claimed_techniques(instruction)
    if not asked:
        return None, "the instruction names no technique that sources can show"
    used, before = used_techniques(code.values()), used_techniques(parent_code.values())
    there, new = asked & used, (asked & used) - before
    told = f"asked: {', '.join(sorted(asked))}; there: {', '.join(sorted(there)) or 'none'}"
    if there == asked:
        return (5 if new else 4), told
    if not new:
        return 1, told
    return (3 if len(there) * 2 >= len(asked) else 2), told


def _scope(code: Mapping[str, str], parent_code: Mapping[str, str] | None) -> tuple[int | None, str]:
    if not parent_code:
        return None, "there is no program that it refines"
    before = [line for path in sorted(parent_code) for line in parent_code[path].splitlines()]
    after = [line for path in sorted(code) for line in code[path].splitlines()]
    changed = 1 - difflib.SequenceMatcher(None, before, after, autojunk=False).ratio()
    told = f"{changed:.0%} of the lines are others"
    if before == after or changed >= 0.9:
        return 1, told
    return _graded(1 - changed, ((0.8, 5), (0.6, 4), (1 / 3, 3)), least=2), told


def _graded(value: float, grades: Iterable[tuple[float, int]], least: int = 1) -> int:
    return next((grade for bound, grade in grades if value >= bound), least)
