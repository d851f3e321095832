"""What the scan could not see."""

import ast
from collections.abc import Iterator

from stitch_tools.judge.source.context import Scanned
from stitch_tools.judge.source.rule import Hit, Rule


def find_gaps(scanned: Scanned) -> Iterator[Hit]:
    """Regions that were not read."""
    for trouble in scanned.troubles:
        yield Hit(trouble.file, trouble.line, f"not scanned: {trouble.reason}")


def find_missing_entry(scanned: Scanned) -> Iterator[Hit]:
    """A Python program whose forward was not found."""
    if scanned.format != "kernelbench" or not scanned.host.units:
        return
    for entry in scanned.host.entries:
        if not isinstance(entry.node, ast.ClassDef) or scanned.host.resolver.slot(entry, "forward"):
            return
    unit = scanned.host.units[0]
    yield Hit(unit.file, 1, "ModelNew's forward was not found: what it does is not known")


RULES = (
    Rule(
        "not_scanned",
        "note",
        "A file or region is too large, is no text, does not parse, or is put together when the program "
        "runs.",
        "Write plain source of moderate size.",
        find_gaps,
    ),
    Rule(
        "entry_not_found",
        "suspicious",
        "No forward of ModelNew can be found in the text.",
        "Define class ModelNew with a forward method.",
        find_missing_entry,
    ),
)
