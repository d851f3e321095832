"""Folders among the system's temporary files that go with the process that made them, however it ends.

Each is locked by its maker. The kernel lets go of the lock when the maker ends, be it by SIGKILL, so whoever
makes the next one sees which of the others nobody needs any more, and removes them.
"""

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from stitch_tools.storage.store import PlaceOption, storing

_PREFIX = "stitch-"
_LOCKED = ".held"
"""End of a name that a folder gets once it is locked: one that ends so and is not locked is abandoned."""
_swept: set[Path] = set()


@dataclass
class Scratch:
    """One such folder. As a context manager it gives the path, and removes the folder at the end."""

    path: Path
    _handle: int | None

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *exc: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder with all that is in it; a second call does nothing."""
        try:
            remove_tree(self.path)
        except BaseException:  # interrupted half-way: what is left would stay
            remove_tree(self.path)
            raise
        finally:
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None


def make_scratch(kind: str, root: Path | None = None, *, option: PlaceOption = "TMPDIR") -> Scratch:
    """A new folder in `root` (None: the system's temporary folder), removed by its `remove` or `with` block.

    The first call of a process also removes what processes that were killed left there.

    Args:
        kind: what it is for; a part of its name, and "" for none.
        root: made where it is missing.
        option: as in `storing`.

    Raises:
        StoreError: it cannot be made.
    """
    place = Path(tempfile.gettempdir()) if root is None else root
    with storing(place, option):
        place.mkdir(parents=True, exist_ok=True)
        if place not in _swept:
            _swept.add(place)
            _sweep(place)
        path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{kind}-" if kind else _PREFIX, dir=place))
        handle = _lock(path)
        if handle is not None:  # a file system without locks: the folder is its maker's alone to remove
            path = path.rename(path.with_name(path.name + _LOCKED))
        return Scratch(path, handle)


def _sweep(root: Path) -> None:
    with os.scandir(root) as rows:
        names = [row.name for row in rows if row.name.startswith(_PREFIX) and row.name.endswith(_LOCKED)]
    for name in names:
        handle = _lock(root / name)
        if handle is not None:
            remove_tree(root / name)
            os.close(handle)


def remove_tree(folder: Path) -> None:
    """Remove `folder` with all that is in it, as far as that is possible."""
    for parent, names, _ in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if not path.is_symlink():
                with contextlib.suppress(OSError):
                    path.chmod(0o700)  # foreign code may have shut a folder of its own against us
    shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the lock of our folder; None where another holds it, or none can be had."""
    import fcntl

    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.fstat(handle).st_uid == os.getuid():
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
    except OSError:
        pass  # somebody holds it, or this file system has no locks
    os.close(handle)
    return None
