"""One process times on a device at a time."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stitch_tools.errors import InterruptedRunError, LockedError
from stitch_tools.machine.device_lock import device_lock, lock_path, shared_device, shared_key


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


def test_uses_share_a_gpu_and_a_timing_has_it_alone() -> None:
    with shared_device("GPU-1", purpose="check"):
        assert in_another_thread(lambda: use("GPU-1"))
        assert not in_another_thread(lambda: time_on("GPU-1"))
        assert in_another_thread(lambda: time_on("GPU-2"))
    with device_lock("GPU-1", wait_s=0):
        assert not in_another_thread(lambda: use("GPU-1"))
        assert in_another_thread(lambda: use("GPU-2"))
    assert in_another_thread(lambda: time_on("GPU-1"))


def test_a_timing_that_waits_bars_the_uses_that_come_after_it() -> None:
    waits, timed = threading.Event(), threading.Event()

    def time_after_the_use() -> bool:
        with device_lock("GPU-1", wait_s=20.0, emit=lambda _: waits.set()):
            timed.set()
        return True

    with ThreadPoolExecutor() as pool:
        with shared_device("GPU-1", purpose="check"):
            timing = pool.submit(time_after_the_use)
            assert waits.wait(20.0)
            assert not in_another_thread(lambda: use("GPU-1"))
            assert not timed.is_set()
            with shared_device("GPU-1", purpose="a request within a request", wait_s=0):
                late = pool.submit(use, "GPU-1", 20.0)
        assert timing.result()
        assert late.result()


def test_uses_that_waited_for_one_timing_go_before_the_next() -> None:
    waits, order = threading.Event(), list[str]()

    def use_it() -> None:
        with shared_device("GPU-1", purpose="check", wait_s=20.0):
            order.append("use")

    def time_it() -> None:
        with device_lock("GPU-1", wait_s=20.0, emit=lambda _: waits.set()):
            order.append("timing")

    with ThreadPoolExecutor() as pool:
        with device_lock("GPU-1", wait_s=0):
            uses = [pool.submit(use_it) for _ in range(3)]
            assert not in_another_thread(lambda: use("GPU-1"))
            timing = pool.submit(time_it)
            assert waits.wait(20.0)
        for ended in (*uses, timing):
            ended.result()
    assert order == ["use", "use", "use", "timing"]


def test_what_a_timing_asks_for_does_not_wait_for_the_timing() -> None:
    with device_lock("GPU-1", wait_s=0), shared_device("GPU-1", purpose="output check", wait_s=0):
        assert not in_another_thread(lambda: use("GPU-1"))
    assert in_another_thread(lambda: use("GPU-1"))


def test_a_killed_user_of_a_gpu_leaves_no_lock() -> None:
    script = (
        "from stitch_tools.machine.device_lock import shared_device\n"
        "with shared_device('GPU-1', purpose='check'):\n"
        "    print('held', flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as user:
        assert user.stdout is not None
        user.stdout.readline()
        assert not time_on("GPU-1")
        user.kill()
    assert time_on("GPU-1")


def test_no_lock_is_shared_for_a_cpu() -> None:
    assert shared_key("cpu") is None


def use(key: str, wait_s: float = 0.0) -> bool:
    """Whether the device can be used now."""
    try:
        with shared_device(key, purpose="check", wait_s=wait_s):
            return True
    except LockedError:
        return False


def time_on(key: str) -> bool:
    """Whether the device can be had alone now."""
    try:
        with device_lock(key, wait_s=0):
            return True
    except LockedError:
        return False


def in_another_thread(ask: Callable[[], bool]) -> bool:
    """The answer of a thread that holds nothing."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ask).result()
