"""The CUDA driver is found, called and asked in one place; one of the host's memory stands for it here."""

import json
import subprocess

import pytest

from stitch_tools.worker.cuda_driver import CudaDriver, DriverError, compute, find_gpus, main
from tests.tools.check_support import PROGRAMS


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    built = tmp_path_factory.mktemp("driver") / "libhost_driver.so"
    source = str(PROGRAMS / "cuda_driver.c")
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", source, "-o", str(built)], check=True)
    return str(built)


def fail(monkeypatch: pytest.MonkeyPatch, step: str, code: int = 0) -> None:
    monkeypatch.setenv("FAILING_STEP", step)
    monkeypatch.setenv("FAILING_CODE", str(code))


def test_the_first_library_that_is_there_describes_the_gpus(library: str) -> None:
    found = find_gpus(CudaDriver(("libno-such-driver.so", library)))
    assert found == {
        "driver_cuda": 13000,
        "gpus": [
            {
                "index": 0,
                "name": "A GPU of the host",
                "uuid": "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f",
                "arch": "sm_90",
                "memory_bytes": 1 << 30,
                "l2_bytes": 38,
            }
        ],
    }


def test_without_a_driver_the_problem_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = ("libno-such-driver.so",)
    with pytest.raises(DriverError, match="no NVIDIA driver"):
        CudaDriver(nowhere)
    assert main("gpus", nowhere) == 0
    assert "no NVIDIA driver" in json.loads(capsys.readouterr().out)["problem"]
    assert main("canary", nowhere) == 3


def test_a_driver_s_number_is_told_in_words_where_they_are_known(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, "cuInit", 803)
    with pytest.raises(DriverError, match="different versions") as caught:
        find_gpus(CudaDriver((library,)))
    assert caught.value.code == 803
    with pytest.raises(DriverError, match="has no cuNothing"):
        CudaDriver((library,)).call("cuNothing")


def test_a_gpu_that_computes_passes(library: str) -> None:
    compute(CudaDriver((library,)))
    assert main("canary", (library,)) == 0


def test_a_gpu_that_fails_or_gives_back_other_values_does_not(
    library: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(monkeypatch, "cuMemcpyDtoH_v2", 719)
    assert main("canary", (library,)) == 3
    assert "cuMemcpyDtoH_v2: CUDA error 719" in capsys.readouterr().out
    fail(monkeypatch, "nothing")
    assert main("canary", (library,)) == 3
    assert "other values" in capsys.readouterr().out


def test_a_gpu_whose_memory_others_fill_answers(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(monkeypatch, "cuMemAlloc_v2", 2)
    assert main("canary", (library,)) == 0
