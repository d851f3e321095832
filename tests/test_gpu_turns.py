"""Tests that need the whole GPU have it alone; the others share it."""

import fcntl
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.gpu_turns import gpu_turn

# Says when it has its turn, and gives it back once its input is closed.
TURN = """
import sys
from pathlib import Path
from tests.gpu_turns import gpu_turn

with gpu_turn(Path(sys.argv[1]), alone=sys.argv[2] == "alone"):
    print("in", flush=True)
    sys.stdin.read()
"""
ROOT = Path(__file__).parents[1]


@contextmanager
def waiting(folder: Path, how: str) -> Generator["subprocess.Popen[str]"]:
    """A process that wants a turn."""
    command = [sys.executable, "-c", TURN, str(folder), how]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def stream(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def wait_for_turn(process: "subprocess.Popen[str]") -> None:
    assert stream(process.stdout).readline() == "in\n"


def end(process: "subprocess.Popen[str]") -> None:
    stream(process.stdin).close()
    assert process.wait(timeout=60) == 0


def is_free(path: Path, how: int) -> bool:
    """Whether the lock could be had in this way at this moment."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def until_taken(gate: Path, waiter: "subprocess.Popen[str]") -> None:
    """Return once the process stands at the gate."""
    while is_free(gate, fcntl.LOCK_SH):
        assert waiter.poll() is None, "it ended without its turn"
        time.sleep(0.01)


def test_turns_are_shared_but_for_one_alone_which_those_after_it_wait_for(tmp_path: Path) -> None:
    gate, turn = tmp_path / "gate", tmp_path / "turn"
    with gpu_turn(tmp_path, alone=False), waiting(tmp_path, "beside") as beside:
        wait_for_turn(beside)
        with waiting(tmp_path, "alone") as alone:
            until_taken(gate, alone)
            assert is_free(turn, fcntl.LOCK_SH), "it waits, and those before it go on"
            with waiting(tmp_path, "beside") as late:
                end(beside)
                assert not is_free(turn, fcntl.LOCK_EX), "our own turn is not over"
                assert not is_free(gate, fcntl.LOCK_EX), "nobody passes the one that waits"
                late.kill()
            alone.kill()


def test_one_alone_has_it_until_it_ends(tmp_path: Path) -> None:
    gate, turn = tmp_path / "gate", tmp_path / "turn"
    with waiting(tmp_path, "alone") as alone:
        wait_for_turn(alone)
        assert not is_free(turn, fcntl.LOCK_SH)
        with waiting(tmp_path, "beside") as late:
            until_taken(gate, late)
            end(alone)
            wait_for_turn(late)
            assert is_free(turn, fcntl.LOCK_SH)
            assert not is_free(turn, fcntl.LOCK_EX)
            assert is_free(gate, fcntl.LOCK_EX)
            end(late)
