"""`solve` as a user runs it: result, certificate, resuming after Ctrl-C, a device that is not here."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parents[1] / "tools" / "programs"
PREFIX = [sys.executable, "-c", "from stitch_mcp.cli import main; raise SystemExit(main())"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with one small reference; its path has a space."""
    folder = tmp_path_factory.mktemp("solve") / "work space"
    folder.mkdir()
    shutil.copy(PROGRAMS / "linear_relu.py", folder / "model.py")
    return folder


def call(workspace: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        [*PREFIX, *arguments, "--json"], cwd=workspace, capture_output=True, text=True, timeout=500
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode, done.stderr
    return done.returncode, found


@pytest.fixture(scope="module")
def solved(workspace: Path) -> dict[str, Any]:
    """The result of one solved run."""
    code, found = call(workspace, "solve", "model.py", "--quick")
    assert code == 0, found
    return found


def test_the_result_names_status_outcome_ids_and_certificate(solved: dict[str, Any]) -> None:
    assert solved["status"] == "accepted"
    assert solved["outcome"] in {"faster", "slower", "inconclusive"}
    assert len(solved["program_id"]) == 64
    assert solved["run_id"]
    assert Path(solved["certificate"]).is_file()
    assert {row["name"] for row in solved["bench"]["timings"]} >= {"program", "eager"}


def test_a_quick_run_s_certificate_says_that_it_is_one_without_sanitizers(solved: dict[str, Any]) -> None:
    without = [text for text in solved["check"]["not_checked"] if text.startswith("certified without")]
    assert without == [
        f"certified without {tool}: the run was a quick one" for tool in ("asan", "ubsan", "init", "tsan")
    ]


def test_the_certificate_verifies_and_one_changed_byte_is_noticed(
    solved: dict[str, Any], workspace: Path, tmp_path: Path
) -> None:
    code, found = call(workspace, "certify", "--verify", solved["certificate"])
    assert (code, found["program_id"]) == (0, solved["program_id"])
    data = Path(solved["certificate"]).read_bytes()
    for place in (0, len(data) // 2, len(data) - 1):
        damaged = tmp_path / f"{place}.stitch.zip"
        damaged.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert call(workspace, "certify", "--verify", str(damaged))[0] == 3


def test_a_finished_run_is_listed_shown_and_not_repeated(solved: dict[str, Any], workspace: Path) -> None:
    listed = call(workspace, "runs", "list")[1]["runs"]
    assert solved["run_id"] in {row["run_id"] for row in listed}
    shown = call(workspace, "runs", "show", solved["run_id"])[1]
    assert shown["status"] == "accepted"
    again = call(workspace, "solve", "--resume", solved["run_id"])[1]
    assert again["program_id"] == solved["program_id"]
    events = call(workspace, "runs", "show", solved["run_id"])[1]["events"]
    assert len(events) == len(shown["events"])


def test_the_program_of_a_run_can_be_checked_by_itself(solved: dict[str, Any], workspace: Path) -> None:
    code, found = call(workspace, "check", "model.py", solved["run_id"])
    assert (code, found["status"]) == (0, "accepted")


def interrupt(workspace: Path, presses: int) -> tuple[int, str]:
    """Exit code and stderr of a solve that is interrupted while its reference is observed."""
    with subprocess.Popen(
        [*PREFIX, "solve", "model.py", "--quick"],
        cwd=workspace,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if "starting" in line:
                break
        os.killpg(process.pid, signal.SIGINT)
        for _ in range(presses - 1):
            lines.append(process.stderr.readline())
            lines.append(process.stderr.readline())
            os.killpg(process.pid, signal.SIGINT)
        lines.append(process.stderr.read())
        return process.wait(timeout=120), "".join(lines)


def resume_hint(err: str) -> str:
    (command,) = [line for line in err.splitlines() if "solve --resume" in line]
    return command.split("--resume ")[1].strip()


def test_one_interrupt_ends_the_step_and_the_run_goes_on(workspace: Path) -> None:
    code, err = interrupt(workspace, 1)
    assert code == 130, err
    assert "stopping after this step" in err
    run_id = resume_hint(err)
    before = call(workspace, "runs", "show", run_id)[1]
    assert before["status"] == "open"
    code, found = call(workspace, "solve", "--resume", run_id)
    assert (code, found["status"], found["run_id"]) == (0, "accepted", run_id)
    after = call(workspace, "runs", "show", run_id)[1]["events"]
    assert after[: len(before["events"])] == before["events"]
    assert [event["kind"] for event in after].count("run_started") == 1


def test_two_interrupts_end_the_run_at_once_and_say_how_to_go_on(workspace: Path) -> None:
    code, err = interrupt(workspace, 2)
    assert code == 130, err
    assert "stopped at once" in err
    assert call(workspace, "runs", "show", resume_hint(err))[1]["status"] == "open"


def test_a_time_limit_stops_the_run_with_7_and_can_be_resumed(workspace: Path) -> None:
    code, found = call(workspace, "solve", "model.py", "--quick", "--time-limit-s", "0.5")
    assert (code, found["error"]["code"]) == (7, "budget")
    assert "--resume" in found["error"]["hint"]


@pytest.mark.nvcc
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is missing")
def test_a_cuda_target_without_a_gpu_is_built_and_unmeasured(workspace: Path) -> None:
    if shutil.which("nvidia-smi") is not None:
        pytest.skip("there may be a GPU here")
    code, found = call(workspace, "solve", "model.py", "--quick", "--target", "cuda")
    assert (code, found["status"], found["outcome"]) == (9, "unmeasured", "unmeasured")
    assert Path(found["library"]).is_file()
    assert any(Path(found["sources"]).glob("*.cu"))
