"""Configurations for MCP clients: what is written starts the server, and nothing else in the file is lost."""

import json
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from stitch_mcp.cli import main
from stitch_mcp.clients import CLIENTS, NAME, config_path, config_text, find_client, launch
from stitch_tools.errors import UsageError


def entry_of(client: str, text: str) -> dict[str, Any]:
    found = find_client(client)
    whole = tomllib.loads(text) if found.file.endswith(".toml") else json.loads(text)
    return whole[found.table][NAME]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / "settings"))
    (tmp_path / "home").mkdir()
    return tmp_path


@pytest.mark.parametrize("client", [row.name for row in CLIENTS])
def test_a_written_configuration_starts_the_server(home: Path, client: str) -> None:
    workspace = home / "a workspace"
    workspace.mkdir()
    assert main(["init", client, "--write", "--workspace", str(workspace)]) == 0
    path = config_path(find_client(client), workspace)
    assert home in path.parents
    entry = entry_of(client, path.read_text(encoding="utf-8"))
    assert "serve" in entry["args"]
    command = [entry["command"], *entry["args"], "--help"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=60)
    assert "MCP client" in done.stdout, done.stderr


def test_other_servers_stay_and_ours_is_renewed(home: Path) -> None:
    before = json.dumps(
        {"theme": "dark", "mcpServers": {"other": {"command": "x"}, NAME: {"command": "old"}}}
    )
    text = config_text(find_client("cursor"), launch(home), before)
    whole = json.loads(text)
    assert whole["theme"] == "dark"
    assert whole["mcpServers"]["other"] == {"command": "x"}
    assert whole["mcpServers"][NAME]["command"] != "old"


def test_a_toml_configuration_keeps_what_stands_there(home: Path) -> None:
    codex = find_client("codex")
    text = config_text(codex, launch(home, uvx=True), "# mine\nmodel = 'x'\n")
    assert text.startswith("# mine\n")
    assert tomllib.loads(text)["model"] == "x"
    assert entry_of("codex", text)["command"] == "uvx"
    with pytest.raises(UsageError, match="there already"):
        config_text(codex, launch(home), text)


@pytest.mark.parametrize(
    ("client", "broken"),
    [
        ("cursor", "{"),
        ("cursor", '{"mcpServers": 3}'),
        ("cursor", '{"a": ' + 100_000 * "["),
        ("codex", "= 1"),
        ("codex", "mcp_servers = 3"),
        ("codex", "a = " + 100_000 * "["),
    ],
    ids=lambda value: value[:20],
)
def test_a_file_that_cannot_be_read_is_not_overwritten(home: Path, client: str, broken: str) -> None:
    path = config_path(find_client(client), home)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(broken, encoding="utf-8")
    assert main(["init", client, "--write", "--workspace", str(home)]) == 2
    assert path.read_text(encoding="utf-8") == broken


def test_a_file_that_is_no_configuration_by_its_size_or_kind_is_not_read(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config_path(find_client("cursor"), home)
    path.parent.mkdir(parents=True)
    with path.open("wb") as file:
        file.truncate(1 << 30)
    for words in ("larger than 16 MiB", "no regular file"):
        assert main(["init", "cursor", "--write", "--json", "--workspace", str(home)]) == 2
        error = json.loads(capsys.readouterr().out)["error"]
        assert words in error["message"]
        assert "without --write" in error["hint"]
        path.unlink()
        os.mkfifo(path)


@pytest.mark.parametrize("client", ["claude-code", "codex"])
def test_what_is_there_already_is_left_alone(
    home: Path, client: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", client, "--write", "--workspace", str(home)]) == 0
    assert "wrote" in capsys.readouterr().out
    assert main(["init", client, "--write", "--workspace", str(home)]) == 0
    assert "unchanged" in capsys.readouterr().out


def test_needed_variables_go_along(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    monkeypatch.setenv("SOME_API_KEY", "secret-0123456789")
    text = config_text(find_client("vscode"), launch(home))
    assert entry_of("vscode", text)["env"]["CUDA_HOME"] == "/opt/cuda"
    assert "secret" not in text


def test_a_gpu_host_is_reached_over_ssh(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for ssh that does what sshd does: its last argument goes to a shell."""
    far = home / "far away"
    far.mkdir()
    tools = home / "bin"
    tools.mkdir()
    (tools / "ssh").write_text(
        '#!/bin/sh\nfor last; do :; done\nexec sh -c "$last --help"\n', encoding="utf-8"
    )
    (tools / "stitch-mcp").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m stitch_mcp "$@"\n', encoding="utf-8"
    )
    for name in ("ssh", "stitch-mcp"):
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    place = f"gpu-host:{far}"
    assert main(["init", "cursor", "--write", "--workspace", str(home), "--ssh", place]) == 0
    entry = entry_of("cursor", (home / ".cursor" / "mcp.json").read_text(encoding="utf-8"))
    assert entry["command"] == "ssh"
    assert "gpu-host" in entry["args"]
    assert "env" not in entry, "variables of this machine mean nothing there"
    command = [entry["command"], *entry["args"]]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=60)
    assert "MCP client" in done.stdout, done.stderr


@pytest.mark.parametrize("place", ["gpu-host", ":/folder", "-oProxyCommand=x:/folder", "gpu-host:"])
def test_a_host_without_a_folder_is_refused(home: Path, place: str) -> None:
    assert main(["init", "cursor", "--workspace", str(home), "--ssh", place]) == 2


def test_an_unknown_client_is_told_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "emacs", "--json"]) == 2
    assert "claude-code" in json.loads(capsys.readouterr().out)["error"]["hint"]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664])
def test_a_configuration_keeps_its_permissions(home: Path, mode: int) -> None:
    path = home / ".mcp.json"
    path.write_text(json.dumps({"mcpServers": {"other": {"env": {"API_KEY": "secret"}}}}), encoding="utf-8")
    path.chmod(mode)
    assert main(["init", "claude-code", "--write", "--workspace", str(home)]) == 0
    assert NAME in path.read_text(encoding="utf-8")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_link_to_the_users_own_configuration_stays_one(home: Path) -> None:
    kept = home / "dotfiles" / "codex.toml"
    kept.parent.mkdir()
    kept.write_text("model = 'x'\n", encoding="utf-8")
    path = config_path(find_client("codex"), home)
    path.parent.mkdir(parents=True)
    path.symlink_to(kept)
    assert main(["init", "codex", "--write", "--workspace", str(home)]) == 0
    assert path.is_symlink()
    assert entry_of("codex", kept.read_text(encoding="utf-8"))["args"]


def test_a_link_that_came_with_the_workspace_is_not_written_through(home: Path) -> None:
    outside = home / "outside.json"
    outside.write_text("{}", encoding="utf-8")
    workspace = home / "workspace"
    workspace.mkdir()
    (workspace / ".mcp.json").symlink_to(outside)
    assert main(["init", "claude-code", "--write", "--workspace", str(workspace)]) == 0
    assert outside.read_text(encoding="utf-8") == "{}"
