"""The presets of the reward, with their range and what known kinds of programs get under each."""

from collections.abc import Sequence

from stitch_mcp.rl.reward.facts import (
    DIMENSIONS,
    DimensionRating,
    RewardEvidence,
    RewardPoints,
    RewardPreset,
    Skill,
    SkillRating,
)
from stitch_mcp.rl.reward.scoring import score
from stitch_tools.errors import UsageError
from stitch_tools.models.evidence import WorkEvidence
from stitch_tools.models.verdict import Bench, Check, Ratio

PRESETS = (
    # StitchCUDA, arXiv 2603.02637: rule times rubric, clipped.
    RewardPreset(name="stitchcuda", floor=0.0, ceiling=3.0, speedup_cap=5.0),
    # CUDA Agent: steps in place of a scale.
    RewardPreset(name="milestone", floor=-1.0, ceiling=3.0, speedup_cap=10.0),
    # Kevin, arXiv 2507.11948: 0.3 for correct plus the speedup, which has no cap there. Ten times eager is
    # where KernelBench begins to suspect a program.
    RewardPreset(name="kevin", floor=0.0, ceiling=10.3, speedup_cap=10.0),
    # The same, times the part of the work that the program's own kernels do.
    RewardPreset(name="coverage", floor=0.0, ceiling=10.3, speedup_cap=10.0),
)


def find_preset(name: str) -> RewardPreset:
    """The preset of that name.

    Raises:
        UsageError: there is none.
    """
    for preset in PRESETS:
        if preset.name == name:
            return preset
    known = ", ".join(preset.name for preset in PRESETS)
    raise UsageError(f"there is no reward preset {name[:60]!r}", hint=f"name one of: {known}")


def reward_points(preset: RewardPreset, skill: Skill = "generate") -> RewardPoints:
    """What a wrong program, one at eager's speed and the best imaginable one get, by the reward itself."""
    return RewardPoints(
        preset=preset.name,
        skill=skill,
        floor=score(_evidence(skill, "incorrect", 1.0, None), preset).total,
        par=score(_evidence(skill, "accepted", 1.0, None), preset).total,
        oracle=score(_evidence(skill, "accepted", preset.speedup_cap, 5), preset).total,
        ceiling=preset.ceiling,
    )


def all_points() -> Sequence[RewardPoints]:
    """The points of every preset for both skills."""
    skills: tuple[Skill, ...] = ("generate", "refine")
    return [reward_points(preset, skill) for preset in PRESETS for skill in skills]


def _evidence(skill: Skill, status: str, speedup: float, rated: int | None) -> RewardEvidence:
    work = WorkEvidence(
        method="kernels",
        own=1.0,
        library=0.0,
        pytorch=0.0,
        copies=0.0,
        other=0.0,
        observations=1,
        outputs_right=True,
    )
    check = Check.model_validate({"program_id": "", "task_id": "", "status": status, "work": work})
    outcome = "faster" if speedup > 1 else "inconclusive"
    ratios = tuple(
        Ratio(baseline=name, speedup=speedup, low=speedup, high=speedup, outcome=outcome)
        for name in ("eager", "compile:default")
    )
    rows = tuple(DimensionRating(name=name, score=rated, evidence="") for name in DIMENSIONS[skill])
    return RewardEvidence(
        skill=skill,
        check=check,
        bench=Bench(program_id="", task_id="", outcome=outcome, ratios=ratios),
        rating=SkillRating(skill=skill, dimensions=rows),
    )
