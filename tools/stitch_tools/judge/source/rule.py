"""What a rule is, and what it hands back."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stitch_tools.models import Severity

if TYPE_CHECKING:
    from stitch_tools.judge.source.context import Scanned


@dataclass(frozen=True)
class Hit:
    """One place that a rule found."""

    file: str
    line: int
    message: str
    severity: Severity | None = None
    """Where this one weighs less than the rule's own severity."""


@dataclass(frozen=True)
class Rule:
    """One entry of the table: how to find something, what it means and what to do about it."""

    id: str
    severity: Severity
    """The strongest severity that the rule gives."""
    meaning: str
    advice: str
    find: "Callable[[Scanned], Iterable[Hit]]"


def weaken(severity: Severity) -> Severity:
    """The next weaker severity; for code that nothing was seen to call."""
    return "suspicious" if severity == "fatal" else "note"
