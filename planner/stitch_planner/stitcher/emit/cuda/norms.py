"""Normalisations by an image's own statistics as calls of planar_norm.cuh and pixel_norm.cuh."""

from dataclasses import dataclass, replace

from stitch_planner.stitcher.emit.call_text import CallText, enumerator, flag
from stitch_planner.stitcher.emit.cuda.operands import aligned
from stitch_planner.stitcher.lower.cuda.image_plan import slice_step
from stitch_planner.stitcher.lower.kernel_ir import View
from stitch_planner.stitcher.lower.operations import BatchNormOp, GroupNormOp, NormPairOp

WHOLE_GPU_BLOCKS = 264
"""Blocks of 512 threads that fill the 132 multiprocessors of an H100; other GPUs are near enough."""
WAVES = 8
"""Shares of the work that a multiprocessor gets one after another: they even out the ends."""
PLANAR_THREADS = 512
PIXEL_THREADS = 512
LEAST_RUNS = 4
"""Groups that a thread measures at least: below, starting a block costs more than it brings."""
MOST_SPLITS = 256
MOST_KEPT = {4: 8, 1: 16}
"""Groups that a thread of a fused kernel keeps in registers, by elements of a group."""
FUSED_THREADS = (64, 128, 256)
FUSED_WIDTH = 2
"""Threads across channels in the fused kernel: 32 bytes are what memory is read by at least, and narrow tiles
make many blocks."""
MOST_FUSED = 4
"""Groups of four that a thread of the fused kernel keeps. An estimate: 1600 to 2000 pixels took it 12 to 16
us on an H200, and two kernels spread them over more blocks; they were not timed beside it."""
PIXELS_OF_A_LINE = 8
"""Threads across channels: 8 x 16 bytes are one line of memory."""


def norm_call(op: BatchNormOp | GroupNormOp) -> CallText:
    """The call for either order of memory."""
    if isinstance(op, NormPairOp):
        return _pair_call(op)
    groups = op.groups if isinstance(op, GroupNormOp) else 0
    return _pixel_call(op, groups) if op.channels_last else _planar_call(op, groups)


# ---- [N][C][area] --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanarSchedule:
    """Template arguments of stitch::cuda::PlanarSchedule, and the shares of a unit."""

    vector: int
    wide: int
    one_channel: bool
    threads: int
    kept: int
    splits: int

    @property
    def text(self) -> str:
        """The C++ type."""
        numbers = f"{self.vector}, {self.wide}, {flag(self.one_channel)}, {self.threads}, {self.kept}"
        return f"stitch::cuda::PlanarSchedule<{numbers}>"


def planar_schedule(
    images: int, channels: int, area: int, groups: int, *, is_aligned: bool = True
) -> PlanarSchedule:
    """How blocks share the work; `groups` is 0 for batch norm."""
    units, inner = (images * groups, channels // groups * area) if groups else (channels, area)
    elements = images * channels * area // units
    vector = 4 if is_aligned and inner % 4 == 0 else 1
    wide = 4 if is_aligned and images * channels * area % 4 == 0 else 1
    one_channel = area % wide == 0
    in_groups = elements // vector
    kept = MOST_KEPT[vector]
    threads = next((t for t in (64, 128, 256, 512, 1024) if in_groups <= t * min(kept, 4)), 1024)
    # A unit of one block each fills a GPU only if there are enough; a small unit is done soon enough.
    if in_groups <= threads * kept and (units >= WHOLE_GPU_BLOCKS // 4 or in_groups <= 256 * kept):
        return PlanarSchedule(vector, vector, one_channel, threads, -(-in_groups // threads), 1)
    wanted = -(-WHOLE_GPU_BLOCKS * WAVES // units)
    worth = in_groups // (PLANAR_THREADS * LEAST_RUNS)
    splits = max(1, min(wanted, worth, MOST_SPLITS))
    return PlanarSchedule(vector, wide, one_channel, PLANAR_THREADS, 0, splits)


def _planar_call(op: BatchNormOp | GroupNormOp, groups: int) -> CallText:
    images, channels = op.source.shape[:2]
    plan = planar_schedule(images, channels, op.area, groups, is_aligned=_is_aligned(op))
    options = (
        f"{{/*images=*/{images}, /*channels=*/{channels}, /*area=*/{op.area}, /*groups=*/{groups}, "
        f"/*splits=*/{plan.splits}, {_numbers(op, first=True)}}}"
    )
    chosen = "one kernel, values stay in registers" if plan.kept else "statistics, then one pass"
    return CallText(
        "stitch/cuda/planar_norm.cuh",
        f"stitch::cuda::PlanarNorm<{plan.text}, {_tail(op)}>",
        ("errors", options),
        ("call", op.source, op.weight, op.bias, op.residual, op.out),
        chosen=chosen,
    )


def _numbers(op: BatchNormOp | GroupNormOp, *, first: bool) -> str:
    """The last options; the step only where the source is a slice."""
    step = _step(op.source, first=first)
    named = f", /*{'x_image' if first else 'step'}=*/{step}" if step else ""
    return f"/*eps=*/{op.eps!r}f, /*slope=*/{op.slope!r}f{named}"


def _pair_call(op: NormPairOp) -> CallText:
    """norm_pair.cuh."""
    images, channels = op.source.shape[:2]
    first = not op.channels_last
    fits = _is_aligned(op) and _is_aligned(replace(op, source=op.residual or op.source))
    if first:
        schedule = planar_schedule(images, channels, op.area, 0, is_aligned=fits)
        sizes = f"/*images=*/{images}, /*channels=*/{channels}, /*area=*/{op.area}, /*groups=*/0"
    else:
        schedule = pixel_schedule(1, images * op.area, channels, 1, is_aligned=fits)
        sizes = (
            f"/*batches=*/1, /*pixels=*/{images * op.area}, /*channels=*/{channels}, /*groups=*/{channels}"
        )
    assert op.residual is not None
    other = f"{{{op.other_eps!r}f, {op.other_slope!r}f, {_step(op.residual, first=first)}}}"
    activations = ", ".join(
        f"stitch::Epilogue::{enumerator(name)}" for name in (op.activation, op.other_activation)
    )
    name = "PlanarNormPair" if first else "PixelNormPair"
    return CallText(
        "stitch/cuda/norm_pair.cuh",
        f"stitch::cuda::{name}<{schedule.text}, {activations}>",
        ("errors", f"{{{sizes}, /*splits=*/{schedule.splits}, {_numbers(op, first=first)}}}", other),
        ("call", op.source, op.weight, op.bias, op.residual, op.other_weight, op.other_bias, op.out),
        chosen=f"channels {'first' if first else 'last'}; statistics, then one pass over both",
    )


def _step(source: View, *, first: bool) -> int:
    """Elements between images or pixels of a slice of a wider image; 0 for other windows."""
    return 0 if source.is_dense or source.is_channels_last else slice_step(source, first=first) or 0


def _is_aligned(op: BatchNormOp | GroupNormOp) -> bool:
    images = (op.source, op.out) if op.residual is None else (op.source, op.out, op.residual)
    steps = [step for first in (True, False) if (step := slice_step(op.source, first=first)) is not None]
    # Groups of four of a slice begin at every image and pixel; of a dense image the schedules see to it.
    is_slice = not op.source.is_dense and not op.source.is_channels_last
    fits = not is_slice or (steps[0] % 4 == 0 and (op.channels_last or op.area % 4 == 0))
    return fits and aligned(*images)


def _tail(op: BatchNormOp | GroupNormOp) -> str:
    return f"stitch::Epilogue::{enumerator(op.activation)}, {flag(op.residual is not None)}"


# ---- [N][area][C] --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PixelSchedule:
    """Template arguments of stitch::cuda::PixelSchedule, and the shares of a batch's pixels."""

    vector: int
    threads: int
    width: int
    splits: int

    @property
    def text(self) -> str:
        """The C++ type."""
        return f"stitch::cuda::PixelSchedule<{self.vector}, {self.threads}, {self.width}>"


def pixel_schedule(
    batches: int, pixels: int, channels: int, group_size: int, *, is_aligned: bool = True
) -> PixelSchedule:
    """How blocks share the work. Lowering has made sure that a tile of channels can hold whole groups."""
    vector = 4 if is_aligned and channels % 4 == 0 else 1
    across = -(-channels // vector)
    width = min(PIXELS_OF_A_LINE if vector == 4 else 4 * PIXELS_OF_A_LINE, 1 << (across - 1).bit_length())
    # A group lies in one tile: then the last block of a tile has all that belongs to it.
    while width * vector % group_size and width * vector < channels:
        width *= 2
    tiles = -(-channels // (width * vector))
    wanted = -(-WHOLE_GPU_BLOCKS // (tiles * batches))
    worth = pixels // (PIXEL_THREADS // width * LEAST_RUNS)
    return PixelSchedule(vector, PIXEL_THREADS, width, max(1, min(wanted, worth)))


def fused_schedule(pixels: int, channels: int, groups: int) -> tuple[PixelSchedule, int] | None:
    """The schedule of one kernel that keeps few pixels in registers, and groups of a thread; else None."""
    if groups != channels or channels % 4 or pixels > FUSED_THREADS[-1] // FUSED_WIDTH * MOST_FUSED:
        return None
    heights = {threads: threads // FUSED_WIDTH for threads in FUSED_THREADS}
    threads = next((t for t, height in heights.items() if pixels <= height * MOST_FUSED // 2), None)
    threads = threads or FUSED_THREADS[-1]
    return PixelSchedule(4, threads, FUSED_WIDTH, 1), -(-pixels // heights[threads])


def _pixel_call(op: BatchNormOp | GroupNormOp, groups: int) -> CallText:
    images, channels = op.source.shape[:2]
    batches, pixels = (images, op.area) if groups else (1, images * op.area)
    groups = groups or channels
    fused = fused_schedule(pixels, channels, groups) if _is_aligned(op) else None
    plan = pixel_schedule(batches, pixels, channels, channels // groups, is_aligned=_is_aligned(op))
    options = (
        f"{{/*batches=*/{batches}, /*pixels=*/{pixels}, /*channels=*/{channels}, /*groups=*/{groups}, "
        f"/*splits=*/{1 if fused else plan.splits}, {_numbers(op, first=False)}}}"
    )
    if fused is not None:
        return CallText(
            "stitch/cuda/pixel_norm.cuh",
            f"stitch::cuda::FusedPixelNorm<{fused[0].text}, {fused[1]}, {_tail(op)}>",
            ("errors", options),
            ("call", op.source, op.weight, op.bias, op.residual, op.out),
            chosen="channels last; one kernel, values stay in registers",
        )
    return CallText(
        "stitch/cuda/pixel_norm.cuh",
        f"stitch::cuda::PixelNorm<{plan.text}, {_tail(op)}>",
        ("errors", options),
        ("call", op.source, op.weight, op.bias, op.residual, op.out),
        chosen="channels last; statistics, then one pass",
    )
