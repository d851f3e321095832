"""Which coders an MCP client may choose (docs/decisions/0038).

A client's model can be led astray by what it reads. It may ask itself (`manual`), and have recorded answers
replayed; what spends the user's money or starts the user's programs needs the user's own settings.
"""

from dataclasses import dataclass
from pathlib import Path

from stitch_mcp.config import Config
from stitch_planner.llm.model_settings import ROUNDS, ModelLimits, ModelSettings, require_model
from stitch_tools.errors import UsageError
from stitch_tools.models.program import STITCHER

_HOW_TO_ALLOW = (
    "the user can allow it: mcp-model-coders = true in their own config.toml, or STITCH_MCP_MODEL_CODERS=1; "
    "`coder`: manual asks you instead"
)


class CoderNotAllowedError(UsageError):
    """The user's settings do not let an MCP client choose this coder."""

    code = "coder_not_allowed"


@dataclass(frozen=True)
class CoderRequest:
    """The coder that a client asks for, or that a run began with."""

    coder: str = ""
    model: str = ""
    rounds: int | None = None
    max_model_tokens: int | None = None
    max_model_usd: float | None = None


@dataclass(frozen=True)
class AllowedCoder:
    """A coder with limits that are not beyond the user's own."""

    coder: str
    model: str
    rounds: int | None
    limits: ModelLimits


def allowed_coder(config: Config, asked: CoderRequest) -> AllowedCoder:
    """What of a client's wish the settings allow.

    Raises:
        CoderNotAllowedError: the coder costs something, and the user's settings do not allow that.
        UsageError: there is no such coder or model, or its answers lie outside of the workspace.
    """
    coder = asked.coder or STITCHER
    kind, _, rest = coder.partition(":")
    is_paid = kind in ("llm", "acp", "plugin")
    if is_paid and not config.mcp_model_coders:
        raise CoderNotAllowedError(
            f"an MCP client may not choose the coder {coder} here: it spends the user's money or quota",
            hint=_HOW_TO_ALLOW,
        )
    model = asked.model or (config.model or "" if kind == "llm" else "")
    require_model(coder, model, config.models)
    if kind == "llm":
        _require_own_model(config, model)
    if kind == "replay":
        _require_inside(config.workspace, rest)
    rounds = asked.rounds
    if is_paid:
        most = config.rounds or ROUNDS
        rounds = min(rounds or most, most)
    tokens = [row for row in (asked.max_model_tokens, config.max_model_tokens) if row is not None]
    usd = [row for row in (asked.max_model_usd, config.max_model_usd) if row is not None]
    limits = ModelLimits(min(tokens, default=None), min(usd, default=None))
    return AllowedCoder(coder, model, None if coder == STITCHER else rounds or ROUNDS, limits)


def _require_own_model(config: Config, model: str) -> None:
    settings: ModelSettings | None = config.models.get(model)
    if settings is None:
        raise CoderNotAllowedError(
            f"{model!r} is no model of the user's settings",
            hint=f"it is one of {', '.join(config.models) or 'none so far'}; the user describes models by "
            "[models.NAME] in their own config.toml",
        )
    if settings.key_command is None and (settings.key_env or not settings.base_url):
        # A job's process gets no secret variables, as a compiler or a program could print them.
        raise UsageError(
            f"the key of {model} is in a variable, which jobs of the server do not get",
            hint=f"the user can give [models.{model}] a key_command, or solve with the command line",
        )


def _require_inside(workspace: Path, folder: str) -> None:
    root = workspace.resolve()
    if not (root / folder).resolve().is_relative_to(root):
        raise UsageError(f"{folder[:200]} lies outside the workspace", hint="copy the answers into it")
