"""`reward_program`: judges a program and answers with the reward of reinforcement learning."""

from typing import ClassVar

from stitch_mcp.rl.reward.facts import PresetName, Reward
from stitch_mcp.server.job_context import JobContext
from stitch_mcp.server.requests import JudgesProgram
from stitch_mcp.server.tool import Tool, ToolAnswer
from stitch_tools.models.program import Program


class RewardProgram(JudgesProgram):
    """Arguments of reward_program."""

    preset: PresetName = "stitchcuda"
    """How evidence becomes a number."""
    against: str = ""
    """program_id of the program that it refines, timed beside it."""
    instruction: str = ""
    """With `against`: what was to be changed."""


class RewardAnswer(ToolAnswer):
    """The reward with what it rests on."""

    QUOTED: ClassVar[tuple[str, ...]] = ("message", "reasons")

    program_id: str | None = None
    reward: float | None = None
    valid: bool | None = None
    """False: nothing was judged, through no doing of the program."""
    correct: bool | None = None
    hacking: bool | None = None
    floor: float | None = None
    ceiling: float | None = None
    parts: tuple[str, ...] = ()
    rubric: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    """Why it earned nothing."""
    certificate_id: str | None = None


def reward(request: RewardProgram, work: JobContext) -> RewardAnswer:
    """Build, check and time a program, and compute its reward."""
    from stitch_mcp.rl.reward.facts import RewardPolicy
    from stitch_mcp.rl.reward.judging import JudgeOptions, judge_trial
    from stitch_mcp.rl.reward.presets import find_preset
    from stitch_mcp.rl.reward.scoring import score
    from stitch_mcp.server.steps import known_facts

    workbench = work.workbench
    store = workbench.workspace.store
    parent = store.get_fact(request.against, Program) if request.against else None
    options = JudgeOptions(policy=RewardPolicy(accept=workbench.policy))
    with workbench.trial(work.task, work.program, known=known_facts(work)) as trial:
        judged = judge_trial(
            workbench,
            trial,
            options,
            skill="refine" if parent else "generate",
            parent=parent,
            instruction=request.instruction,
        )
    result = score(judged.evidence, find_preset(request.preset))
    rating = judged.evidence.rating
    return RewardAnswer(
        message=_message(result),
        artifact=store.put_fact(judged.evidence),
        program_id=work.program.program_id[:16],
        reward=result.total,
        valid=result.valid,
        correct=result.correct,
        hacking=result.hacking,
        floor=result.floor,
        ceiling=result.ceiling,
        parts=tuple(f"{row.name} {row.value:.4g}: {row.evidence}" for row in result.parts),
        rubric=tuple(f"{row.name} {row.score or '-'}: {row.evidence}"[:200] for row in rating.dimensions)
        if rating
        else (),
        reasons=tuple(reason[:300] for reason in result.reasons),
        certificate_id=judged.certificate_id,
    )


def _message(result: Reward) -> str:
    if result.correct:
        return f"reward {result.total:.4g} of at most {result.ceiling:g}"
    return f"reward {result.total:g}, the floor: {'; '.join(result.reasons)}"[:400]


TOOL = Tool(
    name="reward_program",
    title="Reward a program",
    description=(
        "Builds, checks and times a program and answers with the reward of reinforcement learning, its parts "
        "and a rubric, all computed from evidence. Wrong programs and cheats get the floor. 5 to 60 s."
    ),
    request=RewardProgram,
    answer=RewardAnswer,
    work=reward,
    runs_code=True,
    warm=True,
    timed=True,
    toolset="rl",
)
