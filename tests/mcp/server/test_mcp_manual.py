"""A client that answers the questions of a run: next_prompt, submit_answer, and what they refuse."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client

from stitch_mcp.api import solve
from stitch_mcp.certificates import verify_certificate
from stitch_mcp.server.app import build_server
from stitch_mcp.server.server_context import TOOLSETS, ServerContext
from stitch_planner.agents.manual_questions import (
    AlreadyAnsweredError,
    AnswerSizeError,
    QuestionNotOpenError,
    read_manual_run,
    submit_answer,
)
from stitch_planner.agents.prompting import prompt_source
from stitch_planner.llm.file_models import LARGEST_ANSWER_BYTES
from stitch_planner.runs.run import Run, Workspace, read_state
from stitch_tools.errors import StitchError
from tests.mcp.server.conftest import until
from tests.mcp.server.test_mcp_transports import over_stdio

pytestmark = pytest.mark.anyio
ROLES = ("--toolsets", "steps,solve,roles")
RIGHT = prompt_source("example.cpp")
UNCOMPILED = RIGHT.replace("*handle = new StitchHandle;", "*handle = new StitchHandle")
"""The reference of these tests is that of the example, so its program is right."""


def with_roles(server_context: ServerContext) -> ServerContext:
    return replace(server_context, toolsets=TOOLSETS)


def answer_of(source: str) -> str:
    return f"One loop over all elements.\n\n```cpp program.cpp\n{source}\n```\n"


async def asked(client: Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    answer = dict(result.structured_content or {})
    assert len(json.dumps(answer, ensure_ascii=False)) < 8000
    return {**answer, "is_error": result.is_error}


async def next_question(client: Client, run_id: str) -> dict[str, Any]:
    """The first page of the next question, or how the run ended."""
    while True:
        answer = await asked(client, "next_prompt", {"run_id": run_id, "wait_s": 20})
        assert not answer["is_error"], answer
        if answer["status"] != "working":
            return answer
        assert answer["next_steps"][0]["tool"] in ("next_prompt", "get_job"), answer


async def whole_prompt(client: Client, first: dict[str, Any]) -> str:
    text, page = first["prompt"], first
    while "next_offset" in page:
        step = page["next_steps"][0]
        assert step["tool"] == "next_prompt"
        page = await asked(client, step["tool"], step["arguments"])
        text += page["prompt"]
    return text


async def test_a_client_over_stdio_answers_a_run_to_its_certificate(workspace: Path) -> None:
    async with over_stdio(workspace, flags=ROLES) as client:
        begun = await asked(
            client, "solve", {"reference": "model.py", "coder": "manual", "rounds": 2, "quick": True}
        )
        assert begun["status"] == "working"
        step = begun["next_steps"][0]
        assert step["tool"] == "next_prompt"

        first = await next_question(client, step["arguments"]["run_id"])
        assert first["number"] == 0
        text = await whole_prompt(client, first)
        assert len(text) == first["size"]
        assert text == Path(first["prompt_file"]).read_text(encoding="utf-8")
        assert "torch.relu(x + y)" in text
        assert "STITCH_ABI_VERSION" in text

        given = {"run_id": first["run_id"], "number": 0, "text": answer_of(UNCOMPILED)}
        taken = await asked(client, "submit_answer", given)
        assert (taken["status"], taken["is_error"]) == ("completed", False)
        twice = await asked(client, "submit_answer", given)
        assert twice["is_error"]
        assert "has an answer already" in twice["message"]

        second = await next_question(client, first["run_id"])
        assert second["number"] == 1
        assert "expected ';'" in await whole_prompt(client, second)
        await asked(client, "submit_answer", {**given, "number": 1, "text": answer_of(RIGHT)})
        end = await next_question(client, first["run_id"])
        assert "prompt" not in end
        assert "finished" in end["message"]
        steps = [row["tool"] for row in end["next_steps"]]
        assert steps == ["get_job", "review_program"]
        job = await asked(client, "get_job", end["next_steps"][0]["arguments"])
        late = await asked(client, "submit_answer", {**given, "number": 2})
    assert job["result"]["verdict"] == "accepted"
    assert verify_certificate(job["result"]["certificate"]).status == "accepted"
    assert late["is_error"]
    assert "question 2" in late["message"]
    assert "not open" in late["message"]
    attempts = read_state(Workspace(workspace).run_folder("last")).attempts
    assert [row.author for row in attempts] == ["stitcher", "manual", "manual"]
    assert [row.status for row in attempts] == ["accepted", "build_failed", "accepted"]


def run_of_the_command_line(workspace: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "stitch_mcp", "solve", "model.py", "--quick", "--coder", "manual"]
    return subprocess.Popen(
        [*command, "--rounds", "1", "--json"],
        cwd=workspace,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "STITCH_WORKSPACE": str(workspace)},
    )


@contextlib.contextmanager
def ended(process: "subprocess.Popen[str]") -> Generator[None]:
    """Ends the process after a test that failed before it."""
    try:
        yield
    finally:
        process.kill()


@pytest.mark.exhaustive  # the next one answers a run of another process' workspace
async def test_a_run_of_the_command_line_is_answered_by_the_tools(
    workspace: Path, server_context: ServerContext
) -> None:
    # The pipe is closed however the test ends: another test would be blamed for it.
    with run_of_the_command_line(workspace) as process, ended(process):
        until(lambda: bool(Workspace(workspace).run_ids()))
        async with Client(build_server(with_roles(server_context))) as client:
            question = await next_question(client, "")
            assert "job_id" not in question
            given = {"run_id": question["run_id"], "number": question["number"], "text": answer_of(RIGHT)}
            await asked(client, "submit_answer", given)
            end = await next_question(client, question["run_id"])
        printed, _ = process.communicate(timeout=120)
    assert "finished" in end["message"]
    assert [row["tool"] for row in end["next_steps"]] == ["review_program"]
    assert json.loads(printed)["attempts"] == 2


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a run that was stopped while its first question was open."""
    import threading

    from tests.mcp.server.conftest import REFERENCE

    folder = tmp_path_factory.mktemp("stopped")
    (folder / "model.py").write_text(REFERENCE, encoding="utf-8")
    stop = threading.Event()

    def say(sentence: str) -> None:
        if sentence == "asking manual":
            stop.set()

    with pytest.raises(StitchError, match="stopped"):
        solve(
            folder / "model.py",
            workspace=folder,
            quick=True,
            bench_budget_s=1e-6,
            coder="manual",
            emit=say,
            stop=stop,
        )
    return folder


@pytest.fixture
def stopped_workspace(stopped: Path, workspace: Path) -> Path:
    """A copy of it, which may be changed."""
    shutil.copytree(stopped, workspace, dirs_exist_ok=True)
    return workspace


async def test_an_answer_to_a_run_that_nobody_works_on_is_read_when_it_is_resumed(
    stopped_workspace: Path, server_context: ServerContext
) -> None:
    async with Client(build_server(with_roles(server_context))) as client:
        question = await next_question(client, "")
        taken = await asked(
            client,
            "submit_answer",
            {"run_id": question["run_id"], "number": 0, "text": answer_of(RIGHT)},
        )
        assert "nothing works on the run" in taken["message"]
        step = taken["next_steps"][0]
        assert step["tool"] == "solve"
        waiting = await asked(client, "next_prompt", {})
        assert waiting["status"] == "completed"
        assert "not read it yet" in waiting["message"]
        assert waiting["next_steps"][0] == step
    calls = read_state(Workspace(stopped_workspace).run_folder("last")).calls
    assert [row.answered for row in calls] == [None]


def test_what_is_no_answer_to_the_open_question_is_refused_by_its_kind(stopped_workspace: Path) -> None:
    workspace = Workspace(stopped_workspace)
    folder = workspace.run_folder("last")
    run = read_manual_run(workspace, folder)
    assert run.question is not None
    for text in ("", " \n\t", "x" * (LARGEST_ANSWER_BYTES + 1)):
        with pytest.raises(AnswerSizeError):
            submit_answer(run, 0, text)
    for number in (-1, 1, 7):
        with pytest.raises(QuestionNotOpenError, match="question 0 is open"):
            submit_answer(run, number, "text")
    assert sorted(path.name for path in (folder / "calls" / "000").iterdir()) == ["prompt.md"]
    submit_answer(run, 0, answer_of(RIGHT))
    # The same view of the run, as another client has it that asked before: its answer replaces nothing.
    with pytest.raises(AlreadyAnsweredError, match="somebody else"):
        submit_answer(run, 0, "prose")
    with pytest.raises(AlreadyAnsweredError, match="has an answer already"):
        submit_answer(read_manual_run(workspace, folder), 0, "prose")
    assert sorted(path.name for path in (folder / "calls" / "000").iterdir()) == ["answer.md", "prompt.md"]
    assert (folder / "calls" / "000" / "answer.md").read_text(encoding="utf-8") == answer_of(RIGHT)


async def test_a_run_without_its_first_event_is_waited_for_as_long_as_a_process_works_on_it(
    workspace: Path, server_context: ServerContext
) -> None:
    place = Workspace(workspace)
    begun = Run(place.runs_folder / "20260101-begun", place.store)
    async with Client(build_server(with_roles(server_context))) as client:
        for named in ("", begun.run_id):
            waiting = await asked(client, "next_prompt", {"run_id": named, "wait_s": 0})
            assert (waiting["status"], waiting["run_id"]) == ("working", begun.run_id)
            assert waiting["next_steps"][0]["arguments"] == {"run_id": begun.run_id}
        early = await asked(client, "submit_answer", {"run_id": begun.run_id, "number": 0, "text": "x"})
        begun.close()
        nobody = await asked(client, "next_prompt", {"wait_s": 0})
        dead = await asked(client, "next_prompt", {"run_id": begun.run_id, "wait_s": 0})
    assert "not begun" in early["message"]
    assert "asks anybody" in nobody["message"]
    assert "no beginning" in dead["message"]
    assert all(row["is_error"] for row in (early, nobody, dead))


async def test_a_run_that_asks_nobody_is_named_as_such(
    workspace: Path, server_context: ServerContext
) -> None:
    async with Client(build_server(with_roles(server_context))) as client:
        none = await asked(client, "next_prompt", {})
        assert none["is_error"]
        assert none["next_steps"][0]["arguments"]["coder"] == "manual"
        opened = await asked(client, "analyze_reference", {"reference": "model.py", "wait_s": 45})
        other = await asked(client, "next_prompt", {"run_id": opened["run_id"]})
        job = await asked(client, "next_prompt", {"run_id": opened["job_id"]})
        lost = await asked(client, "submit_answer", {"run_id": "0" * 16, "number": 0, "text": "x"})
    assert "asks nobody" in other["message"]
    assert other["next_steps"][0]["tool"] == "solve"
    assert "job of solve" in job["message"]
    assert "there is no job" in lost["message"]
    assert all(row["is_error"] for row in (other, job, lost))


async def test_a_run_that_asks_its_caller_is_refused_where_no_tool_takes_the_answer(
    server_context: ServerContext,
) -> None:
    async with Client(build_server(server_context)) as client:
        refused = await asked(client, "solve", {"reference": "model.py", "coder": "manual"})
    assert refused["is_error"]
    assert "--toolsets steps,solve,roles" in refused["message"]
