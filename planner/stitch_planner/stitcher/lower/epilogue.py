"""Which pointwise nodes a oneDNN product or convolution can compute itself, and how the call asks for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stitch_planner.stitcher.lower.comments import followers
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import PostOp
from stitch_planner.stitcher.lower.scalars import number
from stitch_tools.models.graph import GraphNode, ValueRef

MAX_OPERANDS = 1
"""Second operands of one call. More make oneDNN slower than a fused kernel behind it."""


@dataclass(frozen=True)
class Epilogue:
    """What follows a product inside the library call."""

    post: tuple[PostOp, ...] = ()
    operands: tuple[ValueKey, ...] = ()
    """Values that post-ops read, in order: of the result's shape, but for a bias that comes first."""
    comment: str = ""


def _gelu(node: GraphNode) -> PostOp:
    return PostOp("gelu_tanh" if argument(node, 1, "approximate") == "tanh" else "gelu_erf")


def _hardtanh(node: GraphNode) -> PostOp:
    low, high = argument(node, 1, "min_val", -1.0), argument(node, 2, "max_val", 1.0)
    return PostOp("clip", (float(number(low)), float(number(high))))


def _leaky(node: GraphNode) -> PostOp:
    return PostOp("relu", (float(number(argument(node, 1, "negative_slope", 0.01))),))


def _is_flat_leaky(node: GraphNode) -> bool:
    """Whether it is a leaky ReLU of slope 0, which is NaN at -inf, where oneDNN computes a ReLU."""
    return node.op == "aten.leaky_relu.default" and number(argument(node, 1, "negative_slope", 0.01)) == 0


_ACTIVATIONS: dict[str, Callable[[GraphNode], PostOp]] = {
    "aten.relu.default": lambda node: PostOp("relu"),
    "aten.gelu.default": _gelu,
    "aten.silu.default": lambda node: PostOp("silu"),
    "aten.sigmoid.default": lambda node: PostOp("sigmoid"),
    "aten.tanh.default": lambda node: PostOp("tanh"),
    "aten.hardtanh.default": _hardtanh,
    "aten.relu6.default": lambda node: PostOp("clip", (0.0, 6.0)),
    "aten.leaky_relu.default": _leaky,
}


def can_follow(nodes: Sequence[GraphNode], candidate: GraphNode, index: GraphIndex) -> bool:
    """Whether a library step that computes `nodes` can compute `candidate` as well."""
    # A result that broadcasting makes larger is no longer the call's own output.
    if candidate.outputs[0].shape != nodes[-1].outputs[0].shape or candidate.outputs[0].dtype != "float32":
        return False
    if candidate.op in _ACTIVATIONS:
        return not _is_flat_leaky(candidate)
    if _scaling(candidate) is not None:
        return True
    operand = _operand(candidate, {node.name for node in nodes}, index)
    used = sum(_operand(node, {n.name for n in nodes}, index) is not None for node in nodes[1:])
    return operand is not None and used < MAX_OPERANDS


def epilogue_of(
    nodes: Sequence[GraphNode], lowering: Lowering, *, alpha: float = 1.0, bias: ValueKey | None = None
) -> Epilogue:
    """The epilogue of a step: what `nodes[1:]` do to the result of `nodes[0]`.

    Before that, what the library itself does not do for `nodes[0]`: scaling by `alpha`, then adding `bias`,
    which holds a value for each column or has the result's shape.
    """
    inside = {node.name for node in nodes}
    # oneDNN applies post-ops in order: scaling before the bias, as alpha * (a @ b) + bias is defined.
    post = [] if alpha == 1 else [PostOp("linear", (alpha, 0.0))]
    operands: list[ValueKey] = []
    if bias is not None:
        full = lowering.index.shape(bias) == nodes[0].outputs[0].shape
        post.append(PostOp("add" if full else "add_channel"))
        operands.append(bias)
    for node in nodes[1:]:
        scaling = _scaling(node)
        if node.op in _ACTIVATIONS:
            post.append(_ACTIVATIONS[node.op](node))
        elif scaling is not None:
            post.append(PostOp("linear", scaling))
        else:
            operand = _operand(node, inside, lowering.index)
            assert operand is not None, node
            operands.append(operand)
            post.append(PostOp("mul" if ".mul." in node.op else "add"))
    return Epilogue(tuple(post), tuple(operands), followers(nodes))


def _scaling(node: GraphNode) -> tuple[float, float] | None:
    """Factor and summand of a node that scales or shifts by numbers."""
    if len(node.args) != 2 or node.kwargs or not isinstance(node.args[0], ValueRef):
        return None
    given = node.args[1]
    if isinstance(given, bool) or not isinstance(given, int | float):
        return None
    value = float(given)
    kinds = {
        "mul": (value, 0.0),
        # oneDNN's linear post-op has a factor only. Division by 0 is refused below: it must give inf or NaN.
        "div": (1.0 / value if value else 0.0, 0.0),
        "add": (1.0, value),
        "sub": (1.0, -value),
    }
    name = node.op.split(".")[1]
    return kinds.get(name) if not (name == "div" and value == 0) else None


def residual_of(node: GraphNode, inside: set[str], index: GraphIndex) -> ValueKey | None:
    """The other summand of an addition to a value that `inside` nodes made, if it is of its shape."""
    return _partner(node, inside, index) if node.op == "aten.add.Tensor" else None


def _operand(node: GraphNode, inside: set[str], index: GraphIndex) -> ValueKey | None:
    """The other summand or factor of a value that `inside` nodes made, if it is of its shape."""
    return _partner(node, inside, index) if node.op in ("aten.add.Tensor", "aten.mul.Tensor") else None


def _partner(node: GraphNode, inside: set[str], index: GraphIndex) -> ValueKey | None:
    keys = [value_key(item) for item in node.args if isinstance(item, ValueRef)]
    others = [key for key in keys if key[0] not in inside]
    # x + x has no other operand, and a number instead of a tensor is handled by `_scaling`.
    if len(node.args) != 2 or len(keys) != 2 or len(others) != 1:
        return None
    if number(node.kwargs.get("alpha", 1)) != 1 or index.spec(others[0]).dtype != "float32":
        return None
    return others[0] if index.shape(keys[0]) == index.shape(keys[1]) else None
