"""`stitch-mcp memory show` and `clear`."""

import click

from stitch_mcp.cli.options import json_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.views.table import ReportSection


@click.group("memory")
def command() -> None:
    """Show or clear what earlier runs taught for the next ones."""


@command.command("show")
@json_option
def show(as_json: bool) -> int:
    """Show the lessons that models are told of in runs on similar tasks."""
    from stitch_planner.memory_file import MemoryFile, user_memory_file

    memory = MemoryFile(user_memory_file())
    lessons = memory.lessons()
    rows = tuple((row.run_id, f"{row.number:03d}", row.outcome, row.sentence) for row in lessons)
    columns = ("run", "program", "outcome", "lesson") if rows else ()
    notes = (f"file: {memory.path}",) if rows else (f"no lessons in {memory.path}",)
    fields = {"file": str(memory.path), "lessons": [row.model_dump(mode="json") for row in lessons]}
    return CommandOutput("memory show", as_json=as_json).finish(
        fields, [ReportSection("", columns, rows, notes)]
    )


@command.command("clear")
@json_option
def clear(as_json: bool) -> int:
    """Forget all lessons."""
    from stitch_planner.memory_file import MemoryFile, user_memory_file

    memory = MemoryFile(user_memory_file())
    memory.clear()
    section = ReportSection(notes=(f"removed {memory.path}",))
    return CommandOutput("memory clear", as_json=as_json).finish({"file": str(memory.path)}, [section])
