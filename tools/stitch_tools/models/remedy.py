"""The next step that helps, as data: each door renders it in its own words."""

from collections.abc import Mapping

from stitch_tools.models.base import Fact


class Remedy(Fact):
    """A call that is worth making now: a tool call for an MCP client, a command line on the CLI."""

    tool: str
    arguments: Mapping[str, object] = {}
    """JSON values by the tool's argument names."""
    why: str
