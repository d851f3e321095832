"""A scripted client goes the whole way; what it calls next it takes from next_steps and results alone."""

import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client

from stitch_mcp.api import solve
from stitch_mcp.certificates import verify_certificate
from stitch_mcp.history import show_run
from stitch_mcp.server.app import build_server
from stitch_mcp.server.server_context import ServerContext
from tests.mcp.server.conftest import PROGRAM
from tests.mcp.server.journey import (
    WHOLE_WAY,
    Answer,
    ScriptedAgent,
    Send,
    Turn,
    journey,
    results_of,
    steps_of,
)
from tests.mcp.server.test_mcp_transports import connected, over_http, over_stdio

pytestmark = pytest.mark.anyio
# What a model would write one after the other: it does not compile and is wrong, then it is right.
WRONG = PROGRAM.replace("x[i] + y[i]", "x[i] - y[i]")
DRAFTS = [WRONG.replace("sum < 0.0f", "sun < 0.0f"), PROGRAM]
ROOT = Path(__file__).parents[3]


def sender(client: Client) -> Send:
    async def send(tool: str, arguments: dict[str, Any]) -> Answer:
        result = await client.call_tool(tool, arguments)
        answer: Mapping[str, Any] = result.structured_content
        assert not result.is_error, answer
        assert len(json.dumps(answer, ensure_ascii=False)) < 8000
        return answer

    return send


async def travelled(client: Client) -> list[Turn]:
    tools = [tool.name for tool in (await client.list_tools()).tools]
    return await journey(ScriptedAgent("model.py", list(DRAFTS)), sender(client), tools)


async def settled(client: Client, tool: str, arguments: dict[str, Any]) -> Answer:
    """The tool's answer, waited for on a slow machine; the result of its job stands in for it."""
    send = sender(client)
    answer = await send(tool, arguments)
    while answer["status"] == "working":
        (step,) = answer["next_steps"]
        job = await send(step["tool"], step["arguments"])
        answer = {**job, **job.get("result", {})}
    return answer


def judge(turns: list[Turn], workspace: Path) -> None:
    """The journey went all the way, and its run holds what its answers said."""
    assert steps_of(turns) == WHOLE_WAY
    results = results_of(turns)
    verdicts = [row["verdict"] for row in results if "draws" in row]
    assert verdicts == ["incorrect", "accepted"]
    assert [row["ok"] for row in results if "diagnostics" in row or row.get("ok")] == [False, True, True]
    assert verify_certificate(Path(results[-1]["certificate"])).status == "accepted"
    view = show_run(workspace, results[-1]["run_id"])
    assert view.status == "accepted"
    assert [event.kind for event in view.events].count("program_written") == 3


@pytest.mark.slow
async def test_a_client_that_follows_next_steps_reaches_a_certificate(
    workspace: Path, server_context: ServerContext
) -> None:
    async with Client(build_server(server_context)) as client:
        judge(await travelled(client), workspace)


@asynccontextmanager
async def over(transport: str, workspace: Path) -> AsyncGenerator[Client]:
    if transport == "http":
        with over_http(workspace) as (_, url):
            async with connected(url) as client:
                yield client
    else:
        async with over_stdio(workspace, transport) as client:
            yield client


@pytest.mark.exhaustive
@pytest.mark.parametrize("transport", ["legacy", "2026-07-28", "http"])
async def test_the_way_is_the_same_over_every_transport_and_era(workspace: Path, transport: str) -> None:
    async with over(transport, workspace) as client:
        judge(await travelled(client), workspace)


@pytest.mark.exhaustive
async def test_a_run_goes_from_tools_to_solve_and_back(
    workspace: Path, server_context: ServerContext
) -> None:
    async with Client(build_server(server_context)) as client:
        opened = await settled(client, "analyze_reference", {"reference": "model.py"})
        solved = solve(resume=opened["run_id"], workspace=workspace)
        assert solved.status == "accepted"
        review = await settled(client, "review_program", {"run_id": opened["run_id"]})
        assert review["program_id"] == (solved.program_id or "")[:16]
        certified = await settled(client, "certify_program", {"run_id": opened["run_id"]})
    assert certified["certificate"] == solved.certificate
    assert solved.certificate is not None


@pytest.mark.exhaustive
async def test_solve_replaces_a_rejected_program_of_the_run(
    workspace: Path, server_context: ServerContext
) -> None:
    async with Client(build_server(server_context)) as client:
        opened = await settled(client, "analyze_reference", {"reference": "model.py"})
        where = {"run_id": opened["run_id"]}
        wrong = await settled(client, "check_program", {**where, "files": {"program.cpp": WRONG}})
        assert wrong["verdict"] == "incorrect"
        solved = await settled(client, "solve", where)
        assert (solved["run_id"], solved["verdict"]) == (opened["run_id"], "accepted")
        assert solved["program_id"] != wrong["program_id"]
        again = await settled(client, "solve", {"reference": "model.py", "quick": True})
    assert again["run_id"] != opened["run_id"]
    assert again["verdict"] == "accepted"
    assert [event.kind for event in show_run(workspace, opened["run_id"]).events][-1] == "run_finished"


@pytest.mark.exhaustive
async def test_solve_goes_on_with_the_accepted_program_of_a_run_that_was_never_planned(
    workspace: Path, server_context: ServerContext
) -> None:
    async with Client(build_server(server_context)) as client:
        opened = await settled(client, "analyze_reference", {"reference": "model.py"})
        where = {"run_id": opened["run_id"]}
        judged = await settled(client, "check_program", {**where, "files": {"program.cpp": PROGRAM}})
        assert judged["verdict"] == "accepted"
        solved = solve(resume=opened["run_id"], workspace=workspace)
        certified = await settled(client, "certify_program", where)
    assert (solved.program_id or "")[:16] == judged["program_id"] == certified["program_id"]


@pytest.mark.exhaustive
async def test_solve_adds_a_program_of_the_stitcher_to_a_run_that_was_certified(
    workspace: Path, server_context: ServerContext
) -> None:
    async with Client(build_server(server_context)) as client:
        opened = await settled(client, "analyze_reference", {"reference": "model.py"})
        where = {"run_id": opened["run_id"]}
        own = await settled(client, "check_program", {**where, "files": {"program.cpp": PROGRAM}})
        assert own["verdict"] == "accepted"
        await settled(client, "certify_program", where)
        solved = await settled(client, "solve", where)
        authors = [row.author for row in show_run(workspace, opened["run_id"]).attempts]
        assert authors == ["outside", "stitcher"]
        read = await settled(client, "get_artifact", {"id": solved["program_id"]})
        assert read["kind"] == "program"
        again = await settled(client, "solve", where)
        assert again["program_id"] == solved["program_id"]
        assert len(show_run(workspace, opened["run_id"]).attempts) == 2, "the stitcher has had its turn"


def test_the_transcript_in_the_documentation_goes_the_whole_way() -> None:
    page = (ROOT / "docs" / "mcp-journey.md").read_text(encoding="utf-8")
    titles = re.findall(r"^## \d+\. `(\w+)`", page, re.MULTILINE)
    assert [title for title in titles if title != "get_job"] == WHOLE_WAY
    assert not re.search(r"/(root|home|tmp|work)/", page), "no path of the machine that wrote it"
    assert '"verdict": "incorrect"' in page
    assert '"certificate": ' in page
