"""`get_job`: waits for a job's result."""

from pydantic import Field

from stitch_mcp.server.job_answers import job_answer
from stitch_mcp.server.server_context import ServerContext
from stitch_mcp.server.tool import MAX_WAIT_S, JobAnswer, Tool, ToolRequest


class GetJob(ToolRequest):
    """Arguments of get_job."""

    job_id: str
    """From a `working` answer."""
    wait_s: float = Field(default=30.0, ge=0, le=MAX_WAIT_S)
    """Seconds to wait for its end."""


def reply(request: GetJob, server_context: ServerContext) -> JobAnswer:
    """The job's state, without waiting: the server does that."""
    return job_answer(server_context, server_context.supervisor.view(request.job_id))


TOOL = Tool(
    name="get_job",
    title="Wait for a job",
    description=(
        "Waits up to wait_s for a job that a tool left `working`; returns its result or progress. "
        "An `interrupted` job is resumed by the call in next_steps."
    ),
    request=GetJob,
    answer=JobAnswer,
    reply=reply,
    read_only=True,
    toolset="read",
)
