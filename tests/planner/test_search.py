"""Which program the next one is made from: a pure function of what the run's events say."""

from typing import NamedTuple

import pytest

from stitch_planner.agents.describe_history import telling_pairs
from stitch_planner.policy import decide
from stitch_planner.runs.run_events import (
    BenchFinished,
    BuildFinished,
    CheckFinished,
    Decision,
    ProgramWritten,
    RunStarted,
    SearchName,
)
from stitch_planner.runs.state import State
from stitch_planner.search import search_of, stale_rounds


class Scored(NamedTuple):
    """A program: its parent's name, and how fast it is; None: wrong."""

    name: str
    parent: str | None
    speed: float | None


def run_of(*rows: Scored, search: SearchName = "tree", rounds: int = 4, by_cpu: bool = False) -> State:
    first = RunStarted(
        task="t",
        task_id="t",
        coder="llm",
        quick=True,
        rounds=rounds,
        search=search,
        interpreter="p",
        environment="e",
    )
    state = State().after(first)
    for name, parent, speed in rows:
        right = speed is not None
        status = "accepted" if right else "incorrect"
        state = state.after(ProgramWritten(program=name, program_id=name, author="m", parent_id=parent))
        state = state.after(BuildFinished(program_id=name, build=None, ok=True))
        state = state.after(CheckFinished(program_id=name, check="c", status=status, counts=right))
        state = state.after(
            BenchFinished(
                program_id=name,
                bench="b",
                outcome="inconclusive" if by_cpu else "faster",
                counts=right,
                safe_speedup=None if by_cpu else speed,
                cpu_speedup=speed if by_cpu else None,
            )
        )
    return state


A, B = Scored("a", None, 2.0), Scored("b", None, 1.0)
SLOWER = (Scored("a1", "a", 1.8), Scored("a2", "a", 1.7))


@pytest.mark.parametrize(
    ("rows", "rounds", "decision", "program"),
    [
        pytest.param((A,), 2, "optimize", "a", id="two rounds are too few for a second draft"),
        pytest.param((A,), 4, "draft", "a", id="four rounds begin with a second draft"),
        pytest.param((A, B), 4, "optimize", "a", id="the faster draft has its turn first"),
        pytest.param((A, B), 6, "draft", "b", id="six rounds begin with three drafts"),
        pytest.param((A, B, SLOWER[0]), 4, "optimize", "a", id="one failure is not stagnation"),
        pytest.param((A, B, *SLOWER), 4, "optimize", "b", id="a branch that stagnates gives way"),
        pytest.param(
            (A, B, *SLOWER, Scored("b1", "b", 4.0)),
            8,
            "draft",
            "b1",
            id="a wider run drafts before it refines",
        ),
        pytest.param(
            (A, B, *SLOWER, Scored("b1", "b", 4.0)), 5, "optimize", "b1", id="an improvement is followed"
        ),
        pytest.param(
            (A, B, *SLOWER, Scored("b1", "b", 0.9), Scored("b2", "b", 0.8)),
            5,
            "draft",
            "b2",
            id="all stagnate",
        ),
        pytest.param(
            (A, Scored("c", None, 1.9), SLOWER[0]), 4, "optimize", "c", id="of two as fast the one less tried"
        ),
        pytest.param((Scored("a", None, None),), 4, "fix", "a", id="a wrong draft is mended"),
        pytest.param(
            (Scored("a", None, None), Scored("b", "a", None), Scored("c", "b", None)),
            4,
            "draft",
            "c",
            id="but not forever",
        ),
        pytest.param((A, B, Scored("a1", "a", None)), 4, "fix", "a1", id="a wrong refinement is mended"),
    ],
)
def test_the_tree_chooses_by_score_and_visits_and_backtracks(
    rows: tuple[Scored, ...], rounds: int, decision: Decision, program: str
) -> None:
    state = run_of(*rows, rounds=rounds)
    made = decide(state, rounds_left=2, refines=True)
    assert (made.decision, made.program_id) == (decision, program)
    assert made == decide(run_of(*rows, rounds=rounds), rounds_left=2, refines=True), (
        "equal states decide alike"
    )


def test_greedy_refines_the_best_and_ends_after_three_that_are_not() -> None:
    rows = (A, B, *SLOWER)
    state = run_of(*rows[:3], search="greedy")
    assert decide(state, rounds_left=2, refines=True).program_id == "a"
    assert not search_of(state).is_exhausted(state, "m")
    stuck = run_of(*rows, search="greedy")
    assert stale_rounds(stuck, "m") == 3
    assert search_of(stuck).is_exhausted(stuck, "m")
    assert not search_of(run_of(*rows)).is_exhausted(run_of(*rows), "m")


def test_cpu_time_is_the_score_where_no_program_has_a_certain_time() -> None:
    made = decide(run_of(A, B, *SLOWER, by_cpu=True), rounds_left=1, refines=True)
    assert (made.decision, made.program_id) == ("optimize", "b")
    assert "has 0.50 of the best speed and was tried 0 times" in made.reason


def test_a_goal_that_is_reached_ends_the_search() -> None:
    state = run_of(A, B)
    assert state.started is not None
    goal = state.model_copy(update={"started": state.started.model_copy(update={"min_speedup": 1.5})})
    fast = goal.after(
        BenchFinished(program_id="a", bench="b", outcome="faster", counts=True, speedup=2.1, safe_speedup=2.0)
    )
    assert decide(fast, rounds_left=3, refines=True).decision == "accept"


def test_telling_pairs_are_steps_first_and_no_noise() -> None:
    rows = (
        A,
        B,
        Scored("a1", "a", 2.05),
        Scored("a2", "a", 6.0),
        Scored("b1", "b", None),
        Scored("b2", "b1", 4.0),
    )
    pairs = telling_pairs(run_of(*rows))
    assert [(row.slower.program_id, row.faster.program_id, row.is_step) for row in pairs] == [
        ("a", "a2", True),
        ("b", "a", False),
    ]
    assert pairs[0].gain == pytest.approx(3.0)
