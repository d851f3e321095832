"""A section's result as Markdown, and how a figure is shown with its spread."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Table:
    """One section's result."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list[Sequence[str]])
    notes: list[str] = field(default_factory=list[str])

    def markdown(self) -> str:
        """Table and notes as Markdown."""
        lines = [f"| {' | '.join(self.columns)} |", f"|{'---|' * len(self.columns)}"]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)])


def spread(values: Sequence[float], unit: str, digits: int = 1) -> list[str]:
    """Median, half the quartile distance and n as cells."""
    middle = statistics.median(values)
    if len(values) >= 4:
        low, _, high = statistics.quantiles(values, n=4)
        half = f"{(high - low) / 2:.{digits}f}"
    else:
        half = "single run" if len(values) == 1 else f"{min(values):.{digits}f} to {max(values):.{digits}f}"
    return [f"{middle:.{digits}f} {unit}", half, str(len(values))]
