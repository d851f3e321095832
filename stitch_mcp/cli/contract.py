"""Options that set fields of the contract. What they loosen is allowed and marked `relaxed`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
_KINDS = {"matmul": "matmul_precision", "conv": "conv_precision"}


def contract_options(command: F) -> F:
    """The command with --contract, --atol, --rtol and --allow."""
    for name, metavar, text in (
        ("--allow", "FORMAT", "Least precise format of products: fp16 for all, or matmul=tf32,conv=bf16."),
        ("--rtol", "R", "Largest allowed error of an output, relative to its root mean square."),
        ("--atol", "A", "Largest allowed error of an output, absolute."),
        ("--contract", "FILE", "Take the contract from this task.toml."),
    ):
        kind = float if name in ("--rtol", "--atol") else str
        command = click.option(name, metavar=metavar, type=kind, help=text)(command)
    return command


def contract_overrides(
    contract: str | None, atol: float | None, rtol: float | None, allow: str | None
) -> dict[str, object]:
    """The contract fields that these options give; they override `--contract`.

    Raises:
        click.BadParameter: `allow` names something else than matmul and conv.
        UsageError: a value that the contract does not know; the message names the option.
        TaskError: the file of `contract` cannot be read, or has a wrong key.
    """
    from stitch_tools.task.task_file import contract_values, read_task_file

    values: dict[str, object] = {}
    if contract is not None:
        values |= read_task_file(Path(contract).expanduser()).contract or {}
    for name, value in (("atol", atol), ("rtol", rtol)):
        if value is not None:
            values |= contract_values({name: value}, f"--{name}")
    return values | contract_values(_formats(allow or ""), f"--allow {allow}")


def _formats(text: str) -> dict[str, object]:
    formats: dict[str, object] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        kind, equals, name = part.partition("=")
        if not equals:
            formats |= dict.fromkeys(_KINDS.values(), kind)
        elif kind.strip() in _KINDS:
            formats[_KINDS[kind.strip()]] = name.strip()
        else:
            raise click.BadParameter(
                f"{part!r} is neither matmul=FORMAT nor conv=FORMAT", param_hint="--allow"
            )
    return formats
