"""Reads a settings file."""

import tomllib
from pathlib import Path
from typing import Any

from stitch_tools.errors import UsageError
from stitch_tools.storage.small_file import read_small


def read_toml(path: Path) -> dict[str, Any]:
    """A file's content; {} where there is no such file.

    Raises:
        UsageError: it cannot be read, or is no TOML.
    """
    try:
        text = read_small(path).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise _unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text: {error}", hint="save it as UTF-8") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}", hint="fix the line that it names") from error
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply", hint="a setting is one plain value") from error


def _unreadable(path: Path, error: OSError) -> UsageError:
    """What to say of a file that is there but cannot be read, or that lies in a folder that hides it."""
    try:
        path.lstat()
    except PermissionError:
        hint = "choose another folder with --workspace, or fix its permissions"
        return UsageError(f"the folder {path.parent} cannot be read: {error.strerror}", hint=hint)
    except OSError:
        pass  # gone or unreachable meanwhile: the first error says it
    return UsageError(f"cannot read {path}: {error.strerror}", hint="fix the file or its permissions")
