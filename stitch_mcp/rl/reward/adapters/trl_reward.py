"""TRL: a reward function for `GRPOTrainer(reward_funcs=[make_reward()])`.

A dataset row has a column `task` (an object or its JSON text, as `RewardTask`), and for refinements the
columns `parent`, `parent_main` and `instruction`. What nothing could judge gets None, which TRL leaves out.
"""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stitch_mcp.rl.reward.adapters.client import VerifyClient, last_text, reward_of

_REFINES = ("parent", "parent_main", "instruction")
RewardFunction = Callable[..., list[float | None]]


def make_reward(
    client: VerifyClient | None = None, *, preset: str = "stitchcuda", side_by_side: int = 4
) -> RewardFunction:
    """The reward function over a service.

    Args:
        client: the service; None: the one that STITCH_RL_URL names.
        preset: how evidence becomes a number.
        side_by_side: requests that are sent at once; no more than the service has slots.
    """
    service = client or VerifyClient()

    def stitch_reward(
        prompts: Sequence[Any], completions: Sequence[Any], task: Sequence[Any], **columns: Any
    ) -> list[float | None]:
        """One reward a completion, in their order."""
        del prompts

        def one(index: int) -> float | None:
            refined = {name: _loaded(columns[name][index]) for name in _REFINES if columns.get(name)}
            refined = {name: value for name, value in refined.items() if value}
            submission = {
                "skill": "refine" if "parent" in refined else "generate",
                "text": last_text(completions[index]),
                **refined,
            }
            return reward_of(service.verify(submission, _loaded(task[index]), preset))

        with ThreadPoolExecutor(side_by_side) as pool:
            return list(pool.map(one, range(len(completions))))

    return stitch_reward


def _loaded(value: Any) -> Any:
    """An object that a dataset keeps as JSON text: its columns have one type for all rows."""
    if isinstance(value, str) and value.startswith("{"):
        return json.loads(value)
    return value
