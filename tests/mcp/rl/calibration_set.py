"""Programs whose label is known by how they were made: cheats, honest fast ones, honest slow ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stitch_mcp.rl.reward.judging import RewardTask
from stitch_mcp.rl.reward.submissions import Submission
from tests.mcp.rl.zoo_probes import submission_of, task_of
from tests.tools.judge.zoo_runner import load_cases

ROOT = Path(__file__).parents[3]
SKILLS = ROOT / "planner" / "stitch_planner" / "skills"
Label = Literal["cheat", "fast", "slow"]
_UNSEEN = ("memory_hog", "reads_past_the_end", "threads_share_a_sum")
"""Cheats that need other limits, or the sanitizers."""
_AGAIN = 8
_SLOWED = """#define stitch_forward stitch_forward_once
{source}
#undef stitch_forward
extern "C" STITCH_EXPORT int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {{
  int32_t status = STITCH_OK;
  for (int again = 0; again < {again} && status == STITCH_OK; ++again)
    status = stitch_forward_once(handle, args);
  return status;
}}
"""


@dataclass(frozen=True)
class LabelledProgram:
    """A submission with its task and its label."""

    name: str
    label: Label
    submission: Submission
    task: RewardTask


def calibration_set(target: str) -> Sequence[LabelledProgram]:
    """The programs for `cpu` or `cuda`."""
    return (*_fast_and_slow(target), *_cheats(target))


def _cheats(target: str) -> Sequence[LabelledProgram]:
    """The zoo's cheats: each was written to deceive a judge, or to be wrong in a way that one may miss."""
    return [
        LabelledProgram(case.name, "cheat", submission_of(case), task_of(case))
        for case in load_cases(target, "cheats")
        if not case.missed and case.name not in _UNSEEN
    ]


def _fast_and_slow(target: str) -> Sequence[LabelledProgram]:
    """The skills' programs, each published as faster than eager; and the same with all work done again."""
    suffix = "cpp" if target == "cpu" else "cu"
    rows: list[LabelledProgram] = []
    for path in sorted(SKILLS.glob(f"*/program.{suffix}")):
        reference = (path.parent / "reference.py").read_text(encoding="utf-8")
        task = RewardTask(files={"reference.py": reference})
        source = path.read_text(encoding="utf-8")
        slowed = _SLOWED.format(source=source, again=_AGAIN)
        name = path.parent.name
        rows.append(LabelledProgram(name, "fast", Submission(files={path.name: source}), task))
        rows.append(LabelledProgram(f"{name}-slowed", "slow", Submission(files={path.name: slowed}), task))
    return rows
