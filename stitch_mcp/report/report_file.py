"""Writes a run's report: one HTML file that needs nothing else, not even a network."""

from pathlib import Path
from typing import Unpack

from stitch_mcp.config import Settings, configure
from stitch_mcp.report.limits import LARGEST_BYTES, narrowing
from stitch_mcp.report.page import make_page
from stitch_mcp.report.page_template import page_template
from stitch_mcp.report.run_facts import RunFacts, read_run
from stitch_mcp.views.table import printable
from stitch_tools.models.base import Fact
from stitch_tools.storage.store import write_atomically

_NAME = "report.html"
_TEMPLATE = "report.html.jinja"


class WrittenReport(Fact):
    """A report that was written."""

    run_id: str
    path: str
    """Absolute path of the HTML file."""
    size: int
    """Bytes."""
    missing: tuple[str, ...] = ()
    """What the report could not show, since the run's evidence is missing or damaged: one sentence each."""


def write_report(
    run: str = "last", *, output: str | Path | None = None, **settings: Unpack[Settings]
) -> WrittenReport:
    """Write the report of a run as one HTML file.

    Args:
        run: the run: its id, a unique beginning of it, or "last".
        output: file or folder to write to; None is `report.html` in the run's folder.
        settings: see `stitch_mcp.config.Settings`.

    Raises:
        UsageError: no such run.
        StoreError: its log cannot be read, or the report cannot be written.
    """
    facts = read_run(configure(settings).workspace, run)
    path = Path(output).expanduser().absolute() if output is not None else facts.folder / _NAME
    if path.is_dir():
        path = path / _NAME
    data = render_report(facts).encode("utf-8")
    write_atomically(path, data, "--workspace" if output is None else "--output")
    return WrittenReport(run_id=facts.run_id, path=str(path), size=len(data), missing=facts.missing)


def render_report(facts: RunFacts) -> str:
    """The report as HTML, narrowed until it has at most `LARGEST_BYTES`."""
    template = page_template(_TEMPLATE)
    html = ""
    for limits in narrowing():
        # Control characters have no meaning in HTML, and those for the direction of text can hide code.
        html = printable(template.render(page=make_page(facts, limits)))
        if len(html.encode("utf-8")) <= LARGEST_BYTES:
            break
    return html
