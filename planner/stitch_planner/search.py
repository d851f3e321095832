"""Which program of a run the next one is made from: pure functions of the run's state.

A resumed run has the same state, and so decides the same: speeds are those that the events hold.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from stitch_planner.llm.model_settings import ROUNDS
from stitch_planner.runs.attempts import Attempt
from stitch_planner.runs.run_events import Decision, SearchName
from stitch_planner.runs.state import State

_GREEDY_PATIENCE = 3
"""After so many programs in a row that are not the best, refining the best ends."""
_BRANCH_PATIENCE = 2
"""After so many programs in a row that did not improve their branch, another branch has its turn."""
_ROUNDS_PER_DRAFT, _MOST_DRAFTS = 3, 3
"""A further draft for so many rounds, and how many drafts are written before any is refined."""
_EXPLORATION = 0.5
"""Weight of seldom tried programs; scores lie between 0 and 1."""


class Choice(NamedTuple):
    """What the next program is made from."""

    decision: Decision
    """`fix` or `optimize` the attempt, or `draft`: a new program from the task alone."""
    attempt: Attempt
    """For a draft the one that was worked on last."""
    reason: str
    """"" where there is none beside that the attempt is the best."""


class SearchStrategy(Protocol):
    """Says what the next program is made from. The state has a current attempt."""

    @property
    def name(self) -> SearchName:
        """As the run's first event has it."""
        ...

    def is_exhausted(self, state: State, author: str) -> bool:
        """Whether a further program of the author's is not worth its price."""
        ...

    def choose(self, state: State) -> Choice:
        """What the next program is made from."""
        ...


class GreedySearch:
    """Refines the best program until several in a row were no improvement."""

    name: SearchName = "greedy"

    def is_exhausted(self, state: State, author: str) -> bool:
        """Whether the author's last programs were no improvement."""
        return stale_rounds(state, author) >= _GREEDY_PATIENCE

    def choose(self, state: State) -> Choice:
        """The best program; while none counts, the one that was worked on last."""
        current, best = _current(state), state.best
        if best is None:
            return Choice(
                "fix", current, f"{named(current)} is {judgement(current)}, and no other one counts"
            )
        return Choice("optimize", best, "")


class TreeSearch:
    """Writes several drafts, and refines the most promising program of a branch that still improves.

    A branch is a draft with all that was made from it. Programs are chosen by the upper confidence bound of
    UCT (Kocsis and Szepesvari, 2006): their speed relative to the best, and how seldom they were tried.
    """

    name: SearchName = "tree"

    def is_exhausted(self, state: State, author: str) -> bool:
        """Never: where all branches stagnate, a further draft is written."""
        return False

    def choose(self, state: State) -> Choice:
        """A draft while there are too few or no branch improves, else the most promising program."""
        current = _current(state)
        roots = [row for row in state.attempts if branch_of(state, row) == row]
        wanted = _drafts_wanted(state)
        if len(roots) < wanted:
            return Choice("draft", current, f"{len(roots)} of {wanted} drafts are written")
        counted = [row for row in state.attempts if row.counts and not row.lost]
        if not counted:
            return Choice("draft", current, f"none of {len(state.attempts)} programs counts")
        stagnant = {row.program_id for row in roots if _is_stagnant(state, row)}
        open_rows = [
            row
            for row in counted
            if branch_of(state, row).program_id not in stagnant and not _is_regression(state, row, counted)
        ]
        if not open_rows:
            reason = f"none of {len(roots)} branches improved in its last {_BRANCH_PATIENCE} programs"
            return Choice("draft", current, reason)
        values = {row.program_id: _promise(state, row, counted) for row in open_rows}
        # max() keeps the first of equal ones: the earlier program.
        chosen = max(open_rows, key=lambda row: values[row.program_id])
        tried = len(children(state, chosen))
        aside = f", and {len(stagnant)} branches stagnate" if stagnant else ""
        reason = (
            f"{named(chosen)} has {score(chosen, counted):.2f} of the best speed and was tried {tried} times:"
            f" promise {values[chosen.program_id]:.2f}{aside}"
        )
        return Choice("optimize", chosen, reason)


SEARCHES: tuple[SearchStrategy, ...] = (GreedySearch(), TreeSearch())


def search_of(state: State) -> SearchStrategy:
    """The strategy that the run began with."""
    wanted = state.started.search if state.started else "greedy"
    return next(row for row in SEARCHES if row.name == wanted)


def stale_rounds(state: State, author: str) -> int:
    """How many of the author's last programs in a row are not the best of the run."""
    best, count = state.best, 0
    for row in reversed([row for row in state.attempts if row.author == author]):
        if best is not None and row.program_id == best.program_id:
            break
        count += 1
    return count


def parent_of(state: State, attempt: Attempt) -> Attempt | None:
    """The program that it was made from; None for a draft."""
    return state.attempt(attempt.program.parent_id) if attempt.program.parent_id else None


def children(state: State, attempt: Attempt) -> Sequence[Attempt]:
    """The programs that were made from it, in their order."""
    return [row for row in state.attempts if row.program.parent_id == attempt.program_id]


def branch_of(state: State, attempt: Attempt) -> Attempt:
    """The draft that a program goes back to."""
    row = attempt
    # A parent is always written before its children, so there is no circle.
    while (parent := parent_of(state, row)) is not None and parent.round < row.round:
        row = parent
    return row


def score(attempt: Attempt, counted: Sequence[Attempt]) -> float:
    """The speed of a program relative to the fastest of those that count, 0 to 1; 0 where it is not known.

    Wall-clock times and CPU times are not comparable: the second serve only where no program has the first.
    """
    has_wall = any(row.safe_speedup is not None for row in counted)
    speeds = {row.program_id: _speed(row, by_cpu=not has_wall) for row in counted}
    most = max(speeds.values(), default=0.0)
    return speeds.get(attempt.program_id, 0.0) / most if most > 0 else 0.0


def named(attempt: Attempt) -> str:
    """A program in a reason."""
    return f"program {attempt.program_id[:16]}"


def judgement(attempt: Attempt) -> str:
    """What is wrong with a program that does not count."""
    return "correct, but does not count" if attempt.accepted else attempt.status


def _current(state: State) -> Attempt:
    assert state.current is not None, "a choice is made after a program was looked at"
    return state.current


def _drafts_wanted(state: State) -> int:
    rounds = state.started.rounds if state.started else None
    # Few rounds are worth more as refinements than as beginnings.
    return min(_MOST_DRAFTS, 1 + (rounds or ROUNDS) // _ROUNDS_PER_DRAFT)


def _is_stagnant(state: State, root: Attempt) -> bool:
    """Whether the branch's newest programs are all slower than an earlier one of it, or wrong."""
    rows = [row for row in state.attempts if branch_of(state, row) == root]
    counted = [row for row in rows if row.counts and not row.lost]
    best = max(counted, key=lambda row: score(row, counted), default=None)
    since = len(rows) if best is None else len(rows) - 1 - rows.index(best)
    return since >= _BRANCH_PATIENCE


def _is_regression(state: State, attempt: Attempt, counted: Sequence[Attempt]) -> bool:
    """Whether it is slower than what it was made from: then that one is the better beginning."""
    parent = parent_of(state, attempt)
    return parent in counted and parent is not None and score(attempt, counted) < score(parent, counted)


def _promise(state: State, attempt: Attempt, counted: Sequence[Attempt]) -> float:
    tried = len(children(state, attempt))
    explored = math.sqrt(math.log(len(state.attempts)) / (1 + tried))
    return score(attempt, counted) + _EXPLORATION * explored


def _speed(attempt: Attempt, *, by_cpu: bool) -> float:
    if attempt.bench is None:
        return 0.0
    return (attempt.bench.cpu_speedup if by_cpu else attempt.bench.safe_speedup) or 0.0
