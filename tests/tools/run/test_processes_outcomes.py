"""Each way of going wrong has its own name, and leaves the next evaluation clean."""

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stitch_tools.protocol.messages_session import ChildLimits
from stitch_tools.run.child import Child
from stitch_tools.run.child_outcome import ChildDied, ChildTimeout, Outcome
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.session import TargetSession

HANDLERS = Path(__file__).with_name("processes_handlers.py")
MIB = 1 << 20

Spawn = Callable[..., Child]


@pytest.fixture(scope="module", params=["full", "fs+net", "process"])
def session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TargetSession]:
    workspace = tmp_path_factory.mktemp("workspace")
    with TargetSession(
        find_interpreter(None, workspace), at_most=request.param, scratch_root=workspace
    ) as session:
        if session.sandbox_level != request.param:
            pytest.skip(f"level {request.param} does not work here: {session.sandbox_reason}")
        yield session


@pytest.fixture
def spawn(session: TargetSession) -> Iterator[Spawn]:
    """Spawn a child of the handlers file; afterwards show that a fresh one works and that nothing is left."""

    folders: list[Path] = []

    def start(**limits: int) -> Child:
        child = session.spawn("worker", serve_file=HANDLERS, limits=ChildLimits(**limits))  # pyright: ignore[reportArgumentType]
        folders.append(Path(child.scratch))
        return child

    yield start
    assert [path for path in folders if path.exists()] == []
    with start() as clean:
        assert clean.request({"op": "matmul"}).message["sum"] == 64.0**3


def outcome_of(child: Child, message: dict[str, Any], timeout_s: float = 20.0) -> Outcome:
    with child, pytest.raises(ChildDied) as died:
        child.request(message, timeout_s=timeout_s)
    assert not is_running(child.pid)
    return died.value.outcome


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_segmentation_fault_is_a_crash(spawn: Spawn) -> None:
    outcome = outcome_of(spawn(), {"op": "segfault"})
    assert (outcome.kind, outcome.signal_name) == ("crashed", "SIGSEGV")
    assert "Segmentation fault" in outcome.output_tail  # faulthandler names the line


def test_an_abort_is_a_crash(spawn: Spawn) -> None:
    outcome = outcome_of(spawn(), {"op": "send_signal", "number": signal.SIGABRT})
    assert (outcome.kind, outcome.signal_name) == ("crashed", "SIGABRT")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_another_signal_is_named(spawn: Spawn, number: signal.Signals) -> None:
    outcome = outcome_of(spawn(), {"op": "send_signal", "number": number})
    assert (outcome.kind, outcome.signal_name) == ("signaled", number.name)


def test_a_hang_ends_at_the_deadline(spawn: Spawn) -> None:
    child = spawn()
    with child, pytest.raises(ChildTimeout) as died:
        child.request({"op": "hang"}, timeout_s=0.3)  # a deadline that does nothing would keep the test here
    assert died.value.outcome.kind == "timed_out"
    assert not is_running(child.pid)


@pytest.mark.parametrize("op", ["leave", "leave_politely"])
def test_an_exit_that_nobody_asked_for_is_early(spawn: Spawn, op: str) -> None:
    outcome = outcome_of(spawn(), {"op": op, "code": 3})
    assert (outcome.kind, outcome.exit_code) == ("early_exit", 3)


def test_an_early_exit_with_code_0_is_no_success(spawn: Spawn) -> None:
    assert outcome_of(spawn(), {"op": "leave", "code": 0}).kind == "early_exit"


def test_an_exit_that_was_asked_for_is_one(spawn: Spawn) -> None:
    child = spawn()
    child.close()
    assert (child.kill().kind, child.kill().exit_code) == ("exited", 0)


@pytest.mark.parametrize("op", ["grow_private", "grow_tensor"])
def test_a_refused_allocation_is_an_answer(spawn: Spawn, op: str) -> None:
    with spawn(memory_bytes=256 * MIB) as child:
        answer = child.request({"op": op, "nbytes": 4096 * MIB}).message
        assert (answer["ok"], answer["error"]["kind"]) == (False, "out_of_memory")


def test_native_code_without_memory_is_out_of_memory(spawn: Spawn) -> None:
    assert outcome_of(spawn(memory_bytes=256 * MIB), {"op": "bad_alloc"}).kind == "out_of_memory"


def test_shared_memory_is_watched_too(spawn: Spawn) -> None:
    outcome = outcome_of(spawn(memory_bytes=256 * MIB), {"op": "grow_shared"})
    assert outcome.kind == "out_of_memory"


def test_a_flood_of_output_is_cut_off_and_its_end_kept(spawn: Spawn) -> None:
    outcome = outcome_of(spawn(output_bytes=4 * MIB), {"op": "flood"})
    assert outcome.kind == "output_flood"
    assert "\nnothing to see here\n" in outcome.output_tail
    assert len(outcome.output_tail) < MIB


def test_an_answer_from_a_fork_is_noticed(spawn: Spawn) -> None:
    assert outcome_of(spawn(), {"op": "answer_from_fork"}).kind == "forked"


def test_a_fork_bomb_is_ended(spawn: Spawn) -> None:
    assert outcome_of(spawn(processes=16), {"op": "breed"}).kind == "too_many_processes"


def test_too_many_threads_are_too_many_processes(spawn: Spawn) -> None:
    assert outcome_of(spawn(processes=2), {"op": "spin_threads"}).kind == "too_many_processes"


def test_closed_descriptors_are_noticed_at_once(spawn: Spawn) -> None:
    assert outcome_of(spawn(), {"op": "close_descriptors"}).kind == "closed_descriptors"


def test_bytes_that_are_no_frame_are_a_protocol_fault(spawn: Spawn) -> None:
    assert outcome_of(spawn(), {"op": "babble"}).kind == "protocol"


def test_a_second_answer_is_never_taken_for_the_next_one(spawn: Spawn) -> None:
    with spawn() as child:
        child.request({"op": "answer_twice"})
        with pytest.raises(ChildDied) as died:
            child.request({"op": "ping"})
    assert died.value.outcome.kind == "protocol"


def test_an_exception_is_an_answer_with_its_place(spawn: Spawn) -> None:
    with spawn() as child:
        error = child.request({"op": "fail"}).message["error"]
        assert error["kind"] == "KeyError"
        assert error["file"] == str(HANDLERS)
        assert (
            "a fault of the handler" in HANDLERS.read_text(encoding="utf-8").splitlines()[error["line"] - 1]
        )
        assert child.request({"op": "ping"}).message["ok"]


def test_what_a_child_prints_is_kept_and_never_ours(spawn: Spawn, capfd: pytest.CaptureFixture[str]) -> None:
    with spawn() as child:
        child.request({"op": "speak"})
    assert child.kill().output_tail == "a word to stdout\na word to stderr\nstraight to the descriptor\n"
    assert capfd.readouterr() == ("", "")


def test_a_grandchild_in_a_session_of_its_own_dies_too(spawn: Spawn) -> None:
    child = spawn()
    child.request({"op": "leave_grandchild"})
    child.kill()
    assert processes_with_argument(child.scratch) == []


def processes_with_argument(scratch: str) -> list[int]:
    """Living processes whose working folder is the scratch folder of a child."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str((entry / "cwd").readlink()).startswith(scratch):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_a_paused_tree_stands_still_and_goes_on(spawn: Spawn) -> None:
    memory = os.memfd_create("counter")
    os.ftruncate(memory, 4096)
    with spawn() as child:
        child.request({"op": "count_up"}, fds=(memory,))
        assert changes(memory, 10)
        child.pause()
        assert not changes(memory, 0.05)
        child.resume()
        assert changes(memory, 10)
        assert child.request({"op": "ping"}).message["ok"]
    os.close(memory)


def test_a_process_that_works_while_it_is_stopped_is_found_out(spawn: Spawn) -> None:
    with spawn() as child:
        child.request({"op": "keep_busy"})
        child.pause()
        os.kill(child.pid, signal.SIGCONT)
        time.sleep(0.1)
        with pytest.raises(ChildDied) as death:
            child.resume()
    assert death.value.outcome.kind == "went_on"
    assert "went on while it was stopped" in death.value.outcome.describe()


def test_a_busy_process_that_stands_still_is_not_blamed(spawn: Spawn) -> None:
    with spawn() as child:
        child.request({"op": "keep_busy"})
        for _ in range(10):
            child.pause()
            time.sleep(0.01)
            child.resume()


def test_no_timer_can_wake_a_stopped_process(spawn: Spawn) -> None:
    with spawn() as child:
        assert child.request({"op": "wake_by_timer"}).message["errno"] == errno.EPERM


def changes(memory: int, within_s: float) -> bool:
    """Whether the counter moves while we look."""
    before, deadline = os.pread(memory, 1, 0), time.monotonic() + within_s
    while time.monotonic() < deadline:
        if os.pread(memory, 1, 0) != before:
            return True
    return False
