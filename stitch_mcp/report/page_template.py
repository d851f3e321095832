"""The templates of HTML pages, in which every text is escaped."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stitch_mcp.views.table import ReportSection, printable

if TYPE_CHECKING:
    from jinja2 import Template


def page_template(name: str) -> "Template":
    """A template of this folder."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("stitch_mcp.report", package_path=""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def sections_html(title: str, sections: Sequence[ReportSection]) -> str:
    """A page of tables that needs no other file, no script and no network."""
    return printable(page_template("sections.html.jinja").render(title=title, sections=sections))


def sections_markdown(title: str, sections: Sequence[ReportSection]) -> str:
    """The same tables as Markdown; columns of figures are aligned to the right."""
    lines = [f"# {title}"]
    for section in sections:
        lines += ["", f"## {section.title}"] if section.title else []
        if section.columns:
            lines += ["", _row(section.columns), _row(_alignments(section), spaced=False)]
            lines += [_row(row) for row in section.rows]
        # Two spaces end a line, so that each remark stands by itself.
        lines += ["", *(f"{_cell(note)}  " for note in section.notes)] if section.notes else []
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str], *, spaced: bool = True) -> str:
    gap = " " if spaced else ""
    return f"|{gap}" + f"{gap}|{gap}".join(map(_cell, cells)) + f"{gap}|"


def _cell(text: str) -> str:
    return printable(text).replace("|", "/").replace("\n", " ")


def _alignments(section: ReportSection) -> list[str]:
    """Markdown's marks: to the right where every cell begins with a digit or is empty, and one is not."""
    columns = [[row[index] for row in section.rows] for index in range(len(section.columns))]
    return [
        "---:" if any(cells) and all(cell[:1].isdigit() or not cell for cell in cells) else "---"
        for cells in columns
    ]
