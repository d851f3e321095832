"""Occupancy, beside CUDA's own calculator where its header is here."""

import shutil
import subprocess
from pathlib import Path

import pytest

from stitch_tools.compile.toolchain import cuda_root, find_nvcc
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.profile.occupancy import multiprocessor, occupancy, registers_for

CALCULATOR = """
#include <cstdio>
#include <cuda_occupancy.h>
int main() {
  int major, minor, warps, blocks, threads, registers, shared, memory, reserved;
  while (std::scanf("%d %d %d %d %d %d %d %d", &major, &minor, &warps, &memory, &reserved, &threads,
                    &registers, &shared) == 8) {
    cudaOccDeviceProp device;
    device.computeMajor = major, device.computeMinor = minor;
    device.maxThreadsPerBlock = 1024, device.maxThreadsPerMultiprocessor = 32 * warps;
    device.regsPerBlock = device.regsPerMultiprocessor = 65536, device.warpSize = 32, device.numSms = 1;
    device.sharedMemPerBlock = 48 << 10, device.sharedMemPerMultiprocessor = memory;
    device.sharedMemPerBlockOptin = memory - reserved, device.reservedSharedMemPerBlock = reserved;
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = 1024, kernel.numRegs = registers, kernel.sharedSizeBytes = shared;
    kernel.partitionedGCConfig = PARTITIONED_GC_OFF, kernel.numBlockBarriers = 1;
    cudaOccDeviceState state;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    cudaOccResult result;
    const cudaOccError error =
        cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, 0);
    std::printf("%d\\n", error == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : -1);
  }
}
"""
ARCHS = ("7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")


def cuda_include() -> Path:
    try:
        folder = cuda_root(find_nvcc()) / "include"
    except EnvironmentMissingError:
        folder = Path()
    if not (folder / "cuda_occupancy.h").is_file() or shutil.which("g++") is None:
        pytest.skip("no cuda_occupancy.h or g++ here: not compared")
    return folder


def test_it_agrees_with_cuda_s_own_calculator(tmp_path: Path) -> None:
    (tmp_path / "calculator.cpp").write_text(CALCULATOR, encoding="utf-8")
    command = ["g++", "-w", "-isystem", str(cuda_include()), "calculator.cpp", "-o", "calculator"]
    subprocess.run(command, cwd=tmp_path, check=True)
    cases = [
        (arch, threads, registers, shared)
        for arch in ARCHS
        for threads in (32, 96, 128, 200, 256, 768, 1024)
        for registers in (16, 32, 33, 63, 64, 100, 128, 168, 255)
        for shared in (0, 1, 4096, 20000, 48 << 10)
    ]
    lines: list[str] = []
    for arch, threads, registers, shared in cases:
        unit = multiprocessor(arch)
        assert unit is not None
        device = f"{arch.replace('.', ' ')} {unit.warps} {unit.shared_bytes} {unit.reserved_bytes}"
        lines.append(f"{device} {threads} {registers} {shared}")
    done = subprocess.run(
        ["./calculator"], cwd=tmp_path, input="\n".join(lines), capture_output=True, text=True, check=True
    )
    theirs = [int(line) for line in done.stdout.split()]
    assert len(theirs) == len(cases)
    for (arch, threads, registers, shared), blocks in zip(cases, theirs, strict=True):
        ours = occupancy(arch, threads=threads, registers=registers, shared_bytes=shared)
        assert ours is not None
        assert ours.blocks == blocks, (arch, threads, registers, shared, ours)


def test_the_scarcest_resource_is_named() -> None:
    by_registers = occupancy("sm_90", threads=128, registers=168)
    assert by_registers is not None
    assert (by_registers.blocks, by_registers.share, by_registers.limited_by) == (3, 0.1875, "registers")
    by_memory = occupancy("sm_90a", threads=128, registers=32, shared_bytes=100_000)
    assert by_memory is not None
    assert (by_memory.blocks, by_memory.limited_by) == (2, "shared memory")
    by_blocks = occupancy("9.0", threads=32, registers=16)
    assert by_blocks is not None
    assert (by_blocks.share, by_blocks.limited_by) == (0.5, "blocks")


def test_registers_that_let_more_blocks_fit() -> None:
    limit = registers_for("sm_90", threads=256, blocks=4)
    assert limit == 64
    fits, next_one = (occupancy("sm_90", threads=256, registers=count) for count in (64, 65))
    assert fits is not None
    assert next_one is not None
    assert (fits.blocks, next_one.blocks) == (4, 3)
    assert registers_for("sm_90", threads=1024, blocks=4) is None


@pytest.mark.parametrize("arch", ["sm_35", "", "gfx90a", "sm_90x"])
def test_an_unknown_architecture_has_no_occupancy(arch: str) -> None:
    assert occupancy(arch, threads=128, registers=32) is None
