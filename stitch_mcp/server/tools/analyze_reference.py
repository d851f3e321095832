"""`analyze_reference`: opens a run for a PyTorch reference and shows its operations and their costs."""

from typing import ClassVar

from stitch_mcp.server.job_context import JobContext
from stitch_mcp.server.requests import Detailed, NamesContract
from stitch_mcp.server.tool import Tool, ToolAnswer
from stitch_tools.models.graph import Graph
from stitch_tools.models.remedy import Remedy
from stitch_tools.models.task import TensorSpec

_MOST_OPS = 12


class AnalyzeReference(NamesContract, Detailed):
    """Arguments of analyze_reference."""


class ReferenceAnswer(ToolAnswer):
    """What the reference is."""

    DETAILS: ClassVar[tuple[str, ...]] = ("parameters", "contract")
    QUOTED: ClassVar[tuple[str, ...]] = ("warnings",)

    task_id: str | None = None
    target: str | None = None
    inputs: tuple[str, ...] = ()
    """Tensors in the ABI's order: name: type[shape]."""
    outputs: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    contract: dict[str, object] | None = None
    """Tolerances, precision, mode."""
    gflop: float | None = None
    """Work of one forward."""
    estimated_us: float | None = None
    """Sum of the operations' times at measured limits; fused programs can be faster."""
    operations: tuple[str, ...] = ()
    """Costliest first: operation at module: estimated us, share."""
    warnings: tuple[str, ...] = ()


def analyze(request: AnalyzeReference, work: JobContext) -> ReferenceAnswer:
    """The captured reference, recorded in its run."""
    from stitch_mcp.api import capture_task
    from stitch_mcp.server.steps import open_run, record_capture
    from stitch_mcp.views.fact_tables import disturbance

    task = work.task
    with open_run(work, task) as run:
        captured = capture_task(work.workbench, task)
        graph_hash = record_capture(run, captured)
        run_id = run.run_id
    facts, graph = captured.facts, captured.graph
    count = f"{len(graph.nodes)} operations" if graph.nodes else "no graph"
    if facts.parameters:
        # A program needs their names; there can be hundreds, so they are shown on demand only.
        count += f", {len(facts.parameters)} parameters and buffers (`detail`: detailed names them)"
    return ReferenceAnswer(
        message=f"{task.name} for {task.target}: {count}, captured by {graph.source}",
        run_id=run_id,
        artifact=graph_hash,
        task_id=task.task_id,
        target=task.target,
        inputs=_specs(facts.inputs),
        outputs=_specs(facts.outputs),
        parameters=_specs(facts.parameters),
        contract=task.contract.model_dump(mode="json", exclude={"sources"}, exclude_none=True),
        gflop=round(graph.flops / 1e9, 4),
        estimated_us=_total(graph),
        operations=_costliest(graph),
        warnings=(*facts.warnings, *disturbance(captured.ceilings)),
        next_steps=_next(run_id),
    )


def _specs(specs: tuple[TensorSpec, ...]) -> tuple[str, ...]:
    return tuple(f"{spec.name}: {spec.dtype}{list(spec.shape)}" for spec in specs)


def _total(graph: Graph) -> float | None:
    times = [node.min_time_us for node in graph.nodes]
    measured = [time for time in times if time is not None]
    return round(sum(measured), 2) if measured and len(measured) == len(times) else None


def _costliest(graph: Graph) -> tuple[str, ...]:
    total = _total(graph)
    if not total:
        return tuple(node.op for node in graph.nodes[:_MOST_OPS])
    ordered = sorted(graph.nodes, key=lambda node: node.min_time_us or 0.0, reverse=True)
    return tuple(
        f"{node.op} at {node.module_path or 'the root'}: {node.min_time_us or 0:.2f} us, "
        f"{(node.min_time_us or 0) / total:.0%}"
        for node in ordered[:_MOST_OPS]
    )


def _next(run_id: str) -> tuple[Remedy, ...]:
    plan = Remedy(
        tool="make_plan",
        arguments={"run_id": run_id},
        why="see which operations to fuse in a program by hand",
    )
    solve = Remedy(
        tool="solve",
        arguments={"run_id": run_id},
        why="let the stitcher write, check and time one first",
    )
    return (solve, plan)


TOOL = Tool(
    name="analyze_reference",
    title="Analyze a PyTorch reference",
    description=(
        "Opens a run for a PyTorch module with example inputs: runs it once in a sandbox and shows shapes, "
        "operations with estimated times, and warnings. Call it first for each module. 5 to 20 s. "
        "Next: solve; make_plan for a program by hand."
    ),
    request=AnalyzeReference,
    answer=ReferenceAnswer,
    work=analyze,
    runs_code=True,
    warm=True,
)
