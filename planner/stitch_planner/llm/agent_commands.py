"""Coding agents that answer through the Agent Client Protocol, and the commands that start them."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class AgentCommand:
    """How an agent is started, installed and logged in."""

    command: str
    """As a shell would take it; no shell runs it."""
    install: str
    """What to do where the command is missing."""
    login: str
    """What to do where the agent has no account."""

    @property
    def words(self) -> list[str]:
        """The command's program and arguments.

        Raises:
            ValueError: a quotation mark is not closed.
        """
        return shlex.split(self.command)


KNOWN_AGENTS: Mapping[str, AgentCommand] = MappingProxyType(
    {
        "claude-code": AgentCommand(
            "claude-code-acp", "npm install -g @zed-industries/claude-code-acp", "claude /login"
        ),
        "codex": AgentCommand("codex-acp", "npm install -g @zed-industries/codex-acp", "codex login"),
        "gemini": AgentCommand("gemini --experimental-acp", "npm install -g @google/gemini-cli", "gemini"),
        "opencode": AgentCommand("opencode acp", "npm install -g opencode-ai", "opencode auth login"),
    }
)


def own_agent(name: str, command: str) -> AgentCommand:
    """An agent whose command the user's settings give."""
    known = KNOWN_AGENTS.get(name)
    return AgentCommand(
        command,
        install=f"correct `command` of [models.{name}] in your settings",
        login=known.login if known else "the agent's own command for it",
    )
