"""Tasks of protocol 2025-11-25, where they were part of the core: the same jobs once more.

A client asks for a task with the call itself, gets one at once, looks with tasks/get, tasks/list and
tasks/cancel, and takes the tool's answer with tasks/result. The SDK serves no such calls; what it would
refuse as a result of `tools/call` is answered in front of it.
"""

from typing import Any, cast

import mcp_types as types
from mcp.server.context import HandlerResult, ServerRequestContext

from stitch_mcp.jobs.state import JobState
from stitch_mcp.server.tasks import POLL_MS, status_message

VERSION = "2025-11-25"
RELATED = "io.modelcontextprotocol/related-task"
"""Under this key of `_meta` a result names its task."""
CAPABILITY = types.ServerTasksCapability(
    list=types.TasksListCapability(),
    cancel=types.TasksCancelCapability(),
    requests=types.ServerTasksRequestsCapability(
        tools=types.TasksToolsCapability(call=types.TasksCallCapability())
    ),
)


def knows_core_tasks(context: ServerRequestContext[Any, Any]) -> bool:
    """Whether the client's protocol has these tasks."""
    return context.protocol_version == VERSION


def declared(hello: HandlerResult) -> HandlerResult:
    """The answer to `initialize`, which announces tasks only where the version agreed on has them."""
    if not isinstance(hello, dict) or hello.get("protocolVersion") == VERSION:
        return hello
    capabilities = cast("dict[str, Any]", hello.get("capabilities", {}))
    return {**hello, "capabilities": {name: what for name, what in capabilities.items() if name != "tasks"}}


def asks_for_task(context: ServerRequestContext[Any, Any]) -> bool:
    """Whether the request is a tool call that is to be answered with a task."""
    asked = context.method == "tools/call" and "task" in (context.params or {})
    return asked and knows_core_tasks(context)


def created(state: JobState) -> dict[str, Any]:
    """The result that stands in for that of a tool."""
    return {"task": view(state)}


def view(state: JobState) -> dict[str, Any]:
    """Result of tasks/get and tasks/cancel, and a row of tasks/list."""
    return {
        "taskId": state.job_id,
        # What was interrupted goes on with the next equal call: this task of it is over.
        "status": "failed" if state.status == "interrupted" else state.status,
        "statusMessage": status_message(state),
        "createdAt": state.started_at,
        "lastUpdatedAt": state.ended_at or state.started_at,
        "ttl": None,
        "pollInterval": POLL_MS,
    }


def related(result: types.CallToolResult, state: JobState) -> dict[str, Any]:
    """Result of tasks/result: the tool's, with the name of its task."""
    # As JSON: the SDK has no model for the result of this version's tasks/result.
    dumped = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {**dumped, "_meta": {**dumped.get("_meta", {}), RELATED: {"taskId": state.job_id}}}
