"""Element-wise kernels as classes: the F of stitch/cuda/pointwise.cuh, and ends of convolutions."""

from collections.abc import Sequence
from math import prod

from stitch_planner.stitcher.emit.cuda.lines import (
    Lines,
    instructions,
    number_of,
    open_class,
    stored,
    value_name,
)
from stitch_planner.stitcher.emit.cuda.operands import (
    coordinates,
    dims_used,
    group_type,
    linear_address,
    load_text,
    pointers,
    store_text,
)
from stitch_planner.stitcher.emit.cuda.schedule import index_type, is_linear, vector_width
from stitch_planner.stitcher.lower.kernel_ir import Access, Buffer, PointwiseKernel
from stitch_planner.stitcher.lower.scalar_bodies import needed


def pointwise_class(kernel: PointwiseKernel) -> str:
    """The class of an element-wise kernel."""
    accesses = (*kernel.loads, *kernel.stores)
    vector = vector_width(kernel.space, accesses)
    out = Lines()
    open_class(out, kernel.name, kernel.comment, pointers(kernel.loads, kernel.stores))
    out.add(f"using Index = {index_type(kernel.space, accesses)};")
    out.add(f"static constexpr Index kElements = {prod(kernel.space)}, kVector = {vector};", "")
    out.open("__device__ __forceinline__ void operator()(Index i) const {")
    out.add(*_coordinates_of(kernel, accesses))
    for number, load in enumerate(kernel.loads):
        where = linear_address(kernel.space, load, "i", "c")
        out.add(f"const auto in{number} = {load_text(load, vector, where)};")
    for number, store in enumerate(kernel.stores):
        out.add(f"{group_type(store, vector)} out{number};")
    out.unrolled(vector)
    last = len(kernel.space) - 1
    instructions(
        out,
        kernel.body.instrs,
        needed(kernel.body.instrs, list(kernel.body.results)),
        load=lambda n: f"in{n}[e]",
        index=lambda axis: f"int64_t{{c{axis}}} + e" if axis == last else f"int64_t{{c{axis}}}",
        loads=kernel.loads,
    )
    for number, (store, result) in enumerate(zip(kernel.stores, kernel.body.results, strict=True)):
        text = value_name(kernel.body.instrs, result)
        out.add(f"out{number}[e] = {stored(store, kernel.body.instrs[result], text)};")
    out.close()
    for number, store in enumerate(kernel.stores):
        where = linear_address(kernel.space, store, "i", "c")
        out.add(store_text(store, vector, where, f"out{number}"))
    out.close()
    out.close("};")
    return "\n".join(out.lines)


def ending_class(kernel: PointwiseKernel, source: Buffer) -> str:
    """The class of an element-wise kernel that ends a convolution: the E of stitch/cuda/volume_ending.cuh.

    What it would read from `source` is an argument, and what it would write is its result.
    """
    others = [access for access in kernel.loads if access.buffer != source]
    out = Lines()
    open_class(out, kernel.name, kernel.comment, pointers(others, ()))
    out.add(f"using Index = {index_type(kernel.space, kernel.loads)};", "")
    out.open("__device__ __forceinline__ float operator()(float sum, Index i) const {")
    out.add(*_coordinates_of(kernel, others))
    for number, load in enumerate(kernel.loads):
        if load.buffer != source:
            where = linear_address(kernel.space, load, "i", "c")
            out.add(f"const auto in{number} = {load_text(load, 1, where)};")
    (result,) = kernel.body.results
    instructions(
        out,
        kernel.body.instrs,
        needed(kernel.body.instrs, [result]),
        load=lambda n: "sum" if kernel.loads[n].buffer == source else f"in{n}[0]",
        index=lambda axis: f"int64_t{{c{axis}}}",
        loads=kernel.loads,
    )
    out.add(f"return {value_name(kernel.body.instrs, result)};")
    out.close()
    out.close("};")
    return "\n".join(out.lines)


def _coordinates_of(kernel: PointwiseKernel, accesses: Sequence[Access]) -> list[str]:
    """Lines for the coordinates that these accesses, and the body, need beside the linear index."""
    scattered = [access for access in accesses if not is_linear(kernel.space, access)]
    used = dims_used(kernel.space, scattered)
    used |= {number_of(instr) for instr in kernel.body.instrs if instr.op == "index"}
    return coordinates(kernel.space, "i", "c", used)
