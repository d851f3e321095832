"""What the lists of the protocol show: tools, resources, templates and prompts."""

import mcp_types as types

from stitch_mcp.server.resources import FIXED, SKELETON, TEMPLATES
from stitch_mcp.server.schema import tool_schema
from stitch_mcp.server.server_context import ServerContext
from stitch_mcp.server.tool import Tool
from stitch_mcp.server.tool_list import find_tool
from stitch_mcp.server.toolset import fitting, offered, offered_prompts

_TASK_OR_NOT = types.ToolExecution(task_support="optional")
"""How a tool says that it may be called as a task."""


def tool_definitions(server_context: ServerContext, *, with_tasks: bool = False) -> list[types.Tool]:
    """The tools as `tools/list` shows them; `with_tasks`: to clients whose protocol has core tasks."""
    return [
        definition(find_tool(name), server_context, with_tasks=with_tasks) for name in offered(server_context)
    ]


def definition(tool: Tool, server_context: ServerContext, *, with_tasks: bool) -> types.Tool:
    """A tool as `tools/list` shows it."""
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=fitting(server_context, tool.description),
        input_schema=tool_schema(tool.request),
        output_schema=tool_schema(tool.answer, output=True),
        execution=_TASK_OR_NOT if with_tasks and tool.work else None,
        annotations=types.ToolAnnotations(
            read_only_hint=tool.read_only,
            # What is not said has a default: destructive and open to the world.
            destructive_hint=None if tool.read_only else tool.destructive,
            idempotent_hint=None if tool.read_only else True,
            open_world_hint=False,
        ),
    )


def resource_definitions() -> list[types.Resource]:
    """The resources that every workspace has."""
    return [
        types.Resource(uri=item.uri, name=item.name, description=item.description, mime_type=item.mime_type)
        for item in FIXED
    ] + [
        types.Resource(
            uri=SKELETON,
            name="skeleton",
            description="A program for the newest run's task that compiles: fill in its forward",
            mime_type="text/x-c",
        )
    ]


def template_definitions() -> list[types.ResourceTemplate]:
    """The resources of a workspace, by template."""
    return [
        types.ResourceTemplate(uri_template=item.uri, name=item.name, description=item.description)
        for item in TEMPLATES
    ]


def prompt_definitions(server_context: ServerContext) -> list[types.Prompt]:
    """The prompts that this server's tools can follow, with their arguments."""
    return [
        types.Prompt(
            name=prompt.name,
            title=prompt.title,
            description=prompt.description,
            arguments=[
                types.PromptArgument(name=row.name, description=row.description, required=row.required)
                for row in prompt.arguments
            ],
        )
        for prompt in offered_prompts(server_context)
    ]
