"""Kernels and the whole against the measured limits of the device."""

from stitch_tools.diagnose.evidence import ProfileEvidence
from stitch_tools.graph.families import family_of
from stitch_tools.graph.lower_bounds import graph_traffic, node_bound_us
from stitch_tools.models.graph import Graph, GraphNode
from stitch_tools.models.profile import BoundBy, ModuleTime, RooflinePoint

_MOST_POINTS = 20


def roofline_of(evidence: ProfileEvidence) -> tuple[RooflinePoint, ...]:
    """The whole first, then kernels that were looked at, then operations of the graph, largest time first.

    Where no operation has a time of its own, modules stand in their place.
    """
    graph = evidence.graph
    if graph is None or not graph.nodes:
        return tuple(row.roofline for row in evidence.kernels if row.roofline is not None)
    traffic = graph_traffic(graph)
    bound = evidence.bounds.fused_us if evidence.bounds is not None else None
    whole = RooflinePoint(
        name="whole",
        time_us=evidence.total_us,
        flops=float(graph.flops),
        bytes=float(traffic.compulsory_bytes),
        dtype=_dtype(evidence, graph.nodes),
        bound_us=bound,
        bound_by=_bound_by(evidence, graph.flops, traffic.compulsory_bytes, graph.nodes),
        time_origin="benchmark" if evidence.system.untraced_us is not None else evidence.system.origin,
    )
    points = _node_points(evidence, graph) or [
        point for module in evidence.system.modules if (point := _module_point(evidence, graph, module))
    ]
    points.sort(key=lambda point: -point.time_us)
    kernels = [row.roofline for row in evidence.kernels if row.roofline is not None]
    return (whole, *kernels[:_MOST_POINTS], *points[: _MOST_POINTS - len(kernels[:_MOST_POINTS])])


def _node_points(evidence: ProfileEvidence, graph: Graph) -> list[RooflinePoint]:
    by_name = {node.name: node for node in graph.nodes}
    points: list[RooflinePoint] = []
    for row in evidence.system.nodes:
        node = by_name.get(row.node)
        moved = node.bytes_read + node.bytes_written if node is not None else 0
        if node is None or not moved:
            continue
        points.append(
            RooflinePoint(
                name=f"{row.node} ({row.module})" if row.module else row.node,
                time_us=row.time_us,
                flops=float(node.flops),
                bytes=float(moved),
                dtype=_dtype(evidence, (node,)),
                bound_us=row.bound_us,
                bound_by=_bound_by(evidence, node.flops, moved, (node,)),
                time_origin=evidence.system.origin,
            )
        )
    return points


def _module_point(evidence: ProfileEvidence, graph: Graph, module: ModuleTime) -> RooflinePoint | None:
    nodes = [node for node in graph.nodes if node.module_path == module.path and module.path]
    # On a CPU the time of a module holds that of its children: only leaves can be placed.
    if any(node.module_path.startswith(f"{module.path}.") for node in graph.nodes):
        return None
    time_us = module.device_us if module.device_us is not None else module.host_us
    flops = sum(node.flops for node in nodes)
    moved = sum(node.bytes_read + node.bytes_written for node in nodes)
    if not nodes or not time_us or not moved:
        return None
    bound = None
    if evidence.ceilings is not None:
        bound = sum(node_bound_us(node, evidence.ceilings, evidence.contract) for node in nodes)
    return RooflinePoint(
        name=f"{module.path} ({module.type})",
        time_us=time_us,
        flops=float(flops),
        bytes=float(moved),
        dtype=_dtype(evidence, nodes),
        bound_us=bound,
        bound_by=_bound_by(evidence, flops, moved, nodes),
        time_origin=evidence.system.origin,
    )


def _dtype(evidence: ProfileEvidence, nodes: "list[GraphNode] | tuple[GraphNode, ...]") -> str:
    """The format whose rate is the roof of these operations."""
    matrix = [node for node in nodes if family_of(node.op) in ("gemm", "conv", "sdpa", "rnn")]
    if not matrix:
        return "fp32"
    dtype = matrix[0].outputs[0].dtype
    if dtype in ("float16", "bfloat16"):
        return "fp16" if dtype == "float16" else "bf16"
    is_conv = family_of(matrix[0].op) == "conv"
    return evidence.contract.conv_precision if is_conv else evidence.contract.matmul_precision


def _bound_by(
    evidence: ProfileEvidence, flops: float, moved: float, nodes: "list[GraphNode] | tuple[GraphNode, ...]"
) -> BoundBy:
    if evidence.ceilings is None:
        return "unknown"
    rate = evidence.ceilings.flops_per_s.get(_dtype(evidence, nodes))
    seconds = moved / evidence.ceilings.copy_bytes_per_s
    if rate is not None and flops / rate > seconds:
        return "compute"
    return "memory" if seconds * 1e6 > evidence.ceilings.launch_us else "latency"
