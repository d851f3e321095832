"""Files that a build wanted and does not get, said in a sentence.

A compiler in the sandbox is told "permission denied", or it says "not found" whatever the reason was, and the
author of a program would look for a file that lies where it should.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from stitch_tools.models.program import Diagnostic

_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?:cannot open file|not find inc\w+ file) '(?P<path>[^']+)'",
        r"^'(?P<path>[^']+)' file not found$",
        r"cannot open source file \"(?P<path>[^\"]+)\"",
        r"^file not found: (?P<path>.+)$",
        r"^can't open (?P<path>.+) for reading",
        r"^(?P<path>.+): (?:Permission denied|No such file or directory)$",
    )
)
SENTENCE = (
    "{path} lies outside the program and is not read: a build takes the program's own files, and headers of "
    "the system, the compiler and the libraries it found; put the file into the program's folder"
)


def wants_file(message: str) -> bool:
    """Whether a compiler's message is about a file that it did not get."""
    return any(pattern.search(message) for pattern in _PATTERNS)


def name_refusals(
    rows: Sequence[Diagnostic], folder: Path, readable: Sequence[str]
) -> tuple[Diagnostic, ...]:
    """The messages, where they want a file that the build may not read with that as their text.

    Args:
        rows: what the compiler said.
        folder: where the program's files lay.
        readable: what the compiler could read beside.
    """
    return tuple(_renamed(row, folder, readable) for row in rows)


def _renamed(row: Diagnostic, folder: Path, readable: Sequence[str]) -> Diagnostic:
    found = next((match for pattern in _PATTERNS if (match := pattern.search(row.message))), None)
    if row.severity not in ("fatal", "error") or found is None:
        return row
    path = os.path.realpath(folder / found["path"])
    if any(_lies_below(path, place) for place in (str(folder), *readable)):
        return row
    return row.model_copy(update={"message": SENTENCE.format(path=found["path"])})


def _lies_below(path: str, place: str) -> bool:
    real = os.path.realpath(place)
    return path == real or path.startswith(real + os.sep)
