"""The server as a process of its own, over standard input and output and over HTTP."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from stitch_mcp.jobs.folder import JobFolder
from stitch_mcp.server.server_context import ServerContext
from tests.mcp.server.conftest import SLOW_TO_COMPILE, until
from tests.mcp.server.test_job_supervisor import compiling, running
from tests.sampling import sampled

pytestmark = pytest.mark.anyio
TOKEN = "a-token-of-the-tests-0123456789"
BROKEN = {"program.cpp": "int broken = ;"}


def serve(workspace: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "stitch_mcp", "serve", "--workspace", str(workspace), *options]


@contextlib.asynccontextmanager
async def over_stdio(
    workspace: Path, mode: Any = "auto", *, flags: Sequence[str] = (), **options: Any
) -> AsyncGenerator[Client]:
    command, *arguments = serve(workspace)
    # As the entry that `init` writes does: the SDK hands on few variables by itself.
    passed = {name: value for name, value in os.environ.items() if name.startswith("STITCH_")}
    server = StdioServerParameters(command=command, args=[*arguments, *flags], env=passed)
    async with Client(stdio_client(server), mode=mode, **options) as client:
        yield client


@contextlib.asynccontextmanager
async def connected(url: str, mode: Any = "auto", **options: Any) -> AsyncGenerator[Client]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, **options) as client,
    ):
        yield client


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def over_http(workspace: Path) -> "Generator[tuple[subprocess.Popen[str], str]]":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        serve(workspace, "--http", "--port", str(port)),
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "STITCH_MCP_TOKEN": TOKEN},
    )
    assert process.stderr is not None
    with process:
        line = process.stderr.readline()
        assert " at http://127.0.0.1:" in line, line
        until(lambda: listens(port))
        try:
            yield process, line.rsplit(" ", 1)[1].strip()
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) is not None


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_over_stdio_gets_a_result(workspace: Path, mode: str) -> None:
    async with over_stdio(workspace, mode) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        result = await client.call_tool("compile_program", {"files": BROKEN})
    assert {"analyze_reference", "compile_program", "get_job"} <= tools
    assert result.structured_content["ok"] is False


def test_garbage_leaves_the_server_alive(workspace: Path) -> None:
    lines = ["garbage", "{}", "[]", '{"jsonrpc": "2.0", "id": 1, "method": 7}', "\0\ud7ff", '{"id": []}']
    hello = {
        "jsonrpc": "2.0",
        "id": 5,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
    text = "\n".join([*lines, json.dumps(hello)]) + "\n"
    done = subprocess.run(
        serve(workspace), input=text, capture_output=True, text=True, encoding="utf-8", timeout=60
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    (answer,) = [row for row in answers if row.get("id") == 5]
    assert answer["result"]["serverInfo"]["name"] == "stitch-mcp"
    assert done.returncode == 0


def test_a_client_that_does_not_read_its_answer_is_no_fault_of_ours(workspace: Path) -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    first = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    with subprocess.Popen(
        serve(workspace), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(json.dumps(first).encode() + b"\n")
        process.stdin.close()
        said = process.stderr.read().decode()
        assert process.wait(timeout=30) == 0
    assert "the client is gone" in said
    assert "Traceback" not in said


async def test_jobs_of_a_stdio_server_end_with_it_and_are_resumed_by_the_next(
    workspace: Path, server_context: ServerContext
) -> None:
    async with over_stdio(workspace) as client:
        result = await client.call_tool(
            "compile_program", {"files": {"program.cpp": SLOW_TO_COMPILE}, "wait_s": 0}
        )
        job_id = result.structured_content["job_id"]
        tree = compiling(server_context.supervisor, job_id)
    until(lambda: not [pid for pid in tree if running(pid)])
    async with over_stdio(workspace) as client:
        found = (await client.call_tool("get_job", {"job_id": job_id})).structured_content
        assert found["status"] == "interrupted"
        (step,) = found["next_steps"]
        resumed = await client.call_tool(step["tool"], {**step["arguments"], "wait_s": 0})
        assert resumed.structured_content["status"] == "working"
        assert resumed.structured_content["job_id"] == job_id
        ended = await client.call_tool("cancel_job", {"job_id": job_id})
    assert ended.structured_content["status"] == "cancelled"


async def test_http_serves_whoever_has_the_token(workspace: Path) -> None:
    with over_http(workspace) as (_, url):
        async with connected(url) as client:
            result = await client.call_tool("compile_program", {"files": BROKEN})
            assert result.structured_content["ok"] is False
        hello = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        good = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json, text/event-stream"}
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": f"Basic {TOKEN}"}, 401),
            ({**good, "Authorization": f"bearer {TOKEN}", "Host": "evil.example"}, 421),
            ({**good, "Host": "evil.example"}, 421),
            ({**good, "Origin": "http://evil.example"}, 403),
        ):
            async with httpx2.AsyncClient() as http:
                assert (await http.post(url, json=hello, headers=headers)).status_code == status, headers
        async with httpx2.AsyncClient() as http:
            large = await http.post(url, content=b" " * (5 << 20), headers=good)
            assert large.status_code == 413

        async def without_end() -> AsyncGenerator[bytes]:
            for _ in range(64):
                yield b" " * (1 << 20)

        # Nobody said how long it is: it is refused as soon as it is too long.
        async with httpx2.AsyncClient() as http:
            with contextlib.suppress(httpx2.WriteError, httpx2.ReadError):
                unsaid = await http.post(url, content=without_end(), headers=good)
                assert unsaid.status_code == 413
        async with connected(url) as client:
            assert (await client.list_tools()).tools


async def test_jobs_of_an_http_server_go_on_without_it(
    workspace: Path, server_context: ServerContext
) -> None:
    with over_http(workspace) as (process, url):
        async with connected(url) as client:
            result = await client.call_tool(
                "compile_program", {"files": {"program.cpp": SLOW_TO_COMPILE}, "wait_s": 0}
            )
        job_id = result.structured_content["job_id"]
        compiling(server_context.supervisor, job_id)
        process.kill()
    assert server_context.supervisor.view(job_id).status == "working"
    assert server_context.supervisor.cancel(job_id).status == "cancelled"


@pytest.mark.parametrize("number", sampled((signal.SIGTERM, signal.SIGINT), 2))
def test_a_signal_ends_the_server_and_its_jobs(
    workspace: Path, server_context: ServerContext, number: signal.Signals
) -> None:
    process = subprocess.Popen(serve(workspace), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    call = {"name": "compile_program", "arguments": {"files": {"program.cpp": SLOW_TO_COMPILE}, "wait_s": 0}}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    messages = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": call},
    ]
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        for message in messages:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        process.stdin.flush()
        answer: dict[str, object] = {}
        while answer.get("id") != 2:
            answer = json.loads(process.stdout.readline())
        (job_id,) = server_context.supervisor.recent()
        tree = compiling(server_context.supervisor, job_id)
        process.send_signal(number)
        assert process.wait(timeout=30) == 0
    # The server waited for its jobs, and they could still write how they ended.
    assert not [pid for pid in tree if running(pid)]
    assert JobFolder(server_context.supervisor.jobs, job_id).state_as_written().status == "interrupted"
