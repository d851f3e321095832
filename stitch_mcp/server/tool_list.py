"""The tools, in the order in which an agent meets them. A new one is a module and a line here."""

from functools import cache
from importlib import import_module

from stitch_mcp.server.tool import Tool
from stitch_tools.errors import UsageError

TOOLS = (
    "inspect_environment",
    "analyze_reference",
    "make_plan",
    "search_docs",
    "compile_program",
    "check_program",
    "benchmark_program",
    "profile_program",
    "review_program",
    "certify_program",
    "solve",
    "next_prompt",
    "submit_answer",
    "reward_program",
    "get_job",
    "cancel_job",
    "get_artifact",
)
"""Names of the tools, which are those of their modules in this package."""


def find_tool(name: str) -> Tool:
    """The tool of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in TOOLS:
        raise UsageError(f"there is no tool {name[:60]!r}", hint=f"tools: {', '.join(TOOLS)}")
    return _load(name)


@cache
def _load(name: str) -> Tool:
    tool: Tool = import_module(f"stitch_mcp.server.tools.{name}").TOOL
    return tool
