"""Element-wise kernels that turn operands in tiles: the F of stitch/cuda/tiles.cuh.

Such an operand lies with another dim innermost than the results (a channels-last image whose result is
N, C, H, W). Read element by element, every load of a warp would touch 32 lines of memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from stitch_planner.stitcher.emit.cuda.lines import (
    Lines,
    instructions,
    number_of,
    open_class,
    stored,
    value_name,
)
from stitch_planner.stitcher.emit.cuda.operands import coordinates, dims_used, element, offset, pointers
from stitch_planner.stitcher.emit.cuda.schedule import index_type
from stitch_planner.stitcher.emit.scalar_text import MEMORY_TYPES
from stitch_planner.stitcher.lower.kernel_ir import SCALAR_BYTES, Access, PointwiseKernel
from stitch_planner.stitcher.lower.scalar_bodies import needed

FEWEST_ELEMENTS = 1 << 14
"""Below these a kernel is over before tiles would pay."""
SHORTEST_SIDE = 8
"""Of a dim whose elements lie side by side: a line of 32 bytes, the least that memory moves."""
LONGEST_SIDE = 64
SMALLEST_TILE = 256
"""Elements: one for each thread of a block."""
SHARED_BYTES = 36 << 10
"""Of a block's tile: six of them fit a multiprocessor, and the padding of narrow tiles fits in 48 KiB."""


@dataclass(frozen=True)
class Tiles:
    """How a kernel is cut into tiles."""

    staged: tuple[int, ...]
    """Numbers of the loads that are turned in shared memory."""
    turned: tuple[int, ...]
    """Neighbouring dims of the space that are one, the innermost, in them."""
    turned_tile: int
    last_tile: int


def tiles_of(kernel: PointwiseKernel) -> Tiles | None:
    """The tiles of a kernel; None where no operand lies in another order, or tiles do not pay."""
    space = kernel.space
    if prod(space) < FEWEST_ELEMENTS or space[-1] < SHORTEST_SIDE:
        return None
    if any(store.strides[-1] != 1 for store in kernel.stores):
        return None
    crossing = {number: _innermost(space, load) for number, load in enumerate(kernel.loads)}
    last = next((dim for dim in crossing.values() if dim is not None), None)
    if last is None:
        return None
    crossed = [number for number, dim in crossing.items() if dim == last]
    # Without gaps in an element, which `element_bytes` does not count.
    staged = tuple(sorted(crossed, key=lambda n: -SCALAR_BYTES[kernel.loads[n].buffer.dtype]))
    turned = _merged(space, last, [kernel.loads[number] for number in staged])
    across = prod(space[dim] for dim in turned)
    if across < SHORTEST_SIDE:
        return None
    side = min(LONGEST_SIDE, _power_of_two(across))
    sizes = [SCALAR_BYTES[kernel.loads[number].buffer.dtype] for number in staged]
    # The largest come first in an element, which is then filled up to a multiple of theirs.
    element_bytes = -(-sum(sizes) // max(sizes)) * max(sizes)
    most = SHARED_BYTES // element_bytes
    other = LONGEST_SIDE * LONGEST_SIDE // side
    while side * other > most and other > SHORTEST_SIDE:
        other //= 2
    # A short last dim needs no tile that is wider.
    other = min(other, _power_of_two(space[-1]))
    return Tiles(staged, turned, side, other) if SMALLEST_TILE <= side * other <= most else None


def _innermost(space: Sequence[int], load: Access) -> int | None:
    """The dim along which a load's elements lie side by side, where that is not the last one."""
    if load.strides[-1] in (0, 1):
        return None
    dims = [dim for dim in range(len(space) - 1) if load.strides[dim] == 1 and space[dim] > 1]
    return dims[0] if dims else None


def _merged(space: Sequence[int], last: int, staged: Sequence[Access]) -> tuple[int, ...]:
    """The dims up to `last` through which all staged loads step as through one."""
    first, size = last, space[last]
    while first > 0 and all(load.strides[first - 1] == size for load in staged):
        first -= 1
        size *= space[first]
    return tuple(range(first, last + 1))


def tiled_class(kernel: PointwiseKernel, tiles: Tiles) -> str:
    """The class of an element-wise kernel that is computed in tiles."""
    space, last = kernel.space, len(kernel.space) - 1
    inside = {*tiles.turned, last}
    outer = tuple(1 if dim in inside else size for dim, size in enumerate(space))
    across = tuple(size if dim in tiles.turned else 1 for dim, size in enumerate(space))
    accesses = (*kernel.loads, *kernel.stores)
    out = Lines()
    open_class(out, kernel.name, kernel.comment, pointers(kernel.loads, kernel.stores))
    out.add(f"using Index = {index_type(space, accesses)};")
    sizes = f"kOuter = {prod(outer)}, kTurned = {prod(across)}, kLast = {space[last]}"
    out.add(f"static constexpr Index {sizes};")
    out.add(f"static constexpr int kTurnedTile = {tiles.turned_tile}, kLastTile = {tiles.last_tile};", "")
    out.open("struct Staged {")
    for number in tiles.staged:
        out.add(f"{MEMORY_TYPES[kernel.loads[number].buffer.dtype]} in{number};")
    out.close("};")
    arguments = f"Index outer, Index turned, Index c{last}"
    staged = [kernel.loads[number] for number in tiles.staged]

    def decode(used: set[int]) -> list[str]:
        turned = used & set(tiles.turned)
        return [*coordinates(outer, "outer", "c", used - turned), *coordinates(across, "turned", "c", turned)]

    out.open(f"__device__ __forceinline__ Staged stage({arguments}) const {{")
    out.add(*decode(dims_used(space, staged) - {last}))
    out.add("Staged staged;")
    for number, access in zip(tiles.staged, staged, strict=True):
        out.add(f"staged.in{number} = {element(access, offset(space, access.strides, 'c'))};")
    out.add("return staged;")
    out.close()
    out.add("")
    instrs = kernel.body.instrs
    out.open(f"__device__ __forceinline__ void operator()({arguments}, const Staged& staged) const {{")
    direct = [load for number, load in enumerate(kernel.loads) if number not in tiles.staged]
    used = dims_used(space, [*direct, *kernel.stores])
    used |= {number_of(instr) for instr in instrs if instr.op == "index"}
    out.add(*decode(used - {last}))
    _compute(out, kernel, tiles)
    out.close()
    out.close("};")
    return "\n".join(out.lines)


def _compute(out: Lines, kernel: PointwiseKernel, tiles: Tiles) -> None:
    """Computes and stores one element."""
    space, instrs = kernel.space, kernel.body.instrs

    def load(number: int) -> str:
        access = kernel.loads[number]
        if number in tiles.staged:
            return f"staged.in{number}"
        return element(access, offset(space, access.strides, "c"))

    instructions(
        out,
        instrs,
        needed(instrs, list(kernel.body.results)),
        load=load,
        index=lambda axis: f"int64_t{{c{axis}}}",
        loads=kernel.loads,
    )
    for store, result in zip(kernel.stores, kernel.body.results, strict=True):
        text = stored(store, instrs[result], value_name(instrs, result))
        out.add(f"{element(store, offset(space, store.strides, 'c'))} = {text};")


def _power_of_two(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()
