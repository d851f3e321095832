"""Removes blobs from a store that nothing names any more."""

import contextlib
import re
import time
from collections.abc import Iterable
from pathlib import Path

from stitch_tools.errors import StoreError
from stitch_tools.models.base import Fact
from stitch_tools.storage.small_file import read_small
from stitch_tools.storage.store import Store, storing

SETTLED_S = 3600.0
"""Age from which on a blob that nothing names is garbage: blobs are written before what names them."""
_HASH = re.compile(rb"[0-9a-f]{64}")
_LARGEST_ROOT_BYTES = 256 << 20


class Garbage(Fact):
    """What was removed from a store, or would be."""

    removed: int
    """Blobs, and files of writes that were never finished."""
    removed_bytes: int
    recent: int
    """Blobs that nothing names, but that were written or asked for a short time ago: they were kept."""
    kept: int
    """Blobs that something names."""


def collect_garbage(
    store: Store, roots: Iterable[Path], *, settled_s: float = SETTLED_S, dry_run: bool = False
) -> Garbage:
    """Remove every blob that is named neither by `roots` nor by a blob that they reach.

    A name is 64 hexadecimal digits, wherever they stand: too much is kept rather than too little.

    Args:
        store: the store; links in it are never followed.
        roots: files whose text names blobs.
        settled_s: blobs that are younger are kept.
        dry_run: only count.

    Raises:
        StoreError: a root cannot be read, or the store not be written.
    """
    blobs = {path.name: path for path in _blobs(store.root)}
    named = _reachable(blobs, roots)
    newest = time.time() - settled_s
    unnamed = [path for name, path in blobs.items() if name not in named]
    # lstat: the time and size of a link itself.
    files = [(path, path.lstat()) for path in (*unnamed, *_unfinished(store.root))]
    old = [(path, status.st_size) for path, status in files if status.st_mtime <= newest]
    for path, _ in () if dry_run else old:
        with storing(path):
            path.unlink(missing_ok=True)
    if not dry_run:
        for folder in _folders(store.root):
            with contextlib.suppress(OSError):
                folder.rmdir()  # where it is empty
    return Garbage(
        removed=len(old),
        removed_bytes=sum(size for _, size in old),
        recent=len(files) - len(old),
        kept=len(named),
    )


def _folders(root: Path) -> list[Path]:
    if not root.is_dir() or root.is_symlink():
        return []
    return [
        path for path in root.iterdir() if path.is_dir() and not path.is_symlink() and len(path.name) == 2
    ]


def _blobs(root: Path) -> list[Path]:
    files = (path for folder in _folders(root) for path in folder.iterdir())
    return [path for path in files if _HASH.fullmatch(path.name.encode()) and not path.is_dir()]


def _unfinished(root: Path) -> list[Path]:
    """Files of writes that were cut off before they had their name."""
    return [path for folder in _folders(root) for path in folder.glob(".tmp-*") if not path.is_dir()]


def _reachable(blobs: dict[str, Path], roots: Iterable[Path]) -> set[str]:
    """Names of the blobs that the roots' texts name, and those blobs' own, and so on."""
    waiting = [_read_root(path) for path in roots]
    named: set[str] = set()
    while waiting:
        found = {match.decode() for match in _HASH.findall(waiting.pop())}
        for name in (found & blobs.keys()) - named:
            named.add(name)
            if not blobs[name].is_symlink():
                with contextlib.suppress(FileNotFoundError):
                    waiting.append(blobs[name].read_bytes())
    return named


def _read_root(path: Path) -> bytes:
    """The text of a file that may name blobs; b"" where it has gone.

    Raises:
        StoreError: it is there and cannot be read. What it names is not known then.
    """
    try:
        return read_small(path, _LARGEST_ROOT_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StoreError(
            f"cannot read {path}: {error.strerror or error}",
            hint="nothing was removed; mend or remove that file",
        ) from error
