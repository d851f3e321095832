"""From the capture's JSON to the Graph fact, with the work and the shortest time of every operation."""

from collections.abc import Mapping

from pydantic import ValidationError

from stitch_tools.errors import TaskError, WorkerError
from stitch_tools.graph.bounds import min_time_us
from stitch_tools.graph.cost import node_work
from stitch_tools.graph.families import family_of
from stitch_tools.models.graph import Ceilings, Graph, GraphNode
from stitch_tools.models.task import Contract, ReferenceFacts, Task, TensorSpec
from stitch_tools.protocol.messages import OperationFailedError
from stitch_tools.protocol.messages_reference import CaptureGraph
from stitch_tools.run.child import Child
from stitch_tools.run.reference_server import ReferenceMemoryError

CAPTURE_TIMEOUT_S = 180.0


def capture_graph(child: Child, task: Task, facts: ReferenceFacts | None, ceilings: Ceilings | None) -> Graph:
    """The forward of the task that `child` (a reference server) has loaded.

    Raises:
        TaskError: the reference's forward failed.
        WorkerError: the answer is not a graph, or does not fit what was observed.
        ChildDied, ChildTimeout: as `Child.request`.
    """
    try:
        data = child.call(CaptureGraph(), CAPTURE_TIMEOUT_S)
    except OperationFailedError as error:
        fault = error.fault
        place = f"{fault.file}:{fault.line}: " if fault.file else ""
        hint = "does the forward run by itself?"
        kind = ReferenceMemoryError if fault.kind == "out_of_memory" else TaskError
        raise kind(f"{place}{fault.message or fault.kind}", hint=hint) from error
    graph = build_graph(data, task.contract, ceilings)
    if facts is not None:
        _compare(graph, facts)
    return graph


def build_graph(data: Mapping[str, object], contract: Contract, ceilings: Ceilings | None) -> Graph:
    """The Graph of the capture's JSON, its nodes costed.

    Raises:
        WorkerError: the JSON does not fit the fact.
    """
    try:
        graph = Graph.model_validate(data)
    except ValidationError as error:
        raise WorkerError(f"the captured graph is malformed: {error}", hint="report this as a bug") from error
    return with_costs(graph, contract, ceilings)


def with_costs(graph: Graph, contract: Contract, ceilings: Ceilings | None) -> Graph:
    """The graph with flops, bytes and, given ceilings, shortest times filled in."""
    specs: dict[tuple[str, int], TensorSpec] = {(row.name, 0): row.spec for row in graph.inputs}
    nodes: list[GraphNode] = []
    for node in graph.nodes:
        specs.update({(node.name, index): spec for index, spec in enumerate(node.outputs)})
        shortest = None
        try:
            work = node_work(node, specs)
            if ceilings is not None:
                shortest = min_time_us(work, family_of(node.op), ceilings, contract, node.outputs[0].dtype)
        except (LookupError, ValueError, ArithmeticError) as error:
            raise WorkerError(
                f"node {node.name} ({node.op}) cannot be costed: {type(error).__name__}: {error}",
                hint="the captured graph is damaged, or this is a bug",
            ) from error
        update = {
            "flops": work.flops,
            "bytes_read": work.bytes_read,
            "bytes_written": work.bytes_written,
            "min_time_us": shortest,
        }
        nodes.append(node.model_copy(update=update))
    return graph.model_copy(update={"nodes": tuple(nodes)})


def _compare(graph: Graph, facts: ReferenceFacts) -> None:
    """Refuse a graph whose inputs or outputs are not those that were observed."""
    specs = {(row.name, 0): row.spec for row in graph.inputs}
    for node in graph.nodes:
        specs.update({(node.name, index): spec for index, spec in enumerate(node.outputs)})
    users = [row for row in graph.outputs if row.kind == "user"]
    shapes = [specs[row.value.ref, row.value.index].shape if row.value else () for row in users]
    expected = [spec.shape for spec in facts.outputs]
    if shapes != expected:
        raise WorkerError(
            f"the captured graph returns {shapes}, but the reference returned {expected}",
            hint="its outputs may depend on data; this is a bug if they do not",
        )
