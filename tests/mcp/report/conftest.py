"""A run with four programs, as a model leaves it."""

from pathlib import Path

import pytest

from stitch_planner.llm.chat import ChatAnswer
from stitch_planner.runs.run_events import ModelAnswered, ModelAsked
from stitch_tools.models.verdict import DrawResult, Finding, OutputError
from tests.mcp.report.run_support import add_bench, add_build, add_check, add_program, open_run

ATTACK = '</pre></style><script>alert("x")</script><img src=http://evil.example/x onerror=alert(1)>'


@pytest.fixture
def four_programs(tmp_path: Path) -> Path:
    """The workspace: one program that counts, a faster disturbed one, a wrong one, one that was not built."""
    run = open_run(tmp_path, coder="llm")
    first = add_program(run, "int first;\nint kept;\n", files={"helper.h": "// helps\n"})
    add_build(run, first)
    add_check(run, first)
    add_bench(run, first, {"compile:default": (1.2, 1.1, 1.3), "eager": (2.0, 1.9, 2.1)})
    run.record(ModelAsked(call=0, request="0" * 64, model="m", most_tokens=5000))
    answer = ChatAnswer(text="text", model="m-2026", input_tokens=1200, output_tokens=345, latency_s=2.5)
    run.record(ModelAnswered(call=0, answer=run.store.put_fact(answer), tokens=1545, usd=0.0123))
    second = add_program(
        run,
        f"int second; // {ATTACK}\nint kept;\n",
        author="m",
        parent=first,
        notes=(f"note {ATTACK}",),
        files={"helper.h": "// helps\n"},
    )
    add_build(run, second)
    finding = Finding(
        rule="library_patched", severity="note", message=f"found {ATTACK}", file="main.cpp", line=7
    )
    add_check(run, second, findings=(finding,))
    add_bench(
        run,
        second,
        {"eager": (3.0, 1.5, 4.0)},
        outcome="inconclusive",
        disturbed=True,
        message="a busy machine",
    )
    third = add_program(run, "int third;\n", author="m", parent=second)
    wrong = OutputError(
        output="", max_error=0.5, rms_error=0.1, reference_error=1e-7, bound=2e-5, problem="off by half"
    )
    draws = (DrawResult(draw="own-1", ok=True), DrawResult(draw="signed", ok=False, outputs=(wrong,)))
    add_check(run, third, status="incorrect", draws=draws, message="signed: off by half")
    fourth = add_program(run, "int fourth\n", author="m", parent=first)
    add_build(run, fourth, ok=False)
    run.record(ModelAsked(call=1, request="1" * 64, model="m", most_tokens=7000))
    run.close()
    return tmp_path
