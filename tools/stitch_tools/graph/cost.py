"""Counts an operation's work: floating-point operations, and bytes that must move.

Counts are lower bounds by design, since they feed lower-bound times: a multiply-add is two operations, what
multiplies no matrices does one for each element of its largest tensor, every input is read once.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stitch_tools.graph.families import Family, base_name, family_of
from stitch_tools.models.graph import Argument, GraphNode, ValueRef
from stitch_tools.models.task import TensorSpec

Specs = Mapping[tuple[str, int], TensorSpec]
"""Shape and type of every value of a graph, by node or input name and output index."""


@dataclass(frozen=True)
class OperationWork:
    """What one operation has to do."""

    flops: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True)
class _Call:
    """A node with its tensor operands looked up, those in lists included."""

    node: GraphNode
    specs: Specs

    @property
    def tensors(self) -> list[TensorSpec]:
        return self.tensors_in((*self.node.args, *self.node.kwargs.values()))

    @property
    def out(self) -> TensorSpec:
        return self.node.outputs[0]

    def tensors_in(self, value: Argument) -> list[TensorSpec]:
        return [self.specs[found.ref, found.index] for found in _walk(value)]

    def argument(self, position: int, name: str, default: Argument) -> Argument:
        if position < len(self.node.args):
            return self.node.args[position]
        return self.node.kwargs.get(name, default)


def node_work(node: GraphNode, specs: Specs) -> OperationWork:
    """The node's work; `specs` must hold every value that it uses."""
    family, call = family_of(node.op), _Call(node, specs)
    if family == "view" and not _copies(call):
        return OperationWork(0, 0, 0)
    operands = [specs[value.ref, value.index] for value in references(node)]
    written = sum(spec.nbytes for spec in node.outputs)
    return OperationWork(_FLOPS[family](call), _bytes_read(family, node, operands), written)


def references(node: GraphNode) -> list[ValueRef]:
    """The values that a node uses, each once, in order."""
    return list(dict.fromkeys(_walk((*node.args, *node.kwargs.values()))))


def _walk(value: Argument) -> Iterator[ValueRef]:
    if isinstance(value, ValueRef):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _walk(item)


def distinct_bytes(spec: TensorSpec) -> int:
    """Bytes behind a tensor; dimensions that expand repeats (stride 0) count once."""
    if spec.stride is None:
        return spec.nbytes
    unit = TensorSpec(name=spec.name, shape=(), dtype=spec.dtype).nbytes
    return unit * math.prod(
        size for size, step in zip(spec.shape, spec.stride, strict=True) if step or not size
    )


def _bytes_read(family: Family, node: GraphNode, operands: Sequence[TensorSpec]) -> int:
    out = sum(spec.nbytes for spec in node.outputs)
    name = base_name(node.op)
    if family == "embedding" and len(operands) > 1:
        rows = min(distinct_bytes(operands[0]), out if name == "embedding" else distinct_bytes(operands[0]))
        return rows + sum(distinct_bytes(spec) for spec in operands[1:])
    if name in ("index", "index_select", "gather", "take", "take_along_dim"):
        picked = min(distinct_bytes(operands[0]), out)
        return picked + sum(distinct_bytes(spec) for spec in operands[1:])
    if family == "constant" or name in ("rand_like", "randn_like", "randint_like"):
        return 0
    return sum(distinct_bytes(spec) for spec in operands)


def _copies(call: _Call) -> bool:
    """Whether a reshape has to move its elements: torch makes strided ones dense then, and only then."""
    if base_name(call.node.op) not in ("reshape", "flatten", "reshape_as", "ravel", "unflatten"):
        return False
    return call.tensors[0].stride is not None and call.out.stride is None and call.out.numel > 0


def _gemm(call: _Call) -> int:
    name, out = base_name(call.node.op), call.out.numel
    if name == "einsum":
        return _einsum(call)
    if name == "outer":
        return out
    if name in ("addmm", "baddbmm", "addmv", "addbmm"):
        return 2 * out * call.tensors[1].shape[-1] + out
    inner = call.tensors[0].shape[-1] if call.tensors and call.tensors[0].shape else 1
    bias = out if name == "linear" and len(call.tensors) > 2 else 0
    return 2 * out * inner + bias


def _einsum(call: _Call) -> int:
    """All index sizes multiplied: the work of one contraction of all operands at once."""
    equation, specs = str(call.node.args[0]).replace(" ", ""), call.tensors
    terms = equation.split("->")[0].split(",")
    if "..." in equation or len(terms) != len(specs):
        return 2 * call.out.numel
    sizes: dict[str, int] = {}
    for term, spec in zip(terms, specs, strict=True):
        sizes.update(zip(term, spec.shape, strict=False))
    return max(2, len(specs)) * math.prod(sizes.values())


def _conv(call: _Call) -> int:
    image, weight = call.tensors[0], call.tensors[1]
    transposed = (
        base_name(call.node.op).startswith("conv_transpose") or call.argument(6, "transposed", False) is True
    )
    bias = call.out.numel if len(call.tensors) > 2 else 0
    # Each output of a convolution, each input of a transposed one, meets the weights of one of `shape[0]`.
    elements = image.numel if transposed else call.out.numel
    return 2 * elements * (weight.numel // max(1, weight.shape[0])) + bias


def _sdpa(call: _Call) -> int:
    query, key, value = call.tensors[:3]
    causal = call.argument(5, "is_causal", False) is True
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    pairs = pairs // 2 if causal else pairs
    return pairs * (2 * query.shape[-1] + 2 * value.shape[-1] + 10)


def _rnn(call: _Call) -> int:
    source, name = call.tensors[0], base_name(call.node.op)
    if name.endswith("_cell"):
        weights = call.tensors_in(call.node.args[2:])
    else:
        # (input, state, weights, ...), or with packed sequences (data, lengths, state, weights, ...)
        weights = call.tensors_in(call.node.args[3 if call.node.op.endswith(".data") else 2])
    matrices = [spec for spec in weights if len(spec.shape) == 2]
    rows = math.prod(source.shape[:-1])
    gates = sum(spec.shape[0] for spec in matrices) // 2
    return 2 * rows * sum(spec.numel for spec in matrices) + 10 * rows * gates


def _arithmetic(call: _Call) -> int:
    return max(spec.numel for spec in (*call.tensors, *call.node.outputs))


def _nothing(call: _Call) -> int:
    del call
    return 0


_FLOPS: dict[Family, Callable[[_Call], int]] = {
    "gemm": _gemm,
    "conv": _conv,
    "sdpa": _sdpa,
    "rnn": _rnn,
    "arithmetic": _arithmetic,
    "random": _arithmetic,
    "layout": _nothing,
    "view": _nothing,
    "constant": _nothing,
    "embedding": _nothing,
    "other": _nothing,
}
