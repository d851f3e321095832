"""IR kernels as the structs that the CPU's executors run (see stitch/common/space.h)."""

from dataclasses import dataclass

from stitch_planner.stitcher.emit.cpu.row_text import Pass, RowText
from stitch_planner.stitcher.emit.cpu.value_text import ValueText
from stitch_planner.stitcher.emit.scalar_text import MEMORY_TYPES
from stitch_planner.stitcher.lower.kernel_ir import (
    SCALAR_BYTES,
    Access,
    Body,
    ColumnKernel,
    PointwiseKernel,
    RowKernel,
)
from stitch_planner.stitcher.lower.scalar_bodies import levels, needed, weight


@dataclass(frozen=True)
class KernelText:
    """Everything that a template needs to write one kernel struct."""

    name: str
    comment: str
    space: str
    outer: str
    inner: str
    loads: str
    stores: str
    operands: str
    """Which buffers the struct was written for, for people."""
    picoseconds: int
    tile_dim: int
    body: list[str]
    row_members: list[str]
    begin: list[str]
    passes: list[Pass]
    apply: list[str]
    finish_row: list[str]
    kept: int
    has_elements: bool


def describe(kernel: PointwiseKernel | RowKernel | ColumnKernel) -> KernelText:
    """The kernel's struct in parts."""
    if isinstance(kernel, PointwiseKernel):
        writer = _PointwiseWriter(kernel.body)
        return _text(kernel, space=kernel.space, body=writer.lines(), tile_dim=_tile_dim(kernel))
    writer = RowText(kernel)
    return _text(kernel, outer=kernel.outer, inner=kernel.inner, rows=writer)


def _text(
    kernel: PointwiseKernel | RowKernel | ColumnKernel,
    *,
    space: tuple[int, ...] = (),
    outer: tuple[int, ...] = (),
    inner: tuple[int, ...] = (),
    body: list[str] | None = None,
    tile_dim: int = -1,
    rows: RowText | None = None,
) -> KernelText:
    return KernelText(
        name=struct_name(kernel.name),
        comment=kernel.comment,
        space=_numbers(space),
        outer=_numbers(outer),
        inner=_numbers(inner),
        loads=_operands(kernel.loads),
        stores=_operands(kernel.stores),
        operands=", ".join(_named("load", kernel.loads) + _named("store", kernel.stores)),
        picoseconds=_picoseconds(kernel),
        tile_dim=tile_dim,
        body=body or [],
        row_members=rows.members if rows else [],
        begin=rows.begin if rows else [],
        passes=rows.passes if rows else [],
        apply=rows.apply if rows else [],
        finish_row=rows.finish_row if rows else [],
        kept=rows.kept_count if rows else 0,
        has_elements=bool(rows and rows.apply),
    )


def struct_name(name: str) -> str:
    """`k_layer_norm_1` as `LayerNorm1`."""
    return "".join(part[:1].upper() + part[1:] for part in name.removeprefix("k_").split("_")) + "Kernel"


def _numbers(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))


def _operands(accesses: tuple[Access, ...]) -> str:
    return ", ".join(f"Operand<{MEMORY_TYPES[a.buffer.dtype]}, {_numbers(a.strides)}>" for a in accesses)


def _named(verb: str, accesses: tuple[Access, ...]) -> list[str]:
    return [f"{verb}<{place}> {access.buffer.name}" for place, access in enumerate(accesses)]


PICOSECONDS_PER_BYTE = 12
"""Of an operand that lies in a core's second-level cache or is prefetched from the third; measured."""
PICOSECONDS_PER_OPERATION = 25
"""One of arithmetic in full vectors, measured on fused kernels; an exponential counts as twelve."""


def _picoseconds(kernel: PointwiseKernel | RowKernel | ColumnKernel) -> int:
    """Rough time of one element on one core, by which the program chooses how many threads to wake."""
    instrs = kernel.body.instrs
    outer = len(kernel.space) if isinstance(kernel, PointwiseKernel) else len(kernel.outer)
    # What does not vary over the outermost dim (a weight) is read once and stays in the nearest cache.
    walks = [access for access in (*kernel.loads, *kernel.stores) if access.strides[0]]
    if not isinstance(kernel, PointwiseKernel):
        varies = tuple(any(access.strides[outer:]) for access in kernel.loads)
        per_element = levels(instrs, varies, outer)
        instrs = tuple(i for i, level in zip(instrs, per_element, strict=True) if level or i.op == "reduce")
        walks = [access for access in walks if any(access.strides[outer:])]
    moved = sum(SCALAR_BYTES[access.buffer.dtype] for access in walks)
    return PICOSECONDS_PER_BYTE * moved + PICOSECONDS_PER_OPERATION * max(weight(instrs), 1)


def _tile_dim(kernel: PointwiseKernel) -> int:
    """The dim along which some operand is contiguous while it strides along the last; -1 for none."""
    last = len(kernel.space) - 1
    for access in (*kernel.stores, *kernel.loads):
        if access.strides[last] > 1:
            for dim in range(last):
                if access.strides[dim] == 1 and kernel.space[dim] > 4 and kernel.space[last] > 4:
                    return dim
    return -1


class _PointwiseWriter(ValueText):
    def __init__(self, body: Body) -> None:
        super().__init__(body.instrs)
        self.body = body

    def lines(self) -> list[str]:
        values = [v for v in needed(self.instrs, list(self.body.results)) if self.instrs[v].op != "const"]
        stores = [f"store<{place}>(at, {self.ref(v)});" for place, v in enumerate(self.body.results)]
        return [*(self.line(v) for v in values), *stores]
