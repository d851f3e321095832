"""The decisions of a run: pure functions of its state.

A run is a state machine. `open_step` names the state that it is in; each step ends in an event that leads to
the next. Where all instruments looked at the current program, `decide` makes the transition, with its reason.
"""

from stitch_planner.runs.attempts import Attempt
from stitch_planner.runs.run import OUTSIDE
from stitch_planner.runs.run_events import Decision, DecisionMade
from stitch_planner.runs.state import State
from stitch_planner.search import Choice, judgement, named, search_of
from stitch_tools.models.program import STITCHER

_ENDS: tuple[Decision, ...] = ("accept", "stop")
"""Decisions after which no further program is worked on."""
_FIXES = 2
"""So many wrong programs in a row are mended; after that the best one is improved in another way."""


def open_step(state: State) -> str | None:
    """Name of the step that comes next; None where the run is finished."""
    if state.finished is not None:
        return None
    if (preparation := state.open_preparation) is not None:
        return preparation
    if state.current is None:
        return "program"
    if state.current.open_step is not None:
        return state.current.open_step
    if state.decision is None:
        return "review" if _lacks_review(state, state.current) else "decision"
    if state.decision.decision not in _ENDS:
        return "program"
    return "certificate" if state.decision.decision == "accept" and not state.certificate else "finished"


def _lacks_review(state: State, attempt: Attempt) -> bool:
    """Whether a model should learn how its program was rated. The stitcher learns nothing."""
    is_model = state.started is not None and state.started.coder not in (STITCHER, OUTSIDE)
    return is_model and attempt.review is None


def decide(state: State, *, rounds_left: int, refines: bool = False) -> DecisionMade:
    """What follows from the evidence on the run's programs, once its current one was looked at.

    Args:
        state: it has a current attempt.
        rounds_left: how many programs the coder can still write.
        refines: whether a further one may be faster than the best though no goal is missed.
    """
    current, best = state.current, state.best
    assert current is not None, "a decision is about a program"
    open_rows = (row for row in reversed(state.attempts) if row.counts and not (row.bench or row.lost))
    if (untimed := next(open_rows, None)) is not None:
        return _decision(untimed, "next_step", f"{named(untimed)} counts, and was not timed yet")
    goal = state.started.min_speedup if state.started else None
    if rounds_left and refines and _deserves_a_fix(state, current):
        return _decision(current, "fix", f"{named(current)} is {judgement(current)}")
    # Correctness comes before speed: no program is optimised while none counts.
    if best is None and rounds_left:
        return _made(search_of(state).choose(state))
    if best is None:
        return _decision(current, "stop", f"no program counts; {named(current)} is {judgement(current)}")
    # The goal is compared with the median; the rank among programs uses the interval's lower end.
    misses = goal is not None and _misses(best, goal)
    if rounds_left and (misses or (goal is None and refines)):
        choice = search_of(state).choose(state)
        why = _why_best(state, best)
        if misses:
            why = f"{named(best)} is the best so far, and misses the goal of {goal:g} times eager"
        return _made(choice, f"{why}; rounds left: {rounds_left}")
    return _decision(best, "accept", _why_best(state, best))


def _made(choice: Choice, why: str = "") -> DecisionMade:
    return _decision(choice.attempt, choice.decision, "; ".join(filter(None, (why, choice.reason))))


def _decision(attempt: Attempt, decision: Decision, reason: str) -> DecisionMade:
    return DecisionMade(program_id=attempt.program_id, decision=decision, reason=reason)


def _deserves_a_fix(state: State, current: Attempt) -> bool:
    """Whether the program that was just looked at is wrong, and was not preceded by enough wrong ones."""
    wrong = 0
    for row in reversed(state.attempts):
        if row.counts:
            break
        wrong += 1
    return not current.counts and wrong <= _FIXES


def _misses(attempt: Attempt, goal: float) -> bool:
    # Where nothing was measured, another program would not be measured either.
    return attempt.bench is not None and attempt.bench.speedup is not None and attempt.bench.speedup < goal


def _why_best(state: State, best: Attempt) -> str:
    counted = sum(row.counts for row in state.attempts)
    safe = best.safe_speedup
    figure = "" if safe is None else f", with {safe:.2f} times eager at the lower end of its interval"
    if counted == 1:
        return f"{named(best)} counts{figure}"
    # Without a timing there is no order among them but that of the run.
    what = "the fastest of" if safe is not None else "the first of"
    return f"{named(best)} is {what} {counted} programs that count{figure}"
