"""A program's own names of files, for paths that compilers and profilers wrote."""

from collections.abc import Sequence
from pathlib import Path


def own_path(path: str, files: Sequence[str]) -> str:
    """The longest of the program's paths that `path` ends with, else its last name."""
    own = [name for name in files if path == name or path.endswith(f"/{name}")]
    return max(own, key=len) if own else Path(path).name
