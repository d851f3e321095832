"""Options that several commands of `stitch-mcp rl` share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def judging_options(command: F) -> F:
    """How thoroughly submissions are judged for their reward."""
    for option in (
        click.option(
            "--sanitize", is_flag=True, help="Also look for memory errors and races (20 to 60 s more)."
        ),
        click.option(
            "--rubric-model",
            default="",
            metavar="NAME",
            help="Model that grades by the rubric, too: a [models.NAME] table of your settings, or its own "
            "name.",
        ),
        click.option(
            "--full", is_flag=True, help="Full rounds and all modes of torch.compile, not the quick bench."
        ),
    ):
        command = option(command)
    return command
