"""What kernels of a GPU compute in passing: biases of convolutions and batch statistics.

An addition costs nothing where element-wise kernels follow. Behind cuDNN's convolution it is a pass over the
whole image: its fused call exists for few algorithms, and for no transposed convolution.
"""

from stitch_planner.stitcher.graph.decompositions import unused_name
from stitch_planner.stitcher.graph.pooling import pools_as_reductions, window_of
from stitch_planner.stitcher.lower.cuda.norm_choice import joins_elements
from stitch_planner.stitcher.lower.epilogue import residual_of
from stitch_planner.stitcher.lower.graph_index import GraphIndex, argument, value_key
from stitch_planner.stitcher.lower.reductions import BATCH_STATISTICS, REDUCTIONS, is_global_average
from stitch_planner.stitcher.lower.scalars import EXPRESSIONS
from stitch_planner.stitcher.lower.templates.batch_norm import is_from_batch
from stitch_tools.models.graph import Argument, Graph, GraphNode, ValueRef
from stitch_tools.models.task import TensorSpec

_CONVOLUTIONS = frozenset(
    [
        *(f"aten.conv{rank}d.{overload}" for rank in (1, 2) for overload in ("default", "padding")),
        "aten.conv_transpose1d.default",
        "aten.conv_transpose2d.input",
    ]
)
_MAXIMA = tuple(f"aten.max_pool{rank}d.default" for rank in (1, 2))
_BIAS = 2  # its place among the arguments
_ELEMENTS = (EXPRESSIONS.keys() | REDUCTIONS.keys()) - {"aten.batch_norm.default", "aten.layer_norm.default"}
_IMAGE_NORMS = frozenset(["aten.group_norm.default", "aten.instance_norm.default"])


def for_gpu(graph: Graph, *, updates: bool = False) -> Graph:
    """The simplified graph as GPU templates take it; `updates`: whether running statistics are wanted."""
    return pools_as_reductions(move_biases(graph if updates else with_batch_statistics(graph)))


def with_batch_statistics(graph: Graph) -> Graph:
    """The graph in which batch norms that are worth it are reductions; nobody may want running statistics."""
    index = GraphIndex(graph)
    nodes = tuple(
        _without_running(node)
        if node.op == "aten.batch_norm.default" and is_from_batch(node) and joins_elements(node, index)
        else node
        for node in graph.nodes
    )
    return graph.model_copy(update={"nodes": nodes})


def _without_running(node: GraphNode) -> GraphNode:
    momentum, eps = argument(node, 6, "momentum"), argument(node, 7, "eps", 1e-5)
    args = (*node.args[:3], True, momentum, eps)
    return node.model_copy(update={"op": BATCH_STATISTICS, "args": args, "kwargs": {}})


def move_biases(graph: Graph) -> Graph:
    """The graph in which convolutions before element-wise operations have no bias.

    Behind a maximum of windows it is added as well: rounding keeps the order of numbers, so that the largest
    sum is the sum of the largest.
    """
    index = GraphIndex(graph)
    taken = {*index.nodes, *index.inputs}
    bare: dict[str, tuple[str, Argument]] = {}
    """Nodes of which the result lacks a bias: the name of what is left, and the bias."""
    nodes: list[GraphNode] = []
    for node in graph.nodes:
        before = bare.get(node.args[0].ref) if node.args and isinstance(node.args[0], ValueRef) else None
        if before is not None and node.op in _MAXIMA:
            name = unused_name(f"{node.name}_bare", taken)
            nodes.append(_renamed(node, name, (ValueRef(ref=before[0]), *node.args[1:]), node.kwargs))
            nodes += _sum(node, name, before[1], taken)
        elif _moves(node, index):
            name = unused_name(f"{node.name}_bare", taken)
            args = tuple(None if place == _BIAS else item for place, item in enumerate(node.args))
            without = {key: value for key, value in node.kwargs.items() if key != "bias"}
            nodes.append(_renamed(node, name, args, without))
            bias = argument(node, _BIAS, "bias")
            if any(user.op in _MAXIMA for user in index.users((node.name, 0))):
                bare[node.name] = (name, bias)
            else:
                nodes += _sum(node, name, bias, taken)
        else:
            nodes.append(node)
    return graph.model_copy(update={"nodes": tuple(nodes)})


def _moves(node: GraphNode, index: GraphIndex) -> bool:
    """Whether the convolution has a bias that all its readers can add."""
    key = (node.name, 0)
    if node.op not in _CONVOLUTIONS or argument(node, _BIAS, "bias") is None or index.leaves(key):
        return False
    if node.outputs[0].dtype != "float32" or not index.is_constant(value_key(argument(node, _BIAS, "bias"))):
        return False
    users = index.users(key)
    if len(users) == 1 and residual_of(users[0], {node.name}, index) is not None:
        return False  # which the convolution's call adds together with the bias
    if len(users) == 1 and users[0].op in _MAXIMA:
        key = (users[0].name, 0)
        after = index.users(key)
        return bool(after) and not index.leaves(key) and all(_adds(user, index) for user in after)
    # cuDNN's fused call ends with a ReLU, and is as fast as the convolution alone.
    fused = "transpose" not in node.op and [user.op for user in users] == ["aten.relu.default"]
    return bool(users) and not fused and all(_adds(user, index) for user in users)


def _adds(user: GraphNode, index: GraphIndex) -> bool:
    """Whether the bias can be added where a node reads: norms have calls of their own otherwise."""
    if user.op in _IMAGE_NORMS:
        return joins_elements(user, index)
    if "avg_pool" in user.op:
        return is_global_average(user, index) or window_of(user, index) is not None
    return user.op in _ELEMENTS


def _sum(node: GraphNode, bare: str, bias: Argument, taken: set[str]) -> tuple[GraphNode, GraphNode]:
    """The bias with the dims of the node's result, and the sum, which has the node's name."""
    shape = node.outputs[0].shape
    channels = (1, shape[1], *(1 for _ in shape[2:]))
    view = unused_name(f"{node.name}_bias", taken)
    return (
        _made(node, view, "aten.view.default", channels, bias, channels),
        _made(node, node.name, "aten.add.Tensor", shape, ValueRef(ref=bare), ValueRef(ref=view)),
    )


def _renamed(
    node: GraphNode, name: str, args: tuple[Argument, ...], kwargs: dict[str, Argument]
) -> GraphNode:
    """The node under another name, with other operands."""
    outputs = (node.outputs[0].model_copy(update={"name": name}),)
    return node.model_copy(update={"name": name, "args": args, "kwargs": kwargs, "outputs": outputs})


def _made(node: GraphNode, name: str, op: str, shape: tuple[int, ...], *args: Argument) -> GraphNode:
    spec = TensorSpec(name=name, shape=shape, dtype=node.outputs[0].dtype)
    return GraphNode(name=name, op=op, args=args, outputs=(spec,), module_path=node.module_path)
