"""`stitch-mcp bench`."""

from typing import Unpack

import click

from stitch_mcp.cli.exit_codes import for_bench
from stitch_mcp.cli.options import (
    json_option,
    parse_overrides,
    reference_options,
    session_options,
    settings,
    speedup_option,
)
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.config import Settings
from stitch_mcp.views.fact_tables import bench_sections


@click.command("bench")
@click.argument("reference")
@click.argument("program")
@click.option("--main", metavar="FILE", help="File of PROGRAM's folder to compile, if several are possible.")
@click.option("--quick", is_flag=True, help="Fewest rounds, only torch.compile's default mode.")
@speedup_option
@reference_options
@session_options
@json_option
def command(
    reference: str,
    program: str,
    main: str | None,
    quick: bool,
    inputs: str | None,
    overrides: tuple[str, ...],
    allow_relaxed: bool,
    as_json: bool,
    **given: Unpack[Settings],
) -> int:
    """Time PROGRAM beside eager PyTorch and torch.compile of REFERENCE. Use `check` for correctness.

    PROGRAM is a folder, a .cpp, .cu or .py file, a certificate, or a run's id.
    """
    from stitch_mcp.api import benchmark_program

    output = CommandOutput("bench", as_json=as_json)
    bench = benchmark_program(
        reference,
        program,
        quick=quick,
        main=main,
        inputs=inputs,
        overrides=parse_overrides(overrides),
        allow_relaxed=allow_relaxed,
        emit=output.progress,
        **given,
    )
    goal = settings(**given).min_speedup
    return output.finish(dict(bench), bench_sections(bench), for_bench(bench, goal))
