"""Evidence of made-up programs."""

from stitch_mcp.rl.reward.facts import RewardEvidence, Skill
from stitch_tools.models.conditions import TimingDoubt
from stitch_tools.models.evidence import WorkEvidence
from stitch_tools.models.verdict import Bench, BenchOutcome, Check, CheckFlag, CheckStatus, Finding, Ratio


def make_check(
    status: CheckStatus = "accepted",
    *,
    own: float | None = 1.0,
    flags: tuple[CheckFlag, ...] = (),
    findings: tuple[Finding, ...] = (),
) -> Check:
    """A check; `own` is the own kernels' share of the work, and PyTorch does the rest."""
    work = None
    if own is not None:
        work = WorkEvidence(
            method="kernels",
            own=own,
            library=0.0,
            pytorch=1 - own,
            copies=0.0,
            other=0.0,
            observations=10,
            outputs_right=True,
        )
    return Check(program_id="p", task_id="t", status=status, flags=flags, findings=findings, work=work)


def make_ratio(low: float, high: float, baseline: str = "eager") -> Ratio:
    outcome: BenchOutcome = "faster" if low > 1 else "slower" if high < 1 else "inconclusive"
    return Ratio(baseline=baseline, speedup=(low + high) / 2, low=low, high=high, outcome=outcome)


def make_bench(*ratios: Ratio, doubts: tuple[TimingDoubt, ...] = (), program_failed: bool = False) -> Bench:
    outcome = ratios[0].outcome if ratios else "unmeasured"
    return Bench(
        program_id="p",
        task_id="t",
        outcome=outcome,
        ratios=ratios,
        doubts=doubts,
        program_failed=program_failed,
    )


def make_evidence(low: float, high: float, *, skill: Skill = "generate", own: float = 1.0) -> RewardEvidence:
    """A correct program with this interval of its speedup over eager."""
    return RewardEvidence(skill=skill, check=make_check(own=own), bench=make_bench(make_ratio(low, high)))
