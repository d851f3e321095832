"""Removes runs, and what no run names any more."""

import shutil
from pathlib import Path

from stitch_planner.runs.run import Workspace
from stitch_tools.errors import StoreError
from stitch_tools.models.base import Fact
from stitch_tools.storage.events import lock_path
from stitch_tools.storage.garbage import SETTLED_S, Garbage, collect_garbage
from stitch_tools.storage.locks import FileLock
from stitch_tools.storage.store import storing

_LOG = "events.jsonl"
_NAMING = (".json", ".jsonl")
"""Files beside the store that name its blobs: logs of runs, requests and states of jobs."""


class RemovedRun(Fact):
    """A run that is no more."""

    run_id: str
    folder: str
    """Absolute path."""
    freed_bytes: int
    """Of its folder; its facts lie in the store until `clean_store`."""


def remove_run(workspace: Workspace, run_id: str) -> RemovedRun:
    """Delete the folder of a run, named whole, by a unique beginning, or as "last", its certificate included.

    Raises:
        UsageError: no such run.
        LockedError: a process works on it.
        StoreError: it is a link, or cannot be deleted.
    """
    folder = workspace.run_folder(run_id)
    if folder.is_symlink():
        raise StoreError(f"{folder} is a link, and a run is none", hint="remove the link by hand")
    with FileLock(lock_path(folder / _LOG), purpose="removes this run"), storing(folder):
        size = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
        # First: without its log it is no run, whatever a kill leaves of the rest.
        (folder / _LOG).unlink()
        shutil.rmtree(folder)
    return RemovedRun(run_id=folder.name, folder=str(folder.absolute()), freed_bytes=size)


def clean_store(workspace: Workspace, *, settled_s: float = SETTLED_S, dry_run: bool = False) -> Garbage:
    """Remove from the store what neither a run nor a job of the workspace names.

    Raises:
        StoreError: a log cannot be read, or the store not be written.
    """
    beside = [path for path in _files(workspace.folder) if path.suffix in _NAMING]
    return collect_garbage(workspace.store, beside, settled_s=settled_s, dry_run=dry_run)


def _files(folder: Path) -> list[Path]:
    """Files below `.stitch`, the store's left out; links are not followed."""
    if not folder.is_dir():
        return []
    tops = [path for path in folder.iterdir() if path.name != "store"]
    below = [path for top in tops if top.is_dir() and not top.is_symlink() for path in top.rglob("*")]
    return [path for path in (*tops, *below) if path.is_file() and not path.is_symlink()]
