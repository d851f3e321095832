"""Which model a coder's name means."""

import os
import shlex
import subprocess
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from stitch_planner.llm.acp_agent import AcpAgent
from stitch_planner.llm.agent_commands import KNOWN_AGENTS, AgentCommand, own_agent
from stitch_planner.llm.chat import ChatModel, ModelError
from stitch_planner.llm.file_models import ManualModel, ReplayModel
from stitch_planner.llm.model_settings import ModelLimits, ModelSettings
from stitch_planner.llm.openai_model import OpenAIModel
from stitch_tools.errors import StitchError, UsageError

PLUGINS = "stitch_mcp.chat_models"
"""Group of entry points by which other packages offer models: callables that take the `[models.NAME]` table
of the same name, or None, and return a ChatModel."""
_KEY_ENV = "OPENAI_API_KEY"
_KEY_COMMAND_S = 30.0


def open_model(coder: str, settings: ModelSettings | None, workspace: Path) -> ChatModel:
    """The model of a coder: `llm`, `acp:AGENT`, `plugin:NAME`, `manual` or `replay:FOLDER`.

    Raises:
        ModelError: `llm` without a model, an agent or a plugin that is not installed, or a folder without
            answers.
    """
    kind, _, rest = coder.partition(":")
    if kind == "manual":
        return ManualModel()
    if kind == "replay":
        return ReplayModel(workspace / rest)
    if kind == "plugin":
        return _from_package(rest, settings)
    if kind == "acp":
        return AcpAgent(rest, _agent_command(rest, settings))
    if settings is None:
        raise ModelError("no model is named", hint="name one with --model")
    url = _base_url(settings)
    return OpenAIModel(
        settings.model,
        base_url=url,
        key=lambda: _key(settings, own_endpoint=not url),
        api=settings.api or ("chat" if url else "responses"),
    )


def _from_package(name: str, settings: ModelSettings | None) -> ChatModel:
    """What an installed package offers under that name."""
    offered = {entry.name: entry for entry in entry_points(group=PLUGINS)}
    if name not in offered:
        raise ModelError(
            f"no installed package offers a model {name!r}",
            hint=f"installed are: {', '.join(sorted(offered)) or 'none'}; a package names them in its entry "
            f"points of the group {PLUGINS}",
        )
    try:
        make: Callable[[ModelSettings | None], ChatModel] = offered[name].load()
        return make(settings)
    except StitchError:
        raise
    except Exception as error:  # code of somebody else
        raise ModelError(
            f"the model {name!r} of {offered[name].value} cannot be made: {type(error).__name__}: {error}",
            hint="ask that package's authors, or name another coder",
        ) from error


def require_ready(coder: str, settings: ModelSettings | None, limits: ModelLimits, workspace: Path) -> None:
    """Refuse a coder that could not ask its first question, before a run does anything else.

    A key is looked for, and not tried; a command that prints one is not called.

    Raises:
        ModelError: the key, the agent or the recorded answers are not there.
        UsageError: a limit in dollars is set, and the model's prices are not known.
    """
    model = open_model(coder, settings, workspace)
    if coder == "llm" and settings is not None and not settings.key_command:
        _key(settings, own_endpoint=not _base_url(settings))
    if limits.usd is not None and model.may_bill and (settings or ModelSettings()).cost_usd(0, 0) is None:
        raise UsageError(
            f"a limit of {limits.usd:g} USD is set, and the price of {model.name} is not known",
            hint="set usd_per_million_input and usd_per_million_output in the model's [models.NAME] table, "
            "or limit the tokens with {max_model_tokens}",
            options=("max_model_tokens",),
        )


def _base_url(settings: ModelSettings) -> str | None:
    return settings.base_url or os.environ.get("OPENAI_BASE_URL")


def _agent_command(name: str, settings: ModelSettings | None) -> AgentCommand:
    if settings is not None and settings.command:
        return own_agent(name, settings.command)
    if name not in KNOWN_AGENTS:
        # A run that is resumed after its table went.
        raise ModelError(
            f"there is no agent {name!r}", hint=f"give [models.{name}] of your settings a `command`"
        )
    return KNOWN_AGENTS[name]


def _key(settings: ModelSettings, *, own_endpoint: bool) -> str:
    """The secret, "" where none is needed.

    Raises:
        ModelError: it is needed and not there.
    """
    if settings.key_command:
        return _printed(settings.key_command)
    name = settings.key_env or (_KEY_ENV if own_endpoint else "")
    key = os.environ.get(name, "") if name else ""
    if name and not key:
        hint = f"export {name}, or name another variable with key_env"
        raise ModelError(f"{settings.model} needs a key, and {name} is not set", hint=hint)
    return key


def _printed(command: str) -> str:
    hint = "run it by hand: it has to print the key alone"
    try:
        done = subprocess.run(  # a command of the user's own settings
            shlex.split(command), capture_output=True, text=True, timeout=_KEY_COMMAND_S, check=True
        )
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        # Its output may be half of a secret: only what kind of failure it was is shown.
        raise ModelError(f"key_command failed: {type(error).__name__}", hint=hint) from None
    if not done.stdout.strip():
        raise ModelError("key_command printed nothing", hint=hint)
    return done.stdout.strip()
