"""Folders among the temporary files: gone with their maker, also with one that was killed."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stitch_tools.storage import scratch
from stitch_tools.storage.scratch import make_scratch

MAKER = """
import sys, time
from pathlib import Path
from stitch_tools.storage.scratch import make_scratch

made = make_scratch("task", Path(sys.argv[1]))
(made.path / "shut").mkdir()
(made.path / "shut" / "file").write_text("x")
(made.path / "shut").chmod(0)
print(made.path, flush=True)
sys.stdin.read()
"""


def folders(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def maker_s_folder(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip()).name


def test_what_a_killed_process_left_goes_when_the_next_one_starts_and_what_is_in_use_stays(
    tmp_path: Path,
) -> None:
    foreign = tmp_path / "stitch-of-somebody"
    foreign.mkdir()
    command = [sys.executable, "-c", MAKER, str(tmp_path)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killed,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as alive,
    ):
        left, kept = (maker_s_folder(process) for process in (killed, alive))
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert folders(tmp_path) == {left, kept, foreign.name}
        scratch._swept.discard(tmp_path)  # pyright: ignore[reportPrivateUsage]
        made = make_scratch("task", tmp_path)
        assert folders(tmp_path) == {kept, foreign.name, made.path.name}
        made.remove()
        made.remove()
        assert folders(tmp_path) == {kept, foreign.name}
        assert alive.stdin is not None
        alive.stdin.close()


def test_a_folder_of_a_block_goes_with_it_and_leaves_no_descriptor() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with make_scratch("load") as folder:
        assert folder.is_dir()
        assert folder.name.startswith("stitch-load-")
    assert not folder.exists()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_folder_goes_although_its_removal_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_scratch("task", tmp_path)
    (made.path / "file").touch()
    remove = shutil.rmtree
    interrupted: list[Path] = []

    def once_interrupted(folder: Path, *, ignore_errors: bool) -> None:
        if not interrupted:
            interrupted.append(folder)
            raise KeyboardInterrupt
        remove(folder, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", once_interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.remove()
    assert (interrupted, folders(tmp_path)) == ([made.path], set())
