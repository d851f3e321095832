"""A line below the progress of a run, on a terminal: where the run stands, and what it has spent."""

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stitch_mcp.cli.output import CommandOutput

if TYPE_CHECKING:
    from stitch_planner.runs.attempts import Attempt
    from stitch_planner.runs.state import State

_STEPS = {
    "reference": "observing the reference",
    "graph": "capturing its graph",
    "plan": "planning",
    "refinement": "refining the plan",
    "program": "writing a program",
    "build": "building",
    "check": "checking",
    "bench": "timing",
    "review": "reviewing",
    "decision": "deciding",
    "certificate": "certifying",
}


@dataclass(frozen=True)
class Follower:
    """What takes the sentences and the states of a run."""

    emit: Callable[[str], None]
    on_state: "Callable[[State], None] | None"


@contextmanager
def followed(output: CommandOutput) -> Generator[Follower]:
    """Sentences above a line that is kept up to date; where stderr is no terminal, sentences alone."""
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield Follower(output.progress, None)
        return
    # Not at the top: it takes a tenth of a second.
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True, highlight=False)

    def show(sentence: str) -> None:
        console.print(Text(output.stamped(sentence)), soft_wrap=True)

    # It is gone in the end: the result says the same and more. Redrawn once a second, as programs are timed.
    line = _Line(output)
    with Live(line, console=console, refresh_per_second=1, transient=True):
        yield Follower(show, line.take)


@dataclass
class _Line:
    """The line, made anew each time that it is drawn."""

    output: CommandOutput
    text: str = field(default="", init=False)

    def take(self, state: "State") -> None:
        """Remember where the run stands."""
        self.text = describe_state(state)

    def __rich__(self) -> str:
        from rich.markup import escape

        return f"[reverse] {escape(self.output.stamped(self.text))} [/reverse]"


def describe_state(state: "State") -> str:
    """Program, step, best speedup and what was spent, in one line."""
    from stitch_planner.policy import open_step
    from stitch_planner.runs.model_calls import spent_tokens, spent_usd

    step = open_step(state)
    parts = [_STEPS.get(step or "", "finished")]
    if step == "program" or state.current is not None:
        number = len(state.attempts) if step == "program" or state.current is None else state.current.round
        parts.insert(0, f"program {number}")
    if state.best is not None:
        parts.append(f"best: {_best(state.best)}")
    # Recorded answers, and those of a person, cost nothing.
    if tokens := spent_tokens(state.calls):
        usd = spent_usd(state.calls)
        price = "" if usd is None else f", ${usd:.2f}"
        parts.append(f"at most {tokens:,} tokens{price}")
    return " | ".join(parts)


def _best(attempt: "Attempt") -> str:
    bench = attempt.bench
    speedup = bench.speedup if bench is not None else None
    figure = (
        "not timed"
        if bench is None
        else "no speedup measured"
        if speedup is None
        else f"{speedup:.2f}x eager"
    )
    return f"program {attempt.round} by {attempt.author or 'unknown'}, {figure}"
