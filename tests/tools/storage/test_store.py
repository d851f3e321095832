import os
import subprocess
from pathlib import Path

import pytest

from stitch_tools.errors import StoreError
from stitch_tools.models.task import SourceFile, Tolerance
from stitch_tools.storage.store import Store, storing, write_atomically


def test_a_blob_comes_back_and_writing_it_twice_keeps_one_file(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.put(b"x") == store.put(b"x")
    assert store.get(store.put(b"x")) == b"x"
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == 1


@pytest.mark.parametrize("damage", [b"", b"conTent", b"content and more"], ids=["empty", "changed", "longer"])
def test_storing_the_content_of_a_damaged_blob_again_mends_it(tmp_path: Path, damage: bytes) -> None:
    store = Store(tmp_path)
    sha256 = store.put(b"content")
    store.path(sha256).write_bytes(damage)
    assert store.put(b"content") == sha256
    assert store.get(sha256) == b"content"


def test_an_undamaged_blob_is_not_written_again_and_counts_as_new(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.path(store.put(b"content"))
    os.utime(path, (1, 1))
    before = path.stat()
    store.put(b"content")
    after = path.stat()
    # A file that is written anew has another number.
    assert after.st_ino == before.st_ino
    assert after.st_mtime > before.st_mtime


def test_a_damaged_blob_is_refused_with_the_way_out(tmp_path: Path) -> None:
    store = Store(tmp_path)
    sha256 = store.put(b"content")
    store.path(sha256).write_bytes(b"contenX")
    with pytest.raises(StoreError, match="damaged") as caught:
        store.get(sha256)
    assert "repeat what stored it" in caught.value.hint
    store.put(b"content")
    assert store.get(sha256) == b"content"


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", "", "a\\b", "a\0b"])
def test_a_file_path_cannot_leave_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="has a NUL" if "\0" in name else "leaves its folder"):
        Store(tmp_path).put_files({name: b"x"})


@pytest.mark.parametrize("name", ["", "abc", "../" * 21 + "x", "G" * 64])
def test_what_is_not_a_hash_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match="not a content hash"):
        Store(tmp_path).get(name)


def test_a_folder_is_written_out_again_as_it_was(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    files = store.put_files({"b/ü x.cpp": b"2", "a.h": b"1"})
    assert [entry.path for entry in files] == ["a.h", "b/ü x.cpp"]
    store.materialize(files, tmp_path / "out")
    assert (tmp_path / "out/b/ü x.cpp").read_bytes() == b"2"


@pytest.mark.parametrize("link", ["a.h", "b"])
def test_a_link_in_a_folder_is_not_written_through(tmp_path: Path, link: str) -> None:
    store = Store(tmp_path / "store")
    files = store.put_files({"b/c.h": b"2", "a.h": b"1"})
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.h").write_bytes(b"mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / link).symlink_to(outside / "a.h" if link == "a.h" else outside)
    with pytest.raises(StoreError, match="is a link"):
        store.materialize(files, tmp_path / "out")
    assert {file.name: file.read_bytes() for file in outside.iterdir()} == {"a.h": b"mine"}


def test_a_missing_blob_leaves_a_plain_error(tmp_path: Path) -> None:
    store = Store(tmp_path)
    entry = SourceFile(path="a", sha256="0" * 64, size=1)
    with pytest.raises(StoreError, match="no blob"):
        store.materialize([entry], tmp_path / "out")


def test_a_fact_of_another_kind_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    sha256 = store.put_fact(Tolerance(rtol=1.0, atol=0.0))
    assert store.get_fact(sha256, Tolerance).rtol == 1.0
    with pytest.raises(StoreError, match="not a SourceFile"):
        store.get_fact(sha256, SourceFile)


@pytest.fixture
def tiny_disk(tmp_path: Path):
    """A 64 kB file system; root writes through any permission bits, so only a mount is really full."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("not measured: this user cannot mount a file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_a_plain_error_and_leaves_nothing_half_written(tiny_disk: Path) -> None:
    with pytest.raises(StoreError, match="No space left") as caught:
        write_atomically(tiny_disk / "big", os.urandom(1 << 20))
    assert "free disk space" in caught.value.hint
    assert list(tiny_disk.iterdir()) == []


def test_a_read_only_file_system_is_a_plain_error(tiny_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", tiny_disk], check=True)
    with pytest.raises(StoreError, match="Read-only") as caught:
        Store(tiny_disk / "store").put(b"x")
    assert "--workspace" in caught.value.hint


def test_a_place_that_takes_no_folder_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to("loop")
    for place in (tmp_path / "file", tmp_path / "loop", Path("/proc/1")):
        with pytest.raises(StoreError) as caught, storing(place, "STITCH_CACHE_DIR"):
            (place / "cache").mkdir(parents=True)
        assert "with STITCH_CACHE_DIR" in caught.value.hint
