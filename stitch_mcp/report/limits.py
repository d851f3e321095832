"""How much of a run one page holds."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from stitch_mcp.views.table import ReportSection

LARGEST_BYTES = 300_000
"""Of a report: it is to be sent by mail and read on a phone."""


@dataclass(frozen=True)
class Limits:
    """What is shown at most; the rest stays in the run's folder."""

    programs: int = 60
    rows: int = 150
    """Of one table, and its remarks."""
    characters: int = 600
    """Of a cell or a remark."""
    diff_characters: int = 14_000
    """Of one program's diff."""
    all_diff_characters: int = 110_000

    def halved(self) -> "Limits":
        """Limits of about half the size."""
        return replace(
            self,
            programs=max(2, self.programs // 2),
            rows=max(4, self.rows // 2),
            characters=max(60, self.characters // 2),
            diff_characters=self.diff_characters // 2,
            all_diff_characters=self.all_diff_characters // 2,
        )


def narrowing() -> Iterator[Limits]:
    """Limits from the largest to those with which any page is small."""
    limits = Limits()
    # Seven halvings: any table has its fewest rows, and a diff at most a hundred characters.
    for _ in range(8):
        yield limits
        limits = limits.halved()


def clip(text: str, characters: int) -> str:
    """The text, cut to a length with a remark that it was."""
    if len(text) <= characters:
        return text
    return f"{text[:characters]} ... ({len(text) - characters} more characters)"


def limited(section: ReportSection, limits: Limits) -> ReportSection:
    """The section with rows, remarks and texts cut to `limits`, and a remark where rows were left out."""
    rows = tuple(tuple(clip(cell, limits.characters) for cell in row) for row in section.rows[: limits.rows])
    notes = [clip(note, limits.characters) for note in section.notes[: limits.rows]]
    for what, left in (
        ("rows", len(section.rows) - len(rows)),
        ("remarks", len(section.notes) - limits.rows),
    ):
        if left > 0:
            notes.append(f"{left} more {what} are left out of this page")
    return replace(section, rows=rows, notes=tuple(notes))
