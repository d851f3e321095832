"""A trial: a program, its reference, and where and how long both may run. Every instrument takes one."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stitch_tools.models.program import Build, Program
from stitch_tools.models.task import ReferenceFacts, Task
from stitch_tools.storage.store import Store

if TYPE_CHECKING:
    from stitch_tools.run.reference_server import ReferenceServer
    from stitch_tools.run.session import TargetSession

Emit = Callable[[str], None]
"""Takes sentences on the progress."""


@dataclass(frozen=True)
class Trial:
    """What an instrument needs to judge a program; its own switches come as its options."""

    task: Task
    """Reference and contract."""
    program: Program
    """The candidate."""
    build: Build | None
    """Its build; None only for KernelBench-style programs, which build themselves."""
    session: "TargetSession"
    """The target interpreter."""
    store: Store
    """Where the sources lie."""
    facts: ReferenceFacts
    """What was observed of the reference."""
    reference: "ReferenceServer | None" = None
    """A server that has the task loaded already; else an instrument starts and ends one."""
    emit: Emit | None = None
    deadline_s: float | None = None
    """A time.monotonic() value after which no further draw, tool or round is begun."""
    stop: threading.Event | None = None
    """When set, a timing ends without a result."""

    def say(self, sentence: str) -> None:
        """Tell whoever listens."""
        if self.emit is not None:
            self.emit(sentence)

    @property
    def on_gpu(self) -> bool:
        """Whether the program runs on a GPU."""
        return self.task.target.startswith("cuda")

    @property
    def updated(self) -> tuple[str, ...]:
        """Buffers that pass in and out of the program, as the contract asks."""
        return self.facts.mutated_buffers if self.task.contract.buffers == "updated" else ()

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline_s is not None and time.monotonic() > self.deadline_s
