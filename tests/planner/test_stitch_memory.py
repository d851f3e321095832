"""Buffers that are alive together never share bytes; others do."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stitch_planner.stitcher.lower.kernel_ir import (
    Access,
    Body,
    Buffer,
    Instr,
    KernelProgram,
    PointwiseKernel,
    kernel_reads,
    kernel_writes,
)
from stitch_planner.stitcher.lower.workspace_memory import ALIGNMENT, assign_offsets

BODY = Body((Instr("load", (), "float32", 0),), (0,))


def copies(pairs: list[tuple[Buffer, Buffer]]) -> KernelProgram:
    kernels = tuple(
        PointwiseKernel(f"k{i}", "", (), (1,), (Access(a, (1,)),), BODY, (Access(b, (1,)),))
        for i, (a, b) in enumerate(pairs)
    )
    buffers = tuple(dict.fromkeys(buffer for pair in pairs for buffer in pair))
    return KernelProgram("case", "cpu", (), (), (), kernels, buffers)


def temporary(name: str, numel: int) -> Buffer:
    return Buffer(name, "float32", numel, "workspace")


@given(
    st.lists(st.integers(1, 5000), min_size=2, max_size=12),
    st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), min_size=1, max_size=30),
)
def test_live_buffers_never_overlap(sizes: list[int], steps: list[tuple[int, int]]) -> None:
    buffers = [temporary(f"b{i}", size) for i, size in enumerate(sizes)]
    placed = assign_offsets(copies([(buffers[a % len(sizes)], buffers[b % len(sizes)]) for a, b in steps]))
    touched = [{*kernel_reads(kernel), *kernel_writes(kernel)} for kernel in placed.kernels]
    lives: dict[Buffer, tuple[int, int]] = {}
    for place, group in enumerate(touched):
        for buffer in group:
            lives[buffer] = (lives.get(buffer, (place, place))[0], place)
    for one, (begin, end) in lives.items():
        assert one.offset % ALIGNMENT == 0
        assert one.offset + one.nbytes <= placed.workspace_bytes
        for other, (first, last) in lives.items():
            if other != one and begin <= last and first <= end:
                apart = one.offset + one.nbytes <= other.offset or other.offset + other.nbytes <= one.offset
                assert apart, (one, other)


def test_a_chain_of_any_length_needs_two_buffers() -> None:
    chain = [temporary(f"b{i}", 64) for i in range(20)]
    placed = assign_offsets(copies(list(pairwise(chain))))
    assert placed.workspace_bytes == 2 * ALIGNMENT
