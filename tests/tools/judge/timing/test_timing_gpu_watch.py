"""The GPU's state is read by a process of its own, and what cannot be read is None."""

import shutil
import subprocess
from pathlib import Path

import pytest

from stitch_tools.judge.timing.gpu_watch import GpuWatch
from stitch_tools.machine.devices import find_gpus
from stitch_tools.models.conditions import GpuConditions
from tests.tools.check_support import PROGRAMS

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")


def library(folder: Path, *flags: str) -> Path:
    built = folder / "libnvidia-ml.so.1"
    source = str(PROGRAMS / "nvml.c")
    subprocess.run(["gcc", "-shared", "-fPIC", *flags, "-o", str(built), source], check=True)
    return built


def test_readings_become_medians_extremes_and_unions(tmp_path: Path) -> None:
    with GpuWatch("GPU-1", library(tmp_path)) as watch:
        for _ in range(3):
            watch.read()
        seen = watch.conditions()
    assert seen == GpuConditions(
        sm_clock_mhz=1700,
        sm_clock_min_mhz=1600,
        power_w=504.0,
        throttled=("power_cap", "thermal"),
        readings=3,
    )


@pytest.mark.parametrize("uuid", ["GPU-2", "GPU-1"])
def test_a_device_or_driver_that_is_not_there_is_nothing_and_no_error(tmp_path: Path, uuid: str) -> None:
    built = library(tmp_path) if uuid == "GPU-2" else tmp_path / "absent.so"
    with GpuWatch(uuid, built) as watch:
        watch.read()
        assert watch.conditions() is None


def test_a_driver_that_hangs_is_asked_no_more(tmp_path: Path) -> None:
    with GpuWatch("GPU-1", library(tmp_path, "-DHANGS"), answer_s=0.5) as watch:
        for _ in range(50):
            watch.read()
        assert watch.conditions() is None


def test_without_a_reading_there_are_no_conditions(tmp_path: Path) -> None:
    with GpuWatch("GPU-1", library(tmp_path)) as watch:
        assert watch.conditions() is None


@pytest.mark.gpu
@pytest.mark.skipif(not find_gpus().gpus, reason="no GPU")
def test_the_driver_here_tells_clocks() -> None:
    with GpuWatch(find_gpus().gpus[0].uuid) as watch:
        watch.read()
        seen = watch.conditions()
    assert seen is not None
    assert seen.sm_clock_mhz
