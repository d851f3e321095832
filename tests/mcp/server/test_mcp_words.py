"""What goes wrong is told in the words of tools, with a next step that can succeed."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client

from stitch_mcp.jobs.folder import JobFolder
from stitch_mcp.jobs.state import JobRequest, JobState
from stitch_mcp.server.app import build_server
from stitch_mcp.server.outcome import job_answer, tool_answer
from stitch_mcp.server.room import Room, open_room

pytestmark = pytest.mark.anyio
HASH = "0" * 64
PROGRAM = {"run_id": "r", "program": HASH}


@asynccontextmanager
async def connected(workspace: Path) -> AsyncGenerator[Client]:
    async with Client(build_server(open_room({"workspace": workspace})), mode="2026-07-28") as client:
        yield client


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("analyze_reference", {"reference": "silent.py"}, "`inputs`"),
        ("analyze_reference", {"reference": "model.py", "contract": {"rtol": 1.0}}, "`allow_relaxed`"),
        ("analyze_reference", {"reference": "modle.py"}, "model.py"),
        ("make_plan", {"run_id": "nope"}, "analyze_reference"),
        ("compile_program", {}, "`files`"),
        ("check_program", {"files": {"program.cpp": "int x;"}}, "`run_id`"),
        ("certify_program", {"run_id": ""}, "`run_id`"),
    ],
)
async def test_a_refusal_names_arguments_and_begins_no_job(
    workspace: Path, tool: str, arguments: dict[str, Any], told: str
) -> None:
    (workspace / "silent.py").write_text("class Model:\n    pass\n", encoding="utf-8")
    async with connected(workspace) as client:
        result = await client.call_tool(tool, arguments)
    answer = result.structured_content
    assert result.is_error
    assert told in answer["message"].partition("Next: ")[2]
    assert "--" not in answer["message"], "flags are for the command line"
    assert "job_id" not in answer
    assert "untrusted" not in answer


async def test_next_steps_name_only_what_is_offered(workspace: Path) -> None:
    room = open_room({"workspace": workspace}, read_only=True)
    async with Client(build_server(room), mode="2026-07-28") as client:
        answer = (await client.call_tool("inspect_environment", {"wait_s": 45})).structured_content
        assert answer["status"] == "completed", answer
        assert "next_steps" not in answer
        refused = (await client.call_tool("review_program", {"run_id": "nope"})).structured_content
        assert "Not offered by this server: analyze_reference" in refused["message"]
        assert (await client.list_prompts()).prompts == []


@pytest.mark.parametrize(
    ("tool", "arguments", "code", "step"),
    [
        ("analyze_reference", {"reference": HASH}, "task", ("analyze_reference", {"reference": "PATH.py"})),
        ("check_program", PROGRAM, "task", ("analyze_reference", {"reference": "PATH.py"})),
        ("benchmark_program", PROGRAM, "usage", ("check_program", PROGRAM)),
        ("certify_program", PROGRAM, "usage", ("check_program", PROGRAM)),
        ("solve", {"reference": HASH}, "environment", ("solve", {"reference": HASH})),
    ],
)
def test_a_failed_job_leads_to_a_call_that_can_succeed(
    room: Room, tool: str, arguments: dict[str, Any], code: str, step: tuple[str, dict[str, Any]]
) -> None:
    room.workspace.prepare()
    request = JobRequest(tool=tool, arguments=arguments)
    JobFolder(room.supervisor.jobs, request.job_id).write_request(request)
    state = JobState(
        job_id=request.job_id, tool=tool, status="failed", error_code=code, message="no", hint="yes"
    )
    for answer in (tool_answer(room, state), job_answer(room, state)):
        assert answer.message == "no. Next: yes"
        (found,) = answer.next_steps
        assert (found.tool, found.arguments) == step
