"""Finds the run with the coder `manual` that a call names, and the job that works on it."""

import contextlib
import re
from dataclasses import dataclass

from stitch_mcp.jobs.state import JobState
from stitch_mcp.server.request_inputs import find_run_folder
from stitch_mcp.server.server_context import ServerContext
from stitch_planner.agents.manual_questions import (
    MANUAL,
    ManualRun,
    NoManualRunError,
    is_beginning,
    read_manual_run,
)
from stitch_planner.policy import open_step
from stitch_planner.runs.run import read_state
from stitch_tools.errors import StitchError, StoreError, UsageError
from stitch_tools.models.remedy import Remedy

_JOB_ID = re.compile(r"[0-9a-f]{16}")
_NEWEST = 20
"""How many runs are looked at where none is named."""


@dataclass(frozen=True)
class ManualPlace:
    """A run and the job that works on it; one may be missing, and both where a run is only beginning."""

    run: ManualRun | None
    job: JobState | None
    beginning: str = ""
    """Id of a run that a process has opened and written nothing to yet."""

    @property
    def run_id(self) -> str:
        """Id of the run, "" where there is none yet."""
        return self.run.folder.name if self.run else self.beginning

    @property
    def job_id(self) -> str | None:
        """Id of the job, None for a run of the command line."""
        return self.job.job_id if self.job else None

    @property
    def at_work(self) -> bool:
        """Whether some process works on the run, or is about to."""
        return bool(self.run and self.run.worker) or (self.job is not None and self.job.status == "working")

    def next_prompt(self, why: str) -> Remedy:
        """The call that waits for the next question."""
        return Remedy(tool="next_prompt", arguments={"run_id": self.run_id or self.job_id or ""}, why=why)

    def result_steps(self) -> tuple[Remedy, ...]:
        """The calls that show what a finished run came to."""
        review = Remedy(tool="review_program", arguments={"run_id": self.run_id}, why="see its best program")
        if self.job is None:
            return (review,)
        whole = Remedy(tool="get_job", arguments={"job_id": self.job.job_id}, why="read the result in full")
        return (whole, review)


def find_manual_run(server_context: ServerContext, name: str) -> ManualPlace:
    """What a run's or a job's id names; the newest run with the coder `manual` where it is empty.

    A newer run that is only beginning comes first: it may ask, too.

    Raises:
        UsageError: there is no such run or job, or its coder is another one.
        StoreError: its records are damaged.
    """
    if _JOB_ID.fullmatch(name):
        job = server_context.supervisor.view(name)
        if job.tool != "solve":
            raise NoManualRunError(
                f"job {name} is {job.tool}, which asks nobody",
                hint=f"name a job of solve with `coder`: {MANUAL}",
            )
        if job.run_id is None:
            return ManualPlace(None, job)
        folder = find_run_folder(server_context, job.run_id)
        return ManualPlace(read_manual_run(server_context.workspace, folder), job)
    folder = find_run_folder(server_context, name or _newest(server_context))
    if is_beginning(folder):
        return ManualPlace(None, None, folder.name)
    run = read_manual_run(server_context.workspace, folder)
    return ManualPlace(run, _job_of(server_context, run.folder.name))


def progress_of(place: ManualPlace) -> str:
    """What is done in a run that is at work."""
    if place.job is not None and place.job.status == "working":
        return place.job.progress
    assert place.run is not None
    return f"its step is {open_step(place.run.state)}"


def _newest(server_context: ServerContext) -> str:
    workspace = server_context.workspace
    for run_id in reversed(workspace.run_ids()[-_NEWEST:]):
        # One damaged run does not hide the others.
        with contextlib.suppress(StoreError):
            folder = workspace.runs_folder / run_id
            if is_beginning(folder):
                return run_id
            first = read_state(folder).started
            if first is not None and first.coder == MANUAL:
                return run_id
    begin = Remedy(
        tool="solve", arguments={"reference": "PATH.py", "coder": MANUAL}, why="begin a run that asks you"
    )
    raise UsageError("no run of this workspace asks anybody", remedies=(begin,))


def _job_of(server_context: ServerContext, run_id: str) -> JobState | None:
    """The newest job that works, or worked, on the run to its end."""
    for job_id in server_context.supervisor.recent():
        # Another version's job cannot be read, and is none of this run.
        with contextlib.suppress(StitchError):
            job = server_context.supervisor.view(job_id)
            if job.tool == "solve" and job.run_id == run_id:
                return job
    return None
