"""`cancel_job`: ends a job with all its processes."""

from stitch_mcp.server.server_context import ServerContext
from stitch_mcp.server.tool import JobAnswer, Tool, ToolAnswer, ToolRequest


class CancelJob(ToolRequest):
    """Arguments of cancel_job."""

    job_id: str
    """From a `working` answer."""


def reply(request: CancelJob, server_context: ServerContext) -> JobAnswer:
    """The job's state after its end."""
    from stitch_mcp.server.job_answers import job_answer

    return job_answer(server_context, server_context.supervisor.cancel(request.job_id))


TOOL = Tool(
    name="cancel_job",
    title="Cancel a job",
    description="Ends a job with all its processes within 2 s. What its run has finished is kept.",
    request=CancelJob,
    answer=ToolAnswer,
    reply=reply,
    destructive=True,
    toolset="read",
)
