"""How many neighbours a thread takes and how threads share a row: the numbers of a CUDA launch.

Everything is decided from shapes when a program is written, so that kernels have no run-time choices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from stitch_planner.stitcher.lower.kernel_ir import SCALAR_BYTES, Access, row_major

WARP = 32
WIDEST_ACCESS_BYTES = 16
LARGEST_INT32 = 2**31 - 1

# A thread has 255 registers at most. This many for the cells of a row leaves room for the expression, and
# still lets 1024 threads live on a multiprocessor.
CELL_REGISTERS = 32
THREADS_OF_WARP_ROWS = 128
"""Threads of a block whose rows are shared by a warp or less."""
MOST_ITEMS_OF_COLUMN = 16
"""Elements of a column that a thread keeps: as many loads are on their way at once."""
MOST_LINES_OF_KEPT = 16
"""Threads that share a column which stays in registers."""
SHORT_COLUMN = 16
"""Elements that a thread reduces alone: all of them can be on their way at once."""
MANY_ROWS = 1 << 16
THREADS_OF_SHORT_COLUMNS = 256
THREADS_OF_LONG_ROWS = 1024
"""Threads for a row that does not fit into registers: as many loads in flight as a block can have."""


@dataclass(frozen=True)
class RowSchedule:
    """Template arguments of stitch::cuda::RowSchedule."""

    lanes: int
    """Threads that share one row."""
    rows_per_block: int
    items: int
    """Groups that a thread keeps in registers; 0: loaded again in each pass."""


@dataclass(frozen=True)
class ColumnSchedule:
    """Template arguments of stitch::cuda::ColumnSchedule."""

    width: int
    height: int
    items: int = 0
    """Elements that a thread keeps in registers; 0: loaded again in each pass."""


def vector_width(space: Sequence[int], accesses: Sequence[Access]) -> int:
    """Neighbours along the innermost dim that one thread takes: 4, 2 or 1.

    All accesses must step by 0 or 1 there, and groups of those that step by 1 must be aligned to their own
    size wherever they begin.
    """
    if not space or any(access.strides[-1] not in (0, 1) for access in accesses):
        return 1
    moving = [access for access in accesses if access.strides[-1] == 1]
    if not moving:
        return 1
    # At most four: the group structs and the loops over them are written for 1, 2 and 4.
    widest = min(4, max(1, WIDEST_ACCESS_BYTES // min(SCALAR_BYTES[a.buffer.dtype] for a in moving)))
    return next(width for width in (widest, 2, 1) if _fits(width, space, moving))


def _fits(width: int, space: Sequence[int], moving: Sequence[Access]) -> bool:
    if space[-1] % width:
        return False
    return all(
        # A vector access must be aligned to its size in every row: offset and outer strides decide that.
        access.offset % width == 0
        and all(
            size == 1 or stride % width == 0
            for size, stride in zip(space[:-1], access.strides[:-1], strict=True)
        )
        for access in moving
    )


def index_type(space: Sequence[int], accesses: Sequence[Access]) -> str:
    """`int32_t` where every index and offset fits, with room for the last block, else `int64_t`.

    64-bit address arithmetic costs registers and instructions; half the range of 32 bits leaves the room.
    """
    reach = [prod(space)]
    for access in accesses:
        steps = zip(space, access.strides, strict=True)
        reach.append(access.offset + sum(max(size - 1, 0) * abs(stride) for size, stride in steps))
    return "int32_t" if max(reach) < LARGEST_INT32 // 2 else "int64_t"


def row_schedule(rows: int, length: int, vector: int, cell_bytes: int) -> RowSchedule:
    """How threads share rows of `length` elements.

    Args:
        rows: number of rows.
        length: elements of one row.
        vector: neighbours that a thread takes at once.
        cell_bytes: bytes of the operands kept per element between passes.
    """
    groups = max(1, length // vector)
    most_items = max(1, CELL_REGISTERS * 4 // max(1, vector * cell_bytes))
    # A row that a warp can hold needs only shuffles; more threads would have to meet at barriers.
    if groups <= WARP * min(8, most_items):
        lanes = min(WARP, _power_of_two(groups))
        per_block = max(1, min(THREADS_OF_WARP_ROWS // lanes, _power_of_two(max(1, rows))))
        # A block below one warp would leave lanes of it idle.
        while lanes * per_block < WARP:
            per_block *= 2
        return RowSchedule(lanes, per_block, -(-groups // lanes))
    # The fewest threads whose registers hold the row, since each pass ends in a barrier of all of them.
    for threads in (128, 256, 512, 1024):
        items = -(-groups // threads)
        if items <= min(most_items, 4 if threads < THREADS_OF_LONG_ROWS else 8):
            return RowSchedule(threads, 1, items)
    # Too long for registers: each pass loads the row again.
    return RowSchedule(THREADS_OF_LONG_ROWS, 1, 0)


def column_schedule(rows: int, length: int, cell_bytes: int = 0) -> ColumnSchedule:
    """How threads share columns: one warp across neighbouring rows, more lines the longer the columns are.

    Args:
        rows: number of columns.
        length: elements of one.
        cell_bytes: bytes of the operands kept per element between passes; 0 where nothing is read again.
    """
    most_items = max(1, min(MOST_ITEMS_OF_COLUMN, CELL_REGISTERS * 4 // max(1, cell_bytes)))
    lines = _power_of_two(-(-length // most_items))
    if cell_bytes and lines <= MOST_LINES_OF_KEPT and rows >= MANY_ROWS:
        width = max(WARP, THREADS_OF_SHORT_COLUMNS // lines)
        return ColumnSchedule(width, lines, -(-length // lines))
    if length <= SHORT_COLUMN and rows >= MANY_ROWS:
        return ColumnSchedule(THREADS_OF_SHORT_COLUMNS, 1)  # a thread each
    height = min(32, _power_of_two(max(1, length // 4)))
    # Few rows leave multiprocessors idle; narrower blocks give more of them, at half a memory line each.
    width = WARP if rows >= 4096 else WARP // 2
    return ColumnSchedule(width, max(2, height))


def is_linear(space: Sequence[int], access: Access) -> bool:
    """Whether the access walks through memory as the linear index does."""
    return all(
        size == 1 or stride == dense
        for size, stride, dense in zip(space, access.strides, row_major(tuple(space)), strict=True)
    )


def _power_of_two(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()
