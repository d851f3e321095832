"""Jobs share a device's memory by what they claim; strangers show in what is in use."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stitch_tools.errors import InterruptedRunError, LockedError
from stitch_tools.machine.device_memory import DeviceMemory, MemoryReading, Waiter, device_memory, read_gpu
from stitch_tools.machine.devices import Gpu
from tests.tools.check_support import PROGRAMS

GIB = 1 << 30
NOW = Waiter(0.0, "test")


@pytest.fixture(autouse=True)
def own_lock_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STITCH_LOCK_DIR", str(tmp_path))
    return tmp_path


def memory(used_gib: int = 0, total_gib: int = 80) -> DeviceMemory:
    return DeviceMemory("GPU-1", lambda: MemoryReading(total_gib * GIB, (total_gib - used_gib) * GIB))


def test_claims_are_let_in_while_their_sum_fits() -> None:
    with memory().claim(30 * GIB, NOW) as first, memory().claim(30 * GIB, NOW):
        with pytest.raises(LockedError, match="61440 MiB are claimed"), memory().claim(30 * GIB, NOW):
            pass
        assert first.was_shared()
    with memory().claim(60 * GIB, NOW) as alone:
        assert not alone.was_shared()


def test_memory_in_use_beyond_all_claims_is_a_strangers() -> None:
    with memory(10).claim(20 * GIB, NOW):
        with pytest.raises(LockedError), memory(70).claim(20 * GIB, NOW):
            pass
        # What the first job has taken of its claim is not counted twice.
        with memory(20).claim(40 * GIB, NOW) as second:
            assert second.was_shared()


def test_a_job_that_finds_no_claims_is_let_in_whatever_its_forecast() -> None:
    with memory(70).claim(200 * GIB, NOW) as claim:
        assert claim.was_shared()
        assert claim.at_start.used_bytes == 70 * GIB


def test_nobody_is_let_in_beside_a_job_that_is_alone() -> None:
    with memory().claim(GIB, NOW), pytest.raises(LockedError), memory().claim(GIB, NOW, alone=True):
        pass
    with memory().claim(GIB, NOW, alone=True), pytest.raises(LockedError), memory().claim(1, NOW):
        pass


def test_a_job_that_came_and_left_meanwhile_is_noticed() -> None:
    with memory().claim(GIB, NOW) as first:
        assert not first.was_shared()
        with memory().claim(GIB, NOW):
            pass
        assert first.was_shared()


def test_whoever_waits_is_let_in_when_there_is_room_and_told_once_why_it_waits() -> None:
    told: list[str] = []
    release = threading.Event()
    claimed = threading.Event()

    def hold() -> None:
        with memory().claim(60 * GIB, NOW):
            claimed.set()
            release.wait(30.0)

    def tell(sentence: str) -> None:
        told.append(sentence)
        release.set()

    holder = threading.Thread(target=hold)
    holder.start()
    assert claimed.wait(30.0)
    with memory().claim(60 * GIB, Waiter(30.0, "test", tell)):
        pass
    holder.join()
    assert told == ["waiting for memory of the device: 61440 MiB are claimed by other jobs"]


def test_a_job_that_must_be_alone_waits_for_strangers_and_then_runs_beside_them() -> None:
    told: list[str] = []
    with memory(70).claim(20 * GIB, Waiter(0.6, "test", told.append), alone=True) as claim:
        assert claim.at_start.used_bytes == 70 * GIB
    assert told == ["waiting for memory of the device: other processes hold it"]


def test_a_request_to_stop_ends_the_wait() -> None:
    stop = threading.Event()
    waiter = Waiter(600.0, "test", lambda _: stop.set(), stop)
    with memory().claim(60 * GIB, NOW), pytest.raises(InterruptedRunError):  # noqa: SIM117 (the inner fails)
        with memory().claim(60 * GIB, waiter):
            pass


def test_the_claim_of_a_killed_job_is_gone(own_lock_folder: Path) -> None:
    script = (
        "from stitch_tools.machine.device_memory import DeviceMemory, MemoryReading, Waiter\n"
        "memory = DeviceMemory('GPU-1', lambda: MemoryReading(80 << 30, 80 << 30))\n"
        "with memory.claim(60 << 30, Waiter(0.0, 'killed')):\n"
        "    print('held', flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as job:
        assert job.stdout is not None
        job.stdout.readline()
        assert memory().claimed_bytes() == 60 * GIB
        job.kill()
    assert memory().claimed_bytes() == 0
    assert not list(own_lock_folder.glob("*.claim"))


def test_devices_do_not_share_claims() -> None:
    other = DeviceMemory("GPU-2", lambda: MemoryReading(80 * GIB, 80 * GIB))
    with memory().claim(60 * GIB, NOW), other.claim(60 * GIB, NOW) as claim:
        assert not claim.was_shared()


def test_the_host_is_read_and_a_missing_gpu_has_no_memory() -> None:
    host = device_memory("cpu")
    assert host is not None
    reading = host.read()
    assert 0 < reading.free_bytes < reading.total_bytes
    assert device_memory("cuda:sm_10") is None


def test_the_driver_says_how_much_of_a_gpu_is_free(tmp_path: Path) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, PROGRAMS / "nvml.c"], check=True)
    gpu = Gpu(0, "fake", "GPU-1", "sm_90", 80 * GIB)
    assert read_gpu(gpu, library) == MemoryReading(80 * GIB, 30 * GIB)


def test_a_gpu_whose_driver_says_nothing_counts_as_free(tmp_path: Path) -> None:
    gpu = Gpu(0, "none", "GPU-none", "sm_90", 80 * GIB)
    assert read_gpu(gpu, tmp_path / "no_such_library.so") == MemoryReading(80 * GIB, 80 * GIB)
