"""The reward function that a trainer calls: completions in, one finite number each out."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from stitch_mcp.rl.backends.jobs import Backend, JobResult, JudgeJob
from stitch_mcp.rl.reward.facts import Reward, RewardEvidence, RewardPreset
from stitch_mcp.rl.reward.scoring import score
from stitch_mcp.rl.reward.verification import hung_evidence
from stitch_mcp.rl.training.completions import UnusableCompletionError, answer_of, completion_text
from stitch_mcp.rl.training.policies import Policy, PromptRow
from stitch_mcp.rl.training.training_log import Rollout


@dataclass(frozen=True)
class Completion:
    """What a model wrote for a prompt."""

    row: PromptRow
    group: int
    """Completions of one prompt share it."""
    content: object
    """Text, or chat messages."""
    tokens: int
    truncated: bool


class RewardFunction:
    """Judges the programs of completions and scores what the judge found.

    The reward comes from the judge's evidence alone: nothing that a program or a completion says is read as
    one.
    """

    def __init__(self, policy: Policy, backend: Backend, preset: RewardPreset) -> None:
        """A function over a backend that its caller closes."""
        self._policy = policy
        self._backend = backend
        self._preset = preset

    def rollouts(self, step: int, completions: Sequence[Completion]) -> list[Rollout]:
        """Each completion with its reward, in order; [] of none.

        One that gives no program gets the preset's floor. One whose judge was lost gets the mean of its
        group, so that it teaches nothing: the fault is ours.
        """
        read = [self._read(row) for row in completions]
        jobs = [job for job in read if isinstance(job, JudgeJob)]
        results = iter(self._backend.judge(jobs) if jobs else ())
        rows = [
            self._scored(step, completion, job, next(results) if isinstance(job, JudgeJob) else None)
            for completion, job in zip(completions, read, strict=True)
        ]
        return _with_neutral_rewards(rows, self._preset.floor)

    def _read(self, completion: Completion) -> JudgeJob | UnusableCompletionError:
        try:
            answer = answer_of(completion_text(completion.content), truncated=completion.truncated)
            files, main = self._policy.program(answer, completion.row)
        except UnusableCompletionError as error:
            return error
        row = completion.row
        return JudgeJob(
            reference=row.reference,
            files=dict(files),
            main=main,
            skill=row.skill,
            parent_files=row.parent_files,
            parent_main=row.parent_main,
        )

    def _scored(
        self,
        step: int,
        completion: Completion,
        job: JudgeJob | UnusableCompletionError,
        result: JobResult | None,
    ) -> Rollout:
        reward = self._reward(completion.row, job, result)
        lost = result is not None and (result.outcome == "lost" or not reward.valid)
        return Rollout(
            step=step,
            group=completion.group,
            skill=completion.row.skill,
            task=completion.row.task,
            completion=completion_text(completion.content),
            tokens=completion.tokens,
            problem=job.problem if isinstance(job, UnusableCompletionError) else "",
            key=result.key if result else "",
            status="lost" if lost else result.status if result else "",
            reward=reward.total,
            correct=reward.correct,
            hacking=reward.hacking,
            speedup=reward.speedup,
            parts={part.name: part.value for part in reward.parts},
            floor=reward.floor,
            ceiling=reward.ceiling,
            findings=_findings(result),
        )

    def _reward(
        self, row: PromptRow, job: JudgeJob | UnusableCompletionError, result: JobResult | None
    ) -> Reward:
        if isinstance(job, UnusableCompletionError):
            return score(RewardEvidence(skill=row.skill, unusable=str(job) or job.problem), self._preset)
        assert result is not None
        if result.outcome == "cancelled":
            return score(hung_evidence(row.skill), self._preset)
        return score(result.evidence or RewardEvidence(skill=row.skill), self._preset)


def _findings(result: JobResult | None) -> tuple[str, ...]:
    evidence = result.evidence if result else None
    if evidence is None:
        return ()
    found = [row.rule for row in evidence.check.findings if row.severity != "note"] if evidence.check else []
    doubts = [row.rule for row in evidence.bench.doubts] if evidence.bench else []
    return tuple(dict.fromkeys([*found, *doubts]))


def _with_neutral_rewards(rows: Sequence[Rollout], floor: float) -> list[Rollout]:
    """The rows, those that were lost with the mean reward of the others of their group."""
    known: dict[int, list[float]] = {}
    for row in rows:
        if row.status != "lost":
            known.setdefault(row.group, []).append(row.reward)
    means = {group: statistics.fmean(values) for group, values in known.items()}
    return [
        row.model_copy(update={"reward": means.get(row.group, floor)}) if row.status == "lost" else row
        for row in rows
    ]
