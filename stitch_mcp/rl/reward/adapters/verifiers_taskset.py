"""verifiers (`verifiers.v1`): a taskset of JSON lines, scored by the reward service.

Each line has `prompt` and `task` (as `RewardTask`), for a refinement also `parent`, `parent_main` and
`instruction`, and may have `name`.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from pydantic import Field

from stitch_mcp.rl.reward.adapters.client import VerifyClient, VerifyRefusedError, reward_of

__all__ = ["StitchTaskset"]


class StitchTaskData(vf.TaskData):
    """A row of the file."""

    judged_task: dict[str, Any]
    """What the service judges against."""
    parent: dict[str, str] = Field(default_factory=dict)
    parent_main: str = ""
    instruction: str = ""
    preset: str = "stitchcuda"


class StitchTask(vf.Task[StitchTaskData]):
    """One reference to be made faster."""

    @vf.reward
    async def stitch_reward(self, trace: vf.Trace) -> float:
        """The service's reward. What nothing could judge is an error of the task, no score."""
        data = self.data
        submission = {
            "skill": "refine" if data.parent else "generate",
            "text": trace.last_reply,
            "parent": data.parent,
            "parent_main": data.parent_main,
            "instruction": data.instruction,
        }
        client = VerifyClient()
        answer = await asyncio.to_thread(client.verify, submission, data.judged_task, data.preset)
        reward = reward_of(answer)
        if reward is None:
            raise VerifyRefusedError(f"nothing was judged: {answer['reward']['reasons']}")
        return reward


class StitchTasksetConfig(vf.TasksetConfig):
    """Which rows are loaded."""

    path: Path = Path("tasks.jsonl")
    preset: str = "stitchcuda"


class StitchTaskset(vf.Taskset[StitchTask, StitchTasksetConfig]):
    """The rows of a file as tasks."""

    def load(self) -> Iterator[StitchTask]:
        """One task a line."""
        for number, line in enumerate(self.config.path.read_text(encoding="utf-8").splitlines()):
            row = json.loads(line)
            row.setdefault("name", f"{self.config.path.stem}-{number}")
            yield StitchTask(
                StitchTaskData(judged_task=row.pop("task"), preset=self.config.preset, **row),
                self.config.task,
            )
