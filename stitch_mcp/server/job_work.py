"""What a job's process does: reads the request again, opens the workspace, and calls the tool's function."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stitch_mcp.jobs.state import JobRequest, Subject
from stitch_mcp.server.tool import Answer
from stitch_mcp.server.tools import find_tool
from stitch_mcp.workbench import Workbench, open_workbench
from stitch_tools.errors import UsageError
from stitch_tools.models import Program, Task

if TYPE_CHECKING:
    from stitch_tools.run.session import TargetSession


@dataclass(frozen=True)
class Work:
    """What a tool's function works with."""

    workbench: Workbench
    subject: Subject
    say: Callable[[str], None]
    joined: Callable[[str], None]
    """Takes the id of a run as soon as the job works in it."""

    @property
    def run_id(self) -> str:
        """The run that the request works in.

        Raises:
            UsageError: it names none.
        """
        if self.subject.run_id is None:
            raise UsageError("no run is named", hint="give `run_id` from analyze_reference")
        return self.subject.run_id

    @property
    def place(self) -> dict[str, str]:
        """What the next call names to be about the same: the run, or the reference; empty without both."""
        if self.subject.run_id:
            return {"run_id": self.subject.run_id}
        return {"reference": self.subject.task_id[:16]} if self.subject.task_id else {}

    @cached_property
    def task(self) -> Task:
        """The task that the request is about.

        Raises:
            UsageError: the request names none.
        """
        if self.subject.task_id is None:
            raise UsageError("no reference is named", hint="give `run_id`, or `task` from analyze_reference")
        return self.workbench.workspace.store.get_fact(self.subject.task_id, Task)

    @cached_property
    def program(self) -> Program:
        """The program that the request is about.

        Raises:
            UsageError: the request names none.
        """
        if self.subject.program_id is None:
            raise UsageError("no program is named", hint="give `program`, `files`, or a run that has one")
        return self.workbench.workspace.store.get_fact(self.subject.program_id, Program)


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
        run_id: run that it works in; that of an interrupted attempt is gone on with.
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
    workbench = open_workbench(request.settings, say)  # pyright: ignore[reportArgumentType] # from a checked Settings
    workbench = replace(workbench, warm=warm)
    os.chdir(workbench.config.workspace)
    subject = request.subject.model_copy(update={"run_id": run_id})
    answer: Answer = tool.work(arguments, Work(workbench, subject, say, joined))
    return answer.model_dump(mode="json", exclude_none=True)
