"""Applies a model's edits: unified diffs whose hunks are found by their text.

Models count lines badly, so a hunk's line numbers only choose among equal places; libraries that apply diffs
go by the numbers. Nothing else is forgiven: what a hunk keeps or removes has to stand in the file as given.
"""

import re
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePosixPath

_HUNK = re.compile(r"@@(?: -(?P<line>\d+)(?:,\d+)? \+\d+(?:,\d+)? @@.*|.*)")
_PREFIXES = ("a/", "b/")
_SHOWN_CHARS = 80


class EditError(ValueError):
    """A diff that cannot be applied; the text tells the model what to change."""


@dataclass
class _Hunk:
    line: int | None
    """Where the header says that it begins, counted from 1."""
    old: list[str] = field(default_factory=list[str])
    new: list[str] = field(default_factory=list[str])


def split_diff(text: str, path: str = "") -> dict[str, str]:
    """The hunks of a diff by the file that they change.

    Args:
        text: a unified diff of one or more files.
        path: the file that hunks without a header belong to.

    Raises:
        EditError: it names no file, or makes or deletes one.
    """
    parts: dict[str, list[str]] = {}
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ "):
            path = _changed_file(line, lines[at + 1])
            at += 2
            continue
        if not line.startswith(("diff --git ", "index ")):
            if not path and line.strip():
                raise EditError("A diff names no file: begin its fence as in ```diff program.cpp")
            parts.setdefault(path, []).append(line)
        at += 1
    return {name: "\n".join(part) for name, part in parts.items() if name}


def apply_diff(original: str, diff: str, path: str) -> str:
    """The file with all hunks of its diff applied.

    Args:
        original: the file's text.
        diff: hunks for this file, without file headers.
        path: the file's name, for messages.

    Raises:
        EditError: a hunk's text is not in the file, is there several times, or overlaps another one.
    """
    lines = original.split("\n")
    places: list[tuple[int, _Hunk]] = sorted(
        ((_place(lines, hunk, path), hunk) for hunk in _hunks(diff, path)), key=lambda row: row[0]
    )
    for (first, hunk), (second, _) in pairwise(places):
        if first + len(hunk.old) > second:
            raise EditError(f"Two hunks of {path} change the same lines, near line {second + 1}.")
    for at, hunk in reversed(places):
        lines[at : at + len(hunk.old)] = hunk.new
    return "\n".join(lines)


def _changed_file(old: str, new: str) -> str:
    paths = [line[4:].split("\t")[0].strip() for line in (old, new)]
    names = [row[2:] if row.startswith(_PREFIXES) else row for row in paths]
    if "/dev/null" in paths:
        name = next((row for row in names if row != "/dev/null"), "a file")
        raise EditError(f"A diff makes or deletes {name}: give a new file whole, in a fence that names it.")
    if names[0] != names[1]:
        raise EditError(f"A diff renames {names[0]} to {names[1]}: give the new file whole.")
    return str(PurePosixPath(names[1]))


def _hunks(diff: str, path: str) -> list[_Hunk]:
    hunks: list[_Hunk] = []
    for line in diff.splitlines():
        if header := _HUNK.fullmatch(line):
            hunks.append(_Hunk(int(header["line"]) if header["line"] else None))
        elif line.startswith("\\"):
            continue
        elif hunks or line.strip():
            if not hunks:
                hunks.append(_Hunk(None))
            _add_line(hunks[-1], line, path)
    if not hunks:
        raise EditError(f"The diff of {path} is empty.")
    for hunk in hunks:
        _drop_blank_end(hunk)
        if not any(line.strip() for line in hunk.old):
            raise EditError(f"A hunk of {path} has no line of the file: repeat two or three lines around it.")
    return hunks


def _add_line(hunk: _Hunk, line: str, path: str) -> None:
    # Editors strip the space of an empty line that is kept.
    mark, rest = (line[0], line[1:]) if line else (" ", "")
    if mark not in " +-":
        raise EditError(
            f"A line in the diff of {path} begins with none of space, + and -: {line[:_SHOWN_CHARS]!r}"
        )
    if mark in " -":
        hunk.old.append(rest)
    if mark in " +":
        hunk.new.append(rest)


def _drop_blank_end(hunk: _Hunk) -> None:
    """Empty lines between a hunk and the next header, or the end of the fence, are no part of the file."""
    while hunk.old and hunk.new and not hunk.old[-1] and not hunk.new[-1]:
        hunk.old.pop()
        hunk.new.pop()


def _place(lines: list[str], hunk: _Hunk, path: str) -> int:
    """Index of the line at which the hunk's old text stands."""
    size = len(hunk.old)
    places = [at for at in range(len(lines) - size + 1) if lines[at : at + size] == hunk.old]
    if len(places) == 1:
        return places[0]
    first = next(line for line in hunk.old if line.strip())[:_SHOWN_CHARS]
    if not places:
        near = next((line for line in hunk.old if line.strip() and line not in lines), None)
        why = (
            f"{near[:_SHOWN_CHARS]!r} is no line of it" if near else "its lines stand there in another order"
        )
        raise EditError(
            f"A hunk of {path} that begins with {first!r} does not fit the file that was shown: {why}."
        )
    if hunk.line is not None and hunk.line - 1 in places:
        return hunk.line - 1
    raise EditError(
        f"The lines of a hunk of {path} that begins with {first!r} stand {len(places)} times in the file:"
        " repeat more lines around the change."
    )
