"""Answers without a GPU: from recorded reports of the real ptxas and nvdisasm, and from the sources."""

import gzip
import shutil
from pathlib import Path

import pytest

from stitch_tools.compile.build import compile_program
from stitch_tools.compile.resources import parse_resources
from stitch_tools.errors import EnvironmentMissingError
from stitch_tools.judge.source.cuda_source import CudaSource, parse_cuda
from stitch_tools.models.profile import KernelProfile
from stitch_tools.profile.index_patterns import index_findings
from stitch_tools.profile.lane_values import bank_ways, sectors
from stitch_tools.profile.sass import Disassembler, find_disassembler, parse_sass
from stitch_tools.profile.static_kernels import kernel_profiles, launch_blocks, static_profiles
from stitch_tools.storage.store import Store
from tests.tools.compile_support import EMPTY_PROGRAM, store_program

HERE = Path(__file__).parent


def text_of(name: str) -> str:
    return (HERE / "planted" / f"{name}.cu").read_text(encoding="utf-8")


def sass_of(name: str) -> str:
    return gzip.decompress((HERE / "recorded" / f"{name}.sass.gz").read_bytes()).decode("utf-8")


def profile_of(name: str, kernel: str, *, disassembled: bool = False) -> KernelProfile:
    """The kernel's profile from what was recorded."""
    rows = parse_resources((HERE / "recorded" / f"{name}.ptxas.txt").read_text(encoding="utf-8"))
    sass = parse_sass(sass_of(name)) if disassembled else ()
    profiles = kernel_profiles(rows, {f"{name}.cu": text_of(name)}, sass)
    return next(profile for profile in profiles if kernel in profile.kernel)


def parsed(text: str) -> CudaSource:
    return parse_cuda("kernel.cu", text.encode(), lambda line: line + 1, frozenset())


def kernel(body: str, *, before: str = "", parameters: str = "float* in, float* out, int n") -> CudaSource:
    return parsed(f"{before}\n__global__ void k({parameters}) {{\n{body}\n}}\n")


@pytest.mark.parametrize(
    ("name", "of", "question", "verdict", "disassembled"),
    [
        ("uncoalesced", "transpose", "coalescing", "uncoalesced", False),
        ("bank_conflicts", "column_sums", "bank_conflicts", "32-way", False),
        ("low_occupancy", "chase", "occupancy", "registers", False),
        ("spills", "recurrence", "spills", "spilled", True),
        ("no_tensor_cores", "product", "tensor_cores", "unused", True),
    ],
)
def test_a_fault_that_the_build_or_the_source_shows_is_named_first(
    name: str, of: str, question: str, verdict: str, disassembled: bool
) -> None:
    profile = profile_of(name, of, disassembled=disassembled)
    first = profile.answers[0]
    assert (first.question, first.verdict, first.is_problem) == (question, verdict, True)
    assert first.action
    assert first.saves_share is None  # nothing ran
    if question != "occupancy":
        assert first.file == f"{name}.cu"
        assert first.line is not None


@pytest.mark.parametrize("name", ["tiny_grid", "tail_wave", "divergent", "sync_in_loop"])
def test_what_only_a_run_can_show_is_not_claimed(name: str) -> None:
    rows = parse_resources((HERE / "recorded" / f"{name}.ptxas.txt").read_text(encoding="utf-8"))
    for profile in kernel_profiles(rows, {f"{name}.cu": text_of(name)}):
        assert [answer.question for answer in profile.answers if answer.is_problem] == []
        unknown = {answer.question for answer in profile.answers if answer.verdict == "unknown"}
        assert unknown == {"vector_width", "tensor_cores"}


def test_the_line_of_a_scattered_access_is_where_it_stands() -> None:
    line = profile_of("uncoalesced", "transpose").answers[0].line
    assert line is not None
    assert "in[column * kSize + row]" in text_of("uncoalesced").splitlines()[line - 1]


def test_spills_lie_on_the_line_that_the_machine_code_blames() -> None:
    line = profile_of("spills", "recurrence", disassembled=True).answers[0].line
    assert line is not None
    assert "values[i]" in text_of("spills").splitlines()[line - 1]


def test_machine_code_is_counted_by_width() -> None:
    (narrow,) = parse_sass(sass_of("uncoalesced"))
    (wide,) = parse_sass(sass_of("tiny_grid"))
    (spilled,) = parse_sass(sass_of("spills"))
    (product,) = parse_sass(sass_of("no_tensor_cores"))
    assert narrow.symbol == "_Z9transposePKfPf"
    assert dict(narrow.global_bits) == {32: 2}
    assert dict(wide.global_bits) == {128: 2}
    assert (spilled.local, spilled.tensor) == (503, 0)
    assert product.fused >= 512  # and two that only load constants
    assert product.shared_bits[128] == 32
    assert {place.line for place in narrow.narrow_places} == {9}


def test_both_disassemblers_are_read() -> None:
    text = """
\t\tFunction : _Z1kPf
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                 /* 0x00000a00ff017b82 */
                                                                          /* 0x000fe20000000800 */
        /*0010*/              @!P0 LDG.E.64.CONSTANT R2, desc[UR4][R2.64] ; /* 0x0000000402027981 */
        /*0020*/                   HGMMA.64x128x16.F32 R24, gdesc[UR4], R24 ; /* 0x0 */
        /*0030*/                   LDGSTS.E.BYPASS.LTC128B.128 [R5], desc[UR6][R2.64] ; /* 0x0 */
"""
    (found,) = parse_sass(text)
    assert (found.symbol, found.instructions, found.tensor) == ("_Z1kPf", 4, 1)
    assert dict(found.global_bits) == {64: 1, 128: 1}
    assert parse_sass("no code at all") == ()


@pytest.mark.parametrize(
    ("body", "before", "passes"),
    [
        ("__shared__ float t[32][32]; out[threadIdx.x] = t[threadIdx.x][n];", "", 32),
        ("__shared__ float t[32][33]; out[threadIdx.x] = t[threadIdx.x][n];", "", None),
        ("__shared__ float t[32][32]; out[threadIdx.x] = t[n][threadIdx.x];", "", None),
        ("__shared__ float t[32][32]; out[threadIdx.x] = t[threadIdx.x / 8][n];", "", 4),
        ("__shared__ float t[1024]; const int lane = threadIdx.x; t[lane * 8] = 0.0f;", "", 8),
        ("__shared__ float t[kRow * 32]; t[threadIdx.x * kRow] = 0.0f;", "constexpr int kRow = 16;", 16),
        ("__shared__ float t[4096]; t[threadIdx.x * n] = 0.0f;", "", None),
        ("__shared__ double t[64][32]; t[threadIdx.x][0] = 0.0;", "", 16),
        ("__shared__ float t[32][32]; float t2[4]; out[threadIdx.x] = t2[threadIdx.x];", "", None),
    ],
)
def test_conflicts_of_simple_indices_are_counted(body: str, before: str, passes: int | None) -> None:
    found = [row for row in index_findings(kernel(body, before=before)) if row.memory == "shared"]
    assert [row.passes for row in found] == ([] if passes is None else [passes])


@pytest.mark.parametrize(
    ("body", "touched"),
    [
        ("const int i = blockIdx.x * blockDim.x + threadIdx.x; out[i] = 1.0f;", None),
        ("const int i = blockIdx.x * blockDim.x + threadIdx.x; out[i * n] = 1.0f;", 32),
        ("for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = in[i];", None),
        ("int i = threadIdx.x; i += n; out[i] = 1.0f;", None),
        ("out[threadIdx.x * 4 + 1] = 1.0f;", 16),
        ("if (threadIdx.x < 2) out[threadIdx.x * 64] = 1.0f;", None),
        ("out[table[threadIdx.x] * 64] = 1.0f;", None),
        ("out[n] = in[blockIdx.x * 1024];", None),
        ("out[static_cast<size_t>(threadIdx.x) * 128 + n] = 1.0f;", 32),
    ],
)
def test_scattered_accesses_of_simple_indices_are_counted(body: str, touched: int | None) -> None:
    found = [row for row in index_findings(kernel(body)) if row.memory == "global"]
    assert [row.passes for row in found] == ([] if touched is None else [touched])


def test_the_block_s_shape_decides_what_a_warp_is() -> None:
    body = "__shared__ float t[32][32]; out[threadIdx.x] = t[threadIdx.y][threadIdx.x];"
    assert index_findings(kernel(body), {"k": (32, 8, 1)}) == ()
    (found,) = index_findings(kernel(body), {"k": (4, 32, 1)})
    assert found.passes == 8


def test_block_sizes_come_from_launches_and_bounds() -> None:
    text = """
constexpr int kTile = 32;
__global__ void __launch_bounds__(kTile * 4) unknown(float* p) { p[0] = 1; }
__global__ void __launch_bounds__(192, 2) bound(float* p) { p[0] = 1; }
__global__ void two(float* p) { p[0] = 1; }
template <int N> __global__ void plain(float* p) { p[0] = N; }
__global__ void runtime(float* p) { p[0] = 1; }
void run(float* p, int threads) {
  two<<<8, dim3(kTile, 8)>>>(p);
  plain<4><<<8, 512, 0, 0>>>(p);
  runtime<<<8, threads>>>(p);
}
"""
    found = launch_blocks([parsed(text)], {"kernel.cu": text})
    assert found == {"bound": (192, 1, 1), "two": (32, 8, 1), "plain": (512, 1, 1)}


def test_addresses_are_counted_by_bank_and_sector() -> None:
    row = [4 * lane for lane in range(32)]
    assert (bank_ways(row, 4), sectors(row, 4)) == (1, 4)
    column = [128 * lane for lane in range(32)]
    assert (bank_ways(column, 4), sectors(column, 4)) == (32, 32)
    same = [0] * 32
    assert (bank_ways(same, 4), sectors(same, 4)) == (1, 1)
    vectors = [16 * lane for lane in range(32)]
    assert (bank_ways(vectors, 16), sectors(vectors, 16)) == (1, 16)


KERNEL = """
__global__ void turn(const float* in, float* out) {
  __shared__ float tile[32][32];
  tile[threadIdx.y][threadIdx.x] = in[threadIdx.y * 32 + threadIdx.x];
  __syncthreads();
  out[threadIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
void launch(const float* in, float* out) { turn<<<1, dim3(32, 32)>>>(in, out); }
"""


@pytest.mark.nvcc
def test_a_built_program_is_advised_without_a_gpu(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    sources = {"main.cu": EMPTY_PROGRAM + KERNEL}
    program = store_program(store, sources, main="main.cu", target="cuda:sm_90")
    built = compile_program(program, store, cache_dir=tmp_path / "cache")
    report = static_profiles(built, sources)
    (profile,) = report.kernels
    assert (profile.block, profile.shared_bytes) == ((32, 32, 1), 4096)
    assert profile.answers[0].question == "bank_conflicts"
    assert profile.answers[0].line == 6 + EMPTY_PROGRAM.count("\n")
    assert profile.theoretical_occupancy == 1.0
    width = next(answer for answer in profile.answers if answer.question == "vector_width")
    if shutil.which("nvdisasm") and shutil.which("cuobjdump"):
        assert width.verdict == "32 bits"
    else:
        assert any("nvdisasm" in sentence or "cuobjdump" in sentence for sentence in report.not_measured)


def test_disassemblers_are_found_in_a_wheel_of_the_target_interpreter(tmp_path: Path) -> None:
    folder = tmp_path / "lib" / "python3.12" / "site-packages" / "nvidia" / "cu13" / "bin"
    folder.mkdir(parents=True)
    for name in ("cuobjdump", "nvdisasm"):
        (folder / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    try:
        here = find_disassembler()
    except EnvironmentMissingError as error:
        assert "nvidia-cuda-nvdisasm" in (error.hint or "")  # noqa: PT017 (both outcomes are right)
        here = Disassembler(folder / "cuobjdump", folder / "nvdisasm")
    assert find_disassembler([tmp_path]) == here
