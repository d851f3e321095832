import os
from pathlib import Path

import pytest

from stitch_tools.storage.small_file import read_small


def test_a_regular_file_is_read_whole_through_links_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert read_small(tmp_path / "link", 5) == b"12345"
    assert b"Name:" in read_small(Path("/proc/self/status")), "its size is said to be 0"


def test_a_file_larger_than_allowed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"123456")
    with pytest.raises(OSError, match="larger than 0 MiB"):
        read_small(tmp_path / "file", 5)


def test_what_would_never_end_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "zeros", tmp_path):
        with pytest.raises(OSError, match="no regular file"):
            read_small(path)
