"""`stitch-mcp rl eval`."""

from pathlib import Path

import click

from stitch_mcp.cli.options import json_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.views.table import ReportSection


@click.command("eval")
@click.option(
    "--config", "path", required=True, metavar="FILE", type=click.Path(path_type=Path), help="Settings, TOML."
)
@click.option(
    "--checkpoint",
    "checkpoints",
    multiple=True,
    default=("newest",),
    metavar="NAME",
    help="base, newest (default), or a folder of the run; may be repeated.",
)
@click.option(
    "--samples",
    default=4,
    type=click.IntRange(min=1),
    metavar="N",
    help="Completions of each prompt (default: 4).",
)
@json_option
def command(path: Path, checkpoints: tuple[str, ...], samples: int, as_json: bool) -> int:
    """Measure a model on the held-out tasks of its run, for both skills."""
    from stitch_mcp.rl.training.evaluation import ModelEvaluation, table
    from stitch_mcp.rl.training.running import TrainerRequest, run_trainer
    from stitch_mcp.rl.training.train_config import read_config
    from stitch_mcp.suite.summary import summary_lines

    output = CommandOutput("rl eval", as_json=as_json)
    config = read_config(path)
    evaluations: list[ModelEvaluation] = []
    for checkpoint in checkpoints:
        request = TrainerRequest(action="evaluate", config=config, checkpoint=checkpoint, samples=samples)
        evaluations.append(ModelEvaluation.model_validate(run_trainer(request)))
    notes = [*table(evaluations).splitlines()]
    for evaluation in evaluations:
        best = summary_lines(evaluation.best)[0]
        notes.append(f"best of {samples} with {evaluation.checkpoint}: {best}")
    return output.finish({"evaluations": evaluations}, [ReportSection(notes=tuple(notes))])
