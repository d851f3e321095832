"""Options that several commands share, and the settings that they set."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack

import click

from stitch_mcp.config import Config, Settings, load_config
from stitch_tools.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])
_SANDBOX = "Refuse isolation weaker than full, fs+net or process."


def json_option(command: F) -> F:
    """The command with --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON object.")(command)


def workspace_option(command: F) -> F:
    """The command with --workspace."""
    text = "Folder that holds .stitch and stitch.toml (default: the current folder)."
    return click.option("--workspace", metavar="DIR", help=text)(command)


def target_option(command: F) -> F:
    """The command with --target."""
    return click.option(
        "--target", metavar="DEVICE", help="cpu (default), cuda, or cuda:sm_90 and the like."
    )(command)


def speedup_option(command: F) -> F:
    """The command with --min-speedup."""
    text = "Required speedup over eager PyTorch; a correct program below it exits with 4."
    return click.option("--min-speedup", metavar="X", help=text)(command)


def model_options(command: F) -> F:
    """The command with the options of a model that writes programs."""
    for name, metavar, text in (
        ("--max-model-usd", "USD", "Dollars that the run may spend on its model."),
        ("--max-model-tokens", "N", "Tokens that the run may spend on its model."),
        ("--memory", "on|off", "Tell the model what earlier runs taught, and keep what this one teaches."),
        ("--review", "MODE", "model: also ask the model for its opinion on each program (default: none)."),
        ("--search", "NAME", "greedy: refine the best program (default); tree: drafts with backtracking."),
        ("--rounds", "N", "Programs that the model may write (default: 4)."),
        (
            "--planner",
            "PLANNER",
            "model: the coder's model refines the plan before it writes, which costs a question or more;"
            " none (the default).",
        ),
        ("--model", "NAME", "Model of --coder llm: a [models.NAME] table of your settings, or its own name."),
        (
            "--coder",
            "CODER",
            "Who improves the stitcher's program: llm, acp:AGENT (a coding agent), manual (answer files in"
            " the run), replay:FOLDER, or plugin:NAME of an installed package.",
        ),
    ):
        command = click.option(name, metavar=metavar, help=text)(command)
    return command


def backend_options(command: F) -> F:
    """Where workers run."""
    for option in (
        click.option(
            "--address",
            metavar="ADDRESS",
            help="Of a Ray cluster (default with --backend ray: one of this machine).",
        ),
        click.option(
            "--backend",
            type=click.Choice(["local", "ray"]),
            help="Workers are processes of this machine, or supervisors on a Ray cluster (default: ray with "
            "--address, else local).",
        ),
    ):
        command = option(command)
    return command


def is_on_ray(backend: str | None, address: str | None) -> bool:
    """What --backend and --address amount to.

    Raises:
        UsageError: they contradict each other.
    """
    if backend == "local" and address:
        raise UsageError("--address is of a Ray cluster", hint="leave out --backend local")
    return backend == "ray" or bool(address)


def accept_option(command: F) -> F:
    """The command with --accept."""
    text = "Let a correct program count although it is partial, weak, or NAME was found. May be repeated."
    return click.option("--accept", metavar="NAME", multiple=True, callback=_names, help=text)(command)


def _names(context: click.Context, option: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...] | None:
    # An option that was not given must not hide what the environment says.
    return value or None


def session_options(command: F) -> F:
    """The command with the options of everything that runs code on a target of the caller's choice."""
    return run_options(target_option(command))


def run_options(command: F) -> F:
    """The command with the options of everything that runs code: interpreter, threads, isolation, limit."""
    for name, metavar, text in (
        (
            "--time-limit-s",
            "SECONDS",
            "Begin no further step (solve), draw (check) or round (bench) after this time.",
        ),
        ("--require-sandbox", "LEVEL", _SANDBOX),
        ("--threads", "N", "CPU threads of program, reference and baselines (default: all CPUs)."),
        (
            "--python",
            "PATH",
            "Interpreter that has torch and runs the reference (default: detected; see `doctor`).",
        ),
    ):
        command = click.option(name, metavar=metavar, help=text)(command)
    return workspace_option(command)


def sandbox_option(command: F) -> F:
    """The command with the isolation that it needs."""
    return click.option("--require-sandbox", metavar="LEVEL", help=_SANDBOX)(command)


def reference_options(command: F) -> F:
    """The command with the options that say what a reference is and what counts as equal."""
    relaxed = "Let --set loosen the contract; marks every later result `relaxed`."
    command = click.option("--allow-relaxed", is_flag=True, help=relaxed)(command)
    text = "Set a field of the contract, for example rtol=1e-4. May be repeated."
    command = click.option("--set", "overrides", multiple=True, metavar="FIELD=VALUE", help=text)(command)
    maker = "Function that makes the inputs (default: get_inputs, or the task file's)."
    return click.option("--inputs", metavar="NAME", help=maker)(command)


def parse_overrides(pairs: Sequence[str]) -> dict[str, object]:
    """The contract fields of `--set FIELD=VALUE`; a value that is no number stays text.

    Raises:
        click.BadParameter: a pair without "=".
        UsageError: the contract knows no such field or value; the message names the option.
    """
    from stitch_tools.task.task_file import contract_values

    values: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r} is not FIELD=VALUE", param_hint="--set")
        try:
            values[name.strip().removeprefix("tolerance.")] = float(text)
        except ValueError:
            values[name.strip()] = text.strip()
    contract_values(values, "--set")
    return values


def settings(**flags: Unpack[Settings]) -> Config:
    """The settings of a call from its flags; those that were not given are None.

    Raises:
        UsageError: a flag or a configuration file is wrong.
    """
    return load_config(flags)
