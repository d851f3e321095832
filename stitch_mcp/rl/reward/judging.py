"""Builds, checks and times submissions, and gives the evidence that a reward is made from.

A fault of the submission is evidence; a fault of ours or of the machine is an exception, never a reward.
"""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, Unpack

from pydantic import Field

from stitch_mcp.config import Config, Settings, configure
from stitch_mcp.jobs.slots import place
from stitch_mcp.named_programs import program_of_files
from stitch_mcp.rl.reward.certificates import certify_submission
from stitch_mcp.rl.reward.facts import RewardEvidence, RewardPolicy, Skill
from stitch_mcp.rl.reward.rubric import rate_submission
from stitch_mcp.rl.reward.rubric_panel import RubricPanel
from stitch_mcp.rl.reward.scoring import examine
from stitch_mcp.rl.reward.submissions import Submission, SubmittedProgram, read_submission
from stitch_mcp.workbench import open_workbench, refuse_forbidden, target_name
from stitch_planner.agents.answers import UnusableAnswerError
from stitch_planner.techniques import SHIPPED, without_comments
from stitch_planner.workbench import Emit, Workbench
from stitch_tools.errors import UsageError
from stitch_tools.judge.trial import Trial
from stitch_tools.judge.verdict import verdict_of
from stitch_tools.models.base import Fact, sha256_hex
from stitch_tools.models.program import Program
from stitch_tools.models.task import ReferenceFacts, Task
from stitch_tools.models.verdict import Bench, Check
from stitch_tools.storage.store import Store

_OTHER = "program:"
_NATIVE = (".cpp", ".cu")


class RewardTask(Fact):
    """What a submission is judged against."""

    reference: str = ""
    """path.py, path.py:Object or a task.toml; of `files` the one that is meant."""
    files: dict[str, str] = Field(default_factory=dict[str, str])
    """Its sources by path, where they lie in no file here."""
    contract: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Fields to set, as in a task.toml."""
    inputs: str = ""
    """Input maker; "": get_inputs, or the task file's."""
    allow_relaxed: bool = False
    """Let `contract` loosen fields; the evidence is then marked `relaxed`."""


class JudgedSubmission(Fact):
    """One submission, judged."""

    evidence: RewardEvidence
    task_id: str
    program_id: str | None = None
    """None where no program could be read."""
    certificate_id: str | None = None
    """None where it earned nothing."""
    certificate: str | None = None
    """Path of the archive."""
    wall_s: float = 0.0


class JudgeOptions(Fact):
    """How thorough a judge is."""

    policy: RewardPolicy = RewardPolicy()
    quick: bool = True
    """The fewest rounds, and of torch.compile the default mode alone."""
    sanitize: bool = False
    """Also look for memory errors and races, which takes 20 to 60 s more."""
    submission_limit_s: float = 300.0
    """No further draw or round of one submission is begun after it."""
    certify: bool = True
    """Whether a submission that earns something gets a certificate."""
    rubric_model: str = ""
    """A [models.NAME] table of the settings, or a model's own name: asked for grades, too. "": no model."""
    build_slots: int | None = None
    """Compilers at work at once, over all judges of the workspace; None: one a CPU."""


class RewardJudge:
    """Judges submissions one after another in a session that stays warm. Use as a context manager.

    Start it in the main thread of its process, as `TargetSession` asks.
    """

    def __init__(
        self, config: Config, options: JudgeOptions | None = None, *, emit: Emit | None = None
    ) -> None:
        """Nothing starts before `with`."""
        self.options = options or JudgeOptions()
        self.config = config
        self._workbench = open_workbench(config, emit)
        self._stack = ExitStack()
        self._facts: dict[str, ReferenceFacts] = {}
        self._panel: RubricPanel | None = None

    def __enter__(self) -> Self:
        self._panel = self._open_panel()
        session = self._stack.enter_context(self._workbench.session())
        self._workbench = replace(self._workbench, warm=session)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def task(self, asked: RewardTask) -> Task:
        """The task that is meant, its sources in the store.

        Raises:
            TaskError: the reference cannot be used.
            UsageError: the contract cannot be had, or is loosened where that is forbidden.
        """
        from stitch_tools.task.references import load_task

        if asked.allow_relaxed:
            refuse_forbidden(self.config)
        store, base, reference = self._workbench.workspace.store, Path.cwd(), asked.reference
        if asked.files:
            base = self._unpacked(asked.files)
            reference = reference or _only_python(asked.files)
        return load_task(
            reference,
            workspace=base,
            store=store,
            target=target_name(self.config),
            overrides=asked.contract,
            allow_relaxed=asked.allow_relaxed,
            inputs=asked.inputs or None,
        )

    def judge(self, submission: Submission, asked: RewardTask | Task) -> JudgedSubmission:
        """The evidence on one submission.

        Raises:
            TaskError: the reference cannot be used.
            EnvironmentMissingError: no torch, no compiler, or weaker isolation than required.
            StitchError: another failure of ours or of this machine.
        """
        began = time.monotonic()
        task = asked if isinstance(asked, Task) else self.task(asked)
        try:
            submitted = read_submission(submission)
            program = self._program(submitted, task)
        except (UnusableAnswerError, UsageError) as error:
            text = error.message if isinstance(error, UsageError) else str(error)
            return _unusable(submission, task, self.options.policy, text)
        parent = self._parent(submission, task)
        self._build(program)
        workbench = replace(self._workbench, deadline_s=time.monotonic() + self.options.submission_limit_s)
        with workbench.trial(task, program, known=self._facts.get(task.task_id)) as trial:
            self._facts[task.task_id] = trial.facts
            judged = judge_trial(
                workbench,
                trial,
                self.options,
                skill=submission.skill,
                parent=parent,
                instruction=submission.instruction,
                panel=self._panel,
            )
        return judged.model_copy(update={"wall_s": time.monotonic() - began})

    def _open_panel(self) -> RubricPanel | None:
        name = self.options.rubric_model
        if not name:
            return None
        from stitch_planner.llm.model_settings import ModelSettings
        from stitch_planner.llm.providers import open_model

        root = self._workbench.workspace.root
        model = open_model("llm", self.config.models.get(name) or ModelSettings(model=name), root)
        return RubricPanel(model, root / ".stitch" / "rl" / "rubric")

    def _program(self, submitted: SubmittedProgram, task: Task) -> Program:
        program = program_of_files(
            submitted.files, self._workbench.workspace.store, target=task.target, main=submitted.main
        )
        if task.target == "cpu" and program.main.endswith(".cu"):
            raise UnusableAnswerError(f"{program.main} is CUDA, and the task's target is cpu.")
        return program

    def _parent(self, submission: Submission, task: Task) -> Program | None:
        """The program that was to be refined, where it can be timed beside the new one.

        Raises:
            UsageError: it is none, which is no fault of the submission.
        """
        if submission.skill != "refine" or not submission.parent:
            return None
        given = Submission(files=submission.parent, main=submission.parent_main)
        try:
            return self._program(read_submission(given), task)
        except UnusableAnswerError as error:
            raise UsageError(f"the program to be refined cannot be used: {error}") from error

    def _build(self, program: Program) -> None:
        """Compiles the program, in turn with other judges; the trial then finds the build in the cache."""
        if not program.main.endswith(_NATIVE):
            return  # Python builds itself.
        places = self._workbench.workspace.root / ".stitch" / "rl"
        with place(places, self._workbench.say, self.options.build_slots):
            self._workbench.say("building")
            self._workbench.build(program)

    def _unpacked(self, files: Mapping[str, str]) -> Path:
        store = self._workbench.workspace.store
        entries = store.put_files({path: text.encode("utf-8") for path, text in files.items()})
        named = sha256_hex("\n".join(f"{row.path} {row.sha256}" for row in entries).encode())[:16]
        folder = self._workbench.workspace.root / ".stitch" / "rl" / "tasks" / named
        store.materialize(entries, folder)
        return folder


def judge_trial(
    workbench: Workbench,
    trial: Trial,
    options: JudgeOptions,
    *,
    skill: Skill = "generate",
    parent: Program | None = None,
    instruction: str = "",
    panel: RubricPanel | None = None,
) -> JudgedSubmission:
    """The evidence on a trial's program, with its rating and, where it earned something, its certificate.

    Args:
        workbench: where it is judged.
        trial: the program beside its reference.
        options: how thoroughly.
        skill: what the policy was asked for.
        parent: the program that was to be refined; timed beside this one.
        instruction: what was to be changed.
        panel: a model that is asked for grades, of programs that earn something alone.

    Raises:
        StitchError: a failure of ours or of this machine.
    """
    check = workbench.check(trial, sanitize=options.sanitize, sanitize_wrong=False)
    bench: Bench | None = None
    # A program that earns nothing whatever its speed is not timed: timing takes turns, checking does not.
    if _may_earn(check, options.policy):
        bench = workbench.benchmark(trial, quick=options.quick, other=parent)
    evidence = RewardEvidence(
        skill=skill,
        check=check,
        build=trial.build,
        bench=bench,
        parent_speedup=_over_parent(bench),
        policy=options.policy,
    )
    code = own_code(trial.store, trial.program, parent)
    before = own_code(trial.store, parent, parent) if parent is not None else None
    rating = rate_submission(evidence, code, before, instruction)
    if panel is not None and examine(evidence).is_open:
        rating = panel.rate(rating, code, before, instruction)
    evidence = evidence.model_copy(update={"rating": rating})
    judged = JudgedSubmission(
        evidence=evidence, task_id=trial.task.task_id, program_id=trial.program.program_id
    )
    if not options.certify or bench is None or not examine(evidence).is_open:
        return judged
    folder = workbench.workspace.root / ".stitch" / "rl" / "certificates"
    name, path = certify_submission(trial, check, bench, options.policy.accept, folder)
    return judged.model_copy(update={"certificate_id": name, "certificate": str(path)})


def judge_submission(
    submission: Submission,
    task: RewardTask,
    *,
    options: JudgeOptions | None = None,
    emit: Emit | None = None,
    **settings: Unpack[Settings],
) -> JudgedSubmission:
    """The evidence on one submission. For many of them keep a `RewardJudge` open.

    Args:
        submission: the completion, or the files.
        task: reference and contract.
        options: how thoroughly it is judged.
        emit: receives progress sentences.
        settings: see `stitch_mcp.config.Settings`; `target` is where it runs.

    Raises:
        TaskError: the reference cannot be used.
        EnvironmentMissingError: no torch, no compiler, or weaker isolation than required.
    """
    with RewardJudge(configure(settings), options, emit=emit) as judge:
        return judge.judge(submission, task)


def own_code(store: Store, program: Program, parent: Program | None) -> dict[str, str]:
    """The program's own sources without comments, by path.

    What every stitched program brings along is left out where it is as it was in `parent`: a policy could
    otherwise hide its code under those names.
    """
    known = (
        {(file.path, file.sha256) for file in parent.files} if parent is not None else set[tuple[str, str]]()
    )
    own = [
        file
        for file in program.files
        if not (file.path.startswith(SHIPPED) and (file.path, file.sha256) in known)
    ]
    texts = {file.path: store.get(file.sha256).decode("utf-8", "replace") for file in own}
    return {path: without_comments(path, text) for path, text in texts.items()}


def _may_earn(check: Check, policy: RewardPolicy) -> bool:
    counts = verdict_of(check, policy=policy.accept).counts
    return counts and not set(check.flags) & {*policy.refused_flags, "incomplete"}


def _over_parent(bench: Bench | None) -> tuple[float, float] | None:
    """The interval of the speedup over the other program that was timed beside this one."""
    rows = bench.ratios if bench is not None else ()
    beside = [row for row in rows if row.contestant == "program" and row.baseline.startswith(_OTHER)]
    return (beside[0].low, beside[0].high) if beside else None


def _unusable(submission: Submission, task: Task, policy: RewardPolicy, why: str) -> JudgedSubmission:
    evidence = RewardEvidence(skill=submission.skill, unusable=why, policy=policy)
    return JudgedSubmission(evidence=evidence, task_id=task.task_id)


def _only_python(files: Mapping[str, str]) -> str:
    names = [name for name in files if name.endswith((".py", ".toml"))]
    if len(names) != 1:
        raise UsageError("it is not clear which file is the reference", hint="name it with `reference`")
    return names[0]
