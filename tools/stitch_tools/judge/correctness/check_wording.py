"""Sentences about a check, for people."""

import re
from collections.abc import Sequence

from stitch_tools.compile.build import ONE_SOURCE
from stitch_tools.models.program import Build
from stitch_tools.models.verdict import DrawResult, OutputError
from stitch_tools.run.candidate_worker import Answer

UNRACED = "certified without racecheck: it was not asked for"
"""What is left open of a program on a GPU until a sanitizer has looked at it."""
_TRACEBACK = "Traceback (most recent call last):"
_CLASS = re.compile(r"(?:\w+\.)*\w+: (?=\S)")
"""The exception's class before its message."""
_FOLDERS = re.compile(r"(?<![\w./:])/(?:[^\s/'\"]+/)+")
_MAX_REASON_CHARS = 500


def describe_build(build: Build) -> str:
    """Why the build failed, by its first error."""
    if build.timed_out:
        return "the compiler did not end in time"
    for diagnostic in build.diagnostics:
        if diagnostic.severity in ("fatal", "error"):
            line = f":{diagnostic.line}" if diagnostic.line else ""  # the linker knows none
            place = f"{diagnostic.file}{line}: " if diagnostic.file else ""
            notes = "".join(f"; {row.message}" for row in build.diagnostics if row.code == ONE_SOURCE)
            return f"{place}{diagnostic.message}{notes}"
    return "the compiler failed without a message"


def describe_refusal(answer: Answer) -> str:
    """What a step of the program answered instead of success."""
    if answer.status == "other_outputs":
        return f"wrong outputs: {answer.message}"
    if answer.status == "unsupported" and answer.step != "constructor":
        return f"the program refuses the inputs: {describe_reason(answer)}"
    return f"{answer.step}: {answer.message or answer.status}"


def describe_reason(answer: Answer) -> str:
    """The program's reason on one line: a traceback's message, with names of files instead of paths."""
    text = answer.message.rpartition(_TRACEBACK)[2] if _TRACEBACK in answer.message else answer.message
    lines = text.strip("\n").splitlines()
    if _TRACEBACK in answer.message:
        # The frames are indented, the exception after them is not; its message may have lines of any kind.
        first = next((place for place, line in enumerate(lines) if line[:1].strip()), 0)
        lines = lines[first:]
        lines[:1] = [_CLASS.sub("", line, count=1) if _CLASS.match(line) else line for line in lines[:1]]
    folded = " ".join(" ".join(lines).split())
    return _FOLDERS.sub("", folded)[:_MAX_REASON_CHARS] or "no reason given"


def describe_draw(draw: DrawResult) -> str:
    """One line on a draw: right with its error, or what is wrong and where."""
    if draw.problem is not None:
        return f"draw {draw.draw}: {draw.problem}"
    wrong = next((row for row in draw.outputs if row.problem), None)
    if wrong is not None:
        return f"draw {draw.draw}: output {wrong.output}: {wrong.problem}{_place(wrong)}"
    errors = [row for row in draw.outputs if row.max_error is not None]
    worst = max(errors, key=lambda row: row.max_error or 0.0, default=None)
    if worst is None or worst.bound is None:
        return f"draw {draw.draw}: equal"
    return f"draw {draw.draw}: right (relative error {worst.max_error:.2g}, bound {worst.bound:.2g})"


def describe_coarser(draws: Sequence[DrawResult]) -> str:
    """That all errors look like coarser products, and whether these would be right if allowed; else ""."""
    wrong = [draw for draw in draws if not draw.ok]
    rows = [row for draw in wrong for row in draw.outputs if row.problem]
    named = {row.allow for row in rows}
    if len(named) != 1 or None in named or any(draw.problem for draw in wrong):
        return ""
    allow = rows[0].allow or ""
    kind = "bf16" if allow.endswith("bf16") else "TF32 (or fp16)"
    known = [row.allow_rtol for row in rows if row.allow_rtol is not None]
    rtol = f" and rtol={max(known):g}" if known else ""
    fate = "right" if len(known) == len(rows) else "wrong all the same"
    return (
        f"errors look like {kind} products, which the contract does not allow;"
        f" with {allow}{rtol} the draws that were wrong are {fate}: "
    )


def describe_undecided(outputs: Sequence[OutputError]) -> str:
    """Which outputs of a draw were not, or not wholly, compared; empty where all were."""
    return "; ".join(f"output {row.output}: {row.undecided}" for row in outputs if row.undecided)


def _place(row: OutputError) -> str:
    if row.worst_index is None:
        return ""
    where = f" at {list(row.worst_index)}"
    if row.expected is None or row.actual is None:
        return where
    return f"{where}: expected {row.expected:.9g}, got {row.actual:.9g}"
