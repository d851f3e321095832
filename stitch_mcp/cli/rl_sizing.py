"""`stitch-mcp rl sizing`."""

import click

from stitch_mcp.cli.options import json_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.views.table import ReportSection


@click.command("sizing")
@click.option("--weights-billion", default=32.8, metavar="B", help="Weights (default: 32.8, as Qwen3-32B).")
@click.option("--layers", default=64, metavar="N", help="Layers of the model.")
@click.option("--width", default=5120, metavar="N", help="Hidden size.")
@click.option("--kv-heads", default=8, metavar="N", help="Heads of keys and values.")
@click.option("--head-width", default=128, metavar="N", help="Width of a head.")
@click.option("--steps", default=200, metavar="N", help="Steps of the run.")
@click.option("--group-size", default=8, metavar="N", help="Completions of a prompt.")
@click.option("--prompts-per-step", default=16, metavar="N", help="Prompts of a step.")
@click.option("--prompt-tokens", default=6_000, metavar="N", help="Mean of a prompt.")
@click.option("--completion-tokens", default=6_000, metavar="N", help="Mean of a completion.")
@click.option("--lora-rank", default=64, metavar="N", help="0 trains all weights.")
@click.option("--train-gpus", default=4, metavar="N", help="GPUs that generate and train.")
@click.option("--judge-gpus", default=1, metavar="N", help="GPUs that only check and time.")
@click.option("--gpu-memory-gb", default=141.0, metavar="GB", help="Of one GPU.")
@click.option("--judge-cpu-cores", default=32, metavar="N", help="CPU cores that compile.")
@click.option("--build-cpu-s", default=3.0, metavar="S", help="Compiler, of one program.")
@click.option("--check-gpu-s", default=2.5, metavar="S", help="Check of one program.")
@click.option("--time-gpu-s", default=4.0, metavar="S", help="Timing of one accepted program.")
@click.option("--decode-tokens-per-s", default=1_500.0, metavar="X", help="Of one training GPU.")
@json_option
def command(as_json: bool, **given: float) -> int:
    """Compute memory, time of a step and GPU-hours. Defaults are assumptions: give what you measured."""
    from pydantic import ValidationError

    from stitch_mcp.rl.sizing import ClusterShape, ModelShape, RunShape, UnitCosts, size_run
    from stitch_tools.errors import UsageError
    from stitch_tools.models.base import Fact

    def part(kind: type[Fact]) -> Fact:
        fields = {name: given[name] for name in kind.model_fields if name in given}
        try:
            return kind.model_validate(fields)
        except ValidationError as error:
            wrong = error.errors()[0]
            option = f"--{wrong['loc'][0]}".replace("_", "-")
            raise UsageError(f"{option} {wrong['input']}: {wrong['msg']}", hint="see --help") from error

    model, run, costs, cluster = map(part, (ModelShape, RunShape, UnitCosts, ClusterShape))
    assert isinstance(model, ModelShape)
    assert isinstance(run, RunShape)
    assert isinstance(costs, UnitCosts)
    assert isinstance(cluster, ClusterShape)
    result = size_run(model, run, costs, cluster)
    rows: list[tuple[str, str]] = []
    for name, value in result.model_dump().items():
        if isinstance(value, dict):
            rows += [(f"{name}: {key}", f"{number:.4g}") for key, number in value.items()]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        else:
            rows.append((name, f"{value:.4g}" if isinstance(value, float) else str(value)))
    output = CommandOutput("rl sizing", as_json=as_json)
    return output.finish(dict(result), [ReportSection("", ("figure", "value"), tuple(rows))])
