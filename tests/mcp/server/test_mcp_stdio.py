"""The stdio transport by hand: what is no message, and how a server ends."""

import array
import fcntl
import json
import os
import signal
import subprocess
import termios
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest

from tests.mcp.server.conftest import until
from tests.mcp.server.test_job_supervisor import running
from tests.mcp.server.test_mcp_faults import Wire, wired
from tests.mcp.server.test_mcp_transports import TOKEN, over_http, serve

PING = b'{"jsonrpc":"2.0","id":7,"method":"ping"'
INVALID, PARSE, PARAMS = types.INVALID_REQUEST, types.PARSE_ERROR, types.INVALID_PARAMS
MALFORMED = [
    (b"garbage", PARSE, None),
    (b"{}", INVALID, None),
    (b"[]", INVALID, None),
    (b"null", INVALID, None),
    (b"[" + PING + b"}]", INVALID, None),
    (PING, PARSE, None),
    (PING.replace(b"2.0", b"1.0") + b"}", INVALID, None),
    (PING + b',"params":[]}', INVALID, None),
    (PING.replace(b"7", b'"\\ud800"') + b"}", PARSE, None),
    (PING + b',"params":{"\\udfff":1}}', PARAMS, 7),
]


def written(wire: Wire, line: bytes) -> dict[str, Any]:
    """The next message after a line."""
    assert wire.process.stdin is not None
    assert wire.process.stdout is not None
    wire.process.stdin.write(line + b"\n")
    wire.process.stdin.flush()
    message: dict[str, Any] = json.loads(wire.process.stdout.readline())
    return message


def test_what_is_no_message_is_answered_as_such_and_the_server_goes_on(workspace: Path) -> None:
    with wired(workspace) as wire:
        for line, code, own_id in MALFORMED:
            answer = written(wire, line)
            assert (answer["error"]["code"], answer["id"]) == (code, own_id), (line, answer)
        assert written(wire, PING + b"}")["result"] == {}


def test_a_source_with_half_a_character_is_refused_by_name(workspace: Path) -> None:
    call = {"name": "compile_program", "arguments": {"files": {"program.cpp": "int x; // \ud800"}}}
    with wired(workspace) as wire:
        error = wire.reply(wire.send("tools/call", call))["error"]
        assert error["code"] == PARAMS
        assert "`arguments.files.program.cpp`" in error["message"]
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**call, "_meta": meta}}
    headers = {
        "Authorization": f"Bearer {TOKEN}",
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "compile_program",
    }
    with over_http(workspace) as (_, url):
        answer = httpx2.post(url, content=json.dumps(message), headers=headers).json()
    assert answer["error"] == error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_server_whose_client_says_nothing(workspace: Path, number: signal.Signals) -> None:
    with wired(workspace) as wire:
        wire.process.send_signal(number)
        # Standard input stays open, and no line comes.
        assert wire.process.wait(timeout=30) == 0


def test_a_signal_ends_a_server_whose_client_reads_nothing(workspace: Path) -> None:
    with wired(workspace) as wire:
        assert wire.process.stdout is not None
        stdout = wire.process.stdout.fileno()
        server_context = fcntl.fcntl(stdout, fcntl.F_GETPIPE_SZ)
        for _ in range(2 + server_context // 10_000):  # a list has some 20 kB
            wire.send("tools/list", {})
        waiting = array.array("i", [0])
        until(
            lambda: fcntl.ioctl(stdout, termios.FIONREAD, waiting) == 0 and waiting[0] > 0.9 * server_context
        )
        wire.process.send_signal(signal.SIGTERM)
        assert wire.process.wait(timeout=30) == 0


def refused(workspace: Path, *options: str, token: str = TOKEN) -> tuple[int, dict[str, Any], str]:
    """How a server that cannot start ends: its exit code, its error, and what it said beside."""
    done = subprocess.run(
        serve(workspace, "--json", *options),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "STITCH_MCP_TOKEN": token},
        timeout=60,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["exit_code"] == done.returncode
    return done.returncode, told["error"], done.stderr


def test_a_server_that_cannot_listen_says_so_and_nothing_else(workspace: Path) -> None:
    with over_http(workspace) as (_, url):
        taken = url.split(":")[2].split("/")[0]
        code, error, said = refused(workspace, "--http", "--port", taken)
    assert (code, error["code"], said) == (5, "environment", "")
    assert taken in error["message"]
    for options, token in (
        (["--host", "nowhere.invalid"], TOKEN),
        (["--host", "192.0.2.1"], TOKEN),
        (["--host", ""], TOKEN),
        ([], "short"),
    ):
        code, error, said = refused(workspace, "--http", "--port", "0", *options, token=token)
        assert (code, error["code"], said) == (2, "usage", ""), options


def test_a_folder_of_ours_that_leads_out_of_the_workspace_is_not_written(
    workspace: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (workspace / ".stitch").symlink_to(outside)
    code, error, _ = refused(workspace)
    assert (code, error["code"]) == (2, "usage")
    assert "leads out of the workspace" in error["message"]
    assert "remove the link" in error["hint"]
    (workspace / ".stitch").unlink()
    with wired(workspace) as wire:
        # It may also come while the server runs.
        (workspace / ".stitch").mkdir(exist_ok=True)
        (workspace / ".stitch" / "jobs").symlink_to(outside)
        answer = wire.call("inspect_environment", {"wait_s": 0})
        assert answer["isError"]
        assert "leads out of the workspace" in answer["structuredContent"]["message"]
        assert not list(outside.iterdir())
        # A link that stays inside is the user's own matter.
        (workspace / ".stitch" / "jobs").unlink()
        (workspace / "jobs").mkdir()
        (workspace / ".stitch" / "jobs").symlink_to(workspace / "jobs")
        assert not wire.call("inspect_environment", {"wait_s": 0}).get("isError")


def test_a_finished_job_leaves_no_entry_among_the_processes(workspace: Path) -> None:
    with wired(workspace) as wire:
        answer = wire.call("compile_program", {"files": {"program.cpp": "int broken = ;"}, "wait_s": 45})
        state = workspace / ".stitch" / "jobs" / answer["structuredContent"]["job_id"] / "state.json"
        pid = json.loads(state.read_text(encoding="utf-8"))["pid"]
        until(lambda: not running(pid))
        # No call comes that would make the server look.
        until(lambda: not Path(f"/proc/{pid}").exists())
