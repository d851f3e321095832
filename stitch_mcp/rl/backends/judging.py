"""Judges one submission after the other in this process, with an interpreter that stays warm."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from stitch_mcp.config import configure
from stitch_mcp.jobs.slots import place
from stitch_mcp.named_programs import program_of_files
from stitch_mcp.rl.backends.jobs import JobResult, JudgeJob, JudgeSettings
from stitch_mcp.rl.reward.judging import JudgeOptions, RewardJudge, RewardTask
from stitch_mcp.rl.reward.submissions import Submission, read_submission
from stitch_mcp.workbench import open_workbench, target_name
from stitch_planner.agents.answers import UnusableAnswerError
from stitch_tools.errors import StitchError, UsageError

_NATIVE = (".cpp", ".cu")


class SubmissionJudge:
    """Judges the submissions of a batch by the reward's judge. A context manager."""

    def __init__(self, settings: JudgeSettings, *, build_slots: int | None = None) -> None:
        """A judge that starts nothing before `with`.

        Args:
            settings: how submissions are judged.
            build_slots: compilers at work at once, over all judges of the workspace; None: one a CPU.
        """
        self._settings = settings
        self._build_slots = build_slots
        folder = Path(settings.workspace)
        folder.mkdir(parents=True, exist_ok=True)
        self._config = configure(
            {
                "workspace": str(folder),
                "python": settings.python,
                "target": settings.target,
                "threads": settings.threads,
                "bench_budget_s": settings.bench_budget_s,
                "compile_baselines": settings.compile_baselines,
                "time_limit_s": settings.time_limit_s,
            }
        )
        # A certificate for each of thousands of programs would cost more than it says: the results are kept.
        options = JudgeOptions(certify=False, submission_limit_s=settings.time_limit_s)
        self._judge = RewardJudge(self._config, options)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._judge)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def judge(self, job: JudgeJob) -> JobResult:
        """What is known of the submission. Only a fault of ours or of this machine is `lost`."""
        begun_s = time.monotonic()
        key = job.key(self._settings)
        submission = Submission(
            skill=job.skill,
            files=job.files,
            main=job.main,
            parent=job.parent_files,
            parent_main=job.parent_main,
        )
        try:
            self._build(submission)
            judged = self._judge.judge(submission, RewardTask(reference=job.reference))
        except StitchError as error:
            message = f"{error.code}: {error.message}"
            return JobResult(key=key, outcome="lost", message=message, wall_s=time.monotonic() - begun_s)
        wall_s = time.monotonic() - begun_s
        return JobResult(key=key, outcome="judged", evidence=judged.evidence, wall_s=wall_s)

    def _build(self, submission: Submission) -> None:
        """Compiles the program, in turn with other judges; the judge then finds the build in the cache."""
        target = target_name(self._config)
        sources = [path for path in submission.files if "/" not in path and path.endswith(_NATIVE)]
        if len(sources) != 1 or (target == "cpu" and sources[0].endswith(".cu")):
            return  # Python builds itself, and what is no program has nothing to build.
        workbench = open_workbench(self._config)
        try:
            files = read_submission(submission).files
            program = program_of_files(files, workbench.workspace.store, target=target, main=sources[0])
        except (UnusableAnswerError, UsageError):
            return  # The judge says what is wrong with it: that is no fault of ours.
        with place(Path(self._settings.workspace) / ".stitch" / "rl", _say_nothing, self._build_slots):
            workbench.build(program)


def _say_nothing(_: str) -> None:
    """Progress of a reward's build interests nobody."""
