"""Headers of stitched programs for CUDA stand together: a program includes those of all its operations."""

import subprocess
from pathlib import Path

import pytest

from stitch_planner.stitcher.emit.cuda.testing import cuda_headers
from stitch_tools.compile.headers import native_include
from stitch_tools.compile.toolchain import find_nvcc

# exports.cuh needs the program's own class; host_rows.cuh stands in for others on the host.
ALONE = {"exports.cuh", "host_rows.cuh"}


def all_headers() -> str:
    names = sorted(path.name for path in (cuda_headers() / "stitch" / "cuda").glob("*.cuh"))
    assert len(names) > 40
    return "".join(f'#include "stitch/cuda/{name}"\n' for name in names if name not in ALONE)


@pytest.mark.nvcc
def test_all_headers_compile_together(tmp_path: Path) -> None:
    (tmp_path / "all.cu").write_text(all_headers(), encoding="utf-8")
    folders = [f"-I{folder}" for folder in (cuda_headers(), native_include())]
    command = [str(find_nvcc().path), "-std=c++17", "-cubin", "-arch=sm_90a", *folders, "all.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
