"""Builds the index: only what changed is read, a killed build goes on, readers see it swapped in whole."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from stitch_rag.docstrings import DocstringSource
from stitch_rag.index_errors import DamagedIndexError, telling_faults
from stitch_rag.index_location import IndexLocation
from stitch_rag.inputs import (
    PAGE,
    Input,
    docstring_input,
    error_inputs,
    header_inputs,
    own_inputs,
    page_inputs,
)
from stitch_rag.sources import Root, find_headers, find_roots
from stitch_rag.store import SCHEMA, IndexStore
from stitch_rag.vectors.making import make_vectors
from stitch_rag.vectors.meaning import MODEL_KEY
from stitch_rag.vectors.model import why_no_model
from stitch_rag.vectors.stored import vector_state
from stitch_tools.errors import EnvironmentMissingError, LockedError, StoreError
from stitch_tools.models.base import Fact, sha256_hex
from stitch_tools.storage.locks import FileLock, holder
from stitch_tools.storage.store import storing, sync_folder

Progress = Callable[[str], None]
_REPORT_EVERY_S = 2.0
_LONGEST_REASON = 300
_MOST_CHANGED = 20
_CLEARED = ".cleared-"
"""Between the name of a folder that is being removed and the process that does it."""
_PYTHON, _NAMED = "python", "python was named"
"""Under which the interpreter stands whose packages count, and whether the user named it."""
_OTHER_VERSION = "an index of another version lies there and is not used"
_TOGETHER = 50
"""Files of one transaction: each makes a piece of full text to be merged later; a killed build loses them."""


class LibraryCount(Fact):
    """How much of one library is in the index."""

    library: str
    version: str | None
    chunks: int


class BuildReport(Fact):
    """What one build did."""

    index: str
    """Path of the index file."""
    fingerprint: str
    """Hash over everything that went in, and the model of the vectors."""
    files: int
    read: int
    """Files that were new or had changed."""
    removed: int
    chunks: int
    libraries: tuple[LibraryCount, ...]
    sources: tuple[str, ...]
    """Folders that headers came from."""
    python: str = ""
    """The interpreter whose packages count; empty where there is none."""
    vectors: int | None = None
    """Vectors that were made; None where none were asked for, or the model failed."""
    all_vectors: int = 0
    """Vectors that the index has now, where `vectors` tells how many are new; else 0."""
    cpu_s: float
    wall_s: float
    notices: tuple[str, ...] = ()


class IndexStatus(Fact):
    """The state of the index."""

    index: str
    exists: bool
    """Whether an index of this version lies there, readable or not."""
    fault: str = ""
    """Why it cannot be read, and what to do; the fields below then say nothing."""
    fresh: bool | None = None
    """Whether it holds what this machine has now; None where there is no index that can be read."""
    fingerprint: str | None = None
    built_at: str | None = None
    chunks: int = 0
    size_bytes: int = 0
    libraries: tuple[LibraryCount, ...] = ()
    changed: tuple[str, ...] = ()
    """Inputs that are new, changed or gone; the first twenty."""
    changed_files: int = 0
    """How many inputs that is."""
    vectors: int = 0
    """Vectors that are there."""
    vectors_wanted: int = 0
    """Vectors that its entries are to have; 0 where none were built."""
    half_built: bool
    """Whether a build was not finished; the next one goes on from it."""
    building: bool
    """Whether one is at work."""
    pages: tuple[str, ...] = ()
    """What was added, as `index remove` takes it."""
    python: str = ""
    """The interpreter whose packages it holds."""
    notices: tuple[str, ...] = ()


class _Made(NamedTuple):
    """What a build put into its file."""

    read: int
    removed: int
    vectors: int | None
    all_vectors: int
    fingerprint: str
    chunks: int
    libraries: tuple[LibraryCount, ...]
    notices: tuple[str, ...]


def gather(
    place: IndexLocation,
    prefixes: Sequence[Path] = (),
    roots: Sequence[Root] | None = None,
    target: DocstringSource | None = None,
) -> tuple[list[Input], list[Root]]:
    """All inputs that this machine has now, and the folders that headers come from.

    Args:
        place: where the user's pages lie.
        prefixes: `sys.prefix` of interpreters whose packages count.
        roots: include folders instead of those that are found.
        target: an interpreter whose docstrings count.
    """
    found_roots = list(find_roots(prefixes) if roots is None else roots)
    headers = find_headers(found_roots)
    inputs = [
        *own_inputs(),
        *header_inputs(headers),
        *page_inputs(place),
        *error_inputs(found_roots, headers),
    ]
    if target and (docstrings := docstring_input(target)):
        inputs.append(docstrings)
    return inputs, found_roots


def build_index(
    place: IndexLocation,
    prefixes: Sequence[Path] = (),
    *,
    roots: Sequence[Root] | None = None,
    target: DocstringSource | None = None,
    anew: bool = False,
    vectors: bool = False,
    interpreter: tuple[str, bool] | None = None,
    lock_wait_s: float = 600.0,
    progress: Progress = lambda sentence: None,
) -> BuildReport:
    """What was built. A second builder waits for the first and then finds everything up to date.

    `interpreter` says whose packages count, and whether the user named it: `built_for` tells both.

    Raises:
        LockedError: another build took longer than `lock_wait_s`.
        StoreError: the folder cannot be written, or the disk is full.
    """
    started, cpu = time.monotonic(), time.process_time()
    if vectors and (lacking := why_no_model()):
        progress(f"there will be no vectors: {lacking}")  # before the minutes that the rest may take
    # One builder at a time: two would fill the same file. Readers need no lock, since they open the finished
    # file.
    with _locked(place, progress, lock_wait_s):
        _remove_cleared(place)
        inputs, found_roots = gather(place, prefixes, roots, target)
        try:
            made = _make(place, inputs, progress, anew=anew, vectors=vectors)
        except DamagedIndexError:
            progress("the index is damaged: it is made anew")
            made = _make(place, inputs, progress, anew=True, vectors=vectors)
        # Into the file that is swapped in, so that index and interpreter always belong together.
        _remember(place, interpreter)
        _swap(place, inputs)
    return BuildReport(
        index=str(place.index),
        fingerprint=made.fingerprint,
        files=len(inputs),
        read=made.read,
        removed=made.removed,
        chunks=made.chunks,
        libraries=made.libraries,
        sources=tuple(f"{root.source}: {root.folder}" for root in found_roots),
        python=interpreter[0] if interpreter else "",
        cpu_s=round(time.process_time() - cpu, 2),
        wall_s=round(time.monotonic() - started, 2),
        vectors=made.vectors,
        all_vectors=made.all_vectors,
        notices=(*_notices(found_roots, searched=roots is None), *made.notices),
    )


def built_for(place: IndexLocation) -> tuple[str, bool]:
    """The interpreter whose packages the index holds, "" where it is unknown, and whether it was named."""
    with contextlib.suppress(StoreError):
        store = IndexStore.open(place.index)
        if store is not None:
            with contextlib.closing(store), telling_faults(place.index):
                return store.meta(_PYTHON) or "", store.meta(_NAMED) == "yes"
    return "", False


def _remember(place: IndexLocation, interpreter: tuple[str, bool] | None) -> None:
    """Write down whose packages count, so that a page that is added later does not take them out."""
    store = IndexStore.open(place.building, writable=True) if interpreter else None
    if store is not None and interpreter is not None:
        with contextlib.closing(store), telling_faults(place.building):
            store.put_meta(_PYTHON, interpreter[0])
            store.put_meta(_NAMED, "yes" if interpreter[1] else "no")


def _locked(place: IndexLocation, progress: Progress, wait_s: float) -> FileLock:
    """The lock of builders, taken; whoever waits for another one is told."""
    lock = FileLock(place.lock, purpose="index build", option="STITCH_CACHE_DIR")
    try:
        lock.acquire()
    except LockedError as error:
        progress(f"waiting, for the {error.message}")
        lock.acquire(wait_s=wait_s)
    return lock


def index_status(
    place: IndexLocation,
    prefixes: Sequence[Path] = (),
    *,
    roots: Sequence[Root] | None = None,
    target: DocstringSource | None = None,
) -> IndexStatus:
    """The state of the index, compared with what this machine has now."""
    inputs, found_roots = gather(place, prefixes, roots, target)
    base = IndexStatus(
        index=str(place.index),
        exists=False,
        half_built=place.building.exists(),
        building=bool(holder(place.lock)),
        pages=tuple(sorted(row.called for row in inputs if row.place.startswith(PAGE))),
        notices=_notices(found_roots, searched=roots is None),
    )
    try:
        store = IndexStore.open(place.index)
        if store is not None:
            with contextlib.closing(store), telling_faults(place.index):
                store.check(writable=False)
                return base.model_copy(update=_held(place, store, inputs, base.notices))
    except StoreError as error:
        return base.model_copy(update={"exists": True, "fault": f"{error.message}; {error.hint}"})
    other = (_OTHER_VERSION,) if place.index.exists() else ()
    return base.model_copy(update={"notices": (*base.notices, *other)})


def _held(
    place: IndexLocation, store: IndexStore, inputs: Sequence[Input], notices: Sequence[str]
) -> dict[str, object]:
    """What an `IndexStatus` says of an index that can be read."""
    had, have = store.files(), {row.place: row.sha256 for row in inputs}
    changed = sorted(name for name in had.keys() | have.keys() if had.get(name) != have.get(name))
    called = {row.place: row.called for row in inputs}
    vectors = vector_state(place, store)
    return {
        "exists": True,
        "fresh": not changed,
        "fingerprint": store.meta("fingerprint"),
        "built_at": store.meta("built_at"),
        "python": store.meta(_PYTHON) or "",
        "chunks": store.count(),
        "size_bytes": place.index.stat().st_size,
        "libraries": _counts(store),
        "changed": tuple(called.get(name) or name for name in changed[:_MOST_CHANGED]),
        "changed_files": len(changed),
        "vectors": vectors.there,
        "vectors_wanted": vectors.wanted,
        "notices": (*notices, *list(store.left_out().values())[:_MOST_CHANGED], *vectors.notices),
    }


def clear_index(place: IndexLocation) -> int:
    """Bytes that were freed; what the user added goes, too, and what an earlier call that was killed left.

    Raises:
        LockedError: a build is going on.
        StoreError: the folder cannot be written.
    """
    from stitch_tools.storage.user_cache import folder_size

    size = sum(map(folder_size, _cleared(place)))
    _remove_cleared(place)
    if not place.folder.exists():
        return size
    with FileLock(place.lock, purpose="index clear", option="STITCH_CACHE_DIR"):
        size += folder_size(place.folder)
        with storing(place.folder, "STITCH_CACHE_DIR"):
            # Under another name first: as soon as the lock's file is gone, another build may begin.
            gone = place.folder.with_name(f"{place.folder.name}{_CLEARED}{os.getpid()}")
            place.folder.replace(gone)
            _remove_cleared(place)
            if gone.exists():
                shutil.rmtree(gone)  # says why it stays
    return size


def _cleared(place: IndexLocation) -> list[Path]:
    """Folders that were to be removed when `index clear` was killed."""
    return list(place.folder.parent.glob(f"{place.folder.name}{_CLEARED}*"))


def _remove_cleared(place: IndexLocation) -> None:
    for folder in _cleared(place):
        shutil.rmtree(folder, ignore_errors=True)  # its own process may be at it, too


def _make(
    place: IndexLocation, inputs: Sequence[Input], progress: Progress, *, anew: bool, vectors: bool
) -> _Made:
    """Fills the file that is to be the index.

    Raises:
        DamagedIndexError: what an earlier build left cannot be read.
        StoreError: the folder cannot be written, or the disk is full.
    """
    store = _begin(place, anew=anew)
    try:
        with telling_faults(place.building):
            read, removed, failed = _fill(store, inputs, progress)
            progress("making it searchable")
            store.finish()
            embedded, notice = None, ""
            if vectors or place.vectors.is_dir():
                embedded, notice = make_vectors(place, store, progress)
            fingerprint = _fingerprint(store.files(), store.meta(MODEL_KEY))
            store.put_meta("fingerprint", fingerprint)
            store.put_meta("built_at", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
            notices = (*failed, notice) if notice else failed
            total = 0 if embedded is None else store.count_vectors()
            return _Made(read, removed, embedded, total, fingerprint, store.count(), _counts(store), notices)
    finally:
        store.close()


def _begin(place: IndexLocation, *, anew: bool) -> IndexStore:
    """The store to fill: a build that was cut short, else a copy of the index, else an empty one."""
    if not anew:
        store = _opened(place.building)
        if store is not None:
            return store
    _remove_half(place)
    old = None if anew else _readable(place.index)
    if old is None:
        return IndexStore.create(place.building)
    try:
        old.copy_to(place.building)
    except StoreError:
        _remove_half(place)  # half a copy is of no use to the next build, and the disk may be full
        raise
    finally:
        old.close()
    return _opened(place.building) or IndexStore.create(place.building)


def _remove_half(place: IndexLocation) -> None:
    with storing(place.building, "STITCH_CACHE_DIR"):
        for leftover in (place.building, Path(f"{place.building}-journal")):
            leftover.unlink(missing_ok=True)


def _opened(path: Path) -> IndexStore | None:
    """The store at `path`, looked through: what nobody reads in this build must be whole, too."""
    store = _readable(path, writable=True)
    if store is not None:
        try:
            store.check()
        except StoreError:
            store.close()
            raise
    return store


def _readable(path: Path, *, writable: bool = False) -> IndexStore | None:
    """The store at `path`; one that the system gives to nobody now is made anew as if it were not there.

    Raises:
        DamagedIndexError: it is no store.
    """
    try:
        return IndexStore.open(path, writable=writable)
    except DamagedIndexError:
        raise
    except StoreError:
        return None


def _fill(store: IndexStore, inputs: Sequence[Input], progress: Progress) -> tuple[int, int, tuple[str, ...]]:
    """How many inputs were read, how many are gone, and a sentence about each that could not be read."""
    had = store.files()
    gone = had.keys() - {row.place for row in inputs}
    for name in gone:
        store.remove_file(name)
    # An input counts as changed when its hash does, which also covers the code that reads it.
    todo = [row for row in inputs if had.get(row.place) != row.sha256]
    progress(f"{len(inputs)} files, {len(todo)} of them to read")
    last = time.monotonic()
    absent: list[str] = []
    for start in range(0, len(todo), _TOGETHER):
        with store.together():
            absent += [notice for row in todo[start : start + _TOGETHER] if (notice := _take_in(store, row))]
        if time.monotonic() - last > _REPORT_EVERY_S:
            last = time.monotonic()
            progress(f"read {min(start + _TOGETHER, len(todo))} of {len(todo)}")
    broken = store.left_out()
    new = sum(row.place in broken for row in todo)
    return len(todo) - len(absent) - new, len(gone), (*absent, *broken.values())


def _take_in(store: IndexStore, row: Input) -> str:
    """Read one input; what is to be said of it where another build may be able to read it, else ""."""
    try:
        chunks = row.read()
    except (OSError, MemoryError, EnvironmentMissingError) as error:
        store.remove_file(row.place)  # what it said before must not answer as if it said so still
        return f"{_failed(row, error)}; the next build tries again"
    except Exception as error:  # a file of other people must not stop all builds
        # The same content would break its reader each time: it is read again when it, or the reader, changes.
        store.leave_out(row.place, row.sha256, _failed(row, error))
        return ""
    store.put_file(row.place, row.sha256, chunks)
    return ""


def _failed(row: Input, error: BaseException) -> str:
    reason = " ".join(f"{error}".split()) or type(error).__name__
    return f"{row.called or row.place} could not be read and is left out: {reason[:_LONGEST_REASON]}"


def _swap(place: IndexLocation, inputs: Sequence[Input]) -> None:
    """Put the finished file in the index' place: a reader sees the old one or the new one.

    It is never older than what it was made of, whatever the clock says: readers take a newer file for one
    that changed since.
    """
    # A header of an archive may be dated in the future; the index must not look older than it for ever.
    newest = max((_changed_at(row.place.partition(":")[2]) for row in inputs), default=0)
    with storing(place.index, "STITCH_CACHE_DIR"):
        now = max(newest, place.building.stat().st_mtime_ns)
        os.utime(place.building, ns=(now, now))
        handle = os.open(place.building, os.O_RDONLY)
        try:
            # The store writes without syncs; this one makes the file durable before its name appears.
            os.fsync(handle)
        finally:
            os.close(handle)
        place.building.replace(place.index)
    sync_folder(place.folder)


def _changed_at(path: str) -> int:
    """When a file changed, in nanoseconds; 0 of what is none."""
    try:
        return Path(path).stat().st_mtime_ns if path.startswith(os.sep) else 0
    except (OSError, ValueError):
        return 0


def _fingerprint(files: dict[str, str], model: str | None) -> str:
    return sha256_hex(repr((SCHEMA, sorted(files.items()), model)).encode("utf-8"))


def _counts(store: IndexStore) -> tuple[LibraryCount, ...]:
    return tuple(
        LibraryCount(library=name, version=version, chunks=count)
        for name, version, count in store.libraries()
    )


def _notices(roots: Sequence[Root], *, searched: bool) -> tuple[str, ...]:
    """What the user should know of where headers came from; `searched`: they were not named by the caller."""
    named = next((name for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)), "")
    folder = Path(os.environ.get(named, ""), "include")
    if named and searched and all(root.folder.resolve() != folder.resolve() for root in roots):
        return (f"{named} is set, and there are no CUDA headers in {folder}",)
    if roots:
        return ()
    return ("no CUDA headers were found: set CUDA_HOME, or pip install nvidia-cuda-runtime nvidia-cublas",)
