"""Children live no longer than the controller, and start much faster than torch is imported."""

import contextlib
import fcntl
import gc
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stitch_tools.confine import process_tree
from stitch_tools.errors import EnvironmentMissingError, WorkerError
from stitch_tools.run.child import Child
from stitch_tools.run.child_outcome import ChildDied, Outcome
from stitch_tools.run.interpreter import Interpreter, find_interpreter
from stitch_tools.run.session import TargetSession
from tests.sampling import sampled

HANDLERS = Path(__file__).with_name("processes_handlers.py")

# A controller that holds a lock over a worker with a stray grandchild, and then waits to be killed.
CONTROLLER = """
import fcntl, sys, threading, time
from pathlib import Path
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.session import TargetSession

root, handlers, level, thread = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4] == "thread"
session = TargetSession(find_interpreter(None, root), at_most=level, scratch_root=root / "scratch")
if thread:
    starter = threading.Thread(target=session.start)
    starter.start()
    starter.join()
else:
    session.start()
lock = (root / "lock").open("w")
fcntl.flock(lock, fcntl.LOCK_EX)
child = session.spawn("worker", serve_file=handlers)
child.request({"op": "leave_grandchild"})
print("up", flush=True)
child.request({"op": "hang"}, timeout_s=600)
"""


@pytest.mark.parametrize(
    ("level", "started_from"),
    sampled(
        ((level, start) for level in ("full", "fs+net", "process") for start in ("main", "thread")),
        [("full", "main"), ("full", "thread"), ("process", "main")],
    ),
)
def test_a_killed_controller_leaves_nothing(tmp_path: Path, level: str, started_from: str) -> None:
    command = [sys.executable, "-c", CONTROLLER, str(tmp_path), str(HANDLERS), level, started_from]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == "up\n"
        family = process_tree.descendants(controller.pid)
        assert len(family) >= 4  # zygote, init, worker, grandchild
        handles = [os.pidfd_open(pid) for pid in family]
        controller.kill()
    # Within milliseconds; but the machine may have other things to do.
    deadline = time.monotonic() + 10.0
    for handle in handles:
        assert ends_before(handle, deadline)
        os.close(handle)
    with (tmp_path / "lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def ends_before(handle: int, deadline: float) -> bool:
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    return bool(poller.poll(max(0.0, deadline - time.monotonic()) * 1000))


def has_ended(pid: int, deadline: float) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return ends_before(handle, deadline)
    finally:
        os.close(handle)


def test_a_closed_session_leaves_nothing(tmp_path: Path) -> None:
    before = set(process_tree.descendants(os.getpid()))
    with TargetSession(find_interpreter(None, tmp_path), scratch_root=tmp_path / "scratch") as session:
        child = session.spawn("worker", serve_file=HANDLERS)
        child.request({"op": "leave_grandchild"})
        family = set(process_tree.descendants(os.getpid())) - before
        assert len(family) >= 4
    assert child.kill().kind == "killed"
    assert not family & set(process_tree.descendants(os.getpid()))
    assert list((tmp_path / "scratch").iterdir()) == []


def test_many_evaluations_leave_neither_descriptors_nor_processes(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    with TargetSession(find_interpreter(None, tmp_path), scratch_root=scratch) as session:
        gc.collect()
        descriptors, family = open_descriptors(), set(process_tree.descendants(os.getpid()))
        for op in ("leave", "hang", "segfault", "babble", "close_descriptors", "leave_grandchild") * 2:
            with session.spawn("worker", serve_file=HANDLERS) as child, contextlib.suppress(ChildDied):
                child.request({"op": op, "code": 1}, timeout_s=0.2)
        # What other tests left behind may end meanwhile.
        assert open_descriptors() <= descriptors
        for pid in set(process_tree.descendants(os.getpid())) - family:
            assert has_ended(pid, time.monotonic() + 10.0), "killed, and still there"
        (own,) = scratch.iterdir()
        assert list(own.iterdir()) == []


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_worker_s_own_code_comes_with_the_zygote_which_still_has_one_thread(tmp_path: Path) -> None:
    before = set(process_tree.descendants(os.getpid()))
    with TargetSession(find_interpreter(None, tmp_path)) as session:
        (zygote,) = set(process_tree.descendants(os.getpid())) - before
        assert process_tree.usage(zygote).threads == 1
        with session.spawn("worker", serve_file=HANDLERS) as child:
            modules = child.request({"op": "look"}).message["own_modules"]
        assert "stitch_tools.worker.candidate.candidate_server" in modules


def test_children_are_found_with_and_without_the_help_of_the_kernel(tmp_path: Path) -> None:
    with (
        TargetSession(find_interpreter(None, tmp_path)) as session,
        session.spawn("worker", serve_file=HANDLERS),
    ):
        found = process_tree.descendants(os.getpid())
        assert len(found) >= 3
        for pid in (os.getpid(), *found):
            assert sorted(process_tree.children_by_search(pid)) == sorted(process_tree.listed_children(pid))


def test_a_zygote_that_died_is_an_error_of_ours(tmp_path: Path) -> None:
    before = set(process_tree.descendants(os.getpid()))
    with TargetSession(find_interpreter(None, tmp_path)) as session:
        child = session.spawn("worker", serve_file=HANDLERS)
        zygote = next(pid for pid in process_tree.descendants(os.getpid()) if pid not in before)
        os.kill(zygote, signal.SIGKILL)
        with pytest.raises(ChildDied):
            child.request({"op": "hang"}, timeout_s=10)
        with pytest.raises(WorkerError):
            session.spawn("worker", serve_file=HANDLERS)


def test_a_spawn_is_much_faster_than_importing_torch(tmp_path: Path) -> None:
    interpreter = find_interpreter(None, tmp_path)
    importing = duration_s(lambda: subprocess.run([interpreter.path, "-c", "import torch"], check=True))
    with TargetSession(interpreter) as session:

        def spawn_and_answer() -> None:
            session.spawn("worker", serve_file=HANDLERS).request({"op": "ping"})

        spawning = min(duration_s(spawn_and_answer) for _ in range(5))
    assert spawning * 5 < importing


def duration_s(action: Callable[[], object]) -> float:
    started = time.monotonic()
    action()
    return time.monotonic() - started


def test_a_place_that_cannot_hold_scratch_folders_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    session = TargetSession(find_interpreter(None, tmp_path), scratch_root=tmp_path / "file" / "scratch")
    with pytest.raises(EnvironmentMissingError, match="no scratch folder") as refused:
        session.start()
    assert "TMPDIR" in refused.value.hint


def test_an_interpreter_whose_torch_does_not_load_is_named(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "v"], check=True)
    (library,) = (tmp_path / "v" / "lib").glob("python*/site-packages")
    (library / "torch.py").write_text("raise OSError('libcudart.so.99 is missing')\n", encoding="utf-8")
    python = str(tmp_path / "v" / "bin" / "python")
    with (
        pytest.raises(EnvironmentMissingError, match=r"libcudart\.so\.99 is missing"),
        TargetSession(Interpreter(python, "3.11.0", "2.9.0", "option")),
    ):
        pass


def test_a_session_that_is_interrupted_while_it_closes_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = TargetSession(find_interpreter(None, tmp_path), scratch_root=tmp_path / "scratch")
    session.start()
    handles = [os.pidfd_open(session.spawn("worker", serve_file=HANDLERS).pid) for _ in range(2)]
    kill = Child.kill
    interrupted: list[Child] = []

    def once_interrupted(child: Child) -> Outcome:
        if not interrupted:
            interrupted.append(child)
            raise KeyboardInterrupt
        return kill(child)

    monkeypatch.setattr(Child, "kill", once_interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.close()
    deadline = time.monotonic() + 10.0
    for handle in handles:
        assert ends_before(handle, deadline)
        os.close(handle)
    assert list((tmp_path / "scratch").iterdir()) == []
