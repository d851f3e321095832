"""Command line: one command a module, each imported only when it runs."""

import sys
from collections.abc import Sequence
from importlib import import_module

import click

from stitch_mcp import __version__

COMMANDS = {
    "solve": "Make a reference faster and certify the result.",
    "check": "Check a program against its reference.",
    "bench": "Time a program beside eager PyTorch and torch.compile.",
    "profile": "Show where time goes, and the change that would win most.",
    "compile": "Build a program and show the compiler's diagnostics.",
    "graph": "Show the captured operations with their work and lower bounds.",
    "plan": "Show how a reference would be fused, with predicted times.",
    "ceilings": "Measure this device's peak bandwidths and arithmetic rates.",
    "doctor": "Show what this machine lacks and how to fix it.",
    "runs": "List, show, compare and remove runs.",
    "suite": "Solve KernelBench levels or a folder as one sweep.",
    "workers": "Start workers that judge programs, or show what they do.",
    "rl": "Train a model that writes programs, with the judge as its reward.",
    "report": "Write the report of a run: one HTML file that needs nothing else.",
    "certify": "Write a run's certificate, or verify one.",
    "export": "Write a certified program as a package for your own project.",
    "task": "Write a task.toml for a reference.",
    "config": "Show the settings and their sources.",
    "cache": "Show or clear cached builds and measurements.",
    "memory": "Show or clear what earlier runs taught.",
    "serve": "Serve the tools to an MCP client.",
    "init": "Print or write an MCP client's configuration.",
    "index": "Search the CUDA documentation of this machine.",
    "skills": "List, show or install recipes for fast programs.",
    "demo": "Solve a packaged example from end to end.",
}
"""Name and one-line help. The module of the same name in this package holds the click command `command`."""


class LazyCommands(click.Group):
    """A group that lists its commands from `COMMANDS` and imports one only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of a first use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The imported command, or None when there is no such name."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"stitch_mcp.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` names.

        Raises:
            click.UsageError: there is none; the message names the nearest.
        """
        name = args[0]
        if name in COMMANDS or name.startswith("-"):
            return super().resolve_command(ctx, args)
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
        suffix = f"; did you mean `{near[0]}`?" if near else ""
        raise click.UsageError(f"there is no command `{name}`{suffix}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every command takes --json and then prints exactly one object. Start with: stitch-mcp demo",
)
@click.version_option(__version__, prog_name="stitch-mcp")
def app() -> None:
    """From a PyTorch reference to a verified, faster native program."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one call and return its exit code. The outermost frame: no exception leaves it."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if None in (sys.stdin, sys.stdout, sys.stderr):
            from stitch_mcp.cli.streams import open_closed_streams

            open_closed_streams()
        code = app.main(args=given, prog_name="stitch-mcp", standalone_mode=False)
    except BaseException as error:  # The CLI's outermost frame: every failure becomes a message and a code.
        if isinstance(error, SystemExit | GeneratorExit):
            raise
        from stitch_mcp.cli.failure import report_failure

        return report_failure(error, given)
    return code if isinstance(code, int) else 0
