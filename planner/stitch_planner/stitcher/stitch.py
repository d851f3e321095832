"""From a plan to source files."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stitch_planner.stitcher.index import GraphIndex
from stitch_planner.stitcher.lowering import UnloweredError
from stitch_planner.stitcher.partition import Step, partition
from stitch_planner.stitcher.program import lower_steps
from stitch_planner.stitcher.simplify import simplify
from stitch_planner.stitcher.targets import templates_for, write_files
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


def stitch(task: Task, facts: ReferenceFacts, graph: Graph, plan: "Plan") -> Stitched:
    """Source files of a program that computes the graph as planned.

    Raises:
        StitchFailedError: something in the graph has no template.
    """
    simple = simplify(graph)
    steps = partition(GraphIndex(simple), templates_for(task))
    return _native(task, simple, steps, plan)


def _native(task: Task, graph: Graph, steps: list[Step], plan: "Plan") -> Stitched:
    try:
        program = lower_steps(task.name, task.target, graph, steps)
    except UnloweredError as error:
        raise StitchFailedError(str(error)) from error
    summary = [
        f"{step.index}: {' + '.join(step.ops)}" + (f" ({step.module_path})" if step.module_path else "")
        for step in plan.steps
    ]
    files, main = write_files(program, task.name, summary)
    return Stitched(files, main, "native", plan.notes)
