"""The Tasks extension (io.modelcontextprotocol/tasks): our jobs, for clients that declare it.

Such a client gets a task handle in place of `status: working`, and asks with tasks/get and tasks/cancel.
Nothing is kept for it: a task is a job, and its id that of the job.
"""

from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Field

from stitch_mcp.jobs.state import JobState
from stitch_mcp.server.render import blot_text

EXTENSION = "io.modelcontextprotocol/tasks"
HANDLE_AFTER_S = 2.0
"""How long a call of a client with tasks is held before it gets a handle."""
POLL_MS = 1000
"""How often a client may well look."""


class TaskParams(types.RequestParams):
    """Parameters of tasks/get and tasks/cancel."""

    task_id: str = Field(alias="taskId")


class UpdateParams(TaskParams):
    """Parameters of tasks/update; no job of ours asks for input."""

    input_responses: dict[str, Any] = Field(alias="inputResponses", default_factory=dict[str, Any])


def takes_tasks(context: ServerRequestContext[Any, Any]) -> bool:
    """Whether the client of this request declared the extension; older protocols do not know it."""
    declared = context.session.client_capabilities
    extensions = declared.extensions if declared else None
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in (extensions or {})


def need_tasks(context: ServerRequestContext[Any, Any]) -> None:
    """Refuse a request about tasks from a client that did not declare the extension.

    Raises:
        MCPError: it did not.
    """
    if not takes_tasks(context):
        needed = types.MissingRequiredClientCapabilityErrorData(
            required_capabilities=types.ClientCapabilities(extensions={EXTENSION: {}})
        )
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"tasks/* are for clients that declare {EXTENSION}; get_job and cancel_job are for all",
            needed.model_dump(mode="json", by_alias=True, exclude_none=True),
        )


def created(state: JobState) -> dict[str, Any]:
    """The result that stands in for that of a tool, as long as the job works."""
    return {"resultType": "task", **_task(state, "working")}


def task_view(state: JobState, result: types.CallToolResult | None) -> dict[str, Any]:
    """Result of tasks/get.

    Args:
        state: the job's.
        result: of the tool, once the job is completed or failed in a way that a tool tells.
    """
    if state.status in ("working", "cancelled"):
        return _task(state, state.status)
    if state.status == "interrupted" or result is None:
        error = {
            "code": types.INTERNAL_ERROR,
            "message": f"{state.message}; make the same call again to resume it",
        }
        return {**_task(state, "failed"), "error": error}
    dumped = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {**_task(state, "completed"), "result": dumped}


def status_message(state: JobState) -> str:
    """The job's last progress message, without secrets."""
    return blot_text(state.progress if state.status == "working" else state.message)


def _task(state: JobState, status: str) -> dict[str, Any]:
    return {
        "taskId": state.job_id,
        "status": status,
        "statusMessage": status_message(state),
        "createdAt": state.started_at,
        "lastUpdatedAt": state.ended_at or state.started_at,
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }
