"""What goes wrong is told in the words of tools, with a next step that can succeed."""

import contextlib
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client

from stitch_mcp import doctor
from stitch_mcp.config import configure
from stitch_mcp.jobs.folder import JobFolder
from stitch_mcp.jobs.state import JobRequest, JobState, Subject
from stitch_mcp.named_programs import program_of_files
from stitch_mcp.server.app import build_server
from stitch_mcp.server.job_answers import as_argument, failure_words, job_answer, tool_answer
from stitch_mcp.server.job_context import JobContext
from stitch_mcp.server.server_context import ServerContext, open_server_context
from stitch_mcp.server.tool_list import find_tool
from stitch_mcp.server.tools.benchmark_program import BenchmarkProgram, benchmark
from stitch_mcp.server.tools.review_program import ReviewProgram, review
from stitch_planner.join import require_correct
from stitch_planner.opening import begin_run
from stitch_planner.runs.recorder import OUTSIDE, record_check
from stitch_planner.runs.run import Workspace
from stitch_planner.workbench import Workbench
from stitch_tools.errors import StoreError, UsageError
from stitch_tools.judge.trial import Trial
from stitch_tools.models.acceptance import AcceptPolicy
from stitch_tools.models.program import Program
from stitch_tools.models.remedy import Remedy
from stitch_tools.models.task import ReferenceFacts, Task
from stitch_tools.models.verdict import Bench, Check, CheckFlag
from stitch_tools.run.interpreter import Interpreter

pytestmark = pytest.mark.anyio
HASH = "0" * 64
PYTHON = Interpreter("python3", "3.11.0", "2.13.0", "own")
PROGRAM = {"run_id": "r", "program": HASH}


@asynccontextmanager
async def connected(workspace: Path) -> AsyncGenerator[Client]:
    async with Client(
        build_server(open_server_context({"workspace": workspace})), mode="2026-07-28"
    ) as client:
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


async def test_a_workspace_that_takes_no_files_is_diagnosed(
    server_context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Workspace) -> None:
        raise StoreError(f"{self.folder} cannot be written", hint="choose another folder")

    monkeypatch.setattr(Workspace, "prepare", refuse)
    monkeypatch.setattr(doctor, "can_write", lambda folder: not server_context.root.is_relative_to(folder))
    async with Client(build_server(server_context), mode="2026-07-28") as client:
        seen = (await client.call_tool("inspect_environment", {})).structured_content
        other = await client.call_tool("analyze_reference", {"reference": "model.py"})
    assert seen["status"] == "completed"
    assert any(fix.startswith("workspace: ") and "cannot be written" in fix for fix in seen["fixes"])
    assert other.is_error


def test_a_result_of_a_job_leaves_out_what_is_empty(server_context: ServerContext) -> None:
    server_context.workspace.prepare()
    request = JobRequest(tool="benchmark_program", arguments=PROGRAM)
    JobFolder(server_context.supervisor.jobs, request.job_id).write_request(request)
    found = {"message": "unmeasured", "against": [], "interval": [], "device": "", "speedup": 0.0}
    state = JobState(job_id=request.job_id, tool=request.tool, status="completed", result=found)
    assert job_answer(server_context, state).result == {"message": "unmeasured", "speedup": 0.0}


@pytest.mark.parametrize("name", ["-o.cpp", "a\0b.cpp"])
async def test_a_file_name_is_refused_for_what_is_wrong_with_it(workspace: Path, name: str) -> None:
    async with connected(workspace) as client:
        result = await client.call_tool("compile_program", {"files": {name: "int x;"}, "wait_s": 45})
    told = result.structured_content["message"]
    assert "begins with '-'" in told if name.startswith("-") else "NUL character" in told


def test_a_judged_program_is_not_sent_to_its_check_again(server_context: ServerContext) -> None:
    good, bad = (
        program_of_files({"program.cpp": text}, server_context.workspace.store, target="cpu")
        for text in (b"a", b"b")
    )
    task = Task(name="model", files=(), main="model.py")
    run = begin_run(replace(server_context.workbench, python=PYTHON), task, coder=OUTSIDE)
    for row, status in ((good, "accepted"), (bad, "incorrect")):
        found = {"program_id": row.program_id, "task_id": task.task_id, "status": status}
        record_check(run, row, Check.model_validate(found))
    with pytest.raises(UsageError) as caught:
        require_correct(run, bad)
    run.close()
    server_context.workspace.prepare()
    request = JobRequest(tool="benchmark_program", arguments={})
    JobFolder(server_context.supervisor.jobs, request.job_id).write_request(request)
    state = JobState(
        job_id=request.job_id,
        tool=request.tool,
        status="failed",
        error_code="usage",
        message="no",
        remedies=caught.value.remedies,
    )
    first, second = tool_answer(server_context, state).next_steps
    assert (first.tool, first.arguments["program"]) == ("benchmark_program", good.program_id[:16])
    assert second.tool == "compile_program"


def test_a_failed_job_keeps_the_calls_that_its_error_named(server_context: ServerContext) -> None:
    server_context.workspace.prepare()
    request = JobRequest(tool="certify_program", arguments=PROGRAM)
    JobFolder(server_context.supervisor.jobs, request.job_id).write_request(request)
    named = Remedy(tool="certify_program", arguments={"run_id": "r", "program": "1" * 16}, why="it counts")
    state = JobState(
        job_id=request.job_id,
        tool=request.tool,
        status="failed",
        error_code="usage",
        message="no",
        remedies=(named,),
    )
    assert JobState.from_json_bytes(state.canonical_json()) == state
    assert (
        tool_answer(server_context, state).next_steps
        == job_answer(server_context, state).next_steps
        == (named,)
    )


def test_a_hint_names_options_as_its_reader_gives_them() -> None:
    error = UsageError("no", hint="pass {allow_relaxed}, or {python}", options=("allow_relaxed", "python"))
    assert error.hint == "pass --allow-relaxed, or --python"
    spelled = error.hint_for(as_argument(find_tool("analyze_reference")))
    assert spelled == "pass `allow_relaxed`, or --python"


async def test_next_steps_name_only_what_is_offered(workspace: Path) -> None:
    server_context = open_server_context({"workspace": workspace}, read_only=True)
    async with Client(build_server(server_context), mode="2026-07-28") as client:
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
    server_context: ServerContext,
    tool: str,
    arguments: dict[str, Any],
    code: str,
    step: tuple[str, dict[str, Any]],
) -> None:
    server_context.workspace.prepare()
    request = JobRequest(tool=tool, arguments=arguments)
    JobFolder(server_context.supervisor.jobs, request.job_id).write_request(request)
    state = JobState(
        job_id=request.job_id, tool=tool, status="failed", error_code=code, message="no", hint="yes"
    )
    for answer in (tool_answer(server_context, state), job_answer(server_context, state)):
        assert answer.message == "no. Next: yes"
        (found,) = answer.next_steps
        assert (found.tool, found.arguments) == step


@pytest.mark.parametrize("status", ["cancelled", "failed"])
def test_a_solve_that_ended_early_goes_on_in_its_run(server_context: ServerContext, status: str) -> None:
    server_context.workspace.prepare()
    request = JobRequest(tool="solve", arguments={"reference": HASH})
    JobFolder(server_context.supervisor.jobs, request.job_id).write_request(request)
    found = {"job_id": request.job_id, "tool": "solve", "status": status, "message": "ended"}
    with_run = JobState.model_validate({**found, "run_id": "r"})
    assert tool_answer(server_context, with_run).next_steps[0].arguments == {"run_id": "r"}
    (again,) = tool_answer(server_context, JobState.model_validate(found)).next_steps
    assert again.arguments == {"reference": HASH}


def test_a_quoted_line_at_a_message_s_end_is_not_run_into_the_next_step() -> None:
    assert failure_words("it is wrong", "mend it") == "it is wrong. Next: mend it"
    source = "model.py:5: it is wrong\n    def forward(self, x) -> Output:"
    assert failure_words(source, "mend it") == f"{source}\nNext: mend it"


NO_FACTS = ReferenceFacts(inputs=(), outputs=(), output_structure='"leaf"', parameters=())


@dataclass(frozen=True, kw_only=True)
class TimedBench(Workbench):
    """A workbench whose timing gives just one result, and runs nothing for it."""

    result: Bench

    @contextlib.contextmanager
    def trial(self, task: Task, program: Program, known: ReferenceFacts | None = None) -> Generator[Trial]:
        session: Any = None
        yield Trial(task, program, None, session, self.workspace.store, known or NO_FACTS)

    def benchmark(self, trial: Trial, *, quick: bool, other: Program | None = None) -> Bench:
        update = {"program_id": trial.program.program_id, "task_id": trial.task.task_id}
        return self.result.model_copy(update=update)


def accepted_in_a_run(
    workspace: Path, bench: Bench, *flags: CheckFlag, policy: AcceptPolicy | None = None
) -> JobContext:
    """A request about a program that a run accepted, at a workbench whose timing gives just `bench`."""
    kept = Workspace(workspace)
    task = Task(name="model", files=(), main="model.py")
    program = program_of_files({"program.cpp": b"int x;"}, kept.store, target="cpu")
    workbench = TimedBench(kept, PYTHON, policy=policy or AcceptPolicy(), result=bench)
    run = begin_run(workbench, task, coder=OUTSIDE)
    passed = Check(program_id=program.program_id, task_id=task.task_id, status="accepted", flags=flags)
    record_check(run, program, passed)
    run.close()
    subject = Subject(
        task_id=kept.store.put_fact(task), program_id=kept.store.put_fact(program), run_id=run.run_id
    )
    config = configure({"workspace": str(workspace)})
    return JobContext(config, workbench, subject, print, print)


def test_a_timing_that_was_disturbed_can_be_done_again(workspace: Path) -> None:
    nothing = Bench(program_id="", task_id="", outcome="inconclusive", message="no undisturbed round")
    work = accepted_in_a_run(workspace, nothing)
    answer = benchmark(BenchmarkProgram(run_id=work.run_id), work)
    again = answer.next_steps[0]
    assert again.tool == "benchmark_program"
    # Without `rerun` the same call gives the same result.
    assert again.arguments["rerun"] is True
    BenchmarkProgram.model_validate(again.arguments)


def test_what_is_reviewed_after_its_timing_goes_to_its_certificate(workspace: Path) -> None:
    work = accepted_in_a_run(workspace, Bench(program_id="", task_id="", outcome="faster"))
    named = ReviewProgram(run_id=work.run_id)
    assert [step.tool for step in review(named, work).next_steps] == ["benchmark_program"]
    benchmark(BenchmarkProgram(run_id=work.run_id), work)
    assert [step.tool for step in review(named, work).next_steps] == ["certify_program"]


def test_an_accepted_program_that_does_not_count_is_mended_and_not_certified(workspace: Path) -> None:
    work = accepted_in_a_run(workspace, Bench(program_id="", task_id="", outcome="faster"), "weak")
    named = ReviewProgram(run_id=work.run_id)
    answer = review(named, work)
    assert answer.message.endswith("check: accepted, and does not count")
    assert answer.coverage[-1].startswith("does not count: weak: ")
    assert [step.tool for step in answer.next_steps] == ["compile_program", "benchmark_program"]
    timed = benchmark(BenchmarkProgram(run_id=work.run_id), work)
    assert (timed.counts, [step.tool for step in timed.next_steps]) == (False, ["compile_program"])
    assert "it does not count: weak: " in timed.message
    assert [step.tool for step in review(named, work).next_steps] == ["compile_program"]


def test_what_a_run_accepts_openly_goes_to_its_certificate(workspace: Path) -> None:
    timed = Bench(program_id="", task_id="", outcome="faster")
    work = accepted_in_a_run(workspace, timed, "weak", policy=AcceptPolicy.of(["weak"]))
    benchmark(BenchmarkProgram(run_id=work.run_id), work)
    assert [step.tool for step in review(ReviewProgram(run_id=work.run_id), work).next_steps] == [
        "certify_program"
    ]


async def test_who_gets_a_name_of_the_interface_wrong_is_shown_the_interface(workspace: Path) -> None:
    source = '#include "stitch/abi.h"\nint f(const StitchInitArgs& a) { return a.param_count; }\n'
    async with connected(workspace) as client:
        given = {"files": {"program.cpp": source}, "wait_s": 40}
        answer = (await client.call_tool("compile_program", given)).structured_content or {}
        step = next(step for step in answer["next_steps"] if step["tool"] == "get_artifact")
        page = (await client.call_tool(step["tool"], step["arguments"])).structured_content or {}
    assert "num_params" in page["text"]


@pytest.mark.slow
async def test_an_analysis_tells_of_parameters_that_it_does_not_list(workspace: Path) -> None:
    source = "import torch\n\nclass Model(torch.nn.Linear):\n"
    source += "    def __init__(self):\n        super().__init__(4, 4)\n"
    source += "\n\ndef get_inputs():\n    return [torch.randn(2, 4)]\n"
    given = {"files": {"m.py": source}, "wait_s": 45}
    async with connected(workspace) as client:
        answer = (await client.call_tool("analyze_reference", given)).structured_content or {}
        whole = await client.call_tool("analyze_reference", {**given, "detail": "detailed"})
    assert "2 parameters and buffers (`detail`: detailed names them)" in answer["message"]
    assert [row.split(":")[0] for row in (whole.structured_content or {})["parameters"]] == ["weight", "bias"]
