"""Submissions that lie in files: a program, or a completion."""

from pathlib import Path

from stitch_mcp.named_programs import folder_files
from stitch_mcp.rl.reward.submissions import Submission
from stitch_tools.errors import UsageError
from stitch_tools.storage.small_file import read_small

_COMPLETIONS = (".md", ".txt")


def submission_at(path: Path, parent: Path | None = None, instruction: str = "") -> Submission:
    """The submission at a path.

    Args:
        path: a folder, a source file, or a completion (.md, .txt).
        parent: folder or file of the program that it refines; None: it is a new one.
        instruction: what was to be changed.

    Raises:
        UsageError: it cannot be read, or is too large.
    """
    before = _texts(parent) if parent is not None else {}
    given = Submission(skill="refine" if parent else "generate", parent=before, instruction=instruction)
    if path.suffix in _COMPLETIONS and path.is_file():
        return given.model_copy(update={"text": _text(path)})
    return given.model_copy(update={"files": _texts(path)})


def _texts(path: Path) -> dict[str, str]:
    if path.is_file():
        return {path.name: _text(path)}
    return {name: data.decode("utf-8", "replace") for name, data in folder_files(path).items()}


def _text(path: Path) -> str:
    try:
        return read_small(path).decode("utf-8", "replace")
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}", hint="name another file"
        ) from error
