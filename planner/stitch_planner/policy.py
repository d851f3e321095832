"""The decisions of a run: pure functions of its state.

A run is a state machine. `open_step` names the state that it is in; each step ends in an event that leads to
the next. Where all instruments looked at the current program, `decide` makes the transition, with its reason.
"""

from stitch_planner.runs.attempts import Attempt
from stitch_planner.runs.run_events import Decision, DecisionMade
from stitch_planner.runs.state import PREPARATION, State
from stitch_tools.models.program import STITCHER

_ENDS: tuple[Decision, ...] = ("accept", "stop")
"""Decisions after which no further program is worked on."""


def open_step(state: State) -> str | None:
    """Name of the step that comes next; None where the run is finished."""
    if state.finished is not None:
        return None
    preparation = next((name for name in PREPARATION if getattr(state, name) is None), None)
    if preparation is not None:
        return preparation
    if state.current is None:
        return "program"
    if state.current.open_step is not None:
        return state.current.open_step
    if state.decision is None:
        return "decision"
    if state.decision.decision not in _ENDS:
        return "program"
    return "certificate" if state.decision.decision == "accept" and not state.certificate else "finished"


def rounds_left(state: State) -> int:
    """How many programs the stitcher can still write: a second one would equal the first.

    Older runs did not record who wrote a program: what lies in a run of the stitcher's is taken as its own.
    """
    stitched = any(
        row.author == STITCHER or (not row.author and state.started and state.started.coder == STITCHER)
        for row in state.attempts
    )
    return 0 if stitched else 1


def decide(state: State, *, rounds_left: int) -> DecisionMade:
    """What follows from the evidence on the run's programs, once its current one was looked at.

    Args:
        state: it has a current attempt.
        rounds_left: how many programs the coder can still write.
    """
    current, best = state.current, state.best
    assert current is not None, "a decision is about a program"
    open_rows = (row for row in reversed(state.attempts) if row.counts and not (row.bench or row.lost))
    if (untimed := next(open_rows, None)) is not None:
        return _decision(untimed, "next_step", f"{_named(untimed)} counts, and was not timed yet")
    goal = state.started.min_speedup if state.started else None
    # Correctness comes before speed: no program is optimised while none counts.
    if best is None and rounds_left:
        return _decision(
            current, "fix", f"{_named(current)} is {_judgement(current)}, and no other one counts"
        )
    if best is None:
        return _decision(current, "stop", f"no program counts; {_named(current)} is {_judgement(current)}")
    # The goal is compared with the median; the rank among programs uses the interval's lower end.
    if rounds_left and goal is not None and _misses(best, goal):
        reason = f"{_named(best)} is the best so far, and misses the goal of {goal:g} times eager"
        return _decision(best, "optimize", reason)
    return _decision(best, "accept", _why_best(state, best))


def _decision(attempt: Attempt, decision: Decision, reason: str) -> DecisionMade:
    return DecisionMade(program_id=attempt.program_id, decision=decision, reason=reason)


def _misses(attempt: Attempt, goal: float) -> bool:
    # Where nothing was measured, another program would not be measured either.
    return attempt.bench is not None and attempt.bench.speedup is not None and attempt.bench.speedup < goal


def _why_best(state: State, best: Attempt) -> str:
    counted = sum(row.counts for row in state.attempts)
    safe = best.safe_speedup
    figure = "" if safe is None else f", with {safe:.2f} times eager at the lower end of its interval"
    if counted == 1:
        return f"{_named(best)} counts{figure}"
    # Without a timing there is no order among them but that of the run.
    what = "the fastest of" if safe is not None else "the first of"
    return f"{_named(best)} is {what} {counted} programs that count{figure}"


def _named(attempt: Attempt) -> str:
    return f"program {attempt.program_id[:16]}"


def _judgement(attempt: Attempt) -> str:
    return "correct, but does not count" if attempt.status == "accepted" else attempt.status
