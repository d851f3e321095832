"""`stitch-mcp solve`."""

from pathlib import Path
from typing import Unpack

import click

from stitch_mcp.cli.exit_codes import ExitCode, for_result
from stitch_mcp.cli.interrupt import stop_on_interrupt
from stitch_mcp.cli.live_status import followed
from stitch_mcp.cli.options import (
    accept_option,
    json_option,
    model_options,
    parse_overrides,
    reference_options,
    session_options,
    speedup_option,
)
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.config import Settings
from stitch_mcp.printed_commands import bench_command
from stitch_mcp.verdicts import result_fields
from stitch_mcp.views.fact_tables import solve_sections
from stitch_mcp.views.table import ReportSection, one_line


@click.command("solve")
@click.argument("reference", required=False)
@click.option(
    "--resume",
    metavar="RUN",
    help="Instead of REFERENCE: resume a run (its id, a unique prefix, or `last`).",
)
@click.option(
    "--quick", is_flag=True, help="No sanitizers, fewest rounds, only torch.compile's default mode."
)
@click.option(
    "--again", is_flag=True, help="With a folder: also solve what has a finished run in this workspace."
)
@model_options
@speedup_option
@accept_option
@reference_options
@session_options
@json_option
def command(
    reference: str | None,
    resume: str | None,
    quick: bool,
    again: bool,
    inputs: str | None,
    overrides: tuple[str, ...],
    allow_relaxed: bool,
    as_json: bool,
    **given: Unpack[Settings],
) -> int:
    """Make REFERENCE faster: capture, plan, write native code, build, check, time, certify.

    REFERENCE is a KernelBench-style file, path.py:Object, or a task.toml; or a folder, each *.py of which is
    solved. What has a finished run in the workspace is then left out.
    """
    from stitch_mcp.api import solve

    output = CommandOutput("solve", as_json=as_json)
    if reference is not None and _is_folder(Path(reference)):
        if resume or inputs or overrides or allow_relaxed:
            raise click.UsageError("a folder goes without --resume, --inputs, --set and --allow-relaxed")
        return _solve_folder(Path(reference), output, again=again, quick=quick, **given)
    if again:
        raise click.UsageError("--again goes with a folder of references")
    with stop_on_interrupt() as stop, followed(output) as follower:
        result = solve(
            reference,
            resume=resume,
            quick=quick,
            inputs=inputs,
            overrides=parse_overrides(overrides),
            allow_relaxed=allow_relaxed,
            emit=follower.emit,
            stop=stop,
            on_state=follower.on_state,
            **given,
        )
    bench_again = bench_command(
        reference or "REFERENCE",
        result.run_id,
        inputs=inputs,
        overrides=overrides,
        allow_relaxed=allow_relaxed,
        **given,
    )
    code = for_result(result.verdict, result.bench, result.min_speedup)
    return output.finish(result_fields(result), solve_sections(result, bench_again), code)


def _is_folder(path: Path) -> bool:
    """Whether a path names a folder of references, and not one reference with its task file."""
    return path.is_dir() and not (path / "task.toml").exists()


def _solve_folder(
    folder: Path, output: CommandOutput, *, again: bool, quick: bool, **given: Unpack[Settings]
) -> int:
    from stitch_mcp.folder_solving import all_count, solve_folder

    with stop_on_interrupt() as stop:
        rows = solve_folder(folder, again=again, quick=quick, emit=output.progress, stop=stop, **given)
    code = ExitCode.DONE if all_count(rows) else ExitCode.NONE_COUNTS
    if any(row.ended in ("interrupted", "not_started") for row in rows):
        code = ExitCode.INTERRUPTED
    accepted = sum(row.counts for row in rows)
    table = ReportSection(
        title=f"{accepted} of {len(rows)} references have a program that counts",
        columns=("reference", "ended", "status", "speedup", "run", "message"),
        rows=tuple(
            (
                row.reference,
                row.ended,
                row.status or "-",
                "-" if row.speedup is None else f"{row.speedup:.2f}x",
                row.run_id or "-",
                one_line(row.message),
            )
            for row in rows
        ),
        cut=True,
    )
    return output.finish({"folder": str(folder), "accepted": accepted, "tasks": rows}, [table], code)
