"""`stitch-mcp rl train`."""

from pathlib import Path
from typing import cast

import click

from stitch_mcp.cli.options import json_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.views.table import ReportSection


@click.command("train")
@click.option(
    "--config", "path", required=True, metavar="FILE", type=click.Path(path_type=Path), help="Settings, TOML."
)
@click.option("--resume", is_flag=True, help="Continue with the newest whole checkpoint.")
@click.option(
    "--processes",
    default=1,
    type=click.IntRange(min=1),
    metavar="N",
    help="Training processes, one a GPU (default: 1).",
)
@json_option
def command(path: Path, resume: bool, processes: int, as_json: bool) -> int:
    """Train a model with GRPO: rewards come from programs that are built, checked and timed."""
    from stitch_mcp.rl.training.running import TrainerRequest, run_trainer
    from stitch_mcp.rl.training.train_config import read_config

    output = CommandOutput("rl train", as_json=as_json)
    config = read_config(path)
    request = TrainerRequest(action="train", config=config, resume=resume)
    result = run_trainer(request, processes=processes)
    alarms = [str(alarm) for alarm in cast("list[object]", result["alarms"])]
    notes = (
        f"steps {result['first_step']} to {result['last_step']} done; mean reward of the first step "
        f"{result['reward_before']}, of the last {result['reward_after']}",
        *(f"alarm: {alarm}" for alarm in alarms),
        f"written: {config.output}",
    )
    return output.finish(result, [ReportSection(notes=notes)])
