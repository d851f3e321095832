"""The parts of the work evidence: gates before launches, kernels by caller, names of own kernels."""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from stitch_tools.storage.store import Store
from stitch_tools.worker.candidate.activity import objects
from stitch_tools.worker.candidate.activity.gates import Gates
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
from stitch_tools.worker.candidate.activity.near import PAGE, Memory, rest_of_code
from stitch_tools.worker.candidate.activity.objects import Belongings, executable_mappings
from stitch_tools.worker.candidate.activity.samples import library_caller
from stitch_tools.worker.candidate.native import NativeProgram, ProgramError
from stitch_tools.worker.elf import open_elf
from tests.tools.check_support import build
from tests.tools.work_cases import CASES

# The CUDA runtime as nvcc links it in: a local function, far away, that is called, or jumped to at the end.
STATIC = """
#define SEEN __attribute__((visibility("default")))
static int launched;
__attribute__((noinline, used)) static int cudaLaunchKernel(int by) { launched += by; return 77; }
SEEN int run(int by) { int status = cudaLaunchKernel(by); return status + by; }
SEEN __attribute__((aligned(4096))) int last(int by) { return cudaLaunchKernel(by + 1); }
SEEN int total(void) { return launched; }
"""
SHARED_RUNTIME = """
static int launched;
int cudaLaunchKernel(int by) { launched += by; return 77; }
int total(void) { return launched; }
"""
SHARED_PROGRAM = """
int cudaLaunchKernel(int by);
int total(void);
int run(int by) { int status = cudaLaunchKernel(by); return status + by; }
int last(int by) { return cudaLaunchKernel(by + 1); }
"""


def compile_library(folder: Path, name: str, source: str, *more: str) -> Path:
    """A shared library of this C source."""
    (folder / f"{name}.c").write_text(source, encoding="utf-8")
    target = folder / f"lib{name}.so"
    as_c = ["-x", "c", f"{name}.c", "-x", "none"]
    command = ["g++", "-O2", "-fPIC", "-shared", *as_c, *more, "-o", str(target)]
    subprocess.run(command, cwd=folder, check=True)
    return target


def static_program(folder: Path) -> Path:
    return compile_library(folder, "linked_in", STATIC, "-fvisibility=hidden")


def shared_program(folder: Path) -> Path:
    runtime = compile_library(folder, "runtime", SHARED_RUNTIME)
    return compile_library(folder, "program", SHARED_PROGRAM, str(runtime), "-Wl,-z,now,-z,relro")


def shared_program_of_cuda_13(folder: Path) -> Path:
    """`<<<...>>>` calls the shared runtime by another name there."""
    other = "-DcudaLaunchKernel=__cudaLaunchKernel"
    runtime = compile_library(folder, "runtime", SHARED_RUNTIME, other)
    return compile_library(folder, "program", SHARED_PROGRAM, other, str(runtime))


def loaded(path: Path) -> ctypes.CDLL:
    """The program with its own runtime, also where another test has brought CUDA's into the process."""
    return ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_DEEPBIND)


MAKERS = [static_program, shared_program, shared_program_of_cuda_13]


@pytest.mark.parametrize("make", MAKERS)
def test_gates_count_launches_and_let_them_pass(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path)
    library = loaded(path)
    gates = Gates(Belongings((str(path),), (), ()), shut=False)
    gates.install()
    assert gates.sites > 0
    assert (library.run(3), library.last(4), library.total()) == (80, 77, 8)
    assert gates.counts()["cudaLaunchKernel"] == 2


@pytest.mark.parametrize("make", MAKERS)
def test_shut_gates_launch_nothing_and_say_success(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path)
    library = loaded(path)
    gates = Gates(Belongings((str(path),), (), ()), shut=True)
    gates.install()
    gates.install()
    assert (library.run(3), library.last(4), library.total()) == (3, 0, 0)
    assert gates.counts()["cudaLaunchKernel"] == 2


def test_other_binaries_keep_their_launches(tmp_path: Path) -> None:
    path = static_program(tmp_path)
    library = loaded(path)
    gates = Gates(Belongings((), (), (str(path),)), shut=True)
    gates.install()
    assert (library.run(3), library.total()) == (80, 3)


class Crowded(Memory):
    """A process with no free page in reach of the program."""

    def near(
        self, start: int, end: int, size: int, used: Sequence[tuple[int, int]] | None = None
    ) -> int | None:
        return super().near(start, end, size, [(0, 1 << 47)])


def test_where_no_page_is_near_the_jumps_lie_in_the_rest_of_the_program_s_last_page(tmp_path: Path) -> None:
    path = static_program(tmp_path)
    library = loaded(path)
    gates = Gates(Belongings((str(path),), (), ()), shut=False, memory=Crowded())
    gates.install()
    assert gates.trouble == ""
    assert (library.run(3), library.last(4), library.total()) == (80, 77, 8)
    assert gates.counts()["cudaLaunchKernel"] == 2


def test_where_gates_find_no_room_at_all_the_program_is_left_alone_and_the_reason_is_said(
    tmp_path: Path,
) -> None:
    path = static_program(tmp_path)
    library = loaded(path)
    gates = Gates(Belongings((str(path),), (), ()), shut=True, memory=Nowhere())
    gates.install()
    assert "no executable memory" in gates.trouble
    assert (library.run(3), library.total()) == (80, 3)


class Nowhere(Memory):
    """A process that may map nothing more."""

    def anywhere(self, size: int) -> int:
        raise OSError(12, "no executable memory could be mapped")


def test_the_rest_of_the_last_page_lies_behind_the_code_and_is_no_longer_than_the_page(
    tmp_path: Path,
) -> None:
    path = static_program(tmp_path)
    _ = loaded(path)
    mapping = next(row for row in executable_mappings() if row.path == str(path))
    elf = open_elf(path)
    code_end = max(section.address + section.size for section in elf.sections if section.executable)
    room = rest_of_code(elf, mapping, 16)
    assert room is not None
    assert mapping.base + code_end <= room < mapping.end
    assert rest_of_code(elf, mapping, 4096) is None


def test_the_nearest_free_page_is_taken_above_as_below() -> None:
    memory, libc = Memory(), ctypes.CDLL(None)
    hole, top = 1 << 22, 1 << 47
    region = memory.anywhere(3 * hole)  # space of this test's own: elsewhere others may map meanwhile
    code, upper = region + hole, region + 2 * hole
    libc.munmap(ctypes.c_void_p(region), ctypes.c_size_t(hole))
    below = memory.near(code, upper, 64, [(0, region), (code, top)])
    libc.munmap(ctypes.c_void_p(upper), ctypes.c_size_t(hole))
    above = memory.near(code, upper, 64, [(0, upper), (upper + hole, top)])
    assert below == code - PAGE
    assert above == upper
    assert memory.near(code, upper, 64, [(0, top)]) is None


LIB, TORCH, MINE, BRIDGE, PYTHON = objects.LIBRARY, objects.TORCH, objects.OWN, objects.BRIDGE, objects.PYTHON


@pytest.mark.parametrize(
    ("owners", "operators", "caller"),
    [
        ([LIB, MINE, BRIDGE, PYTHON], [-1, -1, -1, -1], "library"),
        ([LIB, TORCH, TORCH, PYTHON], [-1, -1, 7, -1], "pytorch"),
        ([LIB, TORCH, TORCH, MINE], [-1, -1, 7, -1], "pytorch"),
        ([LIB, MINE, TORCH, PYTHON], [-1, -1, 7, -1], "library"),
        ([LIB, TORCH, BRIDGE, PYTHON], [-1, -1, -1, -1], "library"),  # left behind in the library's own frame
        ([LIB, TORCH, LIB], [-1, -1, -1], "callerless"),  # the same in a thread of the pool
        ([LIB], [-1], "callerless"),
    ],
)
def test_pytorch_calls_a_library_only_below_an_operator(
    owners: list[int], operators: list[int], caller: str
) -> None:
    assert library_caller(torch.tensor(owners), torch.tensor(operators)) == caller


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
class Event:
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


def owners(events: list[Event]) -> dict[str, str]:
    """Owner by name of what ran in the block that spans everything."""
    block = Event("stitch::block-0", 0, kind="user_annotation", took=1_000_000)
    trace = read_trace([block, *events])
    work = block_work(trace, Attributor(trace, OWN), "stitch::block-0")
    return {name: owner for owner, name in work.launches}


@pytest.mark.parametrize("kinds", [True, False])
def test_kernels_are_told_apart_by_who_launched_them(kinds: bool) -> None:
    def kind(name: str) -> str | None:
        return name if kinds else None

    def kernel(name: str, start: int, linked: int = 0, what: str = "kernel") -> Event:
        return Event(name, start, "CUDA", kind(what), correlation=start, linked=linked)

    found = owners(
        [
            Event("aten::mm", 5, kind=kind("cpu_op"), correlation=1),
            Event("mine::op", 6, kind=kind("cpu_op"), correlation=2),
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


def graph_events(*, order: tuple[int, int, int] = (0, 1, 2), nodes: bool = True) -> list[Event]:
    """A graph of a product under ATen, an own kernel and a library's product; replayed in another order."""
    names = (GEMM, "mine(float*)", f"{GEMM}_too")
    captured = [
        Event("aten::mm", 1, kind="cpu_op", correlation=1),
        Event("cudaStreamBeginCapture", 2, kind="cuda_runtime", correlation=99, took=1),
        Event("cudaLaunchKernel", 3, kind="cuda_runtime", correlation=100, linked=1, took=2),
        Event("cuLaunchKernel", 4, kind="cuda_driver", correlation=110, took=1),
        Event("cudaLaunchKernel", 5, kind="cuda_runtime", correlation=101, took=1),
        Event("cudaLaunchKernelExC", 6, kind="cuda_runtime", correlation=102, took=1),
        Event("cudaStreamEndCapture", 7, kind="cuda_runtime", correlation=103, took=1),
        Event("cudaMemcpyAsync", 8, kind="cuda_runtime", correlation=104, took=1),
        Event("cudaGraphLaunch", 9, kind="cuda_runtime", correlation=200, took=1),
    ]
    ran = [
        Event(names[index], 10 + 10 * place, "CUDA", "kernel", 200, node=index + 1 if nodes else None)
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


def lost(events: list[Event]) -> int:
    block = Event("stitch::block-0", 0, kind="user_annotation", took=1_000_000)
    return lost_launches(read_trace([block, *events]), "stitch::block-0")


def test_launches_without_a_record_are_counted_as_lost() -> None:
    launches = [
        Event("cudaLaunchKernel", 10, kind="cuda_runtime", correlation=1, took=5),
        Event("cuLaunchKernel", 12, kind="cuda_driver", correlation=2, took=1),
        Event("cudaLaunchKernelExC", 20, kind="cuda_runtime", correlation=3, took=5),
        Event("cudaGraphLaunch", 30, kind="cuda_runtime", correlation=4, took=5),
        Event("cudaMemcpyAsync", 40, kind="cuda_runtime", correlation=5, took=5),
    ]
    ran = [Event("mine(float*)", 50 + at, "CUDA", "kernel", correlation=at) for at in (1, 3, 4)]
    assert lost(launches + ran) == 0
    assert lost([*launches, ran[0], Event("mine(float*)", 52, "CUDA", "kernel", correlation=2)]) == 2
    assert lost(launches) == 3


def test_launches_that_go_into_a_graph_are_not_lost() -> None:
    assert lost(graph_events()) == 0
    assert lost([event for event in graph_events() if event.device == "CPU"]) == 1


@pytest.mark.nvcc
def test_kernels_and_launches_of_a_binary_from_nvcc_are_found(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    case = next(case for case in CASES if case.name == "native own kernels")
    built = build(case.program(store), store)
    assert built.artifact is not None, built.diagnostics
    program = NativeProgram(built.artifact)
    program.init([])
    belongings = Belongings((built.artifact,), (), ())
    gates = Gates(belongings, shut=True)
    gates.install()
    x = torch.zeros(4, 4)
    with contextlib.suppress(ProgramError):  # where there is no driver, the runtime says so after the first
        program.call(program.prepare([x], [torch.zeros(4, 4)]))
    assert gates.counts()["cudaLaunchKernel"] >= 1
    names = own_kernels(belongings, None).names
    assert {"own_product(float const*, float*, int)", "never_launched(float*)"} <= names
    assert any(identifier_of(name) == "own_tanh" for name in names)
