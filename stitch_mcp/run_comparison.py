"""How two runs, or two programs of one run, differ."""

import json
from pathlib import Path

from stitch_mcp.report.run_facts import ProgramFacts, RunFacts, read_run
from stitch_mcp.report.source_diff import DiffLine, program_diff
from stitch_tools.errors import UsageError
from stitch_tools.models.base import Fact
from stitch_tools.models.verdict import Bench

_CHARACTERS = 200_000
_NONE = "-"


class Difference(Fact):
    """One thing that two programs have."""

    what: str
    """For example `speedup`, `torch`, `contract: rtol`."""
    first: str
    """"-" where it is not known, or not measured."""
    second: str

    @property
    def equal(self) -> bool:
        """Whether both have the same."""
        return self.first == self.second


class RunComparison(Fact):
    """Two programs side by side."""

    first: str
    """Run and round, `RUN:000`."""
    second: str
    rows: tuple[Difference, ...]
    """What a reader always asks for, and of task, contract and environment what differs."""
    diff: str
    """Unified diff of the sources, "" where they are equal."""
    left_out: int
    """Lines of the diff that were cut off."""


def compare_runs(root: Path, first: str, second: str | None = None) -> RunComparison:
    """Compare two programs of a workspace.

    Args:
        root: the workspace.
        first: a run (its best program, else the one that was worked on last) or `RUN:ROUND`.
        second: the same; None: the first program of run `first` is compared with what `first` names.

    Raises:
        UsageError: no such run or program.
        StoreError: a run's log cannot be read.
    """
    if second is None:
        first, second = f"{first.partition(':')[0]}:0", first
    (run_a, a), (run_b, b) = _find(root, first), _find(root, second)
    sources = {**run_a.sources, **run_b.sources}
    rows = [Difference(what=name, first=x, second=y) for name, x, y in _figures(run_a, a, run_b, b)]
    for name, x, y in (*_settings(run_a, run_b), *_environments(run_a, run_b)):
        row = Difference(what=name, first=x, second=y)
        rows += [] if row.equal else [row]
    text, left_out = "", 0
    # Where one of them is lost there is nothing to compare; the rows say so.
    if a.program and b.program and a.program.program_id != b.program.program_id:
        changed = program_diff(b.program, a.program, sources, _CHARACTERS)
        text, left_out = "\n".join(map(_line, changed.lines)), changed.left_out
    names = [f"{run.run_id}:{row.name}" for run, row in ((run_a, a), (run_b, b))]
    return RunComparison(first=names[0], second=names[1], rows=tuple(rows), diff=text, left_out=left_out)


def _find(root: Path, named: str) -> tuple[RunFacts, ProgramFacts]:
    run_id, _, number = named.partition(":")
    run = read_run(root, run_id)
    if not number:
        if run.subject is None:
            hint = "`stitch-mcp runs list` shows all runs"
            raise UsageError(f"run {run.run_id} has no program yet", hint=hint)
        return run, run.subject
    for row in run.programs:
        if number.isdecimal() and int(number) == row.attempt.round:
            return run, row
    known = ", ".join(row.name for row in run.programs) or "none"
    raise UsageError(f"run {run.run_id} has no program {number!r}", hint=f"its programs: {known}")


def _figures(
    run_a: RunFacts, a: ProgramFacts, run_b: RunFacts, b: ProgramFacts
) -> list[tuple[str, str, str]]:
    """What is shown also where it is equal."""
    sides = [_program_words(run, row) for run, row in ((run_a, a), (run_b, b))]
    return [(name, sides[0][name], sides[1][name]) for name in sides[0]]


def _program_words(run: RunFacts, row: ProgramFacts) -> dict[str, str]:
    attempt = row.attempt
    flags = attempt.check.flags if attempt.check else ()
    ratio = row.bench.ratio("eager") if row.bench else None
    return {
        "task": f"{run.task.name} ({run.task.task_id[:12]})" if run.task else _NONE,
        "target": run.task.target if run.task else _NONE,
        "program": attempt.program_id[:12],
        "author": attempt.author or _NONE,
        "status": ", ".join((attempt.status, *flags)),
        "counts": "yes" if attempt.counts else "no",
        "outcome": row.bench.outcome if row.bench else "unmeasured",
        "speedup over eager": f"{ratio.speedup:.2f}x" if ratio else _NONE,
        "95% interval": f"{ratio.low:.2f} to {ratio.high:.2f}" if ratio else _NONE,
        **{f"{name}, us": _microseconds(row.bench, name) for name in ("program", "eager")},
    }


def _microseconds(bench: Bench | None, name: str) -> str:
    timing = next((one for one in bench.timings if one.name == name), None) if bench else None
    value = getattr(timing, bench.figure) if bench and timing else None
    return _NONE if value is None else f"{value:.4g}"


def _settings(run_a: RunFacts, run_b: RunFacts) -> list[tuple[str, str, str]]:
    """Contract and options, flattened to names and texts."""
    pairs: list[tuple[str, str, str]] = []
    if run_a.task and run_b.task:
        a, b = (run.task.contract.model_dump(mode="json") for run in (run_a, run_b) if run.task)
        pairs += [(f"contract: {name}", _text(a[name]), _text(b[name])) for name in a]
    options = ("coder", "model", "planner", "rounds", "search", "review", "quick", "min_speedup", "threads")
    pairs += [(n, _text(getattr(run_a.begun, n)), _text(getattr(run_b.begun, n))) for n in options]
    return pairs


def _environments(run_a: RunFacts, run_b: RunFacts) -> list[tuple[str, str, str]]:
    sides = [run.environment.model_dump(mode="json") if run.environment else {} for run in (run_a, run_b)]
    names = dict.fromkeys([*sides[0], *sides[1]])
    return [(name, _text(sides[0].get(name)), _text(sides[1].get(name))) for name in names]


def _text(value: object) -> str:
    if value is None or value == "":
        return _NONE
    return value if isinstance(value, str) else json.dumps(value)


def _line(line: DiffLine) -> str:
    return f"--- {line.text}" if line.kind == "file" else line.text
