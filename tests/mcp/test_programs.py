"""What is too large to be a program is refused before it is read, with the limits."""

import os
from pathlib import Path

import pytest

from stitch_mcp.cli import main
from stitch_mcp.named_programs import program_of_files, read_program
from stitch_planner.opening import begin_run
from stitch_planner.runs.recorder import OUTSIDE, record_program
from stitch_planner.runs.run import Workspace
from stitch_planner.workbench import Workbench
from stitch_tools.errors import UsageError
from stitch_tools.models.task import Task
from stitch_tools.run.interpreter import Interpreter
from stitch_tools.storage.certificate import seal_certificate, write_certificate
from stitch_tools.storage.store import Store
from tests.certificates import draft_certificate

MIB = 1 << 20


def sparse(path: Path, nbytes: int) -> Path:
    """A file of so many bytes that takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(nbytes)
    return path


@pytest.mark.parametrize("name", ["huge.py", "huge.cpp", "huge.cu"])
def test_a_huge_file_is_no_program(tmp_path: Path, name: str) -> None:
    path = sparse(tmp_path / name, 500 * MIB)
    with pytest.raises(UsageError, match="larger than 16 MiB") as caught:
        read_program(path, Store(tmp_path / "store"), target="cpu")
    assert "at most 2000 files of 16 MiB, 64 MiB in all" in caught.value.hint


def test_a_folder_is_refused_by_its_largest_file_by_all_of_them_and_by_their_number(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")

    def refused(folder: Path, words: str) -> None:
        (folder / "main.cpp").write_text("int x;", encoding="utf-8")
        with pytest.raises(UsageError, match=words) as caught:
            read_program(folder, store, target="cpu")
        assert "at most 2000 files" in caught.value.hint

    folders = [tmp_path / name for name in ("one", "all", "many")]
    for folder in folders:
        folder.mkdir()
    one, together, many = folders
    sparse(one / "table.h", 300 * MIB)
    refused(one, "table.h is 300 MiB large")
    for number in range(5):
        sparse(together / f"{number}.h", 15 * MIB)
    refused(together, "6 files of 75 MiB in all")
    for number in range(2000):
        (many / f"{number}.h").touch()
    refused(many, "2001 files of 0 MiB in all")
    assert not store.root.exists(), "nothing was stored"


def test_files_that_are_handed_over_have_the_same_limits(tmp_path: Path) -> None:
    files = {"main.cpp": b"", **{f"{number}.h": bytes(15 * MIB) for number in range(5)}}
    with pytest.raises(UsageError, match="the program is too large: it holds 6 files of 75 MiB"):
        program_of_files(files, Store(tmp_path / "store"), target="cpu")


def test_a_program_file_that_is_a_pipe_is_told_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "program.py")
    with pytest.raises(UsageError, match="there is no program at"):
        read_program(tmp_path / "program.py", Store(tmp_path / "store"), target="cpu")


@pytest.mark.parametrize(
    "command", [["compile"], ["certify", "--verify"], ["certify", "--verify", "--rerun"]]
)
def test_a_certificate_without_its_program_fails_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_certificate(
        seal_certificate(draft_certificate(), {"README.txt": b"empty"}), tmp_path / "c.stitch.zip"
    )
    assert main([*command, "c.stitch.zip"]) == 3
    said = capsys.readouterr().err
    assert "c.stitch.zip lacks task.json" in said
    assert "Traceback" not in said


def test_a_folder_of_python_files_has_nothing_to_compile(tmp_path: Path) -> None:
    for name in ("blocks.py", "net.py"):
        (tmp_path / name).write_text("x = 1\n", encoding="utf-8")
    store = Store(tmp_path / ".store")
    with pytest.raises(UsageError, match="could mean"):
        read_program(tmp_path, store, target="cpu")
    with pytest.raises(UsageError, match=r"no \.cpp or \.cu file at its top to compile") as caught:
        read_program(tmp_path, store, target="cpu", native=True)
    assert "--main" not in caught.value.hint, "compile would refuse a Python file, too"
    (tmp_path / "net.cpp").write_text("int x;", encoding="utf-8")
    assert read_program(tmp_path, store, target="cpu", native=True).main == "net.cpp"


def test_the_program_of_a_run_is_not_compiled_for_another_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace = Workspace(tmp_path)
    own = program_of_files({"program.cpp": b"int x;"}, workspace.store, target="cpu")
    python = Interpreter("python3", "3.11.0", "2.13.0", "own")
    run = begin_run(
        Workbench(workspace, python), Task(name="model", files=(), main="model.py"), coder=OUTSIDE
    )
    record_program(run, own)
    run.close()
    assert main(["compile", "last", "--target", "cuda:sm_90", "--workspace", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "program.cpp was made for cpu, and --target asks for cuda:sm_90" in told
    assert "leave --target out" in told
