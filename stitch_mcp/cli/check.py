"""`stitch-mcp check`."""

from typing import Unpack

import click

from stitch_mcp.cli.contract import contract_options, contract_overrides
from stitch_mcp.cli.exit_codes import for_verdict
from stitch_mcp.cli.options import (
    accept_option,
    json_option,
    parse_overrides,
    reference_options,
    session_options,
    settings,
)
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.config import Settings
from stitch_mcp.verdicts import verdict_fields
from stitch_mcp.views.fact_tables import check_sections


@click.command("check")
@click.argument("reference")
@click.argument("program")
@click.option("--sanitize", is_flag=True, help="Also look for memory errors, races and undefined behavior.")
@click.option("--main", metavar="FILE", help="File of PROGRAM's folder to compile, if several are possible.")
@click.option(
    "--reference-tolerance", is_flag=True, help="Show the verdict of KernelBench's own rule beside ours."
)
@accept_option
@contract_options
@reference_options
@session_options
@json_option
def command(
    reference: str,
    program: str,
    sanitize: bool,
    reference_tolerance: bool,
    contract: str | None,
    atol: float | None,
    rtol: float | None,
    allow: str | None,
    main: str | None,
    inputs: str | None,
    overrides: tuple[str, ...],
    allow_relaxed: bool,
    as_json: bool,
    **given: Unpack[Settings],
) -> int:
    """Check that PROGRAM computes what REFERENCE does, on hidden inputs.

    PROGRAM is a folder, a .cpp, .cu or .py file, a certificate, or a run's id.
    """
    from stitch_mcp.api import check_program
    from stitch_tools.judge.verdict import verdict_of

    output = CommandOutput("check", as_json=as_json)
    stated = contract_overrides(contract, atol, rtol, allow)
    check = check_program(
        reference,
        program,
        sanitize=sanitize,
        reference_tolerance=reference_tolerance,
        main=main,
        inputs=inputs,
        overrides={**stated, **parse_overrides(overrides)},
        allow_relaxed=allow_relaxed,
        mark_relaxed=bool(stated),
        emit=output.progress,
        **given,
    )
    verdict = verdict_of(check, policy=settings(**given).policy)
    sections = check_sections(check, verdict, reference_tolerance=reference_tolerance)
    return output.finish({**dict(check), **verdict_fields(verdict)}, sections, for_verdict(verdict))
