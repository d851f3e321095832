"""From a plan to source files."""

from collections.abc import Mapping
from dataclasses import dataclass

from stitch_planner.plan import Plan
from stitch_planner.stitcher.emit.partial import MAIN as PARTIAL_MAIN
from stitch_planner.stitcher.emit.partial import emit_partial
from stitch_planner.stitcher.graph.partition import partition
from stitch_planner.stitcher.graph.simplify import unembedded, with_attributes
from stitch_planner.stitcher.kernel_program import lower_steps
from stitch_planner.stitcher.lower.graph_index import GraphIndex
from stitch_planner.stitcher.lower.kernel_ir import SCALAR_BYTES
from stitch_planner.stitcher.lower.lowering import UnloweredError
from stitch_planner.stitcher.precision_notes import precision_notes
from stitch_planner.stitcher.targets import simple_graph, templates_for, updates_buffers, write_files
from stitch_tools.errors import StitchError
from stitch_tools.models.graph import Graph
from stitch_tools.models.program import ProgramFormat
from stitch_tools.models.task import ReferenceFacts, Task


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


def stitch(
    task: Task,
    facts: ReferenceFacts,
    graph: Graph,
    plan: Plan,
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
            `refuse_opaque` says.
    """
    refuse_opaque(graph)
    simple = simple_graph(task, facts, graph)
    summary = [
        f"{step.index}: {' + '.join(step.ops)}" + (f" ({step.module_path})" if step.module_path else "")
        for step in plan.steps
    ]
    # A native program is given parameters and buffers only; `ModelNew` has other attributes as well.
    attributes = unembedded(simple) if facts.entry_kind != "function" else ()
    simple = with_attributes(simple, attributes)
    needs_python = bool(attributes or updates_buffers(task, facts) or _takes_other_types(simple))
    # Templates can refuse late, while they lower a node. Such nodes become eager and everything is
    # partitioned again, since groups that they were part of fall apart. Each turn adds a node to `left` or
    # changes to Python, so the loop ends.
    index, templates = GraphIndex(simple), templates_for(task, facts, simple)
    left: dict[str, str] = {}
    while True:
        steps = partition(index, templates, left)
        needs_python = needs_python or any(step.template is None for step in steps)
        try:
            if needs_python:
                files, segments = emit_partial(
                    task, facts, simple, steps, templates, sources or {}, summary, left, attributes
                )
                notes = (*plan.notes, *_left(left), *precision_notes(segments))
                return Stitched(files, PARTIAL_MAIN, "kernelbench", notes)
            program = lower_steps(task.name, task.target, simple, steps)
        except UnloweredError as error:
            unforeseen = {name: str(error) for name in error.nodes if name not in left}
            # Without a node to give back another try would end the same.
            if needs_python and not unforeseen:
                raise _failed(str(error)) from error
            left.update(unforeseen)
            needs_python = True
        else:
            files, main = write_files(program, task.name, summary)
            return Stitched(files, main, "native", (*plan.notes, *precision_notes([program])))


def refuse_opaque(graph: Graph) -> None:
    """Nothing, where the capture found operations.

    Raises:
        StitchFailedError: it found none; the message is its reason.
    """
    if graph.source == "opaque":
        raise StitchFailedError(
            f"torch cannot write the forward down as a graph of operations: {graph.reason}",
            hint="Nothing is wrong with the reference, but a graph has no branch, loop, shape or number that "
            "depends on values, and no write to a parameter: write such a place with torch.where, masks of "
            "one shape or tensors instead of .item(), or solve a task of the part without it. Or write a "
            "program of your own, and judge it with `stitch-mcp check` (docs/program.md).",
        )


def _takes_other_types(graph: Graph) -> bool:
    """Whether an input has a type that a native program has no word for."""
    return any(item.kind == "user" and item.spec.dtype not in SCALAR_BYTES for item in graph.inputs)


def _left(left: Mapping[str, str]) -> tuple[str, ...]:
    """Notes on nodes that the plan gave to a template, and the template gave back."""
    return tuple(f"{name} stays with PyTorch: {reason}" for name, reason in left.items())


def _failed(reason: str) -> StitchFailedError:
    own = "Write a program of your own, and judge it with `stitch-mcp check` (docs/program.md)."
    return StitchFailedError(reason, hint=own)
