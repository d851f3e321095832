"""Caches that grow are kept below their cap, the longest unused entry first."""

import os
import time
from pathlib import Path

from stitch_tools.judge.timing.baseline_runners import inductor_folder
from stitch_tools.storage.user_cache import SIZE_CAP_BYTES, evict_unused, folder_size


def entry(folder: Path, size: int, age_s: float) -> Path:
    """An entry of that many bytes (a hole, so that it takes no disk), last used so long ago."""
    (folder / "deep" / "er").mkdir(parents=True)
    with (folder / "deep" / "er" / "file").open("wb") as file:
        file.truncate(size)
    used_at = time.time() - age_s
    os.utime(folder, (used_at, used_at))
    return folder


def test_the_longest_unused_entries_go_until_the_rest_fits(tmp_path: Path) -> None:
    ages = {"old": 500.0, "older": 900.0, "oldest": 1000.0, "fresh": 5.0, "kept": 2000.0}
    entries = {name: entry(tmp_path / name, 100, age) for name, age in ages.items()}
    assert folder_size(tmp_path) == 500
    evict_unused(entries.values(), 310, keep=entries["kept"], spared_s=60.0)
    assert {path.name for path in tmp_path.iterdir()} == {"kept", "fresh", "old"}
    evict_unused(entries.values(), 0, keep=entries["kept"], spared_s=60.0)
    assert {path.name for path in tmp_path.iterdir()} == {"kept", "fresh"}, "a fresh entry may be in use"


def test_compiled_baselines_of_old_tasks_make_room_for_new_ones(tmp_path: Path) -> None:
    stale = entry(tmp_path / "inductor" / "2.6.0-stale", SIZE_CAP_BYTES, 86400.0)
    running = entry(tmp_path / "inductor" / "2.6.0-running", 10, 60.0)
    own = inductor_folder(tmp_path, "2.6.0", "0123456789abcdef")
    assert not stale.exists()
    assert running.is_dir()
    assert (own / "triton").is_dir()
    assert time.time() - own.stat().st_mtime < 60
