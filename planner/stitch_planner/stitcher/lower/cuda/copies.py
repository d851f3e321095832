"""Copies between orders of memory on GPUs: transposing calls where both sides run through memory in lines."""

from dataclasses import dataclass

from stitch_planner.stitcher.lower.copies import WORTH_TILES, layout_call
from stitch_planner.stitcher.lower.kernel_ir import Kernel, View
from stitch_planner.stitcher.lower.lowering import copy_kernel
from stitch_planner.stitcher.lower.views import collapse

NARROWEST = 8
"""Rows and columns from which a tile of 32 x 32 is filled well enough to be worth it."""


@dataclass(frozen=True)
class Transposes:
    """A copy as a batch of transposes: columns lie side by side in the source, rows in the target."""

    batch: int
    rows: int
    columns: int
    source_batch: int
    """Elements between the matrices; so for the target."""
    source_row: int
    """Elements between the rows of the source."""
    target_batch: int
    target_column: int
    """Elements between the columns in the target."""


def as_transposes(source: View, target: View) -> Transposes | None:
    """The copy of `source` to `target` (equal shapes) as transposes; None where it is none."""
    # Outermost first in the source: what lies side by side in it is merged wherever the target allows.
    order = sorted(range(len(source.shape)), key=lambda d: (-source.strides[d], d))
    walks = [[view.strides[d] for d in order] for view in (source, target)]
    sizes, (steps, goals) = collapse([source.shape[d] for d in order], walks)
    across = next((d for d, step in enumerate(steps) if step == 1), None)
    down = next((d for d, goal in enumerate(goals) if goal == 1), None)
    if across is None or down is None or across == down or len(sizes) > 3 or 0 in steps:
        return None
    outer = next((d for d in range(len(sizes)) if d not in (across, down)), None)
    return Transposes(
        batch=1 if outer is None else sizes[outer],
        rows=sizes[down],
        columns=sizes[across],
        source_batch=0 if outer is None else steps[outer],
        source_row=steps[down],
        target_batch=0 if outer is None else goals[outer],
        target_column=goals[across],
    )


def cuda_copy(name: str, source: View, target: View, what: str) -> Kernel:
    """The kernel or call that copies `source` to `target` (equal shapes)."""
    plan = as_transposes(source, target) if source.dtype == "float32" else None
    if plan is not None and min(plan.rows, plan.columns) >= NARROWEST and source.numel >= WORTH_TILES:
        return layout_call(name, source, target, what)
    return copy_kernel(name, source, target, what)
