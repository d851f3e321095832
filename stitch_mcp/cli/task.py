"""`stitch-mcp task new`."""

import shlex
from pathlib import Path

import click

from stitch_mcp.cli.options import json_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.config import current_folder
from stitch_mcp.views.table import ReportSection
from stitch_tools.errors import UsageError


@click.group("task")
def command() -> None:
    """Write a task.toml for a reference."""


@command.command("new", short_help="Write a task file with every field and its default.")
@click.argument("reference", metavar="REF")
@click.option("--inputs", metavar="NAME", help="Function that makes the inputs (default: get_inputs).")
@click.option("--output", metavar="FILE", help="Where to write (default: NAME.task.toml beside REF).")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@json_option
def new(reference: str, inputs: str | None, output: str | None, force: bool, as_json: bool) -> int:
    """Write a task file for REF (path.py or path.py:Object) with every field and its default."""
    from stitch_tools.storage.store import write_atomically
    from stitch_tools.task.references import render_task_toml

    if reference.endswith(".toml"):
        raise UsageError(
            f"{reference!r} is the name of a task file",
            hint="name the Python file; --output says where to write",
        )
    # `path.py:Object` and `path.py` share one folder; the colon is no part of the path then.
    source = Path(reference if Path(reference).exists() else reference.rpartition(":")[0] or reference)
    path = Path(output) if output else source.with_name(f"{source.stem}.task.toml")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="name a file with --output")
    if path.exists() and not force:
        raise UsageError(f"{path} exists", hint="replace it with --force, or choose another with --output")
    text = render_task_toml(
        reference, workspace=current_folder(), inputs=inputs, folder=path.absolute().parent
    )
    write_atomically(path.absolute(), text.encode("utf-8"), "--output")
    fields = {"path": str(path.absolute())}
    notes = [f"wrote {path}", f"next: edit it, then stitch-mcp solve {shlex.quote(str(path))}"]
    if source.suffix == ".py" and path.absolute() == source.with_name(f"{source.stem}.task.toml").absolute():
        notes.append(f"it applies by itself to stitch-mcp solve {shlex.quote(reference)}")
    return CommandOutput("task new", as_json=as_json).finish(fields, [ReportSection(notes=tuple(notes))])
