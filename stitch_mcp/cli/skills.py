"""`stitch-mcp skills list`, `show` and `install`."""

from pathlib import Path

import click

from stitch_mcp.cli.options import json_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.views.table import ReportSection


@click.group("skills")
def command() -> None:
    """List, show or install recipes for fast programs."""


@command.command("list")
@json_option
def list_skills(as_json: bool) -> int:
    """List the recipes."""
    from stitch_planner.skills.library import packaged_skills

    skills = packaged_skills()
    rows = tuple((row.name, row.head.metadata.target, row.head.description) for row in skills)
    fields = {"skills": [row.head for row in skills]}
    section = ReportSection("", ("name", "target", "what it does"), rows)
    return CommandOutput("skills list", as_json=as_json).finish(fields, [section])


@command.command("show")
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> int:
    """Show a recipe: its page and its program."""
    from stitch_planner.skills.library import SKILL_FILE, find_skill

    skill = find_skill(name)
    files = {file.path: file.text for file in skill.files}
    shown = (SKILL_FILE, skill.program.path)
    sections = [ReportSection(path, notes=tuple(files[path].splitlines())) for path in shown]
    return CommandOutput("skills show", as_json=as_json).finish({"name": name, "files": files}, sections)


@command.command("install")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Overwrite files that were changed.")
@json_option
def install(folder: Path, force: bool, as_json: bool) -> int:
    """Copy the recipes as agent skills into DIR, for example .claude/skills."""
    from stitch_mcp.skill_package import install_skills

    done = install_skills(folder, force=force)
    counts = f"{len(done.written)} files written, {done.unchanged} were there already"
    section = ReportSection(notes=(f"{done.skills} skills in {folder}: {counts}",))
    return CommandOutput("skills install", as_json=as_json).finish(dict(done), [section])
