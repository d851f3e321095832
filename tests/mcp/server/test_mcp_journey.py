"""A scripted client goes the whole way; what it calls next it takes from next_steps and results alone."""

from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client

from stitch_mcp.api import solve
from stitch_mcp.certificates import verify_certificate
from stitch_mcp.history import show_run
from stitch_mcp.server.app import build_server
from stitch_mcp.server.room import Room
from tests.mcp.server.conftest import PROGRAM

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

# What a model would write one after the other: it does not compile, it is wrong, it is right.
DRAFTS = [PROGRAM.replace("sum < 0.0f", "sun < 0.0f"), PROGRAM.replace("x[i] + y[i]", "x[i] - y[i]"), PROGRAM]


class Script:
    """Follows the first step of each result; where that wants a source, the next draft goes in."""

    def __init__(self, client: Client, drafts: list[str]) -> None:
        self.client = client
        self.drafts = drafts
        self.calls: list[str] = []
        self.answers: list[dict[str, Any]] = []

    async def call(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.calls.append(tool)
        result = await self.client.call_tool(tool, arguments)
        answer: dict[str, Any] = result.structured_content
        assert not result.is_error, answer
        assert len(str(answer)) < 8000
        return answer

    async def follow(self, answer: dict[str, Any], *, last: str) -> dict[str, Any]:
        while [name for name in self.calls if name != "get_job"][-1] != last:
            step = self.chosen(answer)
            arguments = dict(step["arguments"])
            if "files" in arguments:
                arguments["files"] = dict.fromkeys(arguments["files"], self.drafts.pop(0))
            if arguments.get("reference") == "PATH.py":
                arguments["reference"] = "model.py"
            answer = await self.settled(step["tool"], arguments)
        return answer

    async def settled(self, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The tool's answer, waited for on a slow machine; the result of its job stands in for it."""
        answer = await self.call(tool, arguments)
        while answer["status"] == "working":
            (step,) = answer["next_steps"]
            job = await self.call(step["tool"], step["arguments"])
            answer = {**job, **job.get("result", {})}
        self.answers.append(answer)
        return answer

    def chosen(self, answer: dict[str, Any]) -> dict[str, Any]:
        steps = answer["next_steps"]
        if answer.get("outcome"):  # Timed on a busy machine: what is right is certified, fast or not.
            steps = [step for step in steps if step["tool"] == "certify_program"] or steps
        return steps[0]


async def test_a_client_that_follows_next_steps_reaches_a_certificate(workspace: Path, room: Room) -> None:
    async with Client(build_server(room)) as client:
        script = Script(client, list(DRAFTS))
        last = await script.follow(await script.settled("inspect_environment", {}), last="certify_program")
    kinds = [name for name in script.calls if name != "get_job"]
    assert kinds == [
        "inspect_environment",
        "analyze_reference",
        "make_plan",
        "compile_program",
        "compile_program",
        "check_program",
        "compile_program",
        "check_program",
        "benchmark_program",
        "certify_program",
    ]
    verdicts = [answer["verdict"] for answer in script.answers if "draws" in answer]
    assert verdicts == ["incorrect", "accepted"]
    assert verify_certificate(last["certificate"]).status == "accepted"
    view = show_run(workspace, last["run_id"])
    assert view.status == "accepted"
    assert [event.kind for event in view.events].count("program_written") == 3


@pytest.mark.exhaustive
async def test_a_run_goes_from_tools_to_solve_and_back(workspace: Path, room: Room) -> None:
    async with Client(build_server(room)) as client:
        script = Script(client, [])
        opened = await script.settled("analyze_reference", {"reference": "model.py"})
        solved = solve(resume=opened["run_id"], workspace=workspace)
        assert solved.status == "accepted"
        review = await script.settled("review_program", {"run_id": opened["run_id"]})
        assert review["program_id"] == (solved.program_id or "")[:16]
        certified = await script.settled("certify_program", {"run_id": opened["run_id"]})
    assert certified["certificate"] == solved.certificate
    assert solved.certificate is not None


@pytest.mark.exhaustive
async def test_solve_replaces_a_rejected_program_of_the_run(workspace: Path, room: Room) -> None:
    async with Client(build_server(room)) as client:
        script = Script(client, [])
        opened = await script.settled("analyze_reference", {"reference": "model.py"})
        where = {"run_id": opened["run_id"]}
        wrong = await script.settled("check_program", {**where, "files": {"program.cpp": DRAFTS[1]}})
        assert wrong["verdict"] == "incorrect"
        solved = await script.settled("solve", where)
        assert (solved["run_id"], solved["verdict"]) == (opened["run_id"], "accepted")
        assert solved["program_id"] != wrong["program_id"]
        again = await script.settled("solve", {"reference": "model.py", "quick": True})
    assert again["run_id"] != opened["run_id"]
    assert again["verdict"] == "accepted"
    assert [event.kind for event in show_run(workspace, opened["run_id"]).events][-1] == "run_finished"
