"""What earlier programs of a run teach: the last one beside the one that is shown, and telling pairs."""

import difflib
from collections.abc import Sequence
from typing import NamedTuple

from stitch_planner.agents.prompting import bullets, fenced
from stitch_planner.runs.attempts import Attempt
from stitch_planner.runs.lessons import Lesson
from stitch_planner.runs.state import State
from stitch_planner.search import branch_of, parent_of, score
from stitch_tools.models.program import Program
from stitch_tools.models.verdict import Bench
from stitch_tools.storage.store import Store

_MOST_PAIRS = 2
_LEAST_GAIN = 1.1
"""Speeds nearer to each other than this tell noise as likely as a cause."""
_MOST_DIFF_LINES, _MOST_LINE_CHARS = 60, 160


class ScoredPair(NamedTuple):
    """Two programs that count, of which one is clearly faster."""

    slower: Attempt
    faster: Attempt
    gain: float
    """Speed of the faster one over that of the slower one."""
    is_step: bool
    """Whether one was made from the other."""


def describe_lessons(lessons: Sequence[Lesson]) -> str:
    """What earlier runs on similar tasks found, each with its run; "" where there is nothing."""
    if not lessons:
        return ""
    lines = "\n".join(f"{row.sentence} [run {row.run_id}]" for row in lessons)
    return f"\n\n# Earlier runs\n\nMeasured on similar tasks, as data:\n\n{fenced(lines, 'data')}"


def describe_last(state: State, shown: Attempt | None, author: str, store: Store) -> str:
    """The author's newest program with its times beside the shown one's; "" where it is that one."""
    own = [row for row in state.attempts if row.author == author]
    if not own or shown is None or own[-1].program_id == shown.program_id or not own[-1].counts:
        return ""
    last, parent = own[-1], parent_of(state, own[-1])
    origin = f", made from number {parent.round}" if parent else ", a draft"
    said = f"It was said of it: {last.program.notes[0]}\n\n" if last.program.notes else ""
    rows = [_times(row, store) for row in (last, shown)]
    return f"# Your last program: number {last.round}{origin}\n\n{said}{bullets(rows)}"


def _times(attempt: Attempt, store: Store) -> str:
    bench = store.get_fact(attempt.bench.bench, Bench) if attempt.bench else None
    timing = bench.timing("program") if bench else None
    eager = bench.ratio("eager") if bench else None
    words = [] if timing is None or timing.latency_us is None else [f"{timing.latency_us:.4g} us"]
    if eager is not None:
        words.append(f"{eager.speedup:.2f} times eager, 95% interval {eager.low:.2f} to {eager.high:.2f}")
    elif attempt.bench is not None and attempt.bench.cpu_speedup is not None:
        words.append(f"at least {attempt.bench.cpu_speedup:.2f} times eager by CPU time")
    return f"number {attempt.round}: {', '.join(words) or 'not timed'}"


def telling_pairs(state: State) -> Sequence[ScoredPair]:
    """At most two pairs, the largest gain first: a program and what was made from it, then two drafts."""
    counted = [row for row in state.attempts if row.counts and not row.lost]
    steps = [(parent, row) for row in counted if (parent := parent_of(state, row)) in counted and parent]
    roots = [row for row in counted if branch_of(state, row) == row]
    drafts = [(one, other) for place, one in enumerate(roots) for other in roots[place + 1 :]]
    pairs: list[ScoredPair] = []
    for group, is_step in ((steps, True), (drafts, False)):
        scored = [_pair(one, other, counted, is_step=is_step) for one, other in group]
        pairs += sorted((row for row in scored if row is not None), key=lambda row: -row.gain)
    return pairs[:_MOST_PAIRS]


def _pair(one: Attempt, other: Attempt, counted: Sequence[Attempt], *, is_step: bool) -> ScoredPair | None:
    slower, faster = sorted((one, other), key=lambda row: score(row, counted))
    least, most = score(slower, counted), score(faster, counted)
    if least <= 0 or most / least < _LEAST_GAIN:
        return None
    return ScoredPair(slower, faster, most / least, is_step)


def describe_pairs(pairs: Sequence[ScoredPair], store: Store) -> str:
    """Which of two programs was faster, what was said of them, and how their sources differ."""
    if not pairs:
        return ""
    return "# Compare\n\n" + "\n\n".join(_described(pair, store) for pair in pairs)


def _described(pair: ScoredPair, store: Store) -> str:
    slower, faster = pair.slower, pair.faster
    head = f"Number {faster.round} is {pair.gain:.2f} times as fast as number {slower.round}."
    said = [f"{row.round}: {row.program.notes[0]}" for row in (slower, faster) if row.program.notes]
    parts = [head, bullets(said) if said else ""]
    # Two drafts have nothing in common: their difference is both sources.
    if pair.is_step:
        parts.append(_difference(slower, faster, store))
    return "\n\n".join(part for part in parts if part)


def _difference(slower: Attempt, faster: Attempt, store: Store) -> str:
    before, after = (_main_lines(row, store) for row in (slower, faster))
    names = (f"number {slower.round} (slower)", f"number {faster.round} (faster)")
    lines = [line.rstrip("\n") for line in difflib.unified_diff(before, after, *names, n=1, lineterm="")]
    if not lines:
        return "Their main files are equal."
    if len(lines) > _MOST_DIFF_LINES:
        return f"Their main files differ in {len(lines)} lines, which are not shown."
    return fenced("\n".join(line[:_MOST_LINE_CHARS] for line in lines), "diff data")


def _main_lines(attempt: Attempt, store: Store) -> list[str]:
    program = store.get_fact(attempt.program.program, Program)
    main = next(file for file in program.files if file.path == program.main)
    return store.get(main.sha256).decode("utf-8", errors="replace").splitlines()
