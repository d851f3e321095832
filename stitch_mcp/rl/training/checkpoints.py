"""Which checkpoints of a run are whole. A trainer writes many files; a kill between two leaves a torn one."""

import json
import shutil
from pathlib import Path
from typing import cast

from stitch_tools.storage.store import write_atomically

_MARK = "complete.json"
_PREFIX = "checkpoint-"


def mark_complete(checkpoint: Path) -> None:
    """Notes that the trainer has written all files of the checkpoint, with their sizes."""
    sizes = {
        str(path.relative_to(checkpoint)): path.stat().st_size
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file() and path.name != _MARK
    }
    write_atomically(checkpoint / _MARK, json.dumps(sizes, indent=1).encode("utf-8"))


def is_whole(checkpoint: Path) -> bool:
    """Whether the checkpoint was finished and every file still has its size."""
    try:
        data: object = json.loads((checkpoint / _MARK).read_bytes())
        sizes = cast("dict[str, int]", data) if isinstance(data, dict) else {}
        return bool(sizes) and all((checkpoint / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def newest_whole(folder: Path) -> Path | None:
    """The whole checkpoint of most steps; None where there is none."""
    return max(filter(is_whole, _checkpoints(folder)), key=step_of, default=None)


def remove_torn(folder: Path) -> list[Path]:
    """The checkpoints that were not whole. They are gone: a trainer would take the newest, torn or not."""
    torn = [path for path in _checkpoints(folder) if not is_whole(path)]
    for path in torn:
        shutil.rmtree(path)
    return torn


def step_of(checkpoint: Path) -> int:
    """Steps that were done when the checkpoint was written."""
    return int(checkpoint.name.removeprefix(_PREFIX))


def _checkpoints(folder: Path) -> list[Path]:
    names = folder.glob(f"{_PREFIX}*")
    return [path for path in names if path.is_dir() and path.name.removeprefix(_PREFIX).isdigit()]
