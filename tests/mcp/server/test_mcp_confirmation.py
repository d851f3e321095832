"""Consent: who is asked before code runs without isolation or another's job ends, and what answers do."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp.types import ElicitRequestParams, ElicitResult, Result

from stitch_mcp.server.app import build_server
from stitch_mcp.server.server_context import ServerContext, open_server_context
from stitch_tools.errors import UsageError
from tests.mcp.server.conftest import SLOW_TO_COMPILE
from tests.mcp.server.test_job_supervisor import compiling
from tests.mcp.server.test_mcp_tasks import CancelTask, TaskRequestParams, Tasks

pytestmark = pytest.mark.anyio
BROKEN = {"program.cpp": "int broken = ;"}
Action = Literal["accept", "decline", "cancel"]
ERAS = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


@pytest.fixture
def rooms(workspace: Path) -> Generator[Any]:
    """Makes rooms of servers on a machine without isolation."""
    made: list[ServerContext] = []

    def make(**settings: str) -> ServerContext:
        made.append(replace(open_server_context({"workspace": workspace, **settings}), level="process"))
        return made[-1]

    yield make
    for server_context in made:
        server_context.supervisor.close()


@asynccontextmanager
async def user(
    server_context: ServerContext, mode: Any, action: Action | None
) -> AsyncGenerator[tuple[Client, list[str]]]:
    """A client whose user answers every question with `action`; None: a client that cannot ask."""
    asked: list[str] = []

    async def answer(context: object, params: ElicitRequestParams) -> ElicitResult:
        del context
        asked.append(params.message)
        assert action is not None
        return ElicitResult(action=action, content={} if action == "accept" else None)

    callback = answer if action else None
    async with Client(build_server(server_context), mode=mode, elicitation_callback=callback) as client:
        yield client, asked


@ERAS
async def test_who_agrees_once_is_not_asked_again(rooms: Any, mode: str) -> None:
    async with user(rooms(), mode, "accept") as (client, asked):
        first = await client.call_tool("compile_program", {"files": BROKEN})
        again = await client.call_tool("compile_program", {"files": BROKEN, "rerun": True})
    assert (first.structured_content["ok"], again.structured_content["ok"]) == (False, False)
    (message,) = asked
    assert message.startswith("compile_program runs code")


@ERAS
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_nothing_runs_where_the_user_does_not_agree(rooms: Any, mode: str, action: Action) -> None:
    server_context = rooms()
    async with user(server_context, mode, action) as (client, asked):
        refused = await client.call_tool("analyze_reference", {"reference": "model.py"})
    assert len(asked) == 1
    assert refused.is_error
    assert "did not agree" in refused.structured_content["message"]
    assert server_context.supervisor.recent() == []


@ERAS
async def test_a_client_that_cannot_ask_is_told_how_the_user_allows_it(rooms: Any, mode: str) -> None:
    server_context = rooms()
    async with user(server_context, mode, None) as (client, _):
        refused = await client.call_tool("compile_program", {"files": BROKEN})
    assert refused.is_error
    assert "STITCH_CONFIRM=allow" in refused.structured_content["message"]
    assert server_context.supervisor.recent() == []


@pytest.mark.parametrize(("policy", "runs"), [("allow", True), ("deny", False)])
async def test_a_policy_answers_in_the_place_of_the_user(rooms: Any, policy: str, runs: bool) -> None:
    async with user(rooms(confirm=policy), "2026-07-28", "accept") as (client, asked):
        result = await client.call_tool("compile_program", {"files": BROKEN})
    assert asked == []
    assert result.is_error is not runs
    assert ("ok" in result.structured_content) is runs
    if not runs:
        assert "forbidden here (--confirm)" in result.structured_content["message"]


async def test_looking_and_isolated_work_need_no_consent(rooms: Any) -> None:
    isolated = replace(rooms(), level="fs+net")
    strict = rooms(require_sandbox="full")
    async with user(isolated, "2026-07-28", None) as (client, _):
        assert not (await client.call_tool("compile_program", {"files": BROKEN})).is_error
    async with user(strict, "2026-07-28", None) as (client, _):
        assert not (await client.call_tool("search_docs", {"query": "fuse", "k": 1})).is_error
    assert not strict.unsandboxed, "nothing weaker than full runs there at all"


@ERAS
async def test_ending_the_job_of_another_server_is_asked_and_ones_own_is_not(rooms: Any, mode: str) -> None:
    arguments = {"files": {"program.cpp": SLOW_TO_COMPILE}, "wait_s": 0}
    other = replace(rooms(), level="full")
    async with user(other, mode, None) as (owner, _):
        job_id = (await owner.call_tool("compile_program", arguments)).structured_content["job_id"]
        compiling(other.supervisor, job_id)
        async with user(rooms(), mode, "decline") as (client, asked):
            refused = await client.call_tool("cancel_job", {"job_id": job_id})
        assert refused.is_error
        assert job_id in asked[0]
        request = CancelTask(params=TaskRequestParams(taskId=job_id))
        async with Client(build_server(rooms()), mode="2026-07-28", extensions=[Tasks()]) as tasker:
            with pytest.raises(MCPError, match="another server"):
                await tasker.session.send_request(request, Result)
        assert other.supervisor.view(job_id).status == "working"
        ended = await owner.call_tool("cancel_job", {"job_id": job_id})
        assert ended.structured_content["status"] == "cancelled"


def test_a_file_of_the_workspace_cannot_consent(workspace: Path) -> None:
    (workspace / "stitch.toml").write_text('confirm = "allow"\n', encoding="utf-8")
    with pytest.raises(UsageError, match="cannot be set in a file"):
        open_server_context({"workspace": workspace})
