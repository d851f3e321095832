"""Configurations with which MCP clients start this server: where each file lies, and what belongs into it."""

import json
import os
import shlex
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from stitch_tools.errors import UsageError
from stitch_tools.storage.small_file import read_small
from stitch_tools.storage.store import write_atomically

NAME = "stitch"
"""What the server is called in a client's configuration."""
CALL_LIMIT_S = 120
"""Longest tool call; ours answer within about 45 s."""


@dataclass(frozen=True)
class Client:
    """One MCP client."""

    name: str
    title: str
    file: str
    """Its configuration, relative to the workspace, or to the user's home or configuration folder."""
    base: Literal["workspace", "home", "config"]
    table: str
    """Key of the file that holds the servers."""
    typed: bool = False
    """Whether an entry says `type: stdio`."""


CLIENTS = (
    Client("claude-desktop", "Claude Desktop", "Claude/claude_desktop_config.json", "config", "mcpServers"),
    Client("claude-code", "Claude Code", ".mcp.json", "workspace", "mcpServers", typed=True),
    Client("cursor", "Cursor", ".cursor/mcp.json", "workspace", "mcpServers"),
    Client("vscode", "VS Code", ".vscode/mcp.json", "workspace", "servers", typed=True),
    Client("codex", "Codex", ".codex/config.toml", "home", "mcp_servers"),
    Client("gemini", "Gemini CLI", ".gemini/settings.json", "workspace", "mcpServers"),
)


@dataclass(frozen=True)
class Launch:
    """The command that starts the server."""

    command: str
    args: tuple[str, ...]
    env: Mapping[str, str]


def find_client(name: str) -> Client:
    """The client of that name.

    Raises:
        UsageError: there is none.
    """
    match = next((client for client in CLIENTS if client.name == name), None)
    if match is None:
        names = ", ".join(client.name for client in CLIENTS)
        raise UsageError(f"{name!r} is no client that is known here", hint=f"one of {names}")
    return match


def launch(workspace: Path, *, uvx: bool = False) -> Launch:
    """How a client starts the server for this workspace; the variables that it needs go along."""
    kept = {name: os.environ[name] for name in ("CUDA_HOME", "STITCH_PYTHON") if os.environ.get(name)}
    serve = ("serve", "--workspace", str(workspace))
    if uvx:
        return Launch("uvx", ("stitch-mcp", *serve), kept)
    # -P: clients start servers in the user's folder, whose files must not stand in for modules.
    return Launch(sys.executable, ("-P", "-m", "stitch_mcp", *serve), kept)


def launch_over_ssh(place: str) -> Launch:
    """How a client starts the server on another host, whose `stitch-mcp` is on the PATH there.

    Args:
        place: HOST:FOLDER, the folder being the workspace there.

    Raises:
        UsageError: it is not of that form.
    """
    host, _, folder = place.partition(":")
    if not host or host.startswith("-") or not folder:
        raise UsageError(f"{place!r} is not HOST:FOLDER", hint="for example gpu-host:/srv/project")
    # No terminal is there to ask for a password. The far shell reads the arguments as one line.
    remote = f"stitch-mcp serve --workspace {shlex.quote(folder)}"
    return Launch("ssh", ("-T", "-o", "BatchMode=yes", host, remote), {})


def config_path(client: Client, workspace: Path) -> Path:
    """Where the client's configuration lies, whether or not the file exists."""
    if client.base == "workspace":
        return workspace / client.file
    if client.base == "home":
        return Path.home() / client.file
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / client.file
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA", Path.home() / "AppData" / "Roaming")) / client.file
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / client.file


def config_text(client: Client, start: Launch, before: str = "") -> str:
    """The configuration file's text with our entry in it; all that stood there before stays.

    Raises:
        UsageError: `before` cannot be read, or is TOML that has such an entry already.
    """
    return _toml(client, start, before) if client.file.endswith(".toml") else _json(client, start, before)


def write_config(client: Client, start: Launch, path: Path) -> bool:
    """Whether the client's file had to be changed to hold our entry; False where it held just this.

    A file that is there keeps its permissions, since other servers' entries may hold secrets. One of the
    user's own that is a link stays one; a link in the workspace, which may have come with it, is replaced.

    Raises:
        UsageError: the file that is there cannot be read.
        StoreError: it cannot be written.
    """
    try:
        place = path if client.base == "workspace" else path.resolve()
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
        before = read_small(path).decode("utf-8") if mode is not None else ""
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"cannot read {path}: {reason}",
            hint="fix it, or paste the entry yourself: without --write it is printed",
        ) from error
    after = config_text(client, start, before)
    if after == before:
        return False
    write_atomically(place, after.encode("utf-8"), mode=mode)
    return True


def _json(client: Client, start: Launch, before: str) -> str:
    try:
        whole = _object(json.loads(before or "{}"))
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"the configuration is no JSON: {error}", hint="fix it, or paste the entry yourself"
        ) from error
    servers = _object(whole.get(client.table, {}))
    entry: dict[str, Any] = {"type": "stdio"} if client.typed else {}
    entry |= {"command": start.command, "args": list(start.args)}
    if start.env:
        entry["env"] = dict(start.env)
    if client.name == "gemini":
        entry["timeout"] = CALL_LIMIT_S * 1000
    whole[client.table] = {**servers, NAME: entry}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError("the configuration is not made of objects or tables", hint="fix it by hand")
    return cast(dict[str, Any], value)


def _toml(client: Client, start: Launch, before: str) -> str:
    import tomllib

    try:
        whole: dict[str, Any] = tomllib.loads(before)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(
            f"the configuration is no TOML: {error}", hint="fix it, or paste the entry yourself"
        ) from error
    present = _object(whole.get(client.table, {})).get(NAME)
    if present is not None and present == tomllib.loads(_toml(client, start, ""))[client.table][NAME]:
        return before
    if present is not None:
        raise UsageError(f"[{client.table}.{NAME}] is there already", hint="remove that table and try again")
    # JSON's strings and lists of strings are TOML's, too.
    lines = [
        f"[{client.table}.{NAME}]",
        f"command = {json.dumps(start.command)}",
        f"args = {json.dumps(list(start.args))}",
        f"tool_timeout_sec = {CALL_LIMIT_S}",
        "startup_timeout_sec = 20",
    ]
    if start.env:
        lines += ["", f"[{client.table}.{NAME}.env]"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in start.env.items()]
    head = before.rstrip("\n") + "\n\n" if before.strip() else ""
    return head + "\n".join(lines) + "\n"
