"""What an evaluation on held-out tasks amounts to: figures of each skill, and the suite's report."""

from collections.abc import Sequence
from pathlib import Path

from stitch_mcp.rl.training.training_log import Rollout, StepMetrics, step_metrics
from stitch_mcp.suite.rows import SuiteRow
from stitch_mcp.suite.summary import SuiteSummary, summarise
from stitch_tools.models.base import Fact
from stitch_tools.storage.store import write_atomically


class ModelEvaluation(Fact):
    """A model on held-out tasks."""

    checkpoint: str
    """`base`: before training."""
    samples: int
    """Completions of each prompt."""
    metrics: tuple[StepMetrics, ...]
    """Over all completions, and of each skill."""
    best: SuiteSummary
    """The best completion of each prompt, as the suite counts."""
    rows: tuple[SuiteRow, ...]
    seed: int


def evaluate_rollouts(
    rollouts: Sequence[Rollout], *, checkpoint: str, samples: int, seed: int
) -> ModelEvaluation:
    """The figures of an evaluation.

    Args:
        rollouts: completions; those of one prompt share their group.
        checkpoint: name of what was evaluated.
        samples: completions of each prompt.
        seed: of the generation.
    """
    groups: dict[int, list[Rollout]] = {}
    for row in rollouts:
        groups.setdefault(row.group, []).append(row)
    rows = tuple(_best_row(number, own) for number, own in groups.items())
    return ModelEvaluation(
        checkpoint=checkpoint,
        samples=samples,
        metrics=tuple(step_metrics(rollouts)),
        best=summarise(rows, len(rows)),
        rows=rows,
        seed=seed,
    )


def _best_row(number: int, rollouts: Sequence[Rollout]) -> SuiteRow:
    best = max(rollouts, key=lambda row: (row.correct, row.speedup or 0.0, row.reward))
    return SuiteRow(
        task=f"{best.task}/{best.skill}/{number}",
        exit_code=0 if best.correct else 3,
        status=best.status or None,
        counts=best.correct,
        speedup=best.speedup if best.correct else None,
        message=best.problem,
    )


def table(evaluations: Sequence[ModelEvaluation]) -> str:
    """Evaluations side by side, as Markdown."""
    lines = [
        "| checkpoint | skill | completions | mean reward | usable | correct | refused as a hack "
        "| speedup, geometric mean |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for evaluation in evaluations:
        for row in evaluation.metrics:
            gain = f"{row.speedup_geomean:.2f}x" if row.speedup_geomean is not None else ""
            lines.append(
                f"| {evaluation.checkpoint} | {row.skill} | {row.completions} | {row.reward:.3f} "
                f"| {row.usable_share:.0%} | {row.correct_share:.0%} | {row.hack_share:.0%} | {gain} |"
            )
    return "\n".join(lines) + "\n"


def write_evaluation(evaluation: ModelEvaluation, folder: Path) -> Path:
    """The path of the evaluation's file in a run's folder."""
    path = folder / f"evaluation-{evaluation.checkpoint}.json"
    write_atomically(path, evaluation.canonical_json())
    return path
