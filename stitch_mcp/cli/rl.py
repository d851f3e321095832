"""`stitch-mcp rl`: one command a module, each imported only when it runs."""

from importlib import import_module

import click

RL_COMMANDS = {
    "train": "Train a model with GRPO on rewards from real builds and timings.",
    "eval": "Measure a model on held-out tasks.",
    "synthesize": "Make new tasks and keep those that pass the filters.",
    "import": "Keep the tasks of a public set that pass the filters.",
    "collect": "Collect the samples of both skills from finished runs.",
    "split": "Split samples by problem family, with a leakage report.",
    "export": "Write samples for TRL or verl, or for supervised fine-tuning.",
    "sizing": "Compute memory, rollouts and GPU-hours of a training run.",
    "reward": "Compute the reward of a submission, show presets, look for hacks, export tasks.",
    "serve": "Start workers that judge, and serve rewards over HTTP: POST /verify.",
}
"""Name and one-line help. `stitch_mcp.cli.rl_NAME` holds the click command `command`."""


class LazyRlCommands(click.Group):
    """A group that lists its commands from `RL_COMMANDS` and imports one only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of their use."""
        return list(RL_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The imported command, or None when there is no such name."""
        if cmd_name not in RL_COMMANDS:
            return None
        module = import_module(f"stitch_mcp.cli.rl_{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(RL_COMMANDS.items()))


@click.group("rl", cls=LazyRlCommands)
def command() -> None:
    """Train a model that writes programs, with the judge as its reward."""
