"""The kernel that spoils shared memory is assembled for every GPU; where there is none, that is said."""

import subprocess
from pathlib import Path

import pytest

from stitch_tools.compile.toolchain import find_nvcc
from stitch_tools.worker.candidate.shared_memory import PTX, SharedMemory


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_the_kernel_is_assembled(arch: str, tmp_path: Path) -> None:
    nvcc = find_nvcc()
    source = tmp_path / "spoil.ptx"
    source.write_bytes(PTX)
    command = [nvcc.path, "--cubin", f"-arch={arch}", source, "-o", tmp_path / "spoil.cubin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"stitch_spoil_shared" in (tmp_path / "spoil.cubin").read_bytes()


def test_where_it_cannot_be_done_the_reason_is_kept_and_nothing_fails() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU here")
    memory = SharedMemory()
    memory.spoil(0)
    assert memory.reason != ""
