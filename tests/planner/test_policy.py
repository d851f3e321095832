"""The decisions of a run: pure functions of what its events say."""

import pytest

from stitch_planner.policy import decide, open_step
from stitch_planner.runs.run_events import (
    BenchFinished,
    BuildFinished,
    CertificateWritten,
    CheckFinished,
    Decision,
    DecisionMade,
    GraphCaptured,
    PlanMade,
    ProgramWritten,
    ReferenceObserved,
    RunFinished,
    RunStarted,
)
from stitch_planner.runs.state import State
from stitch_planner.search import stale_rounds
from stitch_planner.stitcher_coder import StitcherCoder
from stitch_tools.models.program import STITCHER

PREPARED = (
    ReferenceObserved(facts="f"),
    GraphCaptured(graph="g", ceilings=None, source="export"),
    PlanMade(plan="p", steps=1),
)


def begun(*, coder: str = "outside", goal: float | None = None) -> State:
    first = RunStarted(
        task="t", task_id="t", coder=coder, quick=True, min_speedup=goal, interpreter="p", environment="e"
    )
    state = State().after(first)
    for event in PREPARED:
        state = state.after(event)
    return state


def judged(
    state: State,
    name: str,
    *,
    status: str = "accepted",
    counts: bool = True,
    speedup: float | None = 2.0,
    timed: bool = True,
    author: str = "outside",
    cpu_speedup: float | None = None,
) -> State:
    """The state after a program was written, built, checked and timed."""
    state = state.after(ProgramWritten(program=name, program_id=name, author=author))
    state = state.after(BuildFinished(program_id=name, build=None, ok=True))
    state = state.after(CheckFinished(program_id=name, check="c", status=status, counts=counts))
    if not timed:
        return state
    safe = None if speedup is None else speedup - 0.1
    return state.after(
        BenchFinished(
            program_id=name,
            bench="b",
            outcome="faster",
            status=status,
            counts=counts,
            speedup=speedup,
            safe_speedup=safe,
            cpu_speedup=cpu_speedup,
        )
    )


def five() -> State:
    """A run with five programs of two authors, of which the third is the best."""
    state = judged(begun(), "a", speedup=1.5)
    state = judged(state, "b", status="incorrect", counts=False, speedup=None)
    state = judged(state, "c", speedup=3.0)
    state = judged(state, "d", speedup=9.0, counts=False)
    return judged(state, "e", speedup=2.0, author=STITCHER)


def test_where_no_time_is_certain_cpu_time_says_which_is_best() -> None:
    state = judged(judged(begun(), "a", speedup=None, cpu_speedup=1.5), "b", speedup=None, cpu_speedup=2.5)
    assert state.best is not None
    assert state.best.program_id == "b"
    certain = judged(state, "c", speedup=0.9)
    assert certain.best is not None
    assert certain.best.program_id == "c", "a time that is certain comes first, however slow"


def test_a_model_mends_two_wrong_programs_and_then_improves_the_best() -> None:
    state = judged(begun(), "a")
    seen: list[str] = []
    for name in ("b", "c", "d"):
        state = judged(state, name, status="incorrect", counts=False, speedup=None, author="m")
        made = decide(state, rounds_left=2, refines=True)
        seen.append(f"{made.decision} {made.program_id}")
    assert seen == ["fix b", "fix c", "optimize a"]
    assert decide(state, rounds_left=0, refines=True).decision == "accept"
    assert stale_rounds(state, "m") == 3


def test_the_best_attempt_is_the_fastest_that_counts() -> None:
    state = five()
    assert [row.round for row in state.attempts] == [0, 1, 2, 3, 4]
    assert (state.best and state.best.program_id, state.current and state.current.program_id) == ("c", "e")
    made = decide(state, rounds_left=StitcherCoder().rounds_left(state))
    assert (made.decision, made.program_id) == ("accept", "c")
    assert made.reason == (
        "program c is the fastest of 3 programs that count, with 2.90 times eager at the lower end of its "
        "interval"
    )


def test_of_two_that_are_equally_fast_the_earlier_is_the_best() -> None:
    state = judged(judged(begun(), "a"), "b")
    assert state.best is not None
    assert state.best.program_id == "a"


def test_one_that_was_not_measured_is_behind_a_slow_one() -> None:
    state = judged(judged(begun(), "a", speedup=None), "b", speedup=0.5)
    assert state.best is not None
    assert state.best.program_id == "b"


@pytest.mark.parametrize(
    ("state", "left", "decision", "program", "reason"),
    [
        (judged(begun(), "a"), 1, "accept", "a", "program a counts, with 1.90 times eager"),
        (judged(begun(), "a", speedup=None), 1, "accept", "a", "program a counts"),
        (judged(begun(), "a", status="crashed", counts=False), 1, "fix", "a", "program a is crashed"),
        (judged(begun(), "a", counts=False), 1, "fix", "a", "is correct, but does not count"),
        (judged(begun(), "a", counts=False), 0, "stop", "a", "no program counts; program a is correct"),
        (judged(begun(goal=4), "a"), 1, "optimize", "a", "misses the goal of 4 times eager"),
        (judged(begun(goal=4), "a"), 0, "accept", "a", "program a counts"),
        (judged(begun(goal=4), "a", speedup=None), 1, "accept", "a", "program a counts"),
        (
            judged(judged(begun(), "a", timed=False), "b", status="incorrect", counts=False),
            0,
            "next_step",
            "a",
            "program a counts, and was not timed yet",
        ),
    ],
)
def test_a_decision_follows_from_the_evidence(
    state: State, left: int, decision: Decision, program: str, reason: str
) -> None:
    made = decide(state, rounds_left=left)
    assert (made.decision, made.program_id) == (decision, program)
    assert reason in made.reason


def test_the_stitcher_has_one_round_in_a_run() -> None:
    assert StitcherCoder().rounds_left(judged(begun(), "a")) == 1
    assert StitcherCoder().rounds_left(judged(begun(), "a", author=STITCHER)) == 0
    # Older runs did not record the author.
    assert StitcherCoder().rounds_left(judged(begun(coder=STITCHER), "a", author="")) == 0
    assert StitcherCoder().rounds_left(judged(begun(coder=STITCHER), "a", author="outside")) == 1


def test_each_event_leads_to_the_next_step() -> None:
    state = State()
    seen = [open_step(state)]
    written = ProgramWritten(program="a", program_id="a")
    evidence = (
        BuildFinished(program_id="a", build=None, ok=True),
        CheckFinished(program_id="a", check="c", status="accepted", counts=True),
        BenchFinished(program_id="a", bench="b", outcome="faster", counts=True),
        DecisionMade(program_id="a", decision="accept", reason=""),
        CertificateWritten(program_id="a", file="f", sha256="s", certificate_id="c"),
        RunFinished(status="accepted", outcome="faster", message="", program_id="a"),
    )
    for event in (*PREPARED, written, *evidence):
        state = state.after(event)
        seen.append(open_step(state))
    steps = ["reference", "graph", "plan", "program", "build", "check", "bench", "decision", "certificate"]
    assert seen == [*steps, "finished", None]


@pytest.mark.parametrize(
    ("decision", "step"),
    [
        ("accept", "certificate"),
        ("stop", "finished"),
        ("fix", "program"),
        ("optimize", "program"),
        ("next_step", "program"),
    ],
)
def test_a_decision_is_a_transition(decision: Decision, step: str) -> None:
    state = judged(begun(), "a").after(DecisionMade(program_id="a", decision=decision, reason=""))
    assert open_step(state) == step
