"""`stitch-mcp check`."""

from typing import Unpack

import click

from stitch_mcp.cli.exit_codes import for_check
from stitch_mcp.cli.options import json_option, parse_overrides, reference_options, session_options
from stitch_mcp.cli.output import Output
from stitch_mcp.config import Settings
from stitch_mcp.tables import check_sections


@click.command("check")
@click.argument("reference")
@click.argument("program")
@click.option("--sanitize", is_flag=True, help="Also look for memory errors, races and undefined behavior.")
@click.option("--ablation", is_flag=True, help="Also see what happens without its own launches (cuda).")
@click.option("--main", metavar="FILE", help="The file of a program's folder that is compiled.")
@reference_options
@session_options
@json_option
def command(
    reference: str,
    program: str,
    sanitize: bool,
    ablation: bool,
    main: str | None,
    inputs: str | None,
    overrides: tuple[str, ...],
    allow_relaxed: bool,
    as_json: bool,
    **settings: Unpack[Settings],
) -> int:
    """Check PROGRAM (a folder, file, certificate or run) against REFERENCE."""
    from stitch_mcp.api import check_program

    output = Output("check", as_json=as_json)
    check = check_program(
        reference,
        program,
        sanitize=sanitize,
        ablation=ablation,
        main=main,
        inputs=inputs,
        overrides=parse_overrides(overrides),
        allow_relaxed=allow_relaxed,
        emit=output.progress,
        **settings,
    )
    return output.finish(dict(check), check_sections(check), for_check(check))
