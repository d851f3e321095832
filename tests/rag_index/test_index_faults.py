"""What fails for a while is tried again, what is broken is told once, and nothing is left behind."""

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NoReturn

import pytest

from stitch_mcp.cli import main
from stitch_rag.build import build_index, clear_index, index_status
from stitch_rag.docstrings import DocstringSource
from stitch_rag.index_errors import DamagedIndexError
from stitch_rag.index_location import IndexLocation
from stitch_rag.pages import add_pages, remove_pages
from stitch_rag.reader import DAMAGED, STALE, UNREADABLE, Reader
from stitch_rag.search import Filters
from stitch_rag.sources import Root
from stitch_rag.store import IndexStore
from stitch_tools.errors import EnvironmentMissingError, StoreError, UsageError
from stitch_tools.storage.locks import FileLock


def failing(error: Exception) -> Callable[..., NoReturn]:
    def fails(*_: object) -> NoReturn:
        raise error

    return fails


@pytest.fixture
def guide(place: IndexLocation, tmp_path: Path) -> Path:
    """A page that was added."""
    path = tmp_path / "guide.md"
    path.write_text("# Stacking\n\nThe heavy box below.\n", encoding="utf-8")
    add_pages(place, str(path))
    return path


@pytest.fixture
def index(toolkit: Root, place: IndexLocation) -> Path:
    """A cache folder with an index."""
    build_index(place, roots=[toolkit])
    return place.folder.parent


@contextlib.contextmanager
def locked(path: Path) -> Generator[None]:
    """An index that another program holds for itself."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


def test_a_page_that_breaks_its_reader_is_told_and_not_read_again_until_it_changes(
    toolkit: Root, place: IndexLocation, guide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("stitch_rag.inputs.page_chunks", failing(RecursionError("too deep")))
        first = build_index(place, roots=[toolkit])
    said = (f"{guide} could not be read and is left out: too deep",)
    assert (first.read, first.notices) == (first.files - 1, said)
    status = index_status(place, roots=[toolkit])
    assert (status.fresh, status.changed_files, status.notices) == (True, 0, said)
    again = build_index(place, roots=[toolkit])
    assert (again.read, again.notices) == (0, said)
    guide.write_text("# Stacking\n\nThe light box above.\n", encoding="utf-8")
    add_pages(place, str(guide))
    assert build_index(place, roots=[toolkit]).notices == index_status(place, roots=[toolkit]).notices == ()


@pytest.mark.parametrize("mend", ["anew", "removed"])
def test_what_is_said_of_a_broken_page_goes_with_it(
    mend: str, toolkit: Root, place: IndexLocation, guide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("stitch_rag.inputs.page_chunks", failing(ValueError("no page")))
        build_index(place, roots=[toolkit])
    if mend == "removed":
        remove_pages(place, str(guide))
    assert build_index(place, roots=[toolkit], anew=mend == "anew").notices == ()
    assert index_status(place, roots=[toolkit]).notices == ()


@pytest.mark.parametrize("error", [OSError("no room"), MemoryError(), EnvironmentMissingError("no parser")])
def test_a_page_that_could_not_be_read_this_time_is_read_by_the_next_build(
    error: Exception, toolkit: Root, place: IndexLocation, guide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("stitch_rag.inputs.page_chunks", failing(error))
        (said,) = build_index(place, roots=[toolkit]).notices
    assert said.startswith(f"{guide} could not be read and is left out: ")
    assert said.endswith("the next build tries again")
    assert index_status(place, roots=[toolkit]).changed == (str(guide),)
    done = build_index(place, roots=[toolkit])
    assert (done.read, done.notices) == (1, ())


def test_docstrings_of_an_interpreter_that_failed_are_read_by_the_next_build(
    toolkit: Root, place: IndexLocation, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ImportError: half a torch' >&2\nexit 1\n", encoding="utf-8")
    python.chmod(0o755)
    target = DocstringSource(str(python), "9.9")
    (said,) = build_index(place, roots=[toolkit], target=target).notices
    assert "ImportError: half a torch" in said
    line = '["torch.stack", "function", "stack(a)", "Stacks a box.", "9"]'
    python.write_text(f"#!/bin/sh\necho '{line}'\n", encoding="utf-8")
    done = build_index(place, roots=[toolkit], target=target)
    assert (done.read, done.notices) == (1, ())
    reader = Reader(place.folder.parent)
    assert reader.search("torch.stack").hits[0].summary == "Stacks a box."
    reader.close()


def test_an_index_that_is_locked_for_a_while_is_tried_again(index: Path, place: IndexLocation) -> None:
    reader = Reader(index, retry_s=0.0)
    assert reader.search("shelfTakeBox").mode == "lexical"
    with locked(place.index):
        found = reader.search("bank conflicts")
        assert (found.mode, found.notices) == ("notes", (UNREADABLE,))
    again = reader.search("shelfTakeBox")
    assert (again.mode, again.notices, again.confidence) == ("lexical", (), "exact")
    reader.close()


def test_an_index_that_is_locked_when_it_is_opened_is_tried_again_after_a_pause(
    index: Path, place: IndexLocation
) -> None:
    eager, patient = Reader(index, retry_s=0.0), Reader(index, retry_s=3600.0)
    with locked(place.index):
        for reader in (eager, patient):
            assert reader.search("bank conflicts").notices == (UNREADABLE,)
    assert eager.search("shelfTakeBox").mode == "lexical"
    assert patient.search("shelfTakeBox").notices == (UNREADABLE,)
    patient.close()
    assert patient.search("shelfTakeBox").mode == "lexical", "closed and opened again"
    for reader in (eager, patient):
        reader.close()


def test_a_damaged_index_is_not_tried_again_before_it_changes(index: Path, place: IndexLocation) -> None:
    reader = Reader(index, retry_s=0.0)
    place.index.write_bytes(b"SQLite format 3\0 but not really")
    for _ in range(2):
        assert reader.search("bank conflicts").notices == (DAMAGED,)
    reader.close()


def test_a_missing_table_is_damage_and_a_lock_is_none(index: Path, place: IndexLocation) -> None:
    with locked(place.index), pytest.raises(StoreError, match="locked") as caught:
        IndexStore.open(place.index)
    assert not isinstance(caught.value, DamagedIndexError)
    with contextlib.closing(sqlite3.connect(place.index)) as db:
        db.execute("DROP TABLE names")
    reader = Reader(index)
    assert reader.search("shelfTakeBox").notices == (DAMAGED,)
    reader.close()
    place.index.write_bytes(b"")
    with pytest.raises(DamagedIndexError):
        IndexStore.open(place.index)


@pytest.mark.parametrize("content", [b"SQLite format 3\0 but not really", b"no database at all" * 400])
def test_a_file_that_is_no_index_is_closed_again(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted(*arguments: object, **options: object) -> sqlite3.Connection:
        opened.append(connect(*arguments, **options))  # pyright: ignore[reportCallIssue, reportArgumentType] # any
        return opened[-1]

    monkeypatch.setattr("sqlite3.connect", noted)
    (tmp_path / "index.sqlite").write_bytes(content)
    with pytest.raises(DamagedIndexError):
        IndexStore.open(tmp_path / "index.sqlite")
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")


@pytest.mark.parametrize("damage", ["header", "inside"])
def test_the_status_of_a_damaged_index_says_that_and_nothing_else(
    damage: str, index: Path, place: IndexLocation, toolkit: Root, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(place.index.read_bytes())
    begin = 0 if damage == "header" else len(data) // 2 // 4096 * 4096
    data[begin : begin + 100_000] = bytes(100_000)
    place.index.write_bytes(data)
    status = index_status(place, roots=[toolkit])
    assert (status.exists, status.fresh, status.notices) == (True, None, ())
    assert "is damaged" in status.fault
    assert main(["index", "status", "--cache-dir", str(index)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "is damaged" in out
    assert out.count("`stitch-mcp index build` makes it anew") == 1
    assert "there is no index" not in out
    assert "up to date" not in out
    assert build_index(place, roots=[toolkit]).read == 8
    assert index_status(place, roots=[toolkit]).fault == ""


def test_the_status_of_a_locked_index_says_so_and_a_build_takes_its_place(
    index: Path, place: IndexLocation, toolkit: Root
) -> None:
    with locked(place.index):
        status = index_status(place, roots=[toolkit])
        assert (status.exists, status.fresh) == (True, None)
        assert "locked" in status.fault
        assert "try again" in status.fault
        assert build_index(place, roots=[toolkit]).read == 8
    assert index_status(place, roots=[toolkit]).fresh


def test_an_index_of_another_version_is_told_from_none(
    index: Path, place: IndexLocation, toolkit: Root
) -> None:
    with contextlib.closing(sqlite3.connect(place.index)) as db, db:
        db.execute("UPDATE meta SET value = '0' WHERE key = 'schema'")
    status = index_status(place, roots=[toolkit])
    assert not status.exists
    assert any("another version" in notice for notice in status.notices)


def test_what_a_killed_clear_left_is_removed(index: Path, place: IndexLocation, toolkit: Root) -> None:
    left = [place.folder.with_name(f"docs.cleared-{number}") for number in (1, 2)]
    for folder in left:
        folder.mkdir()
        (folder / "index.sqlite").write_bytes(bytes(5000))
    build_index(place, roots=[toolkit])
    assert not any(folder.exists() for folder in left)
    left[0].mkdir()
    (left[0] / "index.sqlite").write_bytes(bytes(5000))
    assert clear_index(place) > 10_000
    left[1].mkdir()
    (left[1] / "index.sqlite").write_bytes(bytes(5000))
    assert clear_index(place) == 5000, "also where there is no index any more"
    assert [path.name for path in place.folder.parent.iterdir()] == []


def test_a_builder_that_waits_for_another_says_so(place: IndexLocation, toolkit: Root) -> None:
    said: list[str] = []
    with FileLock(place.lock, purpose="another build"), pytest.raises(StoreError, match="another build"):
        build_index(place, roots=[toolkit], lock_wait_s=0.0, progress=said.append)
    assert "another build" in said[0]


@pytest.mark.parametrize("change", ["newer", "gone"])
def test_hits_of_a_file_that_changed_since_are_told_until_a_build(
    change: str, index: Path, place: IndexLocation, toolkit: Root
) -> None:
    reader = Reader(index)
    header = toolkit.folder / "cuda_runtime_api.h"
    assert reader.search("shelfTakeBox").notices == ()
    if change == "newer":
        later = place.index.stat().st_mtime + 1
        os.utime(header, (later, later))
    else:
        header.rename(toolkit.folder / "cuda_device_runtime_api.h")
    assert reader.search("shelfTakeBox").notices == (STALE,)
    assert reader.search("bank conflicts", filters=Filters(kinds=("note",))).notices == ()
    later = place.index.stat().st_mtime - 1
    os.utime(header if change == "newer" else toolkit.folder / "cuda_device_runtime_api.h", (later, later))
    build_index(place, roots=[toolkit])
    assert reader.search("shelfTakeBox").notices == ()
    reader.close()


def test_a_clock_that_went_back_makes_no_hit_stale(index: Path, place: IndexLocation, toolkit: Root) -> None:
    header = toolkit.folder / "cuda_runtime_api.h"
    later = place.index.stat().st_mtime + 1e6
    os.utime(header, (later, later))
    header.write_text(header.read_text(encoding="utf-8") + "\nint shelfLater(void);\n", encoding="utf-8")
    os.utime(header, (later, later))
    build_index(place, roots=[toolkit])
    reader = Reader(index)
    assert reader.search("shelfTakeBox").notices == ()
    os.utime(header, (later + 1, later + 1))
    assert reader.search("shelfTakeBox").notices == (STALE,)
    reader.close()


def test_an_added_page_whose_file_is_gone_is_not_stale(place: IndexLocation, guide: Path) -> None:
    build_index(place, roots=[])
    guide.unlink()
    reader = Reader(place.folder.parent)
    found = reader.search("stacking heavy box")
    assert (found.hits[0].path, found.notices) == (str(guide), ())
    reader.close()


def test_paths_and_questions_that_are_no_text_break_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/k\xe9"))
    include, cache = odd / "include", odd / "cache"
    include.mkdir(parents=True)
    (include / "cuda_runtime_api.h").write_text("/** Frobs. */\nint cudaFrob(void *p);\n", encoding="utf-8")
    place, roots = IndexLocation(cache), [Root(include, "CUDA toolkit")]
    assert build_index(place, roots=roots).read == 4
    assert index_status(place, roots=roots).fresh
    reader = Reader(cache)
    found = reader.search("cudaFrob \udce9")
    assert (found.confidence, found.query, found.notices) == ("exact", "cudaFrob ?", ())
    assert found.hits[0].path.endswith("\\udce9/include/cuda_runtime_api.h")
    none = reader.search("cudaFrob", filters=Filters(libraries=("\udce9",), version="\udce9"))
    assert (none.confidence, len(none.notices)) == ("none", 1)
    with pytest.raises(UsageError, match="no entry"):
        reader.entry("\udce9")
    reader.close()
    for command in (["search", "cudaFrob \udce9"], ["status"], ["show", "cudaFrob"]):
        assert main(["index", *command, "--cache-dir", str(cache), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["ok"]
