"""What is kept of a job: its request, written once, and its state, rewritten by whoever holds its lock."""

from typing import Any, Literal

from pydantic import Field

from stitch_tools.models.base import Fact, sha256_hex
from stitch_tools.models.remedy import Remedy

JobStatus = Literal["working", "input_required", "completed", "failed", "cancelled", "interrupted"]
"""Those of MCP tasks, and `interrupted`: its process ended before it was done; the same call resumes it."""


class Subject(Fact):
    """What a job is about, by content: later changes of the files do not reach it."""

    task_id: str | None = None
    """Hash of the Task."""
    program_id: str | None = None
    """Id of the Program, which is the hash of its nameless form in the store."""
    run_id: str | None = None
    """Run that the step belongs to."""


class JobRequest(Fact):
    """A tool call that is run as a job."""

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    """The call's arguments as the tool's request model dumps them, defaults included."""
    subject: Subject = Subject()
    settings: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Settings that the server was started with, as `stitch_mcp.config.Settings`."""
    environment: str = ""
    """Fingerprint of the tools and settings that a result depends on."""

    @property
    def job_id(self) -> str:
        """Names the request: equal work in an equal environment has the same id."""
        return sha256_hex(self.canonical_json())[:16]


class JobState(Fact):
    """Where a job stands."""

    job_id: str
    tool: str
    status: JobStatus
    """As it was written; `working` is true only while the job's lock is held."""
    attempt: int = 1
    """1 for the first start."""
    pid: int | None = None
    """Its process, leader of the group."""
    pid_started: str = ""
    """When that process began, in the kernel's words: a pid alone may be another's by now."""
    started_at: str = ""
    """UTC, ISO 8601."""
    ended_at: str = ""
    progress: str = ""
    """The last sentence that it said."""
    sentences: int = 0
    """How many it said so far."""
    result: dict[str, Any] | None = None
    """The tool's answer, None before the end."""
    error_code: str = ""
    """Code of the StitchError that ended it."""
    message: str = ""
    """One sentence on how it ended."""
    hint: str = ""
    """What to do next after a failure."""
    remedies: tuple[Remedy, ...] = ()
    """The same as calls, best first, where they are known."""
    run_id: str | None = None
    """Run that it works in, as soon as that is known."""

    @property
    def done(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self.status != "working"
