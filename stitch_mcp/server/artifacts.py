"""What lies in the store and in run folders, as text."""

import json
import os
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from stitch_mcp.server.request_inputs import MIN_PREFIX, program_of_runs
from stitch_mcp.server.server_context import ServerContext
from stitch_tools.errors import UsageError
from stitch_tools.models.program import Program
from stitch_tools.models.task import SourceFile, Task
from stitch_tools.storage.small_file import read_small

_MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class Artifact:
    """A text, or a folder's files."""

    kind: str
    """fact, text, program, task or run; page: a resource that is the same everywhere."""
    text: str | None = None
    files: tuple[str, ...] = ()


def find_artifact(server_context: ServerContext, name: str, path: str = "") -> Artifact:
    """The artifact behind an id: of a fact, program, task, blob or run; `path` is a file in it.

    Raises:
        UsageError: there is none, or it is no text.
        StoreError: it is damaged.
    """
    runs = [run_id for run_id in server_context.workspace.run_ids() if run_id == name]
    if runs:
        return _of_run(server_context, server_context.workspace.runs_folder / runs[0], path)
    data = server_context.workspace.store.get(_hash(server_context, name))
    folder = _folder(data)
    return _of_files(server_context, *folder, path) if folder else _shown(data, name)


# Whoever reads page by page asks for the same bytes again and again; the store has seen that they are those.
@lru_cache(maxsize=4)
def _folder(data: bytes) -> tuple[str, tuple[SourceFile, ...]] | None:
    """Kind and files of a program or task, None where it is neither."""
    for kind, model in (("program", Program), ("task", Task)):
        try:
            return kind, model.from_json_bytes(data).files
        except ValueError:
            continue
    return None


@lru_cache(maxsize=4)
def _shown(data: bytes, name: str) -> Artifact:
    text = _text(data, name)
    try:
        return Artifact("fact", json.dumps(json.loads(text), indent=1, ensure_ascii=False))
    except ValueError:
        return Artifact("text", text)


def _hash(server_context: ServerContext, name: str) -> str:
    # Only hexadecimal digits reach the file system: an id can then name nothing but a hash.
    if len(name) < MIN_PREFIX or not set(name) <= set("0123456789abcdef"):
        raise UsageError(f"{name[:60]!r} is no artifact here", hint="ids come from earlier results")
    folder = server_context.workspace.store.root / name[:2]
    matches = [path.name for path in folder.glob(f"{name}*")] if folder.is_dir() else []
    if not matches and (program_id := program_of_runs(server_context, name)):
        return program_id
    if len(matches) != 1:
        raise UsageError(f"{name[:16]} names no artifact here", hint="ids come from earlier results")
    return matches[0]


def _of_files(server_context: ServerContext, kind: str, files: tuple[SourceFile, ...], path: str) -> Artifact:
    if not path:
        return Artifact(kind, files=tuple(f"{file.path} ({file.size} bytes)" for file in files))
    file = next((file for file in files if file.path == path), None)
    if file is None:
        available = ", ".join(file.path for file in files[:20])
        raise UsageError(f"the {kind} has no file {path[:100]!r}", hint=f"its files: {available}")
    return Artifact(kind, _text(server_context.workspace.store.get(file.sha256), path))


def _of_run(server_context: ServerContext, folder: Path, path: str) -> Artifact:
    # The folder may be a link itself.
    root = server_context.inside(str(folder.resolve()))
    if not path:
        return Artifact("run", files=tuple(sorted(_rows(root))))
    try:
        wanted = (root / path).resolve()
        # A pipe would hang us, and what is larger fill the memory.
        # Resolved first, then compared: a link inside the run's folder may lead anywhere.
        data = read_small(wanted, _MAX_BYTES) if root in wanted.parents else None
    except (OSError, RuntimeError, ValueError) as error:
        # Nothing about a file outside is revealed; a file inside may be too large, or deleted by now.
        reason = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
        raise _no_file(path, reason) from error
    if data is None:
        raise _no_file(path)
    return Artifact("run", _text(data, str(wanted)))


def _rows(root: Path) -> Generator[str]:
    """The files of a run with their sizes. It may be at work: what goes meanwhile is left out."""
    for folder, _, names in os.walk(root):
        for name in names:
            file = Path(folder, name)
            with suppress(OSError):
                if not name.endswith(".lock") and file.is_file():
                    yield f"{file.relative_to(root).as_posix()} ({file.stat().st_size} bytes)"


def _no_file(path: str, reason: str = "") -> UsageError:
    hint = "leave `path` out to list its files"
    return UsageError(f"the run has no file {path[:100]!r}{reason}", hint=hint)


def _text(data: bytes, name: str) -> str:
    if len(data) > _MAX_BYTES or b"\0" in data:
        raise UsageError(
            f"{name} is no text that can be shown ({len(data)} bytes)", hint="open the file itself"
        )
    return data.decode("utf-8", "replace")
