"""Failures as the user sees them: one message, one next step, one exit code; one JSON object with --json."""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click

from stitch_mcp.cli.exit_codes import ExitCode, for_error
from stitch_mcp.cli.streams import flush, give_up, tell
from stitch_tools.errors import StitchError


@dataclass(frozen=True)
class Failure:
    """What went wrong, in the user's terms."""

    code: str
    message: str
    hint: str
    exit_code: ExitCode


_GROUPS = ("cache", "config", "index", "memory", "rl", "runs", "skills", "suite", "task", "workers")
_SYSTEM_HINTS = {
    errno.ENOSPC: "free some space (`stitch-mcp cache show`, `stitch-mcp runs list`) and try again",
    errno.EROFS: "choose a folder that can be written: --workspace, STITCH_CACHE_DIR",
    errno.EACCES: "check the permissions, or choose another folder: --workspace, STITCH_CACHE_DIR",
    errno.EPERM: "check the permissions, or choose another folder: --workspace, STITCH_CACHE_DIR",
    errno.EMFILE: "raise the limit of open files: ulimit -n 4096",
    errno.ENOMEM: "close other programs or use a smaller reference",
}


def describe(error: BaseException, arguments: Sequence[str] = ()) -> Failure:
    """The failure behind an exception of a call with these arguments."""
    if isinstance(error, StitchError):
        return Failure(error.code, error.message, _next_step(error, arguments), for_error(error))
    # click words its own errors; only the next step is ours.
    if isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        path = context.command_path if context else "stitch-mcp"
        hint = f"see {path} --help"
        message = error.format_message()
        if isinstance(error, click.NoSuchOption) and context is not None and context.parent is None:
            # Nothing but --help and --version is like an option of a command.
            message = error.message
            hint = f"options follow a command: {path} COMMAND {error.option_name}; {hint}"
        if isinstance(error, click.NoSuchOption) and error.option_name in ("--rtol", "--atol"):
            hint = f"the contract's fields are set with --set {error.option_name[2:]}=VALUE; {hint}"
        if isinstance(error, click.NoSuchOption) and path.endswith("search"):
            hint = f"put -- before a question that begins with -: {path} -- '-lineinfo'; {hint}"
        return Failure("usage", message, hint, ExitCode.USAGE)
    if isinstance(error, KeyboardInterrupt | click.Abort):
        hint = "run the same command again; finished builds and steps are kept"
        return Failure("interrupted", "interrupted", hint, ExitCode.INTERRUPTED)
    # System errors that reach this place have no better message than the system's own.
    if isinstance(error, OSError):
        hint = _SYSTEM_HINTS.get(error.errno or 0, "run `stitch-mcp doctor`")
        reason = error.strerror or str(error)
        message = f"{error.filename}: {reason}" if error.filename else reason
        return Failure("environment", message, hint, ExitCode.ENVIRONMENT)
    message = f"{type(error).__name__}: {error}"
    return Failure(
        "internal", message, "this is a bug in stitch-mcp; please report the traceback", ExitCode.INTERNAL
    )


def _next_step(error: StitchError, arguments: Sequence[str]) -> str:
    """The error's hint, with its remedies as command lines."""
    if not error.remedies:
        return error.hint
    from stitch_mcp.printed_commands import remedy_command

    workspace = _workspace(arguments)
    commands = [(row.why, remedy_command(row, workspace)) for row in error.remedies]
    lines = [f"{why}: {command}" for why, command in commands if command]
    return "; ".join(part for part in (error.hint.rstrip("."), *lines) if part)


def _workspace(arguments: Sequence[str]) -> Path:
    """The workspace that the call worked in: the one that it named, else the one that is found anyway."""
    from stitch_mcp.config import find_workspace

    named: str | None = None
    # Read from the raw arguments: after a failure there is no parsed command to ask.
    for word, following in pairwise([*arguments, ""]):
        if word == "--workspace":
            named = following
        elif word.startswith("--workspace="):
            named = word.partition("=")[2]
    return find_workspace(named, os.environ, Path.cwd())[0]


def report_failure(error: BaseException, arguments: Sequence[str]) -> int:
    """Report the failure (on stdout with --json, else on stderr) and return its exit code."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        # Nothing went wrong yet: somebody looks around, and --json cannot have been given.
        tell(error.format_message())
        return int(ExitCode.USAGE)
    failure = describe(error, arguments)
    if failure.code == "internal":
        tell("".join(traceback.format_exception(error)).rstrip())
    if "--json" not in arguments or not _print_failure(failure, arguments):
        tell(f"error: {failure.message}")
        if failure.hint:
            tell(f"  next: {failure.hint}")
    # Before the exit code is returned: a full disk or closed pipe must not turn it into another one.
    flush(sys.stdout)
    return int(failure.exit_code)


def _print_failure(failure: Failure, arguments: Sequence[str]) -> bool:
    """Whether the failure was written to stdout as one JSON object."""
    from stitch_mcp.cli.output import print_object

    parts = {"code": failure.code, "message": failure.message, "hint": failure.hint}
    try:
        print_object(_command_name(arguments), {"error": parts}, failure.exit_code)
    except OSError:
        give_up(sys.stdout)
        return False
    return True


def _command_name(arguments: Sequence[str]) -> str:
    """The command's name as in results ("solve", "runs show"), as far as it was given."""
    names = [word for word in arguments if not word.startswith("-")]
    # The one group within a group.
    depth = 3 if names[:2] == ["rl", "reward"] else 2 if names and names[0] in _GROUPS else 1
    return " ".join(names[:depth])
