"""What `/verify`, the MCP tool and the command line answer: a submission judged and rewarded."""

from pydantic import Field

from stitch_mcp.rl.reward.facts import PresetName, Reward, RewardEvidence, Skill, SkillRating
from stitch_mcp.rl.reward.judging import JudgedSubmission, RewardTask
from stitch_mcp.rl.reward.presets import find_preset
from stitch_mcp.rl.reward.scoring import score
from stitch_mcp.rl.reward.submissions import Submission
from stitch_tools.models.base import Fact
from stitch_tools.models.verdict import CheckFlag, CheckStatus


class VerifyRequest(Fact):
    """A submission, what it is judged against, and how the evidence becomes a number."""

    submission: Submission
    task: RewardTask
    preset: PresetName = "stitchcuda"


class VerifyAnswer(Fact):
    """The reward of a submission with what it rests on."""

    reward: Reward
    rating: SkillRating | None = None
    status: CheckStatus | None = None
    """None where no program could be read."""
    flags: tuple[CheckFlag, ...] = ()
    findings: tuple[str, ...] = ()
    """Rules of what was found, fatal or suspicious."""
    task_id: str = ""
    program_id: str | None = None
    certificate_id: str | None = None
    """None where it earned nothing."""
    wall_s: float = Field(default=0.0, ge=0)


def hung_evidence(skill: Skill) -> RewardEvidence:
    """What is known of a submission that kept the judge itself from an answer, twice: it stands as unusable.

    Left out of a batch it would let a policy hide behind a hang.
    """
    return RewardEvidence(skill=skill, unusable="it kept the judge from an answer")


def verify_hung(request: VerifyRequest) -> VerifyAnswer:
    """The reward of such a submission."""
    evidence = hung_evidence(request.submission.skill)
    return VerifyAnswer(reward=score(evidence, find_preset(request.preset)), status="timed_out")


def verify_judged(judged: JudgedSubmission, preset: str) -> VerifyAnswer:
    """The reward of what was judged already.

    Raises:
        UsageError: there is no such preset.
    """
    evidence = judged.evidence
    check = evidence.check
    rules = [row.rule for row in check.findings if row.severity != "note"] if check else []
    if evidence.bench is not None:
        rules += [row.rule for row in evidence.bench.doubts]
    return VerifyAnswer(
        reward=score(evidence, find_preset(preset)),
        rating=evidence.rating,
        status=check.status if check else None,
        flags=check.flags if check else (),
        findings=tuple(dict.fromkeys(rules)),
        task_id=judged.task_id,
        program_id=judged.program_id,
        certificate_id=judged.certificate_id,
        wall_s=judged.wall_s,
    )
