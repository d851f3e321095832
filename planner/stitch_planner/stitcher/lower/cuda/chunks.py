"""Reductions over long rows that are too few to keep a GPU busy: their rows are cut into chunks."""

from collections.abc import Sequence
from math import prod

from stitch_planner.stitcher.lower.kernel_ir import Access, ColumnKernel, Kernel
from stitch_planner.stitcher.lower.split_reductions import (
    ReducingKernel,
    Scratch,
    apart,
    can_cut,
    cut,
    depths,
    is_narrow,
)

BUSY_BLOCKS = 1024
"""Blocks that leave no multiprocessor of today's GPUs idle for long: about eight for each."""
BLOCKS_THAT_KEEP = 132
"""The same where blocks keep their rows in registers between passes: chunks would read them again."""
KEPT_ELEMENTS = 1 << 15
"""Of a row that fits the registers of a block."""
FEWEST_READ_AGAIN = 1 << 20
"""Elements below which the kernels that a chain of reductions becomes take longer than the one."""
SHORTEST_CHUNK = 4096
"""Elements of a row that a block reduces at least."""
COLUMNS_OF_BLOCK = 32
"""Rows that a block of a column kernel reduces side by side."""
SHORTEST_COLUMN = 512
"""Elements that such a block walks along at least."""
WORTH_TURNING = 1 << 16
"""Elements from which another order of the results is worth a kernel of its own."""


def split_over_blocks(kernel: ReducingKernel, scratch: Scratch) -> Sequence[Kernel]:
    """The kernel, cut into chunks where it has too few blocks and rows are long enough.

    Element-wise results in another order of memory than the operands have a kernel of their own: it turns
    tiles.
    """
    if not can_cut(kernel):
        return [kernel]
    chunks = _chunks(kernel)
    if chunks >= 2 or (is_narrow(kernel) and _reads_again(kernel) and prod(kernel.inner) > KEPT_ELEMENTS):
        return cut(kernel, chunks, scratch)
    return apart(kernel, scratch) if _crosses(kernel) else [kernel]


def _chunks(kernel: ReducingKernel) -> int:
    columns = isinstance(kernel, ColumnKernel)
    rows, length = prod(kernel.outer), prod(kernel.inner)
    reads_again = _reads_again(kernel)
    if reads_again and rows * length < FEWEST_READ_AGAIN:
        return 1
    keeps = not columns and reads_again and length <= KEPT_ELEMENTS
    if is_narrow(kernel) and not keeps:
        columns, rows, length = True, rows * kernel.inner[-1], length // kernel.inner[-1]
    blocks = -(-rows // COLUMNS_OF_BLOCK) if columns else rows
    most = length // (SHORTEST_COLUMN if columns else SHORTEST_CHUNK)
    busy = BLOCKS_THAT_KEEP if keeps else BUSY_BLOCKS
    if blocks >= busy or most < 2:
        return 1
    return _divisor(kernel.inner[0], min(most, -(-busy // blocks)), most)


def _reads_again(kernel: ReducingKernel) -> bool:
    """Whether the operands are needed once more after a reduction."""
    return max(depths(kernel)) > 1 or any(_moves(store, kernel) for store in kernel.stores)


def _moves(access: Access, kernel: ReducingKernel) -> bool:
    return any(access.strides[len(kernel.outer) :])


def _crosses(kernel: ReducingKernel) -> bool:
    """Whether operands lie side by side along a dim along which element-wise results do not."""
    shape = (*kernel.outer, *kernel.inner)
    side_by_side = {
        dim
        for load in kernel.loads
        for dim, stride in enumerate(load.strides)
        if stride == 1 and shape[dim] > 1 and all(load.strides)
    }
    results = [store for store in kernel.stores if _moves(store, kernel)]
    crossing = any(store.strides[dim] != 1 for store in results for dim in side_by_side)
    return crossing and prod(shape) >= WORTH_TURNING


def _divisor(size: int, wanted: int, most: int) -> int:
    """The smallest divisor of `size` from `wanted` to `most`, else the largest below."""
    up = (count for count in range(wanted, min(most, size) + 1) if size % count == 0)
    down = (count for count in range(min(wanted, size), 0, -1) if size % count == 0)
    return next(up, None) or next(down)
