"""What a server refuses or holds back: tools that it does not offer, sources that are too large, chatter."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from stitch_mcp.jobs.state import JobState
from stitch_mcp.jobs.supervisor import Supervisor
from stitch_mcp.server.app import build_server
from stitch_mcp.server.server_context import ServerContext, open_server_context, parse_toolsets

pytestmark = pytest.mark.anyio
WAIT_S = 2.5


class Chatterbox(Supervisor):
    """A supervisor with one job, which says something new at each look and never ends."""

    looks = 0

    def view(self, job_id: str) -> JobState:
        self.looks += 1
        return JobState(
            job_id=job_id,
            tool="solve",
            status="working",
            progress=f"step {self.looks}",
            sentences=self.looks,
        )


@asynccontextmanager
async def connected(server_context: ServerContext, mode: Any = "2026-07-28") -> AsyncGenerator[Client]:
    async with Client(build_server(server_context), mode=mode) as client:
        yield client


@pytest.mark.parametrize(
    ("options", "left_out"),
    [
        ({"read_only": True}, "compile_program"),
        ({"read_only": True}, "solve"),
        ({"read_only": True}, "cancel_job"),
        ({"toolsets": parse_toolsets("solve")}, "check_program"),
        ({"toolsets": parse_toolsets("steps")}, "solve"),
    ],
)
async def test_a_tool_that_is_not_offered_cannot_be_called(
    workspace: Path, options: dict[str, Any], left_out: str
) -> None:
    server_context = open_server_context({"workspace": workspace}, **options)
    async with connected(server_context) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert left_out not in names
        assert "get_artifact" in names
        with pytest.raises(MCPError, match="no tool"):
            await client.call_tool(left_out, {"files": {"program.cpp": "int x;"}})
    assert server_context.supervisor.recent() == []


@pytest.mark.parametrize(
    "files", [{"a.cpp": "x" * (2 << 20)}, {f"{number}.cpp": "" for number in range(300)}]
)
async def test_sources_that_are_too_large_are_refused_with_the_limit(
    workspace: Path, files: dict[str, str]
) -> None:
    async with connected(open_server_context({"workspace": workspace})) as client:
        result = await client.call_tool("compile_program", {"files": files, "main": "a.cpp"})
    assert result.is_error
    assert "write them into the workspace" in result.structured_content["message"]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_progress_is_told_at_most_once_a_second(workspace: Path, mode: str) -> None:
    server_context = open_server_context({"workspace": workspace})
    server_context.__dict__["supervisor"] = Chatterbox(server_context.workspace.folder)
    told: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        del progress, total
        told.append(message or "")

    async with connected(server_context, mode) as client:
        arguments = {"job_id": "0" * 16, "wait_s": WAIT_S}
        begin = time.monotonic()
        await client.call_tool("get_job", arguments, progress_callback=hear)
        waited_s = time.monotonic() - begin
    assert server_context.supervisor.looks > len(told)  # pyright: ignore[reportAttributeAccessIssue] # a Chatterbox
    assert 1 <= len(told) <= 1 + waited_s
