"""What lies in the user's cache folder: built programs, our helpers, ceilings, compiled baselines."""

import contextlib
import shutil
from pathlib import Path

from stitch_tools.models.base import Fact

PROGRAMS = "programs"
KINDS = {
    PROGRAMS: "built programs",
    "native": "our own helpers, compiled for this machine",
    "ceilings": "measured devices",
    "docs": "the documentation index",
    "inductor": "torch.compile's output for the baselines",
}
"""Folders below the cache that are ours; nothing else in it is touched."""


class CacheKind(Fact):
    """One kind of cached thing."""

    name: str
    meaning: str
    entries: int
    size_bytes: int


class CacheReport(Fact):
    """The cache's content."""

    folder: str
    """Absolute path."""
    cap_bytes: int
    """Size of built programs, and of compiled baselines, above which the longest unused ones are removed."""
    kinds: tuple[CacheKind, ...]


def describe_cache(cache_dir: Path | None) -> CacheReport:
    """What the cache holds; None is the user's cache folder."""
    from stitch_tools.compile.cache import BuildCache
    from stitch_tools.storage.user_cache import SIZE_CAP_BYTES, user_cache_dir

    folder = cache_dir or user_cache_dir()
    built = BuildCache(folder).summary()
    kinds = [
        CacheKind(name=PROGRAMS, meaning=KINDS[PROGRAMS], entries=built.entries, size_bytes=built.size_bytes)
    ]
    for name in KINDS:
        if name != PROGRAMS:
            sizes = _sizes(folder / name)
            kinds.append(CacheKind(name=name, meaning=KINDS[name], entries=len(sizes), size_bytes=sum(sizes)))
    return CacheReport(folder=str(folder.absolute()), cap_bytes=SIZE_CAP_BYTES, kinds=tuple(kinds))


def clear_cache(cache_dir: Path | None) -> CacheReport:
    """What was removed: all that `describe_cache` shows.

    Raises:
        StoreError: the folder cannot be written.
    """
    from stitch_tools.compile.cache import BuildCache
    from stitch_tools.storage.store import storing

    before = describe_cache(cache_dir)
    folder = Path(before.folder)
    BuildCache(folder).clear()
    for name in KINDS:
        if name != PROGRAMS and (folder / name).exists():
            with storing(folder / name, "STITCH_CACHE_DIR"):
                shutil.rmtree(folder / name)
    return before


def _sizes(folder: Path) -> list[int]:
    sizes: list[int] = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file():
                sizes.append(path.stat().st_size)
    return sizes
