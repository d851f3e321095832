"""Where our caches lie, and how those that grow are kept small: builds, devices, compiled baselines."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

SIZE_CAP_BYTES = 2 << 30
"""Of built programs, and of compiled baselines: above it the longest unused entries go."""


def user_cache_dir() -> Path:
    """The folder of all our caches: `STITCH_CACHE_DIR`, else the platform's cache folder of the user."""
    configured = os.environ.get("STITCH_CACHE_DIR")
    if configured:
        return Path(configured)
    import platformdirs

    return platformdirs.user_cache_path("stitch-mcp")


def folder_size(folder: Path) -> int:
    """Bytes of all files below `folder`; what vanishes meanwhile counts nothing."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if not path.is_symlink() and path.is_file():
                total += path.stat().st_size
    return total


def evict_unused(entries: Iterable[Path], cap_bytes: int, *, keep: Path, spared_s: float) -> None:
    """Remove the longest unused entry folders until all of them fit the cap.

    Args:
        entries: folders; the time of change of each is its last use.
        cap_bytes: size of all entries together.
        keep: an entry that stays.
        spared_s: entries used within this time may be in use by another process and stay.
    """
    rows: list[tuple[float, int, Path]] = []
    for folder in entries:
        with contextlib.suppress(OSError):
            rows.append((folder.stat().st_mtime, folder_size(folder), folder))
    excess = sum(size for _, size, _ in rows) - cap_bytes
    newest_evictable = time.time() - spared_s
    for used_at, size, folder in sorted(rows):
        if excess <= 0 or used_at > newest_evictable:
            break
        if folder != keep:
            shutil.rmtree(folder, ignore_errors=True)
            excess -= size
