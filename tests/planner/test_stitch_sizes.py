"""Tensors beyond 2^31 elements: addresses become 64 bits wide, and indices that would not fit are refused."""

import pytest

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.lower.graph_index import GraphIndex
from stitch_planner.stitcher.lower.kernel_ir import (
    Access,
    Body,
    Buffer,
    Instr,
    KernelProgram,
    PointwiseKernel,
    View,
    row_major,
)
from stitch_planner.stitcher.lower.lowering import Lowering, UnloweredError
from stitch_tools.models.graph import Graph


def copy_of(shape: tuple[int, ...]) -> KernelProgram:
    numel = shape[0] * shape[1]
    x = View(Buffer("x", "uint8", numel, "input"), shape, row_major(shape))
    y = View(Buffer("y", "uint8", numel, "output"), shape, row_major(shape))
    kernel = PointwiseKernel(
        "k_copy",
        "copies x",
        (),
        shape,
        (Access(x.buffer, x.strides),),
        Body((Instr("load", (), "uint8", 0),), (0,)),
        (Access(y.buffer, y.strides),),
    )
    return KernelProgram("test", "cuda:sm_90", (x,), (y,), (), (kernel,), (x.buffer, y.buffer))


@pytest.mark.parametrize(
    ("shape", "index"), [((4, 1024), "int32_t"), ((2, 2**30), "int64_t"), ((3, 2**30), "int64_t")]
)
def test_device_addresses_have_64_bits_where_32_would_overflow(shape: tuple[int, int], index: str) -> None:
    assert f"using Index = {index};" in emit_cuda(copy_of(shape))


def counting(length: int) -> PointwiseKernel:
    y = Buffer("y", "float32", length, "output")
    instrs = (Instr("index", (), "int32", 0), Instr("cast", (0,), "float32"))
    return PointwiseKernel(
        "k_count", "0, 1, 2, ...", (), (length,), (), Body(instrs, (1,)), (Access(y, (1,)),)
    )


def test_an_index_that_int32_cannot_hold_is_refused() -> None:
    lowering = Lowering(GraphIndex(Graph(source="export", inputs=(), nodes=(), outputs=(), mode="eval")))
    lowering.add(counting(2**31))
    with pytest.raises(UnloweredError, match="indices beyond"):
        lowering.add(counting(2**31 + 1))
