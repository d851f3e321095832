"""How a model is reached and what it costs, as the user's settings say it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stitch_planner.llm.agent_commands import KNOWN_AGENTS
from stitch_tools.errors import UsageError
from stitch_tools.models.program import STITCHER

Api = Literal["chat", "responses"]
"""What an endpoint of OpenAI's kind speaks: Chat Completions or Responses."""
ROUNDS = 4
"""How many programs a model may write where nobody says."""
_MILLION = 1_000_000


@dataclass(frozen=True)
class ModelSettings:
    """A `[models.NAME]` table of the user's settings."""

    model: str = ""
    """Its name at the endpoint; "" for an agent, which has a model of its own."""
    base_url: str | None = None
    """None: OpenAI's own endpoint, or what OPENAI_BASE_URL says."""
    api: Api | None = None
    """What the endpoint speaks; None: Responses at OpenAI's own, Chat Completions at others."""
    key_env: str | None = None
    """Variable that holds the key; None: OPENAI_API_KEY for OpenAI's own endpoint, no key for others."""
    key_command: str | None = None
    """Command that prints the key, instead of a variable."""
    command: str | None = None
    """Command of an agent that speaks the Agent Client Protocol, instead of an endpoint: `acp:NAME`."""
    effort: str | None = None
    """Reasoning effort in the provider's words; None: its default."""
    max_output_tokens: int = 32_000
    """Tokens of reasoning and answer together."""
    usd_per_million_input: float | None = None
    usd_per_million_cached: float | None = None
    """None: as input that is not cached."""
    usd_per_million_output: float | None = None

    def cost_usd(self, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> float | None:
        """The price of a call; None where the table does not say it."""
        if self.usd_per_million_input is None or self.usd_per_million_output is None:
            return None
        cached = self.usd_per_million_cached
        cached = self.usd_per_million_input if cached is None else cached
        fresh = max(0, input_tokens - cached_tokens)
        paid = fresh * self.usd_per_million_input + cached_tokens * cached
        return (paid + output_tokens * self.usd_per_million_output) / _MILLION


@dataclass(frozen=True)
class ModelLimits:
    """What a run may spend on its model; None: no limit."""

    tokens: int | None = None
    usd: float | None = None


def settings_of(coder: str, model: str, models: Mapping[str, ModelSettings]) -> ModelSettings | None:
    """The table of a coder's model or agent; of a model without one, its name alone. Else None."""
    kind, _, rest = coder.partition(":")
    if kind == "llm":
        return models.get(model) or ModelSettings(model=model)
    return models.get(rest) if kind in ("acp", "plugin") else None


def require_model(coder: str, model: str | None, models: Mapping[str, ModelSettings]) -> None:
    """Refuse a coder that there is not, or whose model is not named.

    Raises:
        UsageError: as said.
    """
    kind, _, rest = coder.partition(":")
    if coder in (STITCHER, "manual") or (kind in ("replay", "plugin") and rest):
        return
    if kind == "acp" and rest:
        _require_agent(rest, models)
        return
    if coder != "llm":
        raise UsageError(
            f"there is no coder {coder!r}",
            hint="it is stitcher, llm, acp:AGENT, plugin:NAME, manual, or replay:FOLDER of answers",
        )
    if not model:
        raise UsageError(
            "the coder llm needs a model",
            hint="name one with {model}: a [models.NAME] table of your settings, or the endpoint's own name",
            options=("model",),
        )
    if model in models and not models[model].model:
        raise UsageError(
            f"[models.{model}] is an agent, not a model at an endpoint", hint=f"ask for the coder acp:{model}"
        )


def _require_agent(name: str, models: Mapping[str, ModelSettings]) -> None:
    has_command = name in models and models[name].command
    if not has_command and name not in KNOWN_AGENTS:
        raise UsageError(
            f"there is no agent {name!r}",
            hint=f"it is {', '.join(KNOWN_AGENTS)}, or a [models.NAME] table of your settings with `command`",
        )
