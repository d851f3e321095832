"""`stitch-mcp profile`."""

from pathlib import Path
from typing import TYPE_CHECKING, Unpack, get_args

import click

from stitch_mcp.cli.exit_codes import ExitCode, for_profile
from stitch_mcp.cli.options import (
    json_option,
    parse_overrides,
    reference_options,
    session_options,
    settings,
)
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.config import Settings
from stitch_mcp.views.table import ReportSection
from stitch_tools.errors import UsageError
from stitch_tools.models.profile import ProfileLevel

if TYPE_CHECKING:
    from stitch_tools.models.graph import Ceilings
    from stitch_tools.models.profile import Profile
    from stitch_tools.profile.profile_work import SystemTool


@click.command("profile")
@click.argument("reference", required=False)
@click.argument("program", required=False)
@click.option(
    "--level",
    type=click.Choice(get_args(ProfileLevel)),
    default="system",
    help="system: host and device side by side; kernel: questions about single kernels; or both.",
)
@click.option(
    "--tool",
    type=click.Choice(("auto", "nsys", "torch.profiler")),
    default="auto",
    help="What records the system level (default: nsys where it works).",
)
@click.option("--ask", metavar="QUESTION", help="Answer one question: a rule's or a kernel question's name.")
@click.option(
    "--compare",
    nargs=2,
    metavar="A B",
    help="Show what changed between two profiles: ids that this command printed, or files of --json.",
)
@click.option("--charts", metavar="FILE", help="Also write the charts as one HTML file.")
@click.option("--main", metavar="FILE", help="File of PROGRAM's folder to compile, if several are possible.")
@reference_options
@session_options
@json_option
def command(
    reference: str | None,
    program: str | None,
    level: ProfileLevel,
    tool: "SystemTool",
    ask: str | None,
    compare: tuple[str, str] | None,
    charts: str | None,
    main: str | None,
    inputs: str | None,
    overrides: tuple[str, ...],
    allow_relaxed: bool,
    as_json: bool,
    **given: Unpack[Settings],
) -> int:
    """Show where the time of REFERENCE, or of PROGRAM, goes, and what would win most of it.

    PROGRAM is a folder, a .cpp, .cu or .py file, a certificate, or a run's id. It is checked first.
    """
    output = CommandOutput("profile", as_json=as_json)
    if compare:
        return _compare(output, compare, given)
    if reference is None:
        raise UsageError("no reference is named", hint="give REFERENCE, or --compare A B")
    from stitch_mcp.api import profile_program

    profile = profile_program(
        reference,
        program,
        level=level,
        tool=tool,
        ask=ask or "",
        main=main,
        inputs=inputs,
        overrides=parse_overrides(overrides),
        allow_relaxed=allow_relaxed,
        emit=output.progress,
        **given,
    )
    if charts:
        from stitch_mcp.report.profile_charts import charts_page
        from stitch_tools.storage.store import write_atomically

        page = charts_page(profile, _known_ceilings(profile, given))
        write_atomically(Path(charts).expanduser(), page.encode("utf-8"))
    return output.finish(dict(profile), _sections(profile, ask), for_profile(profile))


def _known_ceilings(profile: "Profile", given: Settings) -> "Ceilings | None":
    """The limits of the profile's device, for the roofs of a chart: the profile itself measured them."""
    from stitch_mcp.workbench import open_workbench
    from stitch_tools.errors import EnvironmentMissingError
    from stitch_tools.machine.devices import usable_cpus
    from stitch_tools.run.ceilings import cached_ceilings

    workbench = open_workbench(settings(**given))
    threads = workbench.threads or usable_cpus()
    try:
        return cached_ceilings(profile.target, threads=threads, cache_dir=workbench.cache_dir)
    except EnvironmentMissingError:
        return None  # A profile of a device that is not here.


def _sections(profile: "Profile", ask: str | None) -> list[ReportSection]:
    from stitch_mcp.views.profile_tables import profile_sections
    from stitch_tools.models.base import sha256_hex
    from stitch_tools.profile.profile_text import answer_question, questions_of

    named = ReportSection(notes=(f"profile id: {sha256_hex(profile.canonical_json())[:16]}",))
    if not ask or profile.status not in ("profiled", "partial"):
        return [*profile_sections(profile), named]
    nothing = (f"this profile says nothing on it, but on: {', '.join(questions_of(profile))}",)
    lines = answer_question(profile, ask) or nothing
    return [ReportSection(title=ask, notes=lines), named]


def _compare(output: CommandOutput, names: tuple[str, str], given: Settings) -> int:
    from stitch_mcp.workbench import open_workbench
    from stitch_planner.profiles import find_profile
    from stitch_tools.profile.profile_text import compare_profiles

    workspace = open_workbench(settings(**given)).workspace
    before, after = (find_profile(workspace, name) for name in names)
    lines = compare_profiles(before, after)
    sections = [ReportSection(title="What changed", notes=lines)]
    fields = {"before": before.subject_id, "after": after.subject_id, "lines": lines}
    return output.finish(fields, sections, ExitCode.DONE)
