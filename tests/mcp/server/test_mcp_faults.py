"""What goes wrong around a server: too much at once, several at once, and who leaves in the middle."""

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.client import Client

from stitch_mcp.history import show_run
from stitch_mcp.server.app import build_server
from stitch_mcp.server.request_inputs import job_request
from stitch_mcp.server.server_context import MAX_INLINE_BYTES, ServerContext
from stitch_mcp.server.tool_list import find_tool
from stitch_tools.confine.process_tree import descendants
from stitch_tools.errors import TaskError, UsageError
from tests.mcp.server.conftest import PROGRAM, SLOW_TO_COMPILE, until
from tests.mcp.server.test_job_supervisor import compiling, running
from tests.mcp.server.test_mcp_journey import WRONG, settled
from tests.mcp.server.test_mcp_transports import BROKEN, TOKEN, over_http, over_stdio, serve

pytestmark = pytest.mark.anyio
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


class Wire:
    """A client that writes lines and reads lines."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.hello: dict[str, Any] = {}
        """What the server said of itself."""
        self._asked = 0

    def send(self, method: str, params: dict[str, Any]) -> int:
        """Number of the request."""
        assert self.process.stdin is not None
        self._asked += 1
        message = {"jsonrpc": "2.0", "id": self._asked, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        return self._asked

    def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The result of a tool; every line until then must be a message of the protocol."""
        return self.answer(self.send("tools/call", {"name": tool, "arguments": arguments}))

    def answer(self, number: int) -> dict[str, Any]:
        """The result of a request."""
        result: dict[str, Any] = self.reply(number)["result"]
        return result

    def reply(self, number: int) -> dict[str, Any]:
        """The message that answers a request, with its result or its error."""
        assert self.process.stdout is not None
        while True:
            message: dict[str, Any] = json.loads(self.process.stdout.readline())
            assert message["jsonrpc"] == "2.0"
            if message.get("id") == number:
                return message


@contextlib.contextmanager
def wired(workspace: Path, version: str = "2025-06-18") -> Generator[Wire]:
    """A server that is spoken to by hand, in that revision of the protocol."""
    with subprocess.Popen(serve(workspace), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        wire = Wire(process)
        wire.hello = wire.answer(wire.send("initialize", {**HELLO, "protocolVersion": version}))
        try:
            yield wire
        finally:
            process.kill()


def test_a_source_that_is_too_large_is_refused_and_the_server_goes_on(workspace: Path) -> None:
    with wired(workspace) as wire:
        for size in (MAX_INLINE_BYTES + 1, 16 * MAX_INLINE_BYTES):
            result = wire.call("compile_program", {"files": {"program.cpp": "/" * size}})
            assert result["isError"]
            assert "too much" in result["structuredContent"]["message"]
        result = wire.call("compile_program", {"files": {f"{n}.h": "" for n in range(201)}})
        assert "201 inline files" in result["structuredContent"]["message"]
        # What is nested deeper than the parser goes is no message at all.
        for levels in (100, 300):
            deep: Any = "x"
            for _ in range(levels):
                deep = [deep]
            call = {
                "name": "analyze_reference",
                "arguments": {"reference": "model.py", "contract": {"a": deep}},
            }
            number = wire.send("tools/call", call)
            if levels < 150:
                assert wire.answer(number)["isError"]
            else:
                assert wire.reply(number)["error"]["code"] == types.PARSE_ERROR
        assert wire.answer(wire.send("tools/list", {}))["tools"]


def test_a_link_beside_a_reference_may_lead_out_where_no_import_goes(
    workspace: Path, server_context: ServerContext
) -> None:
    tool = find_tool("analyze_reference")
    request = tool.request.model_validate({"reference": "model.py"})
    (workspace / ".venv").symlink_to("/usr")
    assert job_request(server_context, tool, request).subject.task_id
    (workspace / "helper.py").symlink_to("/etc/passwd")
    with pytest.raises(TaskError, match=r"helper\.py"):
        job_request(server_context, tool, request)


def test_a_run_whose_log_is_a_link_out_of_the_workspace_is_not_written_to(
    workspace: Path, server_context: ServerContext, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine", encoding="utf-8")
    folder = workspace / ".stitch" / "runs" / "20260101T000000.000-model-00000000"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").symlink_to(outside)
    tool = find_tool("make_plan")
    with pytest.raises(UsageError, match="leads out of the workspace"):
        job_request(server_context, tool, tool.request.model_validate({"run_id": folder.name}))


async def test_two_servers_over_one_workspace_share_a_job(workspace: Path) -> None:
    found: list[dict[str, Any]] = []

    async def ask(client: Client) -> None:
        found.append(dict(await settled(client, "compile_program", {"files": BROKEN})))

    async with (
        over_stdio(workspace) as first,
        over_stdio(workspace) as second,
        anyio.create_task_group() as group,
    ):
        group.start_soon(ask, first)
        group.start_soon(ask, second)
    assert len({answer["job_id"] for answer in found}) == 1
    assert [answer["ok"] for answer in found] == [False, False]


def test_a_client_that_hangs_up_leaves_its_job_and_the_server_alive(
    workspace: Path, server_context: ServerContext
) -> None:
    call = {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "tools/call",
        "params": {
            "name": "compile_program",
            "arguments": {"files": {"program.cpp": SLOW_TO_COMPILE}, "wait_s": 45},
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            },
        },
    }
    with over_http(workspace) as (process, url):
        body = json.dumps(call).encode()
        port = int(url.split(":")[2].split("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            head = [
                "POST /mcp HTTP/1.1",
                f"Host: 127.0.0.1:{port}",
                f"Authorization: Bearer {TOKEN}",
                "Content-Type: application/json",
                "Accept: application/json, text/event-stream",
                "MCP-Protocol-Version: 2026-07-28",
                "Mcp-Method: tools/call",
                "Mcp-Name: compile_program",
                f"Content-Length: {len(body)}",
            ]
            connection.sendall("\r\n".join([*head, "", ""]).encode() + body)
            until(lambda: bool(server_context.supervisor.recent()))
            (job_id,) = server_context.supervisor.recent()
            tree = compiling(server_context.supervisor, job_id)
        assert process.poll() is None
        assert server_context.supervisor.view(job_id).status == "working"
        assert all(running(pid) for pid in tree[:1])
        assert server_context.supervisor.cancel(job_id).status == "cancelled"
    assert not [pid for pid in tree if running(pid)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_http_server_ends_in_time_with_a_call_open(
    workspace: Path, server_context: ServerContext, number: signal.Signals
) -> None:
    with over_http(workspace) as (process, url):
        port = int(url.split(":")[2].split("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"POST /mcp HTTP/1.1\r\nContent-Length: 1000\r\n")
            children = descendants(process.pid)
            process.send_signal(number)
            assert process.wait(timeout=30) == 0  # the open call never ends
    assert not [pid for pid in children if running(pid)]


@pytest.mark.slow
def test_connections_on_which_no_request_begins_are_ended(workspace: Path) -> None:
    with over_http(workspace) as (_, url):
        place = ("127.0.0.1", int(url.split(":")[2].split("/")[0]))
        refused = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
        with contextlib.ExitStack() as stack:
            held = [stack.enter_context(socket.create_connection(place)) for _ in range(3)]
            for connection, sent in zip(held, (b"", b"POST /mcp HT", refused), strict=True):
                connection.sendall(sent)
                connection.settimeout(60.0)
            for connection in held:
                while connection.recv(4096):
                    pass  # The one that is answered gets its 401 first.


PRINTS = """
import os
import sys

print("a line of the reference", flush=True)
os.write(1, b"and one past Python\\n")
sys.__stdout__.write("not a message\\n")
"""


@pytest.mark.slow
def test_what_a_reference_prints_is_no_part_of_the_protocol(workspace: Path) -> None:
    model = workspace / "model.py"
    model.write_text(PRINTS + model.read_text(encoding="utf-8"), encoding="utf-8")
    with wired(workspace) as wire:
        answer = wire.call("analyze_reference", {"reference": "model.py", "wait_s": 45})["structuredContent"]
        while answer["status"] == "working":
            (step,) = answer["next_steps"]
            answer = wire.call(step["tool"], step["arguments"])["structuredContent"]
        assert answer["status"] == "completed", answer
        assert wire.answer(wire.send("ping", {})) == {}


@pytest.mark.exhaustive
async def test_two_clients_work_on_one_run_and_its_log_stays_whole(workspace: Path) -> None:
    """Two servers, two clients, four steps at once in one run: each is recorded, in some order."""
    found: list[str] = []

    async def step(client: Client, tool: str, arguments: dict[str, Any]) -> None:
        answer = await settled(client, tool, arguments)
        found.append(f"{tool} {answer.get('ok', '')}")

    async with over_stdio(workspace) as first, over_stdio(workspace) as second:
        opened = await settled(first, "analyze_reference", {"reference": "model.py"})
        run = {"run_id": opened["run_id"]}
        async with anyio.create_task_group() as group:
            group.start_soon(step, first, "make_plan", run)
            group.start_soon(step, second, "make_plan", run)
            group.start_soon(step, first, "compile_program", {**run, "files": {"program.cpp": PROGRAM}})
            group.start_soon(step, second, "compile_program", {**run, "files": {"program.cpp": WRONG}})
    assert sorted(found) == ["compile_program True"] * 2 + ["make_plan "] * 2
    kinds = [event.kind for event in show_run(workspace, run["run_id"]).events]
    assert kinds.count("program_written") == 2
    assert kinds.count("plan_made") == 1


@pytest.mark.exhaustive
async def test_a_server_that_is_killed_in_a_run_is_followed_by_another(workspace: Path) -> None:
    """A check is under way when its server is killed; the next one resumes the job, in the same run."""
    with wired(workspace) as wire:
        opened = wire.call("analyze_reference", {"reference": "model.py", "wait_s": 45})["structuredContent"]
        while opened["status"] == "working":
            opened = wire.call("get_job", opened["next_steps"][0]["arguments"])["structuredContent"]
        run_id = opened["run_id"]
        arguments = {"run_id": run_id, "files": {"program.cpp": PROGRAM}, "wait_s": 0}
        begun = wire.call("check_program", arguments)["structuredContent"]
        os.kill(wire.process.pid, signal.SIGKILL)
    async with over_stdio(workspace) as client:
        where = {"job_id": begun["job_id"], "wait_s": 0}
        while (seen := (await client.call_tool("get_job", where)).structured_content)["status"] == "working":
            await anyio.sleep(0.1)
        assert seen["status"] == "interrupted"
        (resume,) = seen["next_steps"]
        checked = await settled(client, resume["tool"], resume["arguments"])
        assert (checked["job_id"], checked["run_id"]) == (begun["job_id"], run_id)
        assert checked["verdict"] == "accepted"
    check = show_run(workspace, run_id).check
    assert check is not None
    assert check.status == "accepted"


async def test_a_result_of_a_later_version_is_answered_without_what_is_new(
    server_context: ServerContext,
) -> None:
    async with Client(build_server(server_context)) as client:
        done = await settled(client, "compile_program", {"files": BROKEN})
        state = server_context.supervisor.view(done["job_id"])
        later = state.model_copy(update={"result": {**(state.result or {}), "from_the_future": 1}})
        path = server_context.supervisor.jobs / done["job_id"] / "state.json"
        path.write_bytes(later.canonical_json())
        again = await client.call_tool("compile_program", {"files": BROKEN})
        assert again.structured_content == done
        seen = await client.call_tool("get_job", {"job_id": done["job_id"]})
        assert not seen.is_error
