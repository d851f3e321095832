"""Which model a coder's name means."""

import os
import shlex
import subprocess
from pathlib import Path

from stitch_planner.llm.acp_agent import AcpAgent
from stitch_planner.llm.agent_commands import KNOWN_AGENTS, AgentCommand, own_agent
from stitch_planner.llm.chat import ChatModel, ModelError
from stitch_planner.llm.file_models import ManualModel, ReplayModel
from stitch_planner.llm.model_settings import ModelSettings
from stitch_planner.llm.openai_model import OpenAIModel

_KEY_ENV = "OPENAI_API_KEY"
_KEY_COMMAND_S = 30.0


def open_model(coder: str, settings: ModelSettings | None, workspace: Path) -> ChatModel:
    """The model of a coder: `llm`, `acp:AGENT`, `manual` or `replay:FOLDER`.

    Raises:
        ModelError: `llm` without a model, an agent that is not installed, or a folder without answers.
    """
    kind, _, rest = coder.partition(":")
    if kind == "manual":
        return ManualModel()
    if kind == "replay":
        return ReplayModel(workspace / rest)
    if kind == "acp":
        return AcpAgent(rest, _agent_command(rest, settings))
    if settings is None:
        raise ModelError("no model is named", hint="name one with --model")
    url = settings.base_url or os.environ.get("OPENAI_BASE_URL")
    return OpenAIModel(
        settings.model,
        base_url=url,
        key=lambda: _key(settings, own_endpoint=not url),
        api=settings.api or ("chat" if url else "responses"),
    )


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
