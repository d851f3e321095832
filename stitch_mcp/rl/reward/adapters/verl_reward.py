"""verl: `reward.custom_reward_function.path=.../verl_reward.py`, `name=compute_score`.

`ground_truth` of a row is its task (an object or JSON text, as `RewardTask`); `extra_info` may hold `preset`,
and `parent`, `parent_main` and `instruction` of a refinement. STITCH_RL_URL and STITCH_RL_TOKEN name the
service.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from stitch_mcp.rl.reward.adapters.client import VerifyClient

_REFINES = ("parent", "parent_main", "instruction")


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **_: Any,
) -> dict[str, float | bool]:
    """The reward of a completion, as `score`, with figures that verl logs beside it.

    verl has no way to leave a sample out: one that nothing could judge scores the floor, with `valid` false.
    """
    del data_source
    extra = extra_info or {}
    refined = {name: _loaded(extra[name]) for name in _REFINES if extra.get(name)}
    skill = "refine" if "parent" in refined else "generate"
    submission = {"skill": skill, "text": solution_str, **refined}
    answer = _client().verify(submission, _loaded(ground_truth), str(extra.get("preset", "stitchcuda")))
    reward = answer["reward"]
    return {
        "score": float(reward["total"]),
        "correct": bool(reward["correct"]),
        "valid": bool(reward["valid"]),
        "hacking": bool(reward["hacking"]),
        "speedup": float(reward["speedup"] or 0.0),
    }


@cache
def _client() -> VerifyClient:
    return VerifyClient()


def _loaded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) and value.startswith("{") else value
