"""From a plan to source files."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stitch_planner.stitcher.emit_partial import MAIN as PARTIAL_MAIN
from stitch_planner.stitcher.emit_partial import emit_partial
from stitch_planner.stitcher.index import GraphIndex
from stitch_planner.stitcher.lowering import UnloweredError
from stitch_planner.stitcher.partition import partition
from stitch_planner.stitcher.program import lower_steps
from stitch_planner.stitcher.simplify import simplify
from stitch_planner.stitcher.targets import templates_for, updates_buffers, write_files
from stitch_tools.errors import StitchError
from stitch_tools.models import Graph, ProgramFormat, ReferenceFacts, Task

if TYPE_CHECKING:  # plan.py asks this package for the partition
    from stitch_planner.plan import Plan


@dataclass(frozen=True)
class Stitched:
    """The stitcher's answer."""

    files: dict[str, bytes]
    """Content by path inside the program's folder."""
    main: str
    """File that is compiled or imported."""
    format: ProgramFormat
    notes: tuple[str, ...] = ()
    """What the report should say: eager nodes, choices."""


class StitchFailedError(StitchError):
    """No program can be written for this graph."""

    code = "stitch"


def refuse_updates(task: Task, facts: ReferenceFacts) -> None:
    """Nothing; said as soon as the reference was observed, since no graph changes it.

    Raises:
        StitchFailedError: the contract compares buffers that forward updates, and the program could not be a
            `ModelNew`, which alone can write them.
    """
    if updates_buffers(task, facts) and (task.target != "cpu" or task.style != "kernelbench"):
        raise StitchFailedError(
            f"the contract asks for updated buffers ({', '.join(facts.mutated_buffers[:3])}), which stitched "
            "programs write only on the target cpu, for a reference with Model and get_init_inputs",
            hint="Write a ModelNew that updates them, and judge it with `stitch-mcp check`.",
        )


def stitch(
    task: Task,
    facts: ReferenceFacts,
    graph: Graph,
    plan: "Plan",
    sources: Mapping[str, bytes] | None = None,
) -> Stitched:
    """Source files of a program that computes the graph as planned.

    Args:
        task: names the program and its target.
        facts: the structure of the outputs.
        graph: the captured forward.
        plan: what `make_plan` gave for the same arguments.
        sources: the reference's own files by path. A program with eager nodes needs them, to construct the
            same weights.

    Raises:
        StitchFailedError: something in the graph has no template, and PyTorch cannot stand in for it; or as
            `refuse_updates` says.
    """
    refuse_updates(task, facts)
    updates = updates_buffers(task, facts)
    simple = simplify(graph, updates=updates)
    steps = partition(GraphIndex(simple), templates_for(task, updates=updates))
    summary = [
        f"{step.index}: {' + '.join(step.ops)}" + (f" ({step.module_path})" if step.module_path else "")
        for step in plan.steps
    ]
    try:
        if (updates or any(step.template is None for step in steps)) and task.target == "cpu":
            files = emit_partial(task, facts, simple, steps, sources or {}, summary)
            return Stitched(files, PARTIAL_MAIN, "kernelbench", plan.notes)
        program = lower_steps(task.name, task.target, simple, steps)
    except UnloweredError as error:
        own = "Write a program of your own, and judge it with `stitch-mcp check` (docs/program.md)."
        hint = own if task.target == "cpu" else f"Solve it for `--target cpu`. {own}"
        raise StitchFailedError(str(error), hint=hint) from error
    files, main = write_files(program, task.name, summary)
    return Stitched(files, main, "native", plan.notes)
