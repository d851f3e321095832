"""Results as tables: one description, drawn by rich on a terminal and as aligned text elsewhere."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What could steer a terminal. Programs and compilers supply some of the text that is shown."""
_FIGURE = re.compile(r"[+-]?\d[\d.,]*(e[+-]?\d+)?[x%]?")

_CELL_CHARACTERS = 80


@dataclass(frozen=True)
class Section:
    """A titled table with remarks below it; a section without columns is its remarks alone."""

    title: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


def print_sections(sections: Sequence[Section], stream: TextIO) -> None:
    """Print the sections, with rich only when `stream` is a terminal; control characters become U+FFFD."""
    sections = [_printable(section) for section in sections]
    if stream.isatty():
        _print_rich(sections, stream)
    else:
        stream.write("\n\n".join(render_text(section) for section in sections) + "\n")
    stream.flush()


def one_line(message: str) -> str:
    """The first line of a message, cut to what a row of a table can hold."""
    first = message.strip().partition("\n")[0]
    return first if len(first) <= _CELL_CHARACTERS else f"{first[: _CELL_CHARACTERS - 3].rstrip()}..."


def _printable(section: Section) -> Section:
    def clean(texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text) for text in texts)

    return Section(
        section.title, section.columns, tuple(clean(row) for row in section.rows), clean(section.notes)
    )


def render_text(section: Section) -> str:
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


def _numeric_columns(section: Section) -> list[bool]:
    columns = [[row[index] for row in section.rows] for index in range(len(section.columns))]
    return [bool(cells) and all(_is_figure(cell) for cell in cells) for cells in columns]


def _is_figure(cell: str) -> bool:
    return cell in ("", "-") or _FIGURE.fullmatch(cell) is not None


def _print_rich(sections: Iterable[Section], stream: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    for number, section in enumerate(sections):
        if number:
            console.print()
        if section.columns:
            table = Table(title=section.title or None, title_justify="left", title_style="bold")
            for name, right in zip(section.columns, _numeric_columns(section), strict=True):
                table.add_column(name, justify="right" if right else "left", overflow="fold")
            for row in section.rows:
                table.add_row(*(Text(cell) for cell in row))
            console.print(table)
        elif section.title:
            console.print(Text(section.title, style="bold"))
        for note in section.notes:
            # Paths and commands are there to be copied: never broken over lines.
            console.print(Text(note), soft_wrap=True)
