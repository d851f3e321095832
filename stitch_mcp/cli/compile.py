"""`stitch-mcp compile`."""

import click

from stitch_mcp.cli.exit_codes import for_build
from stitch_mcp.cli.options import json_option, sandbox_option, target_option, workspace_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.views.fact_tables import build_sections


@click.command("compile")
@click.argument("program")
@click.option("--main", metavar="FILE", help="File of PROGRAM's folder to compile, if several are possible.")
@click.option(
    "--arch",
    "archs",
    multiple=True,
    metavar="SM",
    help="GPU architecture to compile for, such as sm_90. May be repeated.",
)
@click.option(
    "--build-time-limit-s", metavar="SECONDS", help="Stop the compiler after this time (default: 600)."
)
@sandbox_option
@target_option
@workspace_option
@json_option
def command(
    program: str,
    main: str | None,
    archs: tuple[str, ...],
    build_time_limit_s: str | None,
    require_sandbox: str | None,
    target: str | None,
    workspace: str | None,
    as_json: bool,
) -> int:
    """Build PROGRAM (a folder, a .cpp or .cu file, a certificate, or a run's id) and show the diagnostics."""
    from stitch_mcp.api import compile_program

    output = CommandOutput("compile", as_json=as_json)
    build = compile_program(
        program,
        main=main,
        archs=archs,
        emit=output.progress,
        target=target,
        workspace=workspace,
        build_time_limit_s=build_time_limit_s,
        require_sandbox=require_sandbox,
    )
    # `command` is the name of this command in every JSON object.
    fields = {"compiler_command" if name == "command" else name: value for name, value in build}
    return output.finish(fields, build_sections(build), for_build(build))
