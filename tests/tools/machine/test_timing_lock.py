"""One process times on a device at a time."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stitch_tools.errors import InterruptedRunError, LockedError
from stitch_tools.machine.device_lock import device_lock, lock_path


@pytest.fixture(autouse=True)
def own_lock_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STITCH_LOCK_DIR", str(tmp_path))
    return tmp_path


def test_the_holder_is_named_with_pid_and_host() -> None:
    script = (
        "from stitch_tools.machine.device_lock import device_lock\n"
        "with device_lock('GPU-1', wait_s=0, purpose='timing abc'):\n"
        "    print('held', flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdout.readline()
        said: list[str] = []
        with pytest.raises(LockedError) as caught, device_lock("GPU-1", wait_s=0.6, emit=said.append):
            pass
        assert f"process {holder.pid} on {socket.gethostname()} (timing abc)" in caught.value.message
        assert len(said) == 1
        assert "waiting for the device" in said[0]
        holder.stdin.write(b"\n")
        holder.stdin.flush()
    with device_lock("GPU-1", wait_s=5.0):
        pass


def test_a_request_to_stop_ends_the_wait() -> None:
    stop = threading.Event()

    def press(_: str) -> None:
        stop.set()

    with device_lock("GPU-1", wait_s=0), pytest.raises(InterruptedRunError):  # noqa: SIM117 (who fails is the inner)
        with device_lock("GPU-1", wait_s=600.0, emit=press, stop=stop):
            pass
    with pytest.raises(InterruptedRunError), device_lock("GPU-1", wait_s=0, stop=stop):
        pass


def test_another_device_is_free() -> None:
    with device_lock("GPU-1", wait_s=0), device_lock("GPU-2", wait_s=0), device_lock("cpu", wait_s=0):
        pass


def test_the_file_is_writable_for_every_user_whatever_the_umask() -> None:
    before = os.umask(0o077)
    try:
        with device_lock("GPU-1", wait_s=0):
            pass
    finally:
        os.umask(before)
    assert lock_path("GPU-1").stat().st_mode & 0o777 == 0o666


def test_the_name_of_the_device_cannot_leave_the_folder(own_lock_folder: Path) -> None:
    assert lock_path("../../GPU/1").parent == own_lock_folder
