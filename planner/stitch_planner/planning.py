"""Makes the plan for a captured graph: fusion groups with layouts and predicted times."""

from collections.abc import Sequence

from stitch_planner.plan import Bound, HostPlan, Layout, LibraryChoice, Plan, PlanStep, PlanValue, StepKind
from stitch_planner.step_work import StepWork, value_name
from stitch_planner.stitcher.graph.partition import Step, partition
from stitch_planner.stitcher.kernel_program import copied_bytes
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, references
from stitch_planner.stitcher.lower.reductions import REDUCTIONS
from stitch_planner.stitcher.stitch import StitchFailedError, stitch
from stitch_planner.stitcher.targets import simple_graph, templates_for
from stitch_tools.models.graph import Ceilings, Graph, GraphNode
from stitch_tools.models.task import Contract, ReferenceFacts, Task

_IMAGE_FAMILIES = ("conv", "pool", "batch_norm", "group_norm", "upsample", "concat")
_MATRIX_OPS = ("linear", "matmul", "mm", "bmm", "addmm", "conv", "lstm", "gru", "rnn", "scaled_dot_product")


def make_plan(graph: Graph, facts: ReferenceFacts, task: Task, ceilings: Ceilings | None) -> Plan:
    """The plan for a captured graph. Equal arguments give the same plan."""
    simple = simple_graph(task, facts, graph)
    index = GraphIndex(simple)
    work = StepWork(simple)
    steps = partition(index, templates_for(task, facts, simple))
    layouts: dict[ValueKey, Layout] = {}
    copied = copied_bytes(task.target, simple, steps)
    planned: list[PlanStep] = []
    for step in steps:
        if step.template is not None and step.template.kind == "view":
            _pass_layout_on(step, layouts)
            continue
        extra = copied.get(step.nodes[0].name, 0)
        drawn = _plan_step(len(planned), step, index, layouts, task.contract, ceilings, extra)
        planned.append(_detailed(drawn, step, index, work, task, ceilings))
    times = [step.predicted_us for step in planned]
    measured = [time for time in times if time is not None]
    return Plan(
        target=task.target,
        steps=tuple(planned),
        # A sum over some of the steps would look like a prediction for all of them.
        predicted_us=sum(measured) if len(measured) == len(times) else None,
        notes=_notes(graph, facts, planned),
        # What the stitcher's programs do: they launch on the caller's stream, one step after the other.
        host=HostPlan(streams=1, cuda_graph=False) if task.target.startswith("cuda") else None,
    )


def try_plan(graph: Graph, facts: ReferenceFacts, task: Task, ceilings: Ceilings | None) -> Plan:
    """As `make_plan`, with a note where no program can be written after the plan, whatever the reason."""
    plan = make_plan(graph, facts, task, ceilings)
    try:
        # Of the sources only the names count here.
        stitch(task, facts, graph, plan, {task.main: b""})
    except StitchFailedError as error:
        return plan.model_copy(update={"notes": (*plan.notes, f"no program can be written: {error.message}")})
    return plan


def _plan_step(
    place: int,
    step: Step,
    index: GraphIndex,
    layouts: dict[ValueKey, Layout],
    contract: Contract,
    ceilings: Ceilings | None,
    copied: int,
) -> PlanStep:
    inside = {node.name for node in step.nodes}
    reads = list(dict.fromkeys(k for node in step.nodes for k in references(node) if k[0] not in inside))
    writes = _leaving(step.nodes, inside, index)
    layout = _layout(step, reads, layouts, index)
    layouts.update((key, layout) for key in writes if len(index.shape(key)) == 4)
    inputs = tuple(_value(key, index, layouts) for key in reads)
    outputs = tuple(_value(key, index, layouts) for key in writes)
    moved = sum(index.spec(key).nbytes for key in (*reads, *writes))
    flops = sum(node.flops for node in step.nodes)
    predicted, bound = _predict(step, moved + copied, flops, contract, ceilings)
    return PlanStep(
        index=place,
        name=step.nodes[-1].name,
        kind=step_kind(step),
        family=_family(step),
        nodes=tuple(node.name for node in step.nodes),
        ops=tuple(_short(node) for node in step.nodes),
        module_path=step.nodes[0].module_path,
        inputs=inputs,
        outputs=outputs,
        flops=flops,
        bytes=moved,
        copied_bytes=copied,
        predicted_us=predicted,
        bound=bound,
        note=step.reason,
    )


def _detailed(
    planned: PlanStep, step: Step, index: GraphIndex, work: StepWork, task: Task, ceilings: Ceilings | None
) -> PlanStep:
    """The step with its bound, its goal, and what is known of its means, risks and test."""
    least = work.lower_bound_us(planned.nodes, task.contract, ceilings)
    # A step of several operations may be timed by the largest one alone, which another rate bounds.
    predicted = planned.predicted_us
    if predicted is not None and least is not None:
        predicted = max(predicted, least)
    return planned.model_copy(
        update={
            "predicted_us": predicted,
            "lower_bound_us": least,
            "goal": _goal(planned, index),
            "library": _library(step, task.target),
            "risks": _risks(planned),
            "acceptance": _acceptance(planned, index, task.contract),
        }
    )


def _goal(step: PlanStep, index: GraphIndex) -> str:
    if step.kind == "eager":
        return "left to PyTorch"
    inner = [name for name in step.nodes if name not in {value.name for value in step.outputs}]
    if not inner:
        return "computed by itself"
    kept = sum(spec.nbytes for name in inner for spec in index.nodes[name].outputs)
    return f"one pass: {kept:,} bytes between its operations are neither written nor read again"


_CUDA_LIBRARIES: dict[str, LibraryChoice] = {"gemm": "cublaslt", "conv": "cudnn"}


def _library(step: Step, target: str) -> LibraryChoice:
    if step.template is None:
        return "pytorch"
    if target.startswith("cuda"):
        return _CUDA_LIBRARIES.get(step.template.family, "custom")
    return "onednn" if step.template.family in ("gemm", "conv") else "custom"


def _risks(step: PlanStep) -> tuple[str, ...]:
    if not step.copied_bytes:
        return ()
    return (f"copies into another layout move {step.copied_bytes:,} bytes beside the step's own",)


def _acceptance(step: PlanStep, index: GraphIndex, contract: Contract) -> str:
    """The contract says nothing of values inside the graph, and neither does the plan."""
    if not any(index.leaves((name, 0)) for name in step.nodes):
        return ""
    tolerance = contract.tolerance
    return f"its output is off by at most {tolerance.atol:g} + {tolerance.rtol:g} of its rms"


def step_kind(step: Step) -> StepKind:
    """What kind of code computes a step."""
    if step.template is None:
        return "eager"
    if step.template.kind != "element":
        return step.template.kind
    return "rows" if any(node.op in REDUCTIONS for node in step.nodes) else "pointwise"


def _family(step: Step) -> str:
    if step.template is None:
        return ""
    return step_kind(step) if step.template.kind == "element" else step.template.family


def _short(node: GraphNode) -> str:
    return node.op.split(".")[1] if "." in node.op else node.op


def _leaving(nodes: Sequence[GraphNode], inside: set[str], index: GraphIndex) -> list[ValueKey]:
    """Values made inside that something outside reads."""
    keys = [(node.name, place) for node in nodes for place in range(len(node.outputs))]
    return [
        key for key in keys if index.leaves(key) or any(user.name not in inside for user in index.users(key))
    ]


def _value(key: ValueKey, index: GraphIndex, layouts: dict[ValueKey, Layout]) -> PlanValue:
    spec = index.spec(key)
    return PlanValue(
        name=value_name(key), shape=spec.shape, dtype=spec.dtype, layout=layouts.get(key, "row-major")
    )


def _layout(step: Step, reads: list[ValueKey], layouts: dict[ValueKey, Layout], index: GraphIndex) -> Layout:
    """Layout of a step's images: convolutions and what follows them run channels-last."""
    if any(index.leaves((node.name, 0)) for node in step.nodes):
        return "row-major"
    if step.template is not None and step.template.family in _IMAGE_FAMILIES:
        return "channels-last"
    first = next((key for key in reads if len(index.shape(key)) == 4), None)
    return layouts.get(first, "row-major") if first is not None else "row-major"


def _pass_layout_on(step: Step, layouts: dict[ValueKey, Layout]) -> None:
    """A view of an image that stays an image keeps its layout."""
    for node in step.nodes:
        for key in references(node):
            if key in layouts and all(len(out.shape) == 4 for out in node.outputs):
                layouts.update(((node.name, place), layouts[key]) for place in range(len(node.outputs)))


def _predict(
    step: Step, moved: int, flops: int, contract: Contract, ceilings: Ceilings | None
) -> tuple[float | None, Bound | None]:
    if ceilings is None:
        return None, None
    bandwidth = ceilings.copy_bytes_per_s
    if moved <= ceilings.last_level_cache_bytes and ceilings.cache_bytes_per_s is not None:
        bandwidth = max(bandwidth, ceilings.cache_bytes_per_s)
    memory_us = moved / bandwidth * 1e6
    rate = _rate(step, contract, ceilings)
    compute_us = flops / rate * 1e6 if rate else 0.0
    total = max(memory_us, compute_us) + ceilings.launch_us
    if ceilings.launch_us > max(memory_us, compute_us):
        return total, "launch"
    return total, "compute" if compute_us > memory_us else "memory"


def _rate(step: Step, contract: Contract, ceilings: Ceilings) -> float | None:
    """Operations per second of matrix products; None where the step's largest operation is none."""
    largest = max(step.nodes, key=lambda node: node.flops)
    name = _short(largest)
    if not name.startswith(_MATRIX_OPS):
        return None
    allowed = contract.conv_precision if name.startswith("conv") else contract.matmul_precision
    return ceilings.flops_per_s.get(allowed, ceilings.flops_per_s.get("fp32"))


def _notes(graph: Graph, facts: ReferenceFacts, steps: list[PlanStep]) -> tuple[str, ...]:
    notes: list[str] = []
    if graph.source != "export":
        notes.append(f"captured by {graph.source}: {graph.reason}")
    if facts.uses_rng:
        notes.append("the forward draws random numbers")
    notes.extend(f"{step.name} stays with PyTorch: {step.note}" for step in steps if step.kind == "eager")
    return tuple(notes)
