"""What a tool's function works with in a job's process."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from stitch_mcp.config import Config
from stitch_mcp.jobs.state import Subject
from stitch_planner.workbench import Workbench
from stitch_tools.errors import UsageError
from stitch_tools.models.program import Program
from stitch_tools.models.task import Task


@dataclass(frozen=True)
class JobContext:
    """One job: its settings, its workbench and what it is about."""

    config: Config
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

    @property
    def named_program(self) -> str:
        """How a message begins in a run, which has many programs: with the one that it is about."""
        return f"program {self.program.program_id[:16]}: " if self.subject.run_id else ""

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
