"""Devices are found without torch, and targets mean what the documentation says."""

import subprocess
import sys
from pathlib import Path

import pytest

from stitch_tools.errors import UsageError
from stitch_tools.machine.devices import (
    Gpu,
    GpuSearch,
    cpu_info,
    find_gpus,
    read_cpu,
    resolve_target,
)

H200 = Gpu(0, "NVIDIA H200", "GPU-1", "sm_90", 150754820096)
A100 = Gpu(1, "NVIDIA A100", "GPU-2", "sm_80", 85899345920)
TWO = GpuSearch((H200, A100), "580.95.05", "13.0", None)
NONE = GpuSearch((), None, None, "no NVIDIA driver is installed")


def test_the_cpu_of_this_machine_has_a_name_cores_and_caches() -> None:
    cpu = cpu_info()
    assert cpu.model
    assert cpu.usable >= 1
    assert cpu.cores >= 1
    assert cpu.last_level_cache_bytes >= 0


def test_a_cpu_is_read_from_proc_and_sys(tmp_path: Path) -> None:
    blocks = [
        f"model name\t: Some CPU\ncpu family\t: 25\nmodel\t\t: 17\nphysical id\t: 0\ncore id\t\t: {core}\n"
        "flags\t\t: avx2 avx512f\n"
        for core in (0, 1, 0, 1)
    ]
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text("\n".join(blocks), encoding="utf-8")
    for cpu, shared in ((0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")):
        cache = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cache/index3"
        cache.mkdir(parents=True)
        for name, text in (
            ("level", "3"),
            ("type", "Unified"),
            ("size", "32768K"),
            ("shared_cpu_list", shared),
        ):
            (cache / name).write_text(text + "\n", encoding="utf-8")
    cpu_found = read_cpu(tmp_path)
    assert cpu_found.model == "Some CPU (family 25, model 17)"
    assert cpu_found.cores == 2
    assert cpu_found.l3_bytes == 64 << 20
    assert "avx512f" in cpu_found.flags


def test_a_machine_that_says_nothing_still_gives_a_cpu(tmp_path: Path) -> None:
    assert read_cpu(tmp_path).cores >= 1


def test_cuda_is_the_first_gpu_here_or_a_default_that_is_not_available() -> None:
    assert resolve_target("cuda", TWO).name == "cuda:sm_90"
    assert resolve_target("cuda", TWO).device == "NVIDIA H200"
    missing = resolve_target("cuda", NONE)
    assert (missing.name, missing.available, missing.device) == ("cuda:sm_90", False, NONE.problem)
    assert missing.name == "cuda:sm_90"


def test_an_architecture_is_available_when_such_a_gpu_is_here() -> None:
    assert resolve_target("cuda:sm_90a", TWO).available
    other = resolve_target("cuda:sm_100", TWO)
    assert not other.available
    assert "NVIDIA A100 (sm_80)" in other.device


@pytest.mark.parametrize("text", ["cuda:1", "cuda:sm_80"])
def test_a_gpu_that_is_not_the_first_is_refused_with_the_way_to_choose_it(text: str) -> None:
    with pytest.raises(UsageError, match="number 1") as caught:
        resolve_target(text, TWO)
    assert "CUDA_VISIBLE_DEVICES=1" in caught.value.hint


def test_a_gpu_can_be_named_by_number() -> None:
    assert resolve_target("cuda:0", TWO).name == "cuda:sm_90"
    with pytest.raises(UsageError, match="no GPU number 7"):
        resolve_target("cuda:7", TWO)


@pytest.mark.parametrize("text", ["", "gpu", "cuda:", "cuda:90", "CPU", "cuda:sm_9000", "cpu:0"])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        resolve_target(text, NONE)


def test_gpus_are_named_or_the_reason_is() -> None:
    search = find_gpus()
    assert bool(search.gpus) != bool(search.problem)


def test_looking_for_gpus_loads_no_torch_and_no_driver_into_this_process() -> None:
    script = (
        "import sys; from stitch_tools.machine.devices import find_gpus; find_gpus()\n"
        "assert 'torch' not in sys.modules\n"
        "assert 'libcuda.so' not in open('/proc/self/maps').read()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
