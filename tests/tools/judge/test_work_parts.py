"""The parts of the work evidence: own files and kernels, kernels by caller, time inside of operators."""

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from stitch_tools.storage.store import Store
from stitch_tools.worker.candidate.activity.kernels import (
    Attributor,
    OwnKernels,
    block_work,
    declared_kernels,
    identifier_of,
    lost_launches,
    own_kernels,
    read_trace,
    stub_kernels,
)
from stitch_tools.worker.candidate.activity.objects import (
    is_own,
    libraries,
    own_files,
    past_dispatcher,
)
from stitch_tools.worker.candidate.activity.operators import operator_time
from stitch_tools.worker.runtime.native import NativeProgram
from tests.tools.check_support import build
from tests.tools.work_cases import CASES

C_FUNCTION = """
#include <dlfcn.h>
void* product(void* torch) { return dlsym(torch, "aoti_torch_cpu_mm_out"); }
"""
LINKED = """
void _ZN2at3cpu6mm_outERNS_6TensorERKS1_S4_(void*, void*, void*);
void _ZN2at4_ops2mm4callERKNS_6TensorES4_(void*, void*, void*);
void _ZN2at4cuda20getCurrentCUDAStreamEa(void*);
void run(void* x) {
  _ZN2at3cpu6mm_outERNS_6TensorERKS1_S4_(x, x, x);
  _ZN2at4_ops2mm4callERKNS_6TensorES4_(x, x, x);
  _ZN2at4cuda20getCurrentCUDAStreamEa(x);
}
"""


def compile_library(folder: Path, name: str, source: str) -> Path:
    """A shared library of this C source."""
    (folder / f"{name}.c").write_text(source, encoding="utf-8")
    target = folder / f"lib{name}.so"
    command = ["g++", "-O2", "-fPIC", "-shared", "-x", "c", f"{name}.c", "-o", str(target)]
    subprocess.run(command, cwd=folder, check=True)
    return target


@pytest.mark.parametrize(
    ("source", "found"),
    [(C_FUNCTION, ["mm_out"]), (LINKED, ["mm_out"]), ("int one(void) { return 1; }", [])],
    ids=["C function", "linked", "none"],
)
def test_operators_that_a_binary_can_call_past_the_dispatcher_are_named(
    source: str, found: list[str], tmp_path: Path
) -> None:
    assert past_dispatcher([str(compile_library(tmp_path, "program", source))]) == found


def test_a_loaded_file_is_the_program_s_where_it_lies_in_its_folders_or_in_none_that_is_known(
    tmp_path: Path,
) -> None:
    path = compile_library(tmp_path, "own", "int one(void) { return 1; }")
    ctypes.CDLL(str(path))
    inside = (str(tmp_path),)
    assert str(path) in own_files(inside)
    assert str(path) in own_files((str(path),))
    torch_library = str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")
    assert not is_own(torch_library, ("/",))
    assert libraries(["/usr/lib/libdnnl.so.3", torch_library, "/usr/lib/libm.so.6", str(path)], inside) == [
        "libdnnl.so.3"
    ]


# Symbols of a library that nvcc 13.0 built.
SYMBOLS = [
    "_Z24__device_stub__Z5cnamePfPf",
    "_Z30__device_stub__ZN2ns5plainEPfiPfi.cold",
    "_ZZL23__device_stub__Z4statPfPfE8__handle",
    "_ZGVZL32__device_stub__Z4tmplIfLi3EEvPT_PfE5__tmp",
    "_ZN2ns5plainEPfi",
    "cudaLaunchKernel",
]


def test_own_kernels_are_read_from_their_host_stubs() -> None:
    assert stub_kernels(SYMBOLS) == {
        "cname",
        "cname(float*)",
        "ns::plain(float*, int)",
        "stat",
        "stat(float*)",
        "void tmpl<float, 3>(float*)",
    }


def test_kernels_that_a_source_declares_are_found_behind_their_attributes() -> None:
    source = """
    template <class T> __global__ void __launch_bounds__(256, 2) first(const T* x) {}
    static __global__ __launch_bounds__(128) void second (int n);
    extern "C" __global__ void __cluster_dims__(2, 1, 1) third(float*) {}
    @triton.jit
    def fourth(x): pass
    """
    assert declared_kernels(source) == {"first", "second", "third", "fourth"}


@pytest.mark.parametrize(
    ("name", "identifier"),
    [
        ("void ns::(anonymous namespace)::rows<4, float>(float*, int)", "rows"),
        ("plain(float*)", "plain"),
        ("cname", "cname"),
    ],
)
def test_a_kernel_s_identifier_is_its_last_name(name: str, identifier: str) -> None:
    assert identifier_of(name) == identifier


@dataclass
class TraceEvent:
    """An activity record as kineto gives it; without `kind` as torch 2.6 did."""

    text: str
    start: int
    device: str = "CPU"
    kind: str | None = None
    correlation: int = 0
    linked: int = 0
    took: int = 10
    node: int | None = None

    def name(self) -> str:
        return self.text

    def start_ns(self) -> int:
        return self.start

    def duration_ns(self) -> int:
        return self.took

    def device_type(self) -> str:
        return f"DeviceType.{self.device}"

    def correlation_id(self) -> int:
        return self.correlation

    def linked_correlation_id(self) -> int:
        return self.linked

    def is_user_annotation(self) -> bool:
        return self.kind == "user_annotation"

    def __getattr__(self, name: str) -> Any:
        if name == "activity_type" and self.kind is not None:
            return lambda: self.kind
        if name == "metadata_json" and self.node is not None:
            return lambda: f'"stream": 7, "graph node id": {self.node}'
        raise AttributeError(name)


OWN = OwnKernels(frozenset({"mine(float*)"}), frozenset({"from_source"}))
GEMM = "sm90_xmma_gemm_f32f32"


def owners(events: list[TraceEvent]) -> dict[str, str]:
    """Owner by name of what ran in the block that spans everything."""
    block = TraceEvent("stitch::block-0", 0, kind="user_annotation", took=1_000_000)
    trace = read_trace([block, *events])
    _, launches = block_work(trace, Attributor(trace, OWN), "stitch::block-0")
    return {name: owner for owner, name in launches}


@pytest.mark.parametrize("kinds", [True, False])
def test_kernels_are_told_apart_by_who_launched_them(kinds: bool) -> None:
    def kind(name: str) -> str | None:
        return name if kinds else None

    def kernel(name: str, start: int, linked: int = 0, what: str = "kernel") -> TraceEvent:
        return TraceEvent(name, start, "CUDA", kind(what), correlation=start, linked=linked)

    found = owners(
        [
            TraceEvent("aten::mm", 5, kind=kind("cpu_op"), correlation=1),
            TraceEvent("mine::op", 6, kind=kind("cpu_op"), correlation=2),
            kernel("under_aten", 10, linked=1),
            kernel(GEMM, 20, linked=2),
            kernel("mine(float*)", 30),
            kernel("void from_source<4>(int)", 40),
            kernel("void at::native::copy_kernel()", 50),
            kernel("Memcpy DtoD (Device -> Device)", 60, 1, "gpu_memcpy"),
        ]
    )
    assert found == {
        "under_aten": "pytorch",
        GEMM: "library",
        "mine(float*)": "own",
        "void from_source<4>(int)": "own",
        "void at::native::copy_kernel()": "pytorch",
        "Memcpy DtoD (Device -> Device)": "copy",
    }


def graph_events(*, order: tuple[int, int, int] = (0, 1, 2), nodes: bool = True) -> list[TraceEvent]:
    """A graph of a product under ATen, an own kernel and a library's product; replayed in another order."""
    names = (GEMM, "mine(float*)", f"{GEMM}_too")
    captured = [
        TraceEvent("aten::mm", 1, kind="cpu_op", correlation=1),
        TraceEvent("cudaStreamBeginCapture", 2, kind="cuda_runtime", correlation=99, took=1),
        TraceEvent("cudaLaunchKernel", 3, kind="cuda_runtime", correlation=100, linked=1, took=2),
        TraceEvent("cuLaunchKernel", 4, kind="cuda_driver", correlation=110, took=1),
        TraceEvent("cudaLaunchKernel", 5, kind="cuda_runtime", correlation=101, took=1),
        TraceEvent("cudaLaunchKernelExC", 6, kind="cuda_runtime", correlation=102, took=1),
        TraceEvent("cudaStreamEndCapture", 7, kind="cuda_runtime", correlation=103, took=1),
        TraceEvent("cudaMemcpyAsync", 8, kind="cuda_runtime", correlation=104, took=1),
        TraceEvent("cudaGraphLaunch", 9, kind="cuda_runtime", correlation=200, took=1),
    ]
    ran = [
        TraceEvent(names[index], 10 + 10 * place, "CUDA", "kernel", 200, node=index + 1 if nodes else None)
        for place, index in enumerate(order)
    ]
    return captured + ran


def test_kernels_of_a_graph_are_joined_to_their_launches_at_capture() -> None:
    expected = {GEMM: "pytorch", "mine(float*)": "own", f"{GEMM}_too": "library"}
    assert owners(graph_events()) == expected
    assert owners(graph_events(order=(2, 0, 1))) == expected
    assert owners(graph_events(nodes=False)) == expected


def test_a_graph_that_cannot_be_joined_counts_as_pytorch_s_where_pytorch_was_captured() -> None:
    events = [event for event in graph_events() if event.correlation != 102]
    assert owners(events) == {GEMM: "pytorch", "mine(float*)": "own", f"{GEMM}_too": "pytorch"}
    without = [event for event in events if event.text != "aten::mm"]
    assert owners(without) == {GEMM: "library", "mine(float*)": "own", f"{GEMM}_too": "library"}


def lost(events: list[TraceEvent]) -> int:
    block = TraceEvent("stitch::block-0", 0, kind="user_annotation", took=1_000_000)
    return lost_launches(read_trace([block, *events]), "stitch::block-0")


def test_launches_without_a_record_are_counted_as_lost() -> None:
    launches = [
        TraceEvent("cudaLaunchKernel", 10, kind="cuda_runtime", correlation=1, took=5),
        TraceEvent("cuLaunchKernel", 12, kind="cuda_driver", correlation=2, took=1),
        TraceEvent("cudaLaunchKernelExC", 20, kind="cuda_runtime", correlation=3, took=5),
        TraceEvent("cudaGraphLaunch", 30, kind="cuda_runtime", correlation=4, took=5),
        TraceEvent("cudaMemcpyAsync", 40, kind="cuda_runtime", correlation=5, took=5),
    ]
    ran = [TraceEvent("mine(float*)", 50 + at, "CUDA", "kernel", correlation=at) for at in (1, 3, 4)]
    assert lost(launches + ran) == 0
    assert lost([*launches, ran[0], TraceEvent("mine(float*)", 52, "CUDA", "kernel", correlation=2)]) == 2
    assert lost(launches) == 3


def test_launches_that_go_into_a_graph_are_not_lost() -> None:
    assert lost(graph_events()) == 0
    assert lost([event for event in graph_events() if event.device == "CPU"]) == 1


def seen(events: list[TraceEvent]) -> tuple[dict[str, int], int]:
    """Nanoseconds by operator, and outside of all."""
    found = operator_time([TraceEvent("stitch::block-0", 100, kind="user_annotation", took=1000), *events])
    return dict(found.nanoseconds), found.outside_ns


def test_time_inside_of_operators_counts_once_for_the_outermost_that_computes() -> None:
    nested = [
        TraceEvent("aten::linear", 200, kind="cpu_op", took=300),
        TraceEvent("aten::addmm", 200, kind="cpu_op", took=250),
        TraceEvent("aten::reshape", 600, kind="cpu_op", took=100),
        TraceEvent("aten::copy_", 620, kind="cpu_op", took=50),
        TraceEvent("aten::empty", 800, kind="cpu_op", took=90),
        TraceEvent("mine::op", 900, kind="cpu_op", took=90),
    ]
    assert seen(nested) == ({"aten::linear": 300, "aten::copy_": 50}, 650)


def test_operators_of_several_threads_at_once_count_once_and_those_beside_a_block_not_at_all() -> None:
    overlapping = [
        TraceEvent("aten::mm", 50, kind="cpu_op", took=100),
        TraceEvent("aten::mm", 300, kind="cpu_op", took=200),
        TraceEvent("aten::tanh", 400, kind="cpu_op", took=200),
        TraceEvent("aten::exp", 1050, kind="cpu_op", took=500),
        TraceEvent("aten::exp", 2000, kind="cpu_op", took=500),
    ]
    assert seen(overlapping) == ({"aten::mm": 250, "aten::tanh": 100, "aten::exp": 50}, 600)


def test_a_call_that_the_machine_interrupted_does_not_count() -> None:
    marks = [TraceEvent("stitch::block-0", 1000 * at, kind="user_annotation", took=100) for at in range(4)]
    late = TraceEvent("stitch::block-4", 9000, kind="user_annotation", took=5000)
    operators = [TraceEvent("aten::mm", 1000 * at, kind="cpu_op", took=80) for at in (*range(4), 9)]
    found = operator_time([*marks, late, *operators])
    assert (dict(found.nanoseconds), found.outside_ns, found.calls) == ({"aten::mm": 320}, 80, 4)


@pytest.mark.nvcc
def test_kernels_of_a_binary_from_nvcc_are_found(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    case = next(case for case in CASES if case.name == "native own kernels")
    built = build(case.program(store), store)
    assert built.artifact is not None, built.diagnostics
    _program = NativeProgram(built.artifact, ())
    names = own_kernels((built.artifact,), None).names
    assert {"own_product(float const*, float*, int)", "never_launched(float*)"} <= names
    assert any(identifier_of(name) == "own_tanh" for name in names)
