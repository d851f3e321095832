"""What is handed to the driver has the form that its header says."""

import ctypes
import json
import subprocess
from pathlib import Path

import pytest

from stitch_tools.compile.toolchain import cuda_root, find_cpp_compiler, find_nvcc
from stitch_tools.worker import exported_memory
from stitch_tools.worker.cuda_driver import DriverError

SOURCE = """
#include <cuda.h>
#include <cstddef>
#include <cstdio>
int main() {
  std::printf("[%zu, %zu, %zu, %zu, %zu, %d, %d, %d, %d, %d, %d]",
      sizeof(CUmemAllocationProp), offsetof(CUmemAllocationProp, location),
      offsetof(CUmemAllocationProp, allocFlags), sizeof(CUmemAccessDesc), offsetof(CUmemAccessDesc, flags),
      CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
}
"""


@pytest.mark.nvcc
def test_structures_and_numbers_are_those_of_the_toolkits_header(tmp_path: Path) -> None:
    include, compiler = cuda_root(find_nvcc()) / "include", find_cpp_compiler().path
    source, program = tmp_path / "form.cpp", tmp_path / "form"
    source.write_text(SOURCE, encoding="utf-8")
    subprocess.run([compiler, source, "-I", include, "-o", program], check=True, timeout=60)
    told = json.loads(subprocess.run([program], capture_output=True, check=True, timeout=10).stdout)
    ours, access = exported_memory.Properties, exported_memory.AccessDescriptor
    assert told == [
        ctypes.sizeof(ours),
        ours.location.offset,
        ours.flags.offset,
        ctypes.sizeof(access),
        access.flags.offset,
        exported_memory._PLAIN,
        exported_memory._DEVICE_ORDINAL,
        exported_memory._READ_WRITE,
        exported_memory._AS_DESCRIPTOR,
        exported_memory._CAN_MAP,
        exported_memory._CAN_EXPORT,
    ]


def test_without_a_driver_it_says_so() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("a driver is here")
    with pytest.raises(DriverError, match="driver"):
        exported_memory.require_support(0)
