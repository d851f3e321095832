"""Options that several commands share, and the settings that they lead to."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from stitch_mcp.config import Config, load_config

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """The command with --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON object.")(command)


def workspace_option(command: F) -> F:
    """The command with --workspace."""
    text = "Folder that holds .stitch and stitch.toml (default: the current folder)."
    return click.option("--workspace", metavar="DIR", help=text)(command)


def target_option(command: F) -> F:
    """The command with --target."""
    return click.option("--target", metavar="DEVICE", help="cpu (default) or cuda[:sm_90].")(command)


def session_options(command: F) -> F:
    """The command with the options of everything that runs code: interpreter, threads, isolation, limit."""
    for name, metavar, text in (
        ("--time-limit-s", "SECONDS", "Stop after this time."),
        ("--require-sandbox", "LEVEL", "Refuse weaker isolation: full, fs+net or process."),
        ("--threads", "N", "CPU threads of program and baselines (default: all)."),
        ("--python", "PATH", "Interpreter that has torch and runs the reference."),
    ):
        command = click.option(name, metavar=metavar, help=text)(command)
    return workspace_option(target_option(command))


def contract_options(command: F) -> F:
    """The command with the options that change a contract."""
    relaxed = "Let --set loosen the contract; marks every later result `relaxed`."
    command = click.option("--allow-relaxed", is_flag=True, help=relaxed)(command)
    text = "Change a contract field, for example tolerance.rtol=1e-4. May be repeated."
    return click.option("--set", "overrides", multiple=True, metavar="FIELD=VALUE", help=text)(command)


def settings(**flags: object) -> Config:
    """The settings of a call from its flags; those that were not given are None.

    Raises:
        UsageError: a flag or a configuration file is wrong.
    """
    return load_config(flags)
