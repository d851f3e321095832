"""Scans, extremes, lookups and losses as calls of CUDA headers."""

from stitch_planner.stitcher.emit.call_text import CallText, enumerator, flag
from stitch_planner.stitcher.emit.cuda.operands import aligned
from stitch_planner.stitcher.emit.scalar_text import VALUE_TYPES
from stitch_planner.stitcher.lower.kernel_ir import SCALAR_BYTES
from stitch_planner.stitcher.lower.operations import (
    ClassLossOp,
    EmbeddingBagOp,
    EmbeddingOp,
    ExtremeOp,
    ScanOp,
)

WHOLE_GPU_BLOCKS = 1056
"""Blocks of 256 threads that fill the 132 multiprocessors of an H100."""
SCAN_TILE = 2048
"""Elements of a round of scan.cuh."""
TILES_OF_A_SHARE = 4
"""Below this many rounds a second kernel costs more than its blocks bring."""
MOST_SPLITS = 64
LONG_ROW = 4096
"""Elements beyond which a row keeps more than 128 threads busy."""
MOST_INDICES = 2**31 - 2**16


def scan(op: ScanOp) -> CallText:
    """scan.cuh."""
    widest = 16 // SCALAR_BYTES[op.source.dtype]
    steps = (op.length, op.source.offset, op.out.offset)
    vector = widest if op.inner == 1 and all(step % widest == 0 for step in steps) else 1
    splits = 1
    if op.inner == 1:
        tiles = -(-op.length // SCAN_TILE)
        splits = max(1, min(WHOLE_GPU_BLOCKS // op.outer, tiles // TILES_OF_A_SHARE, MOST_SPLITS))
    options = f"{{/*outer=*/{op.outer}, /*length=*/{op.length}, /*inner=*/{op.inner}, /*splits=*/{splits}}}"
    names = {"kReadsBack": op.reads_back, "kWritesBack": op.writes_back, "kExclusive": op.exclusive}
    order = " | ".join(f"stitch::cuda::{name}" for name, wanted in names.items() if wanted)
    ways = f", {order}" if order else ""
    return CallText(
        "stitch/cuda/scan.cuh",
        f"stitch::cuda::Scan<{VALUE_TYPES[op.source.dtype]}, {flag(op.product)}, {vector}{ways}>",
        (options,),
        ("call", op.source, op.out),
    )


def extreme(op: ExtremeOp) -> CallText:
    """extreme.cuh."""
    threads = 512 if op.length > LONG_ROW else 128
    # With room for the steps of a block beyond the last element.
    place = "int32_t" if op.length < MOST_INDICES else "int64_t"
    return CallText(
        "stitch/cuda/extreme.cuh",
        f"stitch::cuda::Extreme<{VALUE_TYPES[op.source.dtype]}, {flag(op.largest)}, {threads}, {place}>",
        (f"{{/*outer=*/{op.outer}, /*length=*/{op.length}, /*inner=*/{op.inner}}}",),
        ("call", op.source, op.values, op.places),
    )


def embedding(op: EmbeddingOp) -> CallText:
    """embedding.cuh."""
    rows, width = op.table.shape
    vector = 4 if width % 4 == 0 and aligned(op.table, op.out) else 1
    return CallText(
        "stitch/cuda/embedding.cuh",
        f"stitch::cuda::Embedding<{VALUE_TYPES[op.index.dtype]}, {vector}>",
        (str(rows), str(width), flag(op.wraps)),
        ("call", str(op.index.numel), op.index, op.table, op.out),
    )


def embedding_bag(op: EmbeddingBagOp) -> CallText:
    """embedding.cuh."""
    rows, width = op.table.shape
    vector = 4 if width % 4 == 0 and aligned(op.table, op.out) else 1
    return CallText(
        "stitch/cuda/embedding.cuh",
        f"stitch::cuda::EmbeddingBag<{VALUE_TYPES[op.index.dtype]}, {flag(op.mean)}, {vector}>",
        (str(rows), str(width), "-1" if op.padding is None else str(op.padding)),
        ("call", str(op.out.shape[0]), str(op.index.numel), op.index, op.offsets, op.table, op.out),
    )


def class_loss(op: ClassLossOp) -> CallText:
    """class_loss.cuh."""
    options = (
        f"{{/*rows=*/{op.target.numel}, /*classes=*/{op.scores.shape[1]}, "
        f"/*ignore_index=*/{op.ignore_index}, /*smoothing=*/{op.smoothing!r}f}}"
    )
    reduction = f"stitch::cuda::LossReduction::{enumerator(op.reduction)}"
    return CallText(
        "stitch/cuda/class_loss.cuh",
        f"stitch::cuda::ClassLoss<{flag(op.from_logits)}, {reduction}>",
        (options,),
        ("call", op.scores, op.target, op.weight, op.out),
    )
