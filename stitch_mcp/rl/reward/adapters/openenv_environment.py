"""OpenEnv: an environment of one step. The action is a completion, the observation has the service's reward.

Serve it with `uvicorn stitch_mcp.rl.reward.adapters.openenv_environment:app`; STITCH_RL_URL and
STITCH_RL_TOKEN name the reward service. `reset` takes the row: `prompt`, `task`, and `parent`, ... of a
refinement.
"""

from typing import Any

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

from stitch_mcp.rl.reward.adapters.client import VerifyClient, reward_of


class CompletionAction(Action):
    """What the policy answered."""

    text: str


class RewardObservation(Observation):
    """The prompt, and after the step what the reward rests on."""

    prompt: str = ""
    answer: dict[str, Any] = Field(default_factory=dict)


class StitchEnvironment(Environment[CompletionAction, RewardObservation, State]):
    """One reference to be made faster, in one step."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        """Names the service by the environment's variables."""
        super().__init__()
        self._client = VerifyClient()
        self._row: dict[str, Any] = {}
        self._state = State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> RewardObservation:
        """Take up a row."""
        del seed
        self._row = kwargs
        self._state = State(episode_id=episode_id, step_count=0)
        return RewardObservation(prompt=kwargs.get("prompt", ""))

    def step(
        self, action: CompletionAction, timeout_s: float | None = None, **kwargs: Any
    ) -> RewardObservation:
        """Judge the completion; its reward is None where nothing could judge it."""
        del timeout_s, kwargs
        row = self._row
        refined = {name: row[name] for name in ("parent", "parent_main", "instruction") if row.get(name)}
        submission = {
            "skill": "refine" if "parent" in refined else "generate",
            "text": action.text,
            **refined,
        }
        answer = self._client.verify(submission, row["task"], row.get("preset", "stitchcuda"))
        self._state.step_count += 1
        return RewardObservation(done=True, reward=reward_of(answer), answer=answer)

    @property
    def state(self) -> State:
        """Episode and steps."""
        return self._state


app = create_fastapi_app(StitchEnvironment, CompletionAction, RewardObservation)
