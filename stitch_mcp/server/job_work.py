"""What a job's process does: reads the request again, opens the workspace, and calls the tool's function."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stitch_mcp.config import configure
from stitch_mcp.jobs.state import JobRequest
from stitch_mcp.server.job_context import JobContext
from stitch_mcp.server.tool_list import find_tool
from stitch_mcp.workbench import open_workbench
from stitch_tools.errors import UsageError

if TYPE_CHECKING:
    from stitch_tools.run.session import TargetSession


def do_work(
    request: JobRequest,
    run_id: str | None,
    say: Callable[[str], None],
    joined: Callable[[str], None],
    warm: "TargetSession | None" = None,
) -> dict[str, Any]:
    """The answer of the request's tool, as JSON.

    Args:
        request: the work.
        run_id: run that it works in; that of an interrupted attempt is resumed.
        say: takes progress sentences.
        joined: takes the run's id as soon as there is one.
        warm: a session that was started already.

    Raises:
        StitchError: a failure of ours or of the caller.
    """
    tool = find_tool(request.tool)
    if tool.work is None:
        raise UsageError(f"{request.tool} does not run as a job", hint="this is a fault of stitch-mcp")
    arguments = tool.request.model_validate(request.arguments)
    config = configure(request.settings)
    workbench = replace(open_workbench(config, say), warm=warm)
    os.chdir(config.workspace)
    subject = request.subject.model_copy(update={"run_id": run_id})
    answer = tool.work(arguments, JobContext(config, workbench, subject, say, joined))
    return answer.model_dump(mode="json", exclude_none=True)
