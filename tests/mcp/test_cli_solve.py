"""`solve` as a user runs it: result, certificate, resuming after Ctrl-C, a device that is not here."""

import contextlib
import os
import select
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from stitch_planner.runs.run import Run, Workspace
from stitch_tools.confine import process_tree
from stitch_tools.machine.device_lock import device_lock
from stitch_tools.storage.events import read_events
from stitch_tools.storage.user_cache import user_cache_dir
from tests.mcp.cli_support import COMMAND, call
from tests.mcp.conftest import PROGRAMS, SolvedRun

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workspace(solved_run: SolvedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with one small reference and a run that solved it; its path has a space."""
    return shutil.copytree(solved_run.workspace, tmp_path_factory.mktemp("solve") / "work space")


@pytest.fixture
def solved(solved_run: SolvedRun) -> dict[str, Any]:
    """What that run printed."""
    return solved_run.result


def test_the_result_names_status_outcome_ids_and_certificate(solved: dict[str, Any]) -> None:
    assert solved["status"] == "accepted"
    assert solved["outcome"] in {"faster", "slower", "inconclusive"}
    assert len(solved["program_id"]) == 64
    assert solved["run_id"]
    assert Path(solved["certificate"]).is_file()
    assert {row["name"] for row in solved["bench"]["timings"]} >= {"program", "eager"}


def test_torch_compile_is_timed_beside_eager(solved: dict[str, Any]) -> None:
    (timing,) = [row for row in solved["bench"]["timings"] if row["name"] == "compile:default"]
    # On a busy machine one of the two may be lost in noise.
    assert timing["latency_us"] is not None or timing["throughput_us"] is not None, timing["note"]
    assert any((user_cache_dir() / "inductor").iterdir())


def test_a_quick_run_s_certificate_says_that_it_is_one_without_sanitizers(solved: dict[str, Any]) -> None:
    assert "memory errors and races (check --sanitize looks for them)" in solved["check"]["not_checked"]


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


class Command:
    """A command as a terminal starts it, in a process group of its own, and all processes seen below it."""

    def __init__(self, workspace: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=workspace,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stderr is not None
        self.stderr = self.process.stderr
        self.family: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with self.process:
            self.process.kill()
        for handle in self.family.values():
            os.close(handle)

    def read_to(self, word: str) -> str:
        """What it says up to the line with that word."""
        text = ""
        for line in self.stderr:
            text += line
            if word in line:
                break
        return text

    def wait_for(self, happened: Callable[[], bool]) -> None:
        """Return as soon as `happened` says so; fail where it never will."""
        while not happened():
            self.look_below()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.002)
                assert happened(), "it ended too early"
        self.look_below()

    def look_below(self) -> None:
        for pid in process_tree.descendants(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                if pid not in self.family:
                    self.family[pid] = os.pidfd_open(pid)

    def is_out_of_reach(self) -> bool:
        """Whether what imports torch has a session of its own: a process just born may die of Ctrl-C."""
        for pid in process_tree.descendants(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) == pid:
                    return True
        return False

    def press(self) -> None:
        """Press Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)

    def press_on(self) -> tuple[int, str]:
        """Exit code and what it says at last, while Ctrl-C is pressed again and again."""
        while self.process.poll() is None:
            self.press()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.005)
        return self.process.returncode, self.stderr.read()

    def left_behind(self) -> list[int]:
        """Processes below it that have not ended half a minute later."""
        return [pid for pid, handle in self.family.items() if not select.select([handle], [], [], 30.0)[0]]


def interrupt(workspace: Path, presses: int) -> tuple[int, str]:
    """Exit code and stderr of a solve that is interrupted while its reference is observed."""
    with Command(workspace, "solve", "model.py", "--quick") as command:
        lines = [command.read_to("starting")]
        command.wait_for(command.is_out_of_reach)
        command.press()
        for _ in range(presses - 1):
            lines += [command.stderr.readline(), command.stderr.readline()]
            command.press()
        lines.append(command.stderr.read())
        return command.process.wait(timeout=120), "".join(lines)


def resume_hint(err: str) -> str:
    (command,) = [line for line in err.splitlines() if "solve --resume" in line]
    return command.split("--resume ")[1].strip()


@pytest.mark.exhaustive  # the test after next interrupts twice as often
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


def kinds(workspace: Path) -> list[str]:
    """Kinds of the events of the workspace's only run, as far as there are any."""
    logs = workspace.glob(".stitch/runs/*/events.jsonl")
    return [event.kind for path in logs for event in read_events(path)]


def assert_clean(command: Command, scratch: Path, code: int, err: str) -> None:
    """An interrupted command ended in order, and left nothing behind."""
    assert (code, "Traceback" in err, "solve --resume" in err) == (130, False, True), err
    assert command.family
    assert command.left_behind() == []
    assert list(scratch.iterdir()) == []


def test_a_run_goes_on_however_often_it_was_interrupted_while_it_cleaned_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(PROGRAMS / "linear_relu.py", tmp_path / "model.py")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    # Any outcome of the timing will do: it waits for nobody else's.
    monkeypatch.setenv("STITCH_LOCK_DIR", str(tmp_path))
    with Command(tmp_path, "solve", "model.py", "--quick") as command:
        command.read_to("starting")
        command.wait_for(command.is_out_of_reach)
        command.press()
        # The step in hand is done: what is left to do is to clean up.
        command.wait_for(lambda: "reference_observed" in kinds(tmp_path))
        ended = command.press_on()
        assert_clean(command, scratch, *ended)
    with Command(tmp_path, "solve", "--resume", "last") as command:
        command.read_to("timing program")
        command.look_below()
        command.press()
        ended = command.press_on()
        assert_clean(command, scratch, *ended)
    found = kinds(tmp_path)
    assert (found.count("run_stopped"), found.count("check_finished")) == (2, 1)
    workspace = Workspace(tmp_path)
    with device_lock("cpu", wait_s=0):  # nobody holds it, nor the run
        Run(workspace.run_folder("last"), workspace.store).close()
    code, result = call(tmp_path, "solve", "--resume", "last")
    assert (code, result["status"]) == (0, "accepted"), result
    steps = Counter(kinds(tmp_path)) - Counter({"run_stopped": 2, "run_resumed": 2})
    assert set(steps.values()) == {1}, "no step was done twice"


def test_a_time_limit_stops_the_run_with_7_and_can_be_resumed(workspace: Path) -> None:
    code, found = call(workspace, "solve", "model.py", "--quick", "--time-limit-s", "0.5")
    assert (code, found["error"]["code"]) == (7, "budget")
    assert "--resume" in found["error"]["hint"]


@pytest.mark.nvcc
def test_a_cuda_target_without_a_gpu_is_built_and_unmeasured(workspace: Path) -> None:
    if shutil.which("nvidia-smi") is not None:
        pytest.skip("there may be a GPU here")
    code, found = call(workspace, "solve", "model.py", "--quick", "--target", "cuda")
    assert (code, found["status"], found["outcome"]) == (9, "unmeasured", "unmeasured")
    assert Path(found["library"]).is_file()
    assert any(Path(found["sources"]).glob("*.cu"))
