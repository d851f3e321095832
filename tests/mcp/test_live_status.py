"""The line that follows a run on a terminal, and its absence elsewhere."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from stitch_mcp.cli.live_status import describe_state
from stitch_planner.runs.run_events import (
    BenchFinished,
    BuildFinished,
    CheckFinished,
    GraphCaptured,
    ModelAnswered,
    ModelAsked,
    PlanMade,
    ProgramWritten,
    ReferenceObserved,
    RunStarted,
)
from stitch_planner.runs.state import State

SCRIPT = """
import time
from stitch_mcp.cli.live_status import followed
from stitch_mcp.cli.output import CommandOutput
from stitch_planner.runs.state import State
with followed(CommandOutput("solve", as_json=False)) as follower:
    follower.emit("compiling [red]model[/red].cpp")
    if follower.on_state:
        follower.on_state(State())
        time.sleep(1.5)
print("the result")
"""


def on_terminal(term: str = "xterm") -> str:
    """What the script writes to a terminal as its stderr."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": term, "COLUMNS": "120"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            stderr=theirs,
            stdout=subprocess.PIPE,
            env=env,
            check=True,
            text=True,
        )
        assert done.stdout == "the result\n"
    finally:
        os.close(theirs)
    written = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux says so that the other end was closed.
            break
        if not piece:
            break
        written += piece
    os.close(ours)
    return written.decode()


def test_a_terminal_shows_sentences_and_a_line_below_them() -> None:
    shown = on_terminal()
    assert "compiling [red]model[/red].cpp" in shown
    assert "observing the reference" in shown
    assert "\x1b[" in shown


def test_a_plain_terminal_and_a_file_get_sentences_alone(tmp_path: Path) -> None:
    shown = on_terminal("dumb")
    assert "compiling" in shown
    assert "\x1b[" not in shown
    assert "observing" not in shown
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True, text=True)
    assert "compiling [red]model[/red].cpp" in done.stderr
    assert "\x1b[" not in done.stderr
    assert "observing" not in done.stderr


def test_the_line_tells_program_step_best_and_what_was_spent() -> None:
    def after(*events: object) -> str:
        state = State()
        for event in events:
            state = state.after(event)  # pyright: ignore[reportArgumentType] # any of the run's events
        return describe_state(state)

    prepared = (
        RunStarted.model_construct(coder="llm", planner="none"),
        ReferenceObserved.model_construct(),
        GraphCaptured.model_construct(),
        PlanMade.model_construct(),
    )
    first = (
        ProgramWritten(program="a", program_id="a" * 64, author="stitcher"),
        BuildFinished.model_construct(program_id="a" * 64, ok=True),
    )
    judged = (
        CheckFinished.model_construct(program_id="a" * 64, status="accepted", counts=True),
        BenchFinished.model_construct(
            program_id="a" * 64,
            status="accepted",
            counts=True,
            outcome="faster",
            speedup=1.84,
            safe_speedup=1.7,
        ),
    )
    asked = (
        ModelAsked(call=1, request="r", model="m", most_tokens=9000, most_usd=0.5),
        ModelAnswered(call=1, answer="x", tokens=1234, usd=0.02),
    )
    assert after() == "observing the reference"
    assert after(*prepared) == "program 0 | writing a program"
    assert after(*prepared, *first) == "program 0 | checking"
    best = "best: program 0 by stitcher, 1.84x eager"
    assert after(*prepared, *first, *judged).endswith(best)
    second = ProgramWritten(program="b", program_id="b" * 64, author="m")
    line = after(*prepared, *first, *judged, *asked, second)
    assert line == f"program 1 | building | {best} | at most 1,234 tokens, $0.02"
