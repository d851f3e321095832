"""What lies in the user's cache folder: builds, and the measured ceilings of devices."""

import shutil
from pathlib import Path

from stitch_tools.models import Fact


class CacheReport(Fact):
    """The cache's content."""

    folder: str
    """Absolute path."""
    builds: int
    """Built libraries."""
    build_bytes: int
    cap_bytes: int
    """Size above which the longest unused builds are removed."""
    ceilings: int
    """Measured devices."""
    ceiling_bytes: int


def describe_cache(cache_dir: Path | None) -> CacheReport:
    """What the cache holds; None is the user's cache folder."""
    from stitch_tools.compile.cache import BuildCache, default_cache_dir

    folder = cache_dir or default_cache_dir()
    cache = BuildCache(folder)
    built = cache.summary()
    measured = _ceiling_files(folder)
    return CacheReport(
        folder=str(folder.absolute()),
        builds=built.entries,
        build_bytes=built.size_bytes,
        cap_bytes=cache.size_cap_bytes,
        ceilings=len(measured),
        ceiling_bytes=sum(path.stat().st_size for path in measured),
    )


def clear_cache(cache_dir: Path | None) -> CacheReport:
    """What was removed: every build and every measurement.

    Raises:
        StoreError: the folder cannot be written.
    """
    from stitch_tools.compile.cache import BuildCache
    from stitch_tools.store import storing

    before = describe_cache(cache_dir)
    folder = Path(before.folder)
    BuildCache(folder).clear()
    with storing(folder):
        shutil.rmtree(folder / "ceilings", ignore_errors=True)
    return before


def _ceiling_files(folder: Path) -> list[Path]:
    return [path for path in (folder / "ceilings").glob("*.json") if path.is_file()]
