"""A recurrence that Python wrote out: for each step, cat of an input's step and the state, linear, tanh.

    hidden = tanh(linear(cat(x[t], hidden)));  outputs.append(linear(hidden) or hidden);  stack(outputs)

The linear layer's weight is a recurrent layer's two weights side by side, so that the chain becomes one
recurrent call over all steps, and the product behind each step one product over all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stitch_planner.stitcher.lower.comments import site
from stitch_planner.stitcher.lower.cuda.products import ALIGNED_ELEMENTS, product_call
from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.lower.kernel_ir import View, row_major
from stitch_planner.stitcher.lower.lowering import Lowering
from stitch_planner.stitcher.lower.operations import RnnOp
from stitch_planner.stitcher.lower.scalars import number
from stitch_planner.stitcher.lower.templates.base import NOT_MINE, LibraryTemplate
from stitch_planner.stitcher.lower.views import permute, slice_dim
from stitch_tools.models.graph import GraphNode

SHORTEST_CHAIN = 4
"""Steps from which on one recurrent call is worth its set-up."""
_LINEAR = "aten.linear.default"
_CELLS: dict[str, Literal["tanh", "relu"]] = {"aten.tanh.default": "tanh", "aten.relu.default": "relu"}


@dataclass(frozen=True)
class _Link:
    """One step of a chain."""

    x: ValueKey
    dim: int
    """The dim of `x` that counts steps."""
    step: int
    hidden: ValueKey
    """The state before."""
    input_first: bool
    """Whether the input stands before the state."""
    joined: GraphNode
    product: GraphNode
    cell: GraphNode

    def follows(self, before: "_Link") -> bool:
        """Whether this is the step after `before`, with the same weights."""
        same = (self.x, self.dim, self.input_first, self.cell.op, self.product.args[1:])
        other = (before.x, before.dim, before.input_first, before.cell.op, before.product.args[1:])
        return same == other and self.step == before.step + 1 and self.hidden == (before.cell.name, 0)


@dataclass(frozen=True)
class _Chain:
    """All steps, and what becomes of their states."""

    links: tuple[_Link, ...]
    products: tuple[GraphNode, ...]
    """The product behind each step; () where the states themselves are stacked."""
    stack: GraphNode

    def nodes(self, index: GraphIndex) -> tuple[GraphNode, ...]:
        """All nodes in execution order."""
        steps = [node for link in self.links for node in (link.joined, link.product, link.cell)]
        return tuple(sorted((*steps, *self.products, self.stack), key=lambda node: index.order[node.name]))


class CudaUnrolled(LibraryTemplate):
    """Recurrences written out with linear layers."""

    family = "rnn"

    def __init__(self, *, allow_tf32: bool = False) -> None:
        self.allow_tf32 = allow_tf32

    def refuses(self, node: GraphNode, index: GraphIndex) -> str | None:
        """None for the first node of such a chain."""
        return NOT_MINE if _chain_from(node, index) is None else None

    def gather(self, node: GraphNode, index: GraphIndex) -> tuple[GraphNode, ...]:
        """The whole chain."""
        chain = _chain_from(node, index)
        assert chain is not None
        return chain.nodes(index)

    def lower(self, nodes: Sequence[GraphNode], lowering: Lowering) -> None:
        """The recurrence, and the product over all of its states."""
        chain = _chain_from(nodes[0], lowering.index)
        assert chain is not None
        result = lowering.new((chain.stack.name, 0))
        link = chain.links[0]
        units = link.cell.outputs[0].shape[-1]
        lead = result.shape[:2]
        states = (
            lowering.scratch(f"{site(link.product)}_states", (*lead, units), "float32")
            if chain.products
            else result
        )
        name = f"{site(link.product)}_recurrence"
        comment = f"{site(link.product)}: {len(chain.links)} steps of {units} units, written out"
        lowering.call(name, comment, nodes, _recurrence(link, states, lowering))
        if not chain.products:
            return
        product = chain.products[0]
        rows = lead[0] * lead[1]
        flat = [View(v.buffer, (rows, v.shape[2]), (v.shape[2], 1), v.offset) for v in (states, result)]
        weight = lowering.dense(value_key(product.args[1]))
        given = argument(product, 2, "bias")
        lowering.add(
            product_call(
                lowering.unique(f"product_{site(product)}"),
                site(product),
                nodes,
                flat[0],
                permute(weight, (1, 0)),
                flat[1],
                bias=None if given is None else lowering.dense(value_key(given)),
                allow_tf32=self.allow_tf32,
            )
        )


def _recurrence(link: _Link, states: View, lowering: Lowering) -> RnnOp:
    """The recurrent call whose first step is `link`."""
    x = lowering.dense(link.x)
    units, features = states.shape[2], x.shape[2]
    weight = lowering.dense(value_key(link.product.args[1]))
    given = argument(link.product, 2, "bias")
    begins = (0, features) if link.input_first else (units, 0)
    parts = tuple(
        slice_dim(weight, 1, begin, size) for begin, size in zip(begins, (features, units), strict=True)
    )
    bias = () if given is None else (lowering.dense(value_key(given)),)
    hidden = lowering.dense(link.hidden)
    batch_first = link.dim == 1
    batch, time = states.shape[:2] if batch_first else (states.shape[1], states.shape[0])
    return RnnOp(
        weights=(*parts, *bias),
        source=x,
        hidden=View(hidden.buffer, (1, batch, units), row_major((1, batch, units)), hidden.offset),
        cell=None,
        out=states,
        last_hidden=None,
        last_cell=None,
        kind=_CELLS[link.cell.op],
        steps=time,
        batch=batch,
        features=features,
        units=units,
        layers=1,
        directions=1,
        batch_first=batch_first,
        has_bias=given is not None,
        one_bias=True,
    )


def _chain_from(node: GraphNode, index: GraphIndex) -> _Chain | None:
    """The chain that begins at `node`, its first cat; None where there is none."""
    link = _link_at(node, index)
    if link is None or link.step != 0 or not _has_fit_weights(link, index):
        return None
    links = [link]
    while (link := _link_after(links[-1], index)) is not None:
        links.append(link)
    shape = index.shape(links[0].x)
    if len(links) < SHORTEST_CHAIN or len(links) != shape[links[0].dim]:
        return None
    return _chain_of(links, index)


def _link_at(node: GraphNode, index: GraphIndex) -> _Link | None:
    """The step that begins with this cat of two matrices."""
    if node.op != "aten.cat.default" or not isinstance(node.args[0], tuple) or len(node.args[0]) != 2:
        return None
    if number(argument(node, 1, "dim", 0)) not in (1, -1):
        return None
    product = index.sole_user(node)
    cell = index.sole_user(product) if product is not None and product.op == _LINEAR else None
    if product is None or cell is None or cell.op not in _CELLS or node.outputs[0].dtype != "float32":
        return None
    keys = [value_key(item) for item in node.args[0]]
    for place in (0, 1):
        taken = _step_of(keys[place], index)
        if taken is None:
            continue
        x, dim, step = taken
        if (
            len(index.shape(x)) == 3
            and dim in (0, 1)
            and index.shape(keys[1 - place]) == cell.outputs[0].shape
        ):
            return _Link(x, dim, step, keys[1 - place], place == 0, node, product, cell)
    return None


def _step_of(key: ValueKey, index: GraphIndex) -> tuple[ValueKey, int, int] | None:
    """The tensor, the dim and the position that a value is taken from: x[t], or t-th of an unbind."""
    node = index.producer(key)
    if node is None or node.op not in ("aten.select.int", "aten.unbind.int"):
        return None
    dim = int(number(argument(node, 1, "dim", 0)))
    step = int(number(node.args[2])) if node.op == "aten.select.int" else key[1]
    return value_key(node.args[0]), dim, step


def _link_after(link: _Link, index: GraphIndex) -> _Link | None:
    for user in index.users((link.cell.name, 0)):
        after = _link_at(user, index)
        if after is not None and after.follows(link):
            return after
    return None


def _has_fit_weights(link: _Link, index: GraphIndex) -> bool:
    """Whether the library can read both parts of the weight where they lie."""
    operands = [key for key in index.operands(link.product) if key != (link.joined.name, 0)]
    features, units = index.shape(link.x)[2], link.cell.outputs[0].shape[-1]
    aligned = features % ALIGNED_ELEMENTS == 0 and units % ALIGNED_ELEMENTS == 0
    return aligned and all(index.is_constant(key) for key in operands)


def _chain_of(links: list[_Link], index: GraphIndex) -> _Chain | None:
    """The chain, where all that reads its states is its next step and one stack, or a product before that."""
    ends: list[GraphNode] = []
    inside = {link.joined.name for link in links}
    for link in links:
        others = [user for user in index.users((link.cell.name, 0)) if user.name not in inside]
        if len(others) != 1 or index.leaves((link.cell.name, 0)):
            return None
        ends += others
    stack = ends[0]
    products: list[GraphNode] = []
    if stack.op == _LINEAR:
        products = ends
        # Equal arguments behind the state: the same weight and bias.
        if any(end.op != _LINEAR or end.args[1:] != ends[0].args[1:] for end in ends):
            return None
        own = {(link.cell.name, 0) for link in links}
        if not all(index.is_constant(key) for key in index.operands(ends[0]) if key not in own):
            return None
        users = [index.sole_user(end) for end in ends]
        if users[0] is None or any(user is not users[0] for user in users):
            return None
        stack = users[0]
    return _Chain(tuple(links), tuple(products), stack) if _stacks(stack, links, products) else None


def _stacks(stack: GraphNode, links: list[_Link], products: list[GraphNode]) -> bool:
    """Whether `stack` joins the results of all steps in their order, along the dim that counts steps."""
    if stack.op != "aten.stack.default" or not isinstance(stack.args[0], tuple):
        return False
    results = products or [link.cell for link in links]
    names = [value_key(item) for item in stack.args[0]]
    dim = int(number(argument(stack, 1, "dim", 0)))
    return names == [(node.name, 0) for node in results] and dim % 3 == links[0].dim
