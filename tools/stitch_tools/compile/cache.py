"""The cache of built libraries: content-addressed, shared by processes, safe to kill at any moment.

Below `programs` in the user's cache folder:

    builds/<first two digits>/<key>/   artifact and entry.json, made complete elsewhere and renamed into place
    work/<random>/                     one build in progress, locked by whoever builds (storage/scratch.py)
    locks/<first two digits>           equal builds wait for each other instead of compiling twice

An entry is believed only when the artifact's hash is the recorded one; a damaged entry is rebuilt.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from stitch_tools.errors import LockedError, StoreError
from stitch_tools.models.base import sha256_hex
from stitch_tools.models.program import Build
from stitch_tools.storage.locks import FileLock
from stitch_tools.storage.scratch import Scratch, make_scratch
from stitch_tools.storage.store import storing, sync_folder, write_atomically
from stitch_tools.storage.user_cache import SIZE_CAP_BYTES, evict_unused, folder_size

ARTIFACT_NAME = "program.so"
_ENTRY_NAME = "entry.json"
_SCHEMA = 1
_SPARED_S = 60.0  # an entry this fresh may be on its way into a worker: the size cap leaves it alone


@dataclass(frozen=True)
class CacheSummary:
    """What a cache holds."""

    folder: Path
    entries: int
    size_bytes: int


class BuildCache:
    """Built libraries in the folder `programs` of a cache folder."""

    def __init__(self, cache_dir: Path, *, size_cap_bytes: int = SIZE_CAP_BYTES) -> None:
        self.folder = cache_dir / "programs"
        self.size_cap_bytes = size_cap_bytes

    def find(self, key: str) -> Build | None:
        """The stored build with an absolute artifact path, or None when it is missing or damaged."""
        folder = self._entry(key)
        try:
            record = json.loads((folder / _ENTRY_NAME).read_bytes())
            build = Build.model_validate(record["build"])
            artifact = (folder / ARTIFACT_NAME).read_bytes()
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if record.get("schema") != _SCHEMA or record.get("sha256") != sha256_hex(build.canonical_json()):
            return None
        if sha256_hex(artifact) != build.artifact_sha256:
            return None
        with contextlib.suppress(OSError):  # the time of last use; a read-only cache still gives hits
            os.utime(folder)
        return build.model_copy(update={"artifact": str(folder / ARTIFACT_NAME)})

    @contextlib.contextmanager
    def building(self, key: str, *, wait_s: float) -> Generator[bool]:
        """Hold the right to build `key`; others with an equal key wait up to `wait_s`, then build as well.

        The body is told whether nobody else is known to build it. A file system without locks goes without.
        """
        lock = FileLock(self.folder / "locks" / key[:2], purpose="build cache", option="STITCH_CACHE_DIR")
        with storing(lock.path, "STITCH_CACHE_DIR"):
            lock.path.parent.mkdir(parents=True, exist_ok=True)
            lock.path.touch()
        free = True
        try:
            lock.acquire(wait_s=wait_s)
        except LockedError:
            free = False
        except StoreError:
            pass
        try:
            yield free
        finally:
            lock.release()

    def workspace(self) -> Scratch:
        """A fresh folder for one build; leftovers of killed builds are removed first.

        Raises:
            StoreError: the cache folder cannot be written.
        """
        return make_scratch("build", self.folder / "work", option="STITCH_CACHE_DIR")

    def publish(self, key: str, build: Build, artifact: Path, workspace: Path) -> Build:
        """Put a finished build in place and return it with its final path.

        Both files are complete and synced before one rename makes them visible. When another process was
        quicker, its entry is as good and stays.

        Raises:
            StoreError: the cache folder cannot be written, or the disk is full.
        """
        entry, staged = self._entry(key), workspace / "entry"
        relative = build.model_copy(update={"artifact": ARTIFACT_NAME})
        record = {
            "schema": _SCHEMA,
            "sha256": sha256_hex(relative.canonical_json()),
            "build": relative.model_dump(mode="json"),
        }
        with storing(self.folder, "STITCH_CACHE_DIR"):
            staged.mkdir()
            artifact.replace(staged / ARTIFACT_NAME)
            (staged / ARTIFACT_NAME).chmod(0o555)
            with (staged / ARTIFACT_NAME).open("rb") as file:
                os.fsync(file.fileno())
            entry_text = json.dumps(record, sort_keys=True).encode("utf-8")
            write_atomically(staged / _ENTRY_NAME, entry_text, "STITCH_CACHE_DIR")
            entry.parent.mkdir(parents=True, exist_ok=True)
            self._swap_in(key, staged, workspace / "damaged")
            sync_folder(entry.parent)
        evict_unused(self._entries(), self.size_cap_bytes, keep=entry, spared_s=_SPARED_S)
        return relative.model_copy(update={"artifact": str(entry / ARTIFACT_NAME)})

    def summary(self) -> CacheSummary:
        """How many builds the cache holds and how large they are."""
        sizes = [folder_size(folder) for folder in self._entries()]
        return CacheSummary(self.folder, len(sizes), sum(sizes))

    def clear(self) -> CacheSummary:
        """Remove every build and return what was there. Libraries that are loaded now stay usable."""
        before = self.summary()
        with storing(self.folder, "STITCH_CACHE_DIR"):
            for folder in self._entries():
                shutil.rmtree(folder)
        return before

    def _entry(self, key: str) -> Path:
        return self.folder / "builds" / key[:2] / key

    def _entries(self) -> list[Path]:
        return [path for path in (self.folder / "builds").glob("??/*") if path.is_dir()]

    def _swap_in(self, key: str, staged: Path, damaged: Path) -> None:
        entry = self._entry(key)
        for _ in range(3):
            try:
                staged.rename(entry)
                return
            except OSError:
                # A folder is there: either somebody's good entry, or a damaged one that has to go.
                if not entry.exists() or self.find(key) is not None:
                    break
                with contextlib.suppress(FileNotFoundError):
                    entry.rename(damaged)
        if not entry.exists():
            staged.rename(entry)
