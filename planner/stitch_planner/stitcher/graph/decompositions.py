"""Operations that become several which have templates: einsum of many tensors, the triplet loss."""

from dataclasses import dataclass, field
from itertools import count

from stitch_planner.stitcher.lower.graph_index import GraphIndex, ValueKey, argument, value_key
from stitch_planner.stitcher.lower.scalars import number
from stitch_tools.models.graph import Argument, Graph, GraphNode, ValueRef
from stitch_tools.models.task import TensorSpec

_EINSUM = "aten.einsum.default"


_TRIPLET = "aten.triplet_margin_loss.default"


def decompose(graph: Graph) -> Graph:
    """The graph in which no einsum has more than two operands, and triplet losses are written out."""
    if not any(node.op in (_EINSUM, _TRIPLET) for node in graph.nodes):
        return graph
    index = GraphIndex(graph)
    taken = {*(item.name for item in graph.inputs), *(node.name for node in graph.nodes)}
    nodes: list[GraphNode] = []
    for node in graph.nodes:
        chain = _Chain.of(node, index, taken)
        if chain is not None:
            nodes += chain.nodes()
        elif node.op == _TRIPLET and _is_plain_triplet(node, index):
            nodes += _triplet(node, index, taken)
        else:
            nodes.append(node)
    return graph.model_copy(update={"nodes": tuple(nodes)})


# ---- triplet_margin_loss -------------------------------------------------------------------------------


def _is_plain_triplet(node: GraphNode, index: GraphIndex) -> bool:
    """Whether all tensors have one shape, and no distance is exchanged for a smaller one."""
    shapes = {index.shape(value_key(item)) for item in node.args[:3]}
    return len(shapes) == 1 and argument(node, 6, "swap", False) is False


def _triplet(node: GraphNode, index: GraphIndex, taken: set[str]) -> list[GraphNode]:
    """max(|anchor - positive + eps| - |anchor - negative + eps| + margin, 0), averaged or summed."""
    margin, power, eps = (
        argument(node, place, name, default)
        for place, name, default in ((3, "margin", 1.0), (4, "p", 2.0), (5, "eps", 1e-6))
    )
    shape, dtype = index.shape(value_key(node.args[0])), node.outputs[0].dtype
    made: list[GraphNode] = []

    def add(op: str, shape: tuple[int, ...], *args: Argument) -> ValueRef:
        name = unused_name(f"{node.name}_part", taken)
        spec = TensorSpec(name=name, shape=shape, dtype=dtype)
        made.append(GraphNode(name=name, op=op, args=args, outputs=(spec,), module_path=node.module_path))
        return ValueRef(ref=name, index=0)

    def distance(other: Argument) -> ValueRef:
        shifted = add("aten.add.Tensor", shape, add("aten.sub.Tensor", shape, node.args[0], other), eps)
        return add("aten.linalg_vector_norm.default", shape[:-1], shifted, power, (-1,))

    difference = add("aten.sub.Tensor", shape[:-1], distance(node.args[1]), distance(node.args[2]))
    loss = add(
        "aten.clamp_min.default", shape[:-1], add("aten.add.Tensor", shape[:-1], difference, margin), 0
    )
    reduction = argument(node, 7, "reduction", 1)
    ending = {0: "aten.clone.default", 1: "aten.mean.default", 2: "aten.sum.default"}[int(number(reduction))]
    return [*made, node.model_copy(update={"op": ending, "args": (loss,), "kwargs": {}})]


def unused_name(name: str, taken: set[str]) -> str:
    """`name`, or `name_1` and so on where that is taken; it is taken from then on."""
    unused = next(one for k in count() if (one := f"{name}_{k}" if k else name) not in taken)
    taken.add(unused)
    return unused


# ---- einsum --------------------------------------------------------------------------------------------


@dataclass
class _Chain:
    """One einsum on its way to a chain of products of two, from left to right as torch takes them."""

    node: GraphNode
    terms: list[str]
    """The dims of each operand, as letters."""
    operands: list[ValueKey]
    out: str
    sizes: dict[str, int]
    taken: set[str]
    made: list[GraphNode] = field(default_factory=list[GraphNode])

    @classmethod
    def of(cls, node: GraphNode, index: GraphIndex, taken: set[str]) -> "_Chain | None":
        """None where the node is no such einsum, or repeats a letter, or broadcasts."""
        if node.op != _EINSUM or not isinstance(node.args[0], str):
            return None
        sides, arrow, out = node.args[0].replace(" ", "").partition("->")
        terms = sides.split(",")
        given = node.args[1]
        if len(terms) < 3 or not arrow or not isinstance(given, tuple) or not "".join(terms).isalpha():
            return None
        operands = [value_key(item) for item in given]
        sizes: dict[str, int] = {}
        for term, key in zip(terms, operands, strict=True):
            for letter, size in zip(term, index.shape(key), strict=True):
                if sizes.setdefault(letter, size) != size:
                    return None
        once = all(len(set(term)) == len(term) for term in (*terms, out))
        return cls(node, terms, operands, out, sizes, taken) if once else None

    def nodes(self) -> list[GraphNode]:
        """The chain; its last node has the einsum's own name."""
        term, key = self.terms[0], self.operands[0]
        for place in range(1, len(self.terms)):
            other, other_key = self.terms[place], self.operands[place]
            is_last = place == len(self.terms) - 1
            wanted = {*self.out, *"".join(self.terms[place + 1 :])}
            both = dict.fromkeys(term + other)
            kept = self.out if is_last else "".join(letter for letter in both if letter in wanted)
            summed = [letter for letter in both if letter not in kept]
            name = self.node.name if is_last else unused_name(f"{self.node.name}_part_{place}", self.taken)
            if summed:
                pair = (ValueRef(ref=key[0], index=key[1]), ValueRef(ref=other_key[0], index=other_key[1]))
                self._add(_EINSUM, name, (f"{term},{other}->{kept}", pair), kept)
            else:
                sides = self._spread(key, term, kept), self._spread(other_key, other, kept)
                self._add("aten.mul.Tensor", name, sides, kept)
            term, key = kept, (name, 0)
        cost = {"flops": self.node.flops, "bytes_read": self.node.bytes_read}
        cost |= {"bytes_written": self.node.bytes_written, "min_time_us": self.node.min_time_us}
        return [*self.made[:-1], self.made[-1].model_copy(update=cost)]

    def _spread(self, key: ValueKey, term: str, like: str) -> ValueRef:
        """The operand with its dims in the order of `like`, of size 1 where it has none."""
        ordered = "".join(letter for letter in like if letter in term)
        if ordered != term:
            order = tuple(term.index(letter) for letter in ordered)
            name = unused_name(f"{self.node.name}_turned", self.taken)
            self._add("aten.permute.default", name, (ValueRef(ref=key[0], index=key[1]), order), ordered)
            key = (name, 0)
        present = ordered
        for dim, letter in enumerate(like):
            if letter in present:
                continue
            name = unused_name(f"{self.node.name}_spread", self.taken)
            ordered = ordered[:dim] + "1" + ordered[dim:]
            self._add("aten.unsqueeze.default", name, (ValueRef(ref=key[0], index=key[1]), dim), ordered)
            key = (name, 0)
        return ValueRef(ref=key[0], index=key[1])

    def _add(self, op: str, name: str, args: tuple[Argument, ...], letters: str) -> None:
        shape = tuple(self.sizes.get(letter, 1) for letter in letters)
        spec = TensorSpec(name=name, shape=shape, dtype=self.node.outputs[0].dtype)
        path = self.node.module_path
        self.made.append(GraphNode(name=name, op=op, args=args, outputs=(spec,), module_path=path))
