"""A printed command works when it is typed where it was printed."""

import shlex
from pathlib import Path

import pytest

import stitch_mcp
from stitch_mcp.cli import main
from stitch_mcp.printed_commands import program_name, remedy_command, resume_command
from stitch_planner.runs.run import Workspace
from stitch_tools.errors import BudgetError, UsageError

REFERENCE = """
import torch


def model(x):
    return torch.relu(x)


def get_inputs():
    return [torch.randn(8, 4)]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which no setting overrules."""
    monkeypatch.delenv("STITCH_WORKSPACE", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_a_workspace_that_is_found_anyway_is_not_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resume_command(here, "r") == "stitch-mcp solve --resume r"
    monkeypatch.setenv("STITCH_WORKSPACE", str(here.parent / "other"))
    assert resume_command(here.parent / "other", "r") == "stitch-mcp solve --resume r"
    assert resume_command(here, "r") == f"stitch-mcp solve --resume r --workspace {here}"


def test_another_workspace_is_named_in_quotes_where_it_needs_them(here: Path) -> None:
    other = here.parent / "a folder's name"
    command = resume_command(other, "r")
    assert shlex.split(command) == ["stitch-mcp", "solve", "--resume", "r", "--workspace", str(other)]


def test_a_wrong_variable_that_an_option_overruled_does_no_harm(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("STITCH_WORKSPACE", str(here / "file"))
    assert resume_command(here, "r").endswith(f"--workspace {here}")


def test_the_program_is_called_as_it_was_typed_unless_path_finds_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = here / ".venv" / "bin" / "stitch-mcp"
    program.parent.mkdir(parents=True)
    program.write_text("", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr("sys.argv", [".venv/bin/stitch-mcp"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert program_name() == ".venv/bin/stitch-mcp"
    monkeypatch.setenv("PATH", str(program.parent))
    assert program_name() == "stitch-mcp"
    another = here / "another" / "stitch-mcp"
    another.parent.mkdir()
    another.write_text("", encoding="utf-8")
    another.chmod(0o755)
    monkeypatch.setenv("PATH", str(another.parent))
    assert program_name() == ".venv/bin/stitch-mcp"


def test_a_run_in_another_workspace_says_how_it_goes_on_from_here(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = here.parent / "other place"
    other.mkdir()
    (here / "model.py").write_text(REFERENCE, encoding="utf-8")
    with pytest.raises(BudgetError) as error:
        stitch_mcp.solve("model.py:model", workspace=other, time_limit_s=1e-9)
    (run_id,) = Workspace(other).run_ids()
    (remedy,) = error.value.remedies
    command = remedy_command(remedy, other)
    assert command is not None
    assert shlex.split(command)[1:] == ["solve", "--resume", run_id, "--workspace", str(other)]
    assert main(["runs", "show", run_id, "--workspace", str(other)]) == 0
    assert command in capsys.readouterr().out
    assert main([*shlex.split(command)[1:], "--time-limit-s", "1e-9"]) == 7, "the command finds its run"


def test_a_resumed_run_asks_no_other_source_for_what_it_was_begun_with(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "model.py").write_text(REFERENCE, encoding="utf-8")
    with pytest.raises(BudgetError):
        stitch_mcp.solve("model.py:model", threads=1, time_limit_s=1e-9)
    monkeypatch.setenv("STITCH_THREADS", "2")
    with pytest.raises(BudgetError):
        stitch_mcp.solve(resume="last", time_limit_s=1e-9)
    with pytest.raises(UsageError, match="keeps --threads: it was started with 1, and 2 is asked for"):
        stitch_mcp.solve(resume="last", threads=2)
