"""Shared by `stitch-mcp graph` and `stitch-mcp plan`: capture a reference and show one view of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

import click

from stitch_mcp.cli.options import json_option, parse_overrides, reference_options, session_options
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.config import Settings
from stitch_mcp.views.table import ReportSection

if TYPE_CHECKING:
    from stitch_mcp.api import Captured

View = tuple[Mapping[str, object], Sequence[ReportSection]]
"""The fields of the JSON object, and the tables."""


def capture_command(name: str, text: str, view: "Callable[[Captured], View]") -> click.Command:
    """The command `name` with the help `text`, which captures a reference and prints `view` of it."""

    @click.command(name, help=text)
    @click.argument("reference")
    @reference_options
    @session_options
    @json_option
    def command(
        reference: str,
        inputs: str | None,
        overrides: tuple[str, ...],
        allow_relaxed: bool,
        as_json: bool,
        **settings: Unpack[Settings],
    ) -> int:
        from stitch_mcp.api import capture_reference

        output = CommandOutput(name, as_json=as_json)
        captured = capture_reference(
            reference,
            inputs=inputs,
            overrides=parse_overrides(overrides),
            allow_relaxed=allow_relaxed,
            emit=output.progress,
            **settings,
        )
        return output.finish(*view(captured))

    return command
