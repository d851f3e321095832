"""What all parts of one profile share while it is made."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from stitch_tools.judge.trial import Emit, Trial
from stitch_tools.models.graph import Ceilings, Graph
from stitch_tools.models.profile import (
    KernelQuestion,
    Profile,
    ProfileLevel,
    ProfilerTool,
    ProfileStatus,
    ProfileSubjectKind,
)
from stitch_tools.models.task import Task
from stitch_tools.run.session import TargetSession

SystemTool = Literal["auto", "nsys", "torch.profiler"]
_LOCK_WAIT_S = 60.0


@dataclass(frozen=True)
class ProfileOptions:
    """What is asked for, and how long each run of the subject may take."""

    level: ProfileLevel = "system"
    tool: SystemTool = "auto"
    """For the system level: nsys where it works, else PyTorch's profiler."""
    questions: tuple[KernelQuestion, ...] = ()
    """For the kernel level; () is all."""
    limit_s: float = 180.0
    lock_wait_s: float = _LOCK_WAIT_S
    cache_dir: Path | None = None
    """Cache folder; None is the user's."""


@dataclass(frozen=True)
class KnownFacts:
    """What is known beside the recording; each makes the diagnosis say more."""

    graph: Graph | None = None
    ceilings: Ceilings | None = None
    untraced_us: float | None = None
    """Latency by a benchmark; None: measured in a process of its own, without a profiler."""


@dataclass
class ProfileWork:
    """One profile while it is made."""

    task: Task
    subject: ProfileSubjectKind
    subject_id: str
    options: ProfileOptions
    known: KnownFacts
    session: TargetSession
    emit: Emit | None
    trial: Trial | None = None
    """The program; None of a reference."""
    own: Collection[str] = ()
    """Names of the kernels that the program defines."""
    files: tuple[str, ...] = ()
    """Paths of the program's files."""
    tools: list[ProfilerTool] = field(default_factory=list[ProfilerTool])
    missing: list[str] = field(default_factory=list[str])
    """What is not measured, and why."""
    untraced_us: float | None = None
    started_s: float = field(default_factory=time.monotonic)
    device: str = ""

    def say(self, sentence: str) -> None:
        """Tell whoever listens."""
        if self.emit is not None:
            self.emit(sentence)

    @property
    def on_gpu(self) -> bool:
        """Whether the subject runs on a GPU."""
        return self.task.target.startswith("cuda")

    def ended(self, status: ProfileStatus, message: str = "", **facts: object) -> Profile:
        """The profile with this status, and with `facts` as further fields."""
        profile = Profile(
            subject=self.subject,
            subject_id=self.subject_id,
            task_id=self.task.task_id,
            target=self.task.target,
            device=self.device,
            isolation=self.session.sandbox_level,
            level=self.options.level,
            status=status,
            message=message,
            tools=tuple(self.tools),
            not_measured=tuple(dict.fromkeys(self.missing)),
            wall_s=time.monotonic() - self.started_s,
        )
        return profile.model_copy(update=facts)
