"""Options that several commands of `stitch-mcp rl` share."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stitch_mcp.views.table import ReportSection

if TYPE_CHECKING:
    from stitch_mcp.rl.data.task_filter import FilterReport

F = TypeVar("F", bound=Callable[..., Any])


def judging_options(command: F) -> F:
    """How thoroughly submissions are judged for their reward."""
    for option in (
        click.option(
            "--sanitize", is_flag=True, help="Also look for memory errors and races (20 to 60 s more)."
        ),
        click.option(
            "--rubric-model",
            default="",
            metavar="NAME",
            help="Model that grades by the rubric, too: a [models.NAME] table of your settings, or its own "
            "name.",
        ),
        click.option(
            "--full", is_flag=True, help="Full rounds and all modes of torch.compile, not the quick bench."
        ),
    ):
        command = option(command)
    return command


def away_from_option(command: F) -> F:
    """Benchmarks that tasks of a training must not be close to."""
    return click.option(
        "--away-from",
        "benchmarks",
        multiple=True,
        metavar="PATH",
        type=click.Path(exists=True, path_type=Path),
        help="A benchmark's file or folder that no task may be close to; may be repeated.",
    )(command)


def report_section(report: "FilterReport", out: Path) -> ReportSection:
    """Writes report.json into `out`; what it says, for people."""
    (out / "report.json").write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
    rows = tuple((name, str(number)) for name, number in sorted(report.rejected.items()))
    notes = (
        f"{report.accepted} of {report.sampled} samples accepted, {report.families} families",
        *(f"near a benchmark: {pair}" for pair in report.near_benchmark),
        f"in {out}",
    )
    return ReportSection("", ("rejected as", "samples"), rows, notes=notes)
