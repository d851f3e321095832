"""One submission to judge, what came of it, and the interface of whoever judges."""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from pydantic import Field

from stitch_mcp import __version__
from stitch_mcp.rl.reward.facts import RewardEvidence, Skill
from stitch_mcp.rl.reward.submissions import Submission
from stitch_tools.models.base import Fact, canonical_json, sha256_hex
from stitch_tools.models.task import Task

JobOutcome = Literal["judged", "cancelled", "lost"]


class JudgeSettings(Fact):
    """How every submission of a batch is judged."""

    workspace: str
    """Folder of the judge's store and builds."""
    python: str | None = None
    """Target interpreter; None: found as the settings say."""
    target: str = "cpu"
    threads: int | None = None
    """CPU threads of program and reference; None: all."""
    bench_budget_s: float = 4.0
    """Seconds for a bench's rounds; half of it is used, since rewards are timed as quick runs are."""
    compile_baselines: bool = False
    """Whether torch.compile is timed, too; the preset `milestone` needs it."""
    time_limit_s: float = 300.0
    """Seconds after which the judge starts no further draw or round."""


class JudgeJob(Fact):
    """A program for a task."""

    reference: str
    """Absolute path of the reference or task.toml, `path.py:Object` for an object in it."""
    files: dict[str, str]
    """Source files of the program by their path."""
    main: str = ""
    """Which file is compiled; "" where it is clear."""
    skill: Skill = "generate"
    parent_files: dict[str, str] = Field(default_factory=dict[str, str])
    """Files of the program that was to be refined (`refine`)."""
    parent_main: str = ""

    @property
    def submission(self) -> Submission:
        """What the judge is asked about."""
        return Submission(
            skill=self.skill,
            files=self.files,
            main=self.main,
            parent=self.parent_files,
            parent_main=self.parent_main,
        )

    def key(self, task: Task, settings: JudgeSettings) -> str:
        """Hash of all that decides the result; equal work has equal keys, wherever the files lie.

        Args:
            task: what `reference` names: its sources, entry and contract.
            settings: how it is judged.
        """
        how = settings.model_dump(exclude={"workspace"})
        asked = self.submission.model_dump()
        return sha256_hex(canonical_json([__version__, task.task_id, asked, how]))


class JobResult(Fact):
    """What became of a job."""

    key: str
    outcome: JobOutcome
    """`cancelled`: it took longer than any judgement may, twice, and stands as a program that hangs.
    `lost`: a fault of ours or of the machine, which says nothing about the program."""
    evidence: RewardEvidence | None = None
    """None unless `judged`."""
    message: str = ""
    tries: int = 1
    wall_s: float = 0.0

    @property
    def status(self) -> str:
        """CheckStatus of the program; `timed_out` where it was cancelled, `lost` where nothing is known."""
        if self.outcome == "cancelled":
            return "timed_out"
        if self.evidence is None:
            return "lost"
        return self.evidence.check.status if self.evidence.check else "unusable"


Seen = Callable[[JobResult], None]


class Backend(Protocol):
    """Judges submissions."""

    def judge(self, jobs: Sequence[JudgeJob], seen: Seen | None = None) -> Sequence[JobResult]:
        """The results of the jobs, in their order; equal jobs are judged once, known ones not again.

        Args:
            jobs: the submissions.
            seen: receives each result of a job that was judged now.

        Raises:
            TaskError: a reference cannot be read.
            EnvironmentMissingError: every worker is quarantined.
        """
        ...

    def close(self) -> None:
        """End all processes of the backend."""
        ...
