"""How a program's sources differ from those of the program that it was derived from."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from stitch_tools.models.program import Program
from stitch_tools.models.task import SourceFile

_MOST_LINES = 3000
"""Of one file. difflib takes quadratic time."""
_LINE_CHARACTERS = 240

LineKind = Literal["file", "place", "added", "removed", "same"]


@dataclass(frozen=True)
class DiffLine:
    """One line of a diff."""

    kind: LineKind
    text: str


@dataclass(frozen=True)
class SourceDiff:
    """A unified diff of all files, cut to what a page can hold."""

    lines: tuple[DiffLine, ...]
    added: int
    """Lines of the whole diff, also of the part that is cut off; without a parent all lines are new."""
    removed: int
    left_out: int
    """Lines that were cut off."""


def program_diff(
    program: Program, parent: Program | None, sources: Mapping[str, str], characters: int
) -> SourceDiff:
    """The diff of `program` against `parent`; without one, all its sources as they are.

    Args:
        program: the program.
        parent: the program that it was derived from.
        sources: text of the files by hash; one that is not there is named in the diff.
        characters: how long the shown part may be.
    """
    before = {file.path: file for file in parent.files} if parent else {}
    after = {file.path: file for file in program.files}
    paths = sorted(
        before.keys() | after.keys(), key=lambda path: (path != program.main, path.count("/"), path)
    )
    changed = [path for path in paths if _hash(before.get(path)) != _hash(after.get(path))]
    lines = [
        line
        for path in changed
        for line in _file_lines(path, before.get(path), after.get(path), sources, parent)
    ]
    shown = tuple(_cut(lines, characters))
    return SourceDiff(
        lines=shown,
        added=sum(line.kind == ("added" if parent else "same") for line in lines),
        removed=sum(line.kind == "removed" for line in lines),
        left_out=len(lines) - len(shown),
    )


def _hash(file: SourceFile | None) -> str | None:
    return file.sha256 if file else None


def _file_lines(
    path: str,
    before: SourceFile | None,
    after: SourceFile | None,
    sources: Mapping[str, str],
    parent: Program | None,
) -> Iterator[DiffLine]:
    texts = [sources.get(file.sha256) if file else "" for file in (before, after)]
    how = "" if parent is None else " (new)" if before is None else " (removed)" if after is None else ""
    yield DiffLine("file", f"{path}{how}")
    if texts[0] is None or texts[1] is None:
        yield DiffLine("place", "its text is missing or too large: nothing can be shown")
        return
    old, new = texts[0].splitlines(), texts[1].splitlines()
    if parent is None:
        yield from (DiffLine("same", line) for line in new)
    elif max(len(old), len(new)) > _MOST_LINES:
        yield DiffLine("place", f"changed: {len(old)} lines before, {len(new)} now; too long to compare")
    elif before and after and old == new:
        yield DiffLine("place", "only ends of lines differ")
    else:
        yield from _changes(old, new)


def _changes(old: list[str], new: list[str]) -> Iterator[DiffLine]:
    kinds: dict[str, LineKind] = {"+": "added", "-": "removed", " ": "same", "@": "place"}
    # The first two lines repeat the file's name.
    for number, line in enumerate(difflib.unified_diff(old, new, lineterm="", n=3)):
        if number >= 2:
            yield DiffLine(kinds[line[0]], line)


def _cut(lines: Iterable[DiffLine], characters: int) -> Iterator[DiffLine]:
    left = characters
    for line in lines:
        text = line.text if len(line.text) <= _LINE_CHARACTERS else f"{line.text[:_LINE_CHARACTERS]} ..."
        left -= len(text) + 1
        if left < 0:
            return
        yield DiffLine(line.kind, text)
