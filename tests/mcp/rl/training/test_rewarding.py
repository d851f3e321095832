"""Rewards of completions: floors, neutral rewards for faults of ours, figures of a step."""

from collections.abc import Sequence
from pathlib import Path

from stitch_mcp.rl.backends.jobs import JobResult, JudgeJob, Seen
from stitch_mcp.rl.reward.facts import RewardEvidence
from stitch_mcp.rl.reward.presets import find_preset
from stitch_mcp.rl.training.policies import ChoicePolicy, PromptRow
from stitch_mcp.rl.training.rewarding import Completion, RewardFunction
from stitch_mcp.rl.training.training_log import (
    TrainingLog,
    alarms_of,
    read_metrics,
    read_rollouts,
    step_metrics,
)
from stitch_tools.models.verdict import Bench, Check, Ratio

GOOD = "math:polynomial walk:rows threads:all shortcut:none"
WRONG = "math:polynomial walk:rows threads:all shortcut:bfloat16"
LOST = "math:polynomial walk:columns threads:all shortcut:none"
HUNG = "math:double walk:columns threads:all shortcut:none"
ROW = PromptRow(skill="generate", task="t", reference="/t.py", text="p", rows=(0, 8, 8))


class FixedBackend:
    """Judges by what the sources say: a stand-in for the judge, whose own tests are elsewhere."""

    def __init__(self) -> None:
        self.judged = 0

    def judge(self, jobs: Sequence[JudgeJob], seen: Seen | None = None) -> Sequence[JobResult]:
        self.judged += len(jobs)
        return [self._result(next(iter(job.files.values()))) for job in jobs]

    def close(self) -> None:
        pass

    def _result(self, source: str) -> JobResult:
        columns, double = "#define WALK 1\n" in source, "#define MATH 2\n" in source
        if columns:
            return JobResult(key="k", outcome="cancelled" if double else "lost")
        status = "incorrect" if "#define SHORTCUT 1\n" in source else "accepted"
        ratio = Ratio(baseline="eager", speedup=2.1, low=2.0, high=2.2, outcome="faster")
        evidence = RewardEvidence(
            check=Check(program_id="p", task_id="t", status=status),
            bench=Bench(program_id="p", task_id="t", outcome="faster", ratios=(ratio,)),
        )
        return JobResult(key="k", outcome="judged", evidence=evidence)


def completion(text: object, group: int = 0, *, truncated: bool = False) -> Completion:
    return Completion(row=ROW, group=group, content=text, tokens=5, truncated=truncated)


def function(backend: FixedBackend) -> RewardFunction:
    return RewardFunction(ChoicePolicy("cpu"), backend, find_preset("kevin"))


def test_only_completions_with_a_program_are_judged_and_the_others_get_the_floor() -> None:
    backend = FixedBackend()
    given = [completion(GOOD), completion("nonsense"), completion(WRONG), completion(GOOD, truncated=True)]
    rollouts = function(backend).rollouts(3, given)
    assert [row.reward for row in rollouts] == [2.3, 0.0, 0.0, 0.0]
    assert [row.problem for row in rollouts] == ["", "no_choice", "", "truncated"]
    assert (backend.judged, {row.step for row in rollouts}) == (2, {3})


def test_a_program_whose_judge_was_lost_gets_the_mean_of_its_group() -> None:
    rollouts = function(FixedBackend()).rollouts(0, [completion(t) for t in (GOOD, LOST, WRONG)])
    assert [row.reward for row in rollouts] == [2.3, 1.15, 0.0]
    assert [row.status for row in rollouts] == ["accepted", "lost", "incorrect"]


def test_a_group_that_was_lost_as_a_whole_gets_the_floor_and_no_variance() -> None:
    rollouts = function(FixedBackend()).rollouts(0, [completion(LOST), completion(LOST)])
    assert [row.reward for row in rollouts] == [0.0, 0.0]
    assert step_metrics(rollouts)[0].zero_variance_groups == 1


def test_a_program_that_hangs_the_judge_itself_gets_the_floor() -> None:
    rollouts = function(FixedBackend()).rollouts(0, [completion(HUNG), completion(GOOD)])
    assert [(row.status, row.reward) for row in rollouts] == [("timed_out", 0.0), ("accepted", 2.3)]


def test_no_completions_give_no_rewards_and_no_figures() -> None:
    backend = FixedBackend()
    assert function(backend).rollouts(0, []) == []
    assert (step_metrics([]), backend.judged) == ([], 0)


def test_a_number_that_a_completion_prints_is_no_reward() -> None:
    text = f'{GOOD}\n{{"reward": 3.0}}'
    assert function(FixedBackend()).rollouts(0, [completion(text)])[0].reward == 0.0


def test_the_log_keeps_figures_of_each_skill_and_forgets_repeated_steps(tmp_path: Path) -> None:
    figures: list[tuple[str, float, int]] = []
    log = TrainingLog(tmp_path, lambda *row: figures.append(row))
    for step in range(3):
        log.add(function(FixedBackend()).rollouts(step, [completion(GOOD), completion(WRONG)]))
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 2, "torn')
    log.cut(2)
    metrics = read_metrics(tmp_path)
    assert [(row.step, row.skill) for row in metrics] == [(s, k) for s in (0, 1) for k in ("all", "generate")]
    assert (metrics[0].reward, metrics[0].correct_share, metrics[0].speedup_geomean) == (1.15, 0.5, 2.0)
    assert len(read_rollouts(tmp_path)) == 4
    assert ("all/reward", 1.15, 2) in figures
    assert alarms_of(tmp_path) == []
