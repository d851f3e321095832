"""Reductions over long rows that are too few to keep a GPU busy: their rows are cut into chunks."""

from collections.abc import Sequence
from math import prod

from stitch_planner.stitcher.lower.kernel_ir import ColumnKernel, Kernel, RowKernel
from stitch_planner.stitcher.lower.split_reductions import Scratch, can_cut, cut

BUSY_BLOCKS = 1024
"""Blocks that leave no multiprocessor of today's GPUs idle for long: about eight for each."""
SHORTEST_CHUNK = 4096
"""Elements of a row that a block reduces at least."""
COLUMNS_OF_BLOCK = 32
"""Rows that a block of a column kernel reduces side by side."""
SHORTEST_COLUMN = 512
"""Elements that such a block walks along at least."""


def split_over_blocks(kernel: RowKernel | ColumnKernel, scratch: Scratch) -> Sequence[Kernel]:
    """The kernel, cut into chunks where it has too few blocks and rows are long enough."""
    columns = isinstance(kernel, ColumnKernel)
    rows, length = prod(kernel.outer), prod(kernel.inner)
    blocks = -(-rows // COLUMNS_OF_BLOCK) if columns else rows
    most = length // (SHORTEST_COLUMN if columns else SHORTEST_CHUNK)
    if blocks >= BUSY_BLOCKS or most < 2 or not can_cut(kernel):
        return [kernel]
    wanted = min(most, -(-BUSY_BLOCKS // blocks))
    chunks = _divisor(kernel.inner[0], wanted, most)
    return [kernel] if chunks < 2 else cut(kernel, chunks, scratch)


def _divisor(size: int, wanted: int, most: int) -> int:
    """The smallest divisor of `size` from `wanted` to `most`, else the largest below."""
    up = (count for count in range(wanted, min(most, size) + 1) if size % count == 0)
    down = (count for count in range(min(wanted, size), 0, -1) if size % count == 0)
    return next(up, None) or next(down)
