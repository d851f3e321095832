"""The type of a tool: request and answer models, texts for the agent, and the function that does the work."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from stitch_mcp.jobs.state import JobStatus
from stitch_mcp.server.job_context import JobContext
from stitch_mcp.server.server_context import ServerContext, Toolset
from stitch_tools.models.base import Fact
from stitch_tools.models.remedy import Remedy

MAX_WAIT_S = 45.0


class ToolRequest(Fact):
    """Arguments of a tool. Unknown ones are refused."""


class SlowRequest(ToolRequest):
    """Arguments of a tool that runs as a job."""

    wait_s: float = Field(default=30.0, ge=0, le=MAX_WAIT_S)
    """Seconds until a job_id comes back."""

    @property
    def job_wait_s(self) -> float:
        """How long the call waits for the end of its job."""
        return self.wait_s

    @property
    def needs_tool(self) -> str | None:
        """A tool without which the caller can do nothing with the job; None where there is none."""
        return None


class RepeatableRequest(SlowRequest):
    """Arguments of a job whose result is reused for an equal call."""

    rerun: bool = False
    """Repeat finished work."""


class ToolAnswer(Fact):
    """Flat result of a tool. Unknown fields are left out."""

    DETAILS: ClassVar[tuple[str, ...]] = ()
    """Fields that only `detail: detailed` shows."""
    QUOTED: ClassVar[tuple[str, ...]] = ()
    """Fields that quote a program, a compiler or a page; answers list them as `untrusted`."""
    NEVER_SET: ClassVar[tuple[str, ...]] = ()
    """Fields of this class that the tool does not use: its schema leaves them out."""

    status: JobStatus = "completed"
    message: str = ""
    job_id: str | None = None
    run_id: str | None = None
    artifact: str | None = None
    # Id of the evidence in full. The guide says so: here it would be said once per tool.
    next_steps: tuple[Remedy, ...] = ()


class JobAnswer(ToolAnswer):
    """Where the job stands."""

    QUOTED: ClassVar[tuple[str, ...]] = ("result",)

    tool: str | None = None
    progress: str | None = None
    """What it does now."""
    result: dict[str, Any] | None = None
    """The tool's own result, once completed."""


@dataclass(frozen=True)
class Tool:
    """One MCP tool. Exactly one of `work` (in a job's process) and `reply` (in the server) is given."""

    name: str
    title: str
    description: str
    request: type[ToolRequest]
    answer: type[ToolAnswer]
    work: Callable[[Any, JobContext], ToolAnswer] | None = None
    """Does the work of a request in a job's process."""
    reply: Callable[[Any, ServerContext], ToolAnswer] | None = None
    """Answers within milliseconds, in a thread of the server."""
    without_job: Callable[[Any, ServerContext], ToolAnswer] | None = None
    """Answers a request with `work` where the workspace takes no job."""
    read_only: bool = False
    """Whether it changes nothing but our own `.stitch` folder."""
    runs_code: bool = False
    """Whether it runs a reference, a program, or a compiler over one."""
    warm: bool = False
    """Whether its work begins with a session of the target interpreter."""
    timed: bool = False
    """Whether its work is disturbed by anything that runs beside it."""
    destructive: bool = False
    reuse: bool = True
    """Whether an equal call may be answered with the finished job's result."""
    reuse_in_run: bool = True
    """The same where the call names a run, which other calls may have changed since."""
    toolset: Toolset = "steps"
