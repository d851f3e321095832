"""`stitch-mcp config show`."""

import os

import click

from stitch_mcp.cli.options import json_option, settings, workspace_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.config import SETTINGS, unknown_environment
from stitch_mcp.views.table import ReportSection


@click.group("config")
def command() -> None:
    """Show the settings and their sources."""


@command.command("show")
@click.option("--origin", is_flag=True, help="Also name the source of each value.")
@workspace_option
@json_option
def show(origin: bool, workspace: str | None, as_json: bool) -> int:
    """Show the effective settings."""
    config = settings(workspace=workspace)
    values = {name: getattr(config, name) for name in SETTINGS}
    fields = {
        "settings": {name: value if value is None else _json(value) for name, value in values.items()},
        "origins": {name: config.origin(name) for name in SETTINGS},
        "warnings": unknown_environment(os.environ),
    }
    columns = ("setting", "value", "origin") if origin else ("setting", "value", "meaning")
    rows = tuple(
        (name, _shown(value), config.origin(name) if origin else SETTINGS[name])
        for name, value in values.items()
    )
    sections = [ReportSection("", columns, rows, unknown_environment(os.environ))]
    return CommandOutput("config show", as_json=as_json).finish(fields, sections)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "-"  # pyright: ignore[reportUnknownArgumentType] # names
    return "-" if value is None else str(value)


def _json(value: object) -> object:
    return value if isinstance(value, bool | int | float | str | tuple) else str(value)  # pyright: ignore[reportUnknownVariableType] # names
