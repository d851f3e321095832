"""Questions about how a kernel is launched: occupancy, the size of its grid, and its last wave of blocks."""

import math

from stitch_tools.models.profile import KernelAnswer, Quantity
from stitch_tools.profile import ncu_metrics as m
from stitch_tools.profile.answers import (
    headroom,
    is_worth,
    kernel_occupancy,
    measured,
    no_problem,
    share,
    unknown,
)
from stitch_tools.profile.ncu_report import NcuKernel
from stitch_tools.profile.occupancy import Occupancy, OccupancyLimit
from stitch_tools.profile.thresholds import THRESHOLDS

_RAISE: dict[OccupancyLimit, str] = {
    "registers": "Use fewer registers: smaller tiles a thread, shorter lives of values, or __launch_bounds__ "
    "with the number of blocks that should fit (and look at the spills).",
    "shared memory": "Use less shared memory a block: smaller tiles, fewer stages, half precision in them.",
    "warps": "Choose a block size that divides the warps of a multiprocessor.",
    "blocks": "Choose larger blocks: the number of blocks of a multiprocessor is the limit.",
}


def ask_occupancy(kernel: NcuKernel) -> KernelAnswer:
    """Are there enough warps to hide latency, and what keeps more from fitting?"""
    theoretical = kernel_occupancy(kernel)
    if theoretical is None:
        return unknown("occupancy", (m.REGISTERS, "block size", "compute capability"))
    evidence = _occupancy_evidence(kernel, theoretical)
    issuing = share(kernel, m.ISSUE_ACTIVE)
    saves = headroom(kernel) * (1.0 - theoretical.share)
    is_low = theoretical.share <= THRESHOLDS.low_occupancy and issuing < THRESHOLDS.issue_slots
    if not is_low or not is_worth(saves):
        verdict = "enough" if theoretical.share > THRESHOLDS.low_occupancy else "low, but hidden"
        summary = f"{theoretical.share:.0%} of the warps fit, limited by {theoretical.limited_by}."
        return no_problem("occupancy", verdict, summary, evidence)
    return KernelAnswer(
        question="occupancy",
        verdict=theoretical.limited_by,
        is_problem=True,
        summary=f"Only {theoretical.share:.0%} of the warps fit, limited by {theoretical.limited_by}, and "
        f"instructions are issued in {issuing:.0%} of the cycles.",
        evidence=evidence,
        saves_share=round(saves, 4),
        action=_RAISE[theoretical.limited_by],
    )


def ask_grid_size(kernel: NcuKernel) -> KernelAnswer:
    """Does every multiprocessor get work?"""
    blocks, multiprocessors = kernel.blocks, kernel.get(m.MULTIPROCESSORS)
    if blocks is None or not multiprocessors:
        return unknown("grid_size", (m.MULTIPROCESSORS, "grid size"))
    evidence = (measured("blocks", blocks), measured("multiprocessors", multiprocessors))
    idle = max(0.0, 1.0 - blocks / multiprocessors)
    saves = min(idle, headroom(kernel))
    if idle < THRESHOLDS.idle_multiprocessors or not is_worth(saves):
        return no_problem(
            "grid_size", "enough", f"{blocks} blocks for {multiprocessors:g} multiprocessors.", evidence
        )
    return KernelAnswer(
        question="grid_size",
        verdict="tiny",
        is_problem=True,
        summary=f"{blocks} blocks leave {idle:.0%} of the {multiprocessors:g} multiprocessors without work.",
        evidence=evidence,
        saves_share=round(saves, 4),
        action="Give the work to more blocks: split rows or the reduction, take smaller tiles, or run this "
        "kernel beside others.",
    )


def ask_tail_wave(kernel: NcuKernel) -> KernelAnswer:
    """Is the last wave of blocks nearly empty?"""
    theoretical, blocks = kernel_occupancy(kernel), kernel.blocks
    multiprocessors = kernel.get(m.MULTIPROCESSORS)
    if theoretical is None or not theoretical.blocks or blocks is None or not multiprocessors:
        return unknown("tail_wave", (m.REGISTERS, m.MULTIPROCESSORS, "grid size"))
    slots = theoretical.blocks * multiprocessors
    waves = blocks / slots
    evidence = (
        measured("waves", waves),
        measured("blocks", blocks),
        measured("blocks at once", slots, origin="estimated"),
    )
    if waves <= 1.0:
        return no_problem("tail_wave", "one wave", "All blocks run at once.", evidence)
    lost = 1.0 - waves / math.ceil(waves)
    # The last wave costs less than a whole one where lone blocks run faster: the busiest unit tells.
    saves = min(lost, headroom(kernel))
    if lost < THRESHOLDS.tail_loss or not is_worth(saves):
        return no_problem("tail_wave", "full", f"{waves:.2f} waves: the last one hardly matters.", evidence)
    return KernelAnswer(
        question="tail_wave",
        verdict="half empty",
        is_problem=True,
        summary=f"{blocks} blocks are {waves:.2f} waves of {slots:g}: {lost:.0%} of all slots stay empty.",
        evidence=evidence,
        saves_share=round(saves, 4),
        action="Let the grid fill whole waves: another tile size, as many blocks as fit at once with a loop "
        "over the work (persistent blocks), or stream-K for products.",
    )


def _occupancy_evidence(kernel: NcuKernel, theoretical: Occupancy) -> tuple[Quantity, ...]:
    evidence = [measured("theoretical occupancy", 100.0 * theoretical.share, "%", "estimated")]
    achieved, registers = kernel.get(m.WARPS_ACTIVE), kernel.get(m.REGISTERS)
    if achieved is not None:
        evidence.append(measured("achieved occupancy", achieved, "%"))
    if registers is not None:
        evidence.append(measured("registers a thread", registers))
    issuing = kernel.get(m.ISSUE_ACTIVE)
    if issuing is not None:
        evidence.append(measured("cycles with an issued instruction", issuing, "%"))
    return tuple(evidence)
