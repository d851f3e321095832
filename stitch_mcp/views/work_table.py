"""Who did a program's work, as a table."""

import re

from stitch_mcp.views.table import ReportSection
from stitch_tools.models.evidence import WorkEvidence, WorkItem

_MOST_ROWS = 12
_SYMBOL_CHARACTERS = 100
_BRACKETS = re.compile(r"(operator(?:<=>|<<=?|>>=?|->|<=?|>=?)|->|[<>])")
"""Brackets of template arguments, kept apart from operators that are written with the same characters."""
_OWNERS = {
    "own": "the program",
    "library": "a library",
    "pytorch": "PyTorch",
    "copy": "copies",
}
_OBSERVATIONS = {
    "operators": "forwards",
    "kernels": "device activities",
    "samples": "samples of running threads",
}


def work_sections(work: WorkEvidence | None) -> list[ReportSection]:
    """The largest parts of the working time with their owners, and the shares; empty without a trace."""
    if work is None:
        return []
    done = [item for item in work.items if item.owner != "other"]
    at_work = 1.0 - work.other
    rows = tuple(_row(item, at_work) for item in done[:_MOST_ROWS])
    notes = [*_shares(work)]
    if len(done) > _MOST_ROWS:
        notes.append(f"{len(done) - _MOST_ROWS} smaller parts are left out")
    if work.counts_match is not None:
        same = "the same" if work.counts_match else "NOT the same"
        launches = f"launches per forward: {work.launches or 0:g}"
        notes.append(f"{launches}, {same} on two draws")
    if work.never_launched:
        notes.append(f"never launched: {', '.join(map(short_symbol, work.never_launched[:_MOST_ROWS]))}")
    return [ReportSection("who did the work", ("share", "by", "calls", "what"), rows, tuple(notes))]


def _shares(work: WorkEvidence) -> list[str]:
    """Who did how much of the working time; what was no work, as a threads' wait, is a remark."""
    what = _OBSERVATIONS[work.method]
    at_work = 1.0 - work.other
    if at_work <= 0.0:
        return [f"no work was seen in {work.observations} {what}"]
    parts = (
        ("own", work.own),
        ("libraries", work.library),
        ("PyTorch", work.pytorch),
        ("copies", work.copies),
    )
    shares = ", ".join(f"{name} {share / at_work:.0%}" for name, share in parts)
    notes = [f"of the working time: {shares}; by {work.observations} {what}"]
    if work.other >= 0.005:
        idle = ", ".join(item.name for item in work.items if item.owner == "other")
        notes.append(f"beside it {work.other:.0%} of all was no work{f' ({idle})' if idle else ''}")
    return notes


def _row(item: WorkItem, at_work: float) -> tuple[str, ...]:
    calls = "-" if item.calls is None else f"{item.calls:g}"
    share = f"{item.share / at_work:.1%}" if at_work > 0.0 else "-"
    return share, _OWNERS[item.owner], calls, short_symbol(item.name)


def short_symbol(name: str) -> str:
    """A symbol of C++ as a table holds it, without its templates' arguments; JSON has it in full."""
    if len(name) <= _SYMBOL_CHARACTERS:
        return name
    kept: list[str] = []
    depth = 0
    for part in _BRACKETS.split(name):
        if part == "<":
            depth += 1
            if depth == 1:
                kept.append("<...>")
        elif part == ">" and depth:
            depth -= 1
        elif depth == 0:
            kept.append(part)
    short = "".join(kept)
    return short if len(short) <= _SYMBOL_CHARACTERS else f"{short[: _SYMBOL_CHARACTERS - 3]}..."
