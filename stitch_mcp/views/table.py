"""Results as tables: one description, drawn by rich on a terminal and as aligned text elsewhere."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.table import Table

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What could steer a terminal, show text in another order, or is no text. Programs and compilers supply some
of what is shown."""
_FIGURE = re.compile(r"[+-]?\d[\d.,]*(e[+-]?\d+)?[x%]?")

_CELL_CHARACTERS = 80


@dataclass(frozen=True)
class ReportSection:
    """A titled table with remarks below it; a section without columns is its remarks alone."""

    title: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    cut: bool = False
    """Whether a terminal that is too narrow cuts the last column instead of folding it."""


def print_sections(sections: Sequence[ReportSection], stream: TextIO) -> None:
    """Print the sections, with rich only when `stream` is a terminal; control characters become U+FFFD."""
    sections = [_printable(section) for section in sections]
    if stream.isatty():
        _print_rich(sections, stream)
    else:
        stream.write("\n\n".join(render_text(section) for section in sections) + "\n")
    stream.flush()


def one_line(message: str, characters: int = _CELL_CHARACTERS) -> str:
    """The first line of a message, cut behind a word to what a row of a table can hold."""
    first = message.strip().partition("\n")[0]
    if len(first) <= characters:
        return first
    kept = first[: characters - 3]
    if not first[characters - 3].isspace():
        kept = kept.rpartition(" ")[0] or kept
    return f"{kept.rstrip()}..."


def printable(text: str) -> str:
    """The text with U+FFFD in place of control characters other than tab and line feed."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def _printable(section: ReportSection) -> ReportSection:
    def clean(texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(printable(text) for text in texts)

    rows = tuple(clean(row) for row in section.rows)
    return ReportSection(section.title, section.columns, rows, clean(section.notes), section.cut)


def render_text(section: ReportSection) -> str:
    """One section as plain text with aligned columns; columns of figures are right-aligned."""
    lines = [section.title] if section.title else []
    if section.columns:
        table = [section.columns, *section.rows]
        widths = [max(len(row[index]) for row in table) for index in range(len(section.columns))]
        numeric = _numeric_columns(section)
        lines += [_align(row, widths, numeric) for row in table]
        lines.insert(len(lines) - len(section.rows), "  ".join("-" * width for width in widths))
    lines += section.notes
    return "\n".join(lines)


def _align(row: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    cells = zip(row, widths, numeric, strict=True)
    return "  ".join(c.rjust(width) if right else c.ljust(width) for c, width, right in cells).rstrip()


def _numeric_columns(section: ReportSection) -> list[bool]:
    columns = [[row[index] for row in section.rows] for index in range(len(section.columns))]
    return [bool(cells) and all(_is_figure(cell) for cell in cells) for cells in columns]


def _is_figure(cell: str) -> bool:
    return cell in ("", "-") or _FIGURE.fullmatch(cell) is not None


def _rich_table(section: ReportSection, width: int) -> "Table":
    """The section's table; names in its first column stay whole where they leave room for the others."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    # No borders: on a narrow terminal their width is worth more to the cells.
    table = Table(
        title=section.title or None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    names = max((len(row[0]) for row in section.rows), default=0)
    for index, (name, right) in enumerate(zip(section.columns, _numeric_columns(section), strict=True)):
        whole = names <= 0.6 * width if index == 0 else section.cut and index < len(section.columns) - 1
        table.add_column(name, justify="right" if right else "left", overflow="fold", no_wrap=whole)
    for row in section.rows:
        *cells, last = (Text(cell) for cell in row)
        if section.cut:
            last.no_wrap, last.overflow = True, "ellipsis"
        table.add_row(*cells, last)
    return table


def _print_rich(sections: Iterable[ReportSection], stream: TextIO) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    for number, section in enumerate(sections):
        if number:
            console.print()
        if section.columns:
            console.print(_rich_table(section, console.width))
        elif section.title:
            console.print(Text(section.title, style="bold"))
        for note in section.notes:
            # Paths and commands are there to be copied: never broken over lines.
            console.print(Text(note), soft_wrap=True)
