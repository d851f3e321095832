"""CUDA programs are built for several architectures on a machine without a GPU."""

import subprocess
from pathlib import Path

import pytest

from stitch_tools.compile.build import compile_program
from stitch_tools.compile.elf import ABI_SYMBOLS, exported_symbols
from stitch_tools.compile.nvcc import archs_for, code_options, requested_arch
from stitch_tools.errors import UsageError
from stitch_tools.models.program import Build
from stitch_tools.storage.store import Store
from tests.tools.compile_support import EMPTY_PROGRAM, store_program

KERNEL = """
#include <cuda_runtime.h>
template <int N> __global__ void reverse(float* data) {
  __shared__ float tile[N];
  tile[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = tile[N - 1 - threadIdx.x];
}
void launch(float* data, cudaStream_t stream) { reverse<32><<<1, 32, 0, stream>>>(data); }
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def build(store: Store, source: str, archs: tuple[str, ...] = ()) -> Build:
    program = store_program(store, {"main.cu": source}, main="main.cu", target="cuda:sm_90")
    return compile_program(program, store, cache_dir=store.root.parent / "cäche dir", archs=archs)


@pytest.mark.nvcc
def test_a_program_is_built_for_three_architectures_with_resources_for_each(store: Store) -> None:
    made = build(store, EMPTY_PROGRAM + KERNEL, ("sm_100", "sm_80", "sm_90"))
    assert made.ok, made.diagnostics
    assert made.toolchain == "nvcc"
    assert made.archs == ("sm_80", "sm_90", "sm_100")
    rows = {(row.arch, row.kernel): row for row in made.resources}
    assert set(rows) == {(arch, "void reverse<32>(float*)") for arch in made.archs}
    assert all(row.shared_bytes == 128 and row.spill_store_bytes == 0 for row in rows.values())
    assert build(store, EMPTY_PROGRAM + KERNEL, ("sm_80", "sm_90", "sm_100")).cache_hit


@pytest.mark.nvcc
def test_the_library_carries_its_own_runtime_and_hides_it(store: Store) -> None:
    made = build(store, EMPTY_PROGRAM + KERNEL)
    assert made.artifact is not None
    linked = subprocess.run(["ldd", made.artifact], check=True, capture_output=True, text=True).stdout
    assert "cuda" not in linked.replace(made.artifact, "")
    exported = exported_symbols(Path(made.artifact))
    assert not [name for name in exported if name.startswith("cuda")]
    assert {name for name in exported if name.startswith("stitch")} == set(ABI_SYMBOLS)


@pytest.mark.nvcc
def test_the_recorded_command_repeats_the_build(store: Store, tmp_path: Path) -> None:
    made = build(store, EMPTY_PROGRAM + KERNEL)
    program = store_program(store, {"main.cu": EMPTY_PROGRAM + KERNEL}, main="main.cu")
    store.materialize(program.files, tmp_path / "again")
    subprocess.run(made.command, cwd=tmp_path / "again", check=True, capture_output=True)
    assert set(ABI_SYMBOLS) <= exported_symbols(tmp_path / "again" / "libprogram.so")


@pytest.mark.nvcc
def test_too_much_shared_memory_is_a_diagnostic_of_ptxas(store: Store) -> None:
    made = build(store, EMPTY_PROGRAM + KERNEL.replace("tile[N]", "tile[N * 10000]"))
    assert not made.ok
    assert any("too much shared data" in row.message for row in made.diagnostics)


@pytest.mark.nvcc
def test_an_error_in_a_kernel_names_its_line(store: Store) -> None:
    made = build(store, "__global__ void k(float* p) {\n  p[0] = __shfl_dwn_sync(1, 2, 3);\n}\n")
    assert (made.diagnostics[0].file, made.diagnostics[0].line) == ("main.cu", 2)
    assert made.diagnostics[0].source_line == "  p[0] = __shfl_dwn_sync(1, 2, 3);"


@pytest.mark.nvcc
def test_an_unknown_architecture_is_a_diagnostic(store: Store) -> None:
    made = build(store, EMPTY_PROGRAM, ("sm_99",))
    assert not made.ok
    assert any("nsupported gpu architecture" in row.message for row in made.diagnostics)


def test_architectures_are_sorted_and_checked() -> None:
    assert archs_for("cuda:sm_90") == ("sm_90",)
    assert archs_for("cuda") == ("sm_90",)
    assert archs_for("cuda:sm_90", ("sm_100", "sm_80", "sm_90a", "sm_80")) == ("sm_80", "sm_90a", "sm_100")
    with pytest.raises(UsageError, match="compute_90"):
        archs_for("cuda:sm_90", ("compute_90",))


def test_code_for_sm_90_has_the_instructions_of_sm_90a_and_is_called_what_was_asked_for() -> None:
    assert code_options(("sm_80", "sm_90")) == (
        "arch=compute_80,code=sm_80",
        "arch=compute_90a,code=sm_90a",
    )
    assert code_options(("sm_90", "sm_90a")) == ("arch=compute_90a,code=sm_90a",)
    assert requested_arch("sm_90a", ("sm_90",)) == "sm_90"
    assert requested_arch("sm_90a", ("sm_90", "sm_90a")) == "sm_90a"
    assert requested_arch("sm_100", ("sm_100",)) == "sm_100"
