"""Counts an operation's work: floating-point operations, bytes that must move, longest sum.

Counts are lower bounds by design, since they feed lower-bound times: a multiply-add is two operations, a
transcendental function the fewest that a vectorised polynomial needs, every input is read once.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stitch_tools.graph.families import Family, base_name, family_of
from stitch_tools.models import Argument, GraphNode, TensorSpec, ValueRef

Specs = Mapping[tuple[str, int], TensorSpec]
"""Shape and type of every value of a graph, by node or input name and output index."""


@dataclass(frozen=True)
class OperationWork:
    """What one operation has to do."""

    flops: int
    bytes_read: int
    bytes_written: int
    reduction_length: int


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


# Gives (flops, reduction length).
_Rule = Callable[[_Call], tuple[int, int]]


def _by_name(names_by_cost: Mapping[int, str]) -> dict[str, int]:
    return {name: cost for cost, names in names_by_cost.items() for name in names.split()}


# Fewest operations per element: none where bits are only moved or compared, one for a name that is missing.
_POINTWISE_FLOPS = _by_name(
    {
        0: "to type_as where masked_fill eq ne lt le gt ge logical_and logical_or logical_not bitwise_and "
        "bitwise_or bitwise_not isnan isinf isfinite",
        1: "sqrt",
        2: "rsqrt",
        3: "softsign hardsigmoid addcmul addcdiv lerp",
        4: "hardswish",
        6: "exp2",
        8: "exp expm1 log log2 log1p sin cos",
        9: "elu",
        10: "tanh sinh cosh atan sigmoid logit selu celu",
        11: "silu tanhshrink glu",
        12: "tan erf log_sigmoid",
        14: "gelu",
        16: "softplus",
        20: "mish",
    }
)
_NORM_FLOPS = _by_name(
    {
        4: "rms_norm",
        10: "softmax _softmax log_softmax _log_softmax",
        11: "softmin",
    }
)
_REDUCTION_FLOPS = _by_name(
    {
        2: "linalg_vector_norm norm",
        3: "var std var_mean std_mean",
        9: "logsumexp",
    }
)
_LOSS_FLOPS = _by_name(
    {
        0: "nll_loss nll_loss_nd",
        2: "l1_loss",
        3: "mse_loss",
        10: "cross_entropy_loss kl_div",
    }
)


def node_work(node: GraphNode, specs: Specs) -> OperationWork:
    """The node's work; `specs` must hold every value that it uses."""
    family, call = family_of(node.op), _Call(node, specs)
    if family == "view" and not _copies(call):
        return OperationWork(0, 0, 0, 1)
    flops, reduction = _RULES[family](call)
    operands = [specs[value.ref, value.index] for value in references(node)]
    written = sum(spec.nbytes for spec in node.outputs)
    return OperationWork(int(flops), _bytes_read(family, node, operands), written, max(1, int(reduction)))


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
    """Whether a reshape of a strided tensor has to move its elements (torch then returns a dense one)."""
    if base_name(call.node.op) not in ("reshape", "flatten", "reshape_as", "ravel", "unflatten"):
        return False
    source = call.tensors[0]
    if source.stride is None or call.out.stride is not None or call.out.numel == 0:
        return False
    return not _mergeable(source, call.out.shape)


def _mergeable(source: TensorSpec, shape: tuple[int, ...]) -> bool:
    """Whether `source` can be seen with `shape` as it lies: torch's rule for a view."""
    assert source.stride is not None
    dims = [(size, step) for size, step in zip(source.shape, source.stride, strict=True) if size != 1]
    blocks: list[list[int]] = []  # [elements, step of the innermost]: dimensions that lie one after another
    for size, step in dims:
        if blocks and blocks[-1][1] == size * step:
            blocks[-1] = [blocks[-1][0] * size, step]
        else:
            blocks.append([size, step])
    wanted = [size for size in shape if size != 1]
    for elements, _ in blocks:
        while elements > 1 and wanted:
            size = wanted.pop(0)
            if elements % size:
                return False
            elements //= size
    return not wanted


def _pointwise(call: _Call) -> tuple[int, int]:
    return call.out.numel * _POINTWISE_FLOPS.get(base_name(call.node.op), 1), 1


def _gemm(call: _Call) -> tuple[int, int]:
    name, out = base_name(call.node.op), call.out.numel
    if name == "einsum":
        return _einsum(call)
    if name == "outer":
        return out, 1
    if name in ("addmm", "baddbmm", "addmv", "addbmm"):
        inner = call.tensors[1].shape[-1]
        return 2 * out * inner + out, inner
    inner = call.tensors[0].shape[-1] if call.tensors and call.tensors[0].shape else 1
    bias = out if name == "linear" and len(call.tensors) > 2 else 0
    return 2 * out * inner + bias, inner


def _einsum(call: _Call) -> tuple[int, int]:
    """All index sizes multiplied: the work of one contraction of all operands at once."""
    equation, specs = str(call.node.args[0]).replace(" ", ""), call.tensors
    terms = equation.split("->")[0].split(",")
    if "..." in equation or len(terms) != len(specs):
        return 2 * call.out.numel, 1
    sizes: dict[str, int] = {}
    for term, spec in zip(terms, specs, strict=True):
        sizes.update(zip(term, spec.shape, strict=False))
    total = math.prod(sizes.values())
    return max(2, len(specs)) * total, total // max(1, call.out.numel)


def _conv(call: _Call) -> tuple[int, int]:
    image, weight = call.tensors[0], call.tensors[1]
    name = base_name(call.node.op)
    transposed = name.startswith("conv_transpose") or call.argument(6, "transposed", False) is True
    bias = call.out.numel if len(call.tensors) > 2 else 0
    if transposed:
        per_input = weight.numel // max(1, weight.shape[0])
        steps = _pair(call.argument(3, "stride", (1,)), len(weight.shape) - 2)
        taps = math.prod(math.ceil(size / step) for size, step in zip(weight.shape[2:], steps, strict=True))
        groups = call.argument(6 if name != "convolution" else 8, "groups", 1)
        inputs = weight.shape[0] // (groups if isinstance(groups, int) and groups else 1)
        return 2 * image.numel * per_input + bias, inputs * taps
    inner = weight.numel // max(1, weight.shape[0])
    return 2 * call.out.numel * inner + bias, inner


def _pair(value: Argument, count: int) -> list[int]:
    numbers = [item for item in value if isinstance(item, int)] if isinstance(value, tuple) else [value]
    whole = [item for item in numbers if isinstance(item, int)]
    return (whole * count)[:count] if len(whole) == 1 else (whole + [1] * count)[:count]


def _reduction(call: _Call) -> tuple[int, int]:
    source = call.tensors[0]
    per_output = source.numel // max(1, call.out.numel)
    name = base_name(call.node.op)
    if name in ("sort", "argsort", "topk"):
        return 0, 1
    if name.startswith("cum") or name == "logcumsumexp":
        dim = call.argument(1, "dim", 0)
        return source.numel, source.shape[dim] if isinstance(dim, int) and source.shape else 1
    return source.numel * _REDUCTION_FLOPS.get(name, 1), per_output


def _norm(call: _Call) -> tuple[int, int]:
    source, name = call.tensors[0], base_name(call.node.op)
    flops = source.numel * _NORM_FLOPS.get(name, 7)
    if name in ("softmax", "_softmax", "log_softmax", "_log_softmax", "softmin"):
        dim = call.argument(1, "dim", -1)
        return flops, source.shape[dim] if isinstance(dim, int) and source.shape else 1
    if name in ("layer_norm", "native_layer_norm", "rms_norm"):
        shape = call.argument(1, "normalized_shape", ())
        return flops, math.prod(_pair(shape, len(shape))) if isinstance(shape, tuple) else source.shape[-1]
    if name in ("group_norm", "native_group_norm"):
        groups = call.argument(1 if name == "group_norm" else 6, "num_groups", 1)
        rows = source.shape[0] * (groups if isinstance(groups, int) else 1)
        return flops, source.numel // max(1, rows)
    if "batch_norm" in name and call.argument(5, "training", True) is not True:
        return 2 * source.numel, 1
    rows = source.shape[1] * (source.shape[0] if name == "instance_norm" else 1)
    return flops, source.numel // max(1, rows)


def _pool(call: _Call) -> tuple[int, int]:
    source, name = call.tensors[0], base_name(call.node.op)
    if name.startswith("upsample"):
        each = {"upsample_bilinear2d": 6, "upsample_linear1d": 3, "upsample_trilinear3d": 14}.get(name, 0)
        return call.out.numel * each, 1
    if "adaptive" in name:
        window = max(1, source.numel // max(1, call.out.numel))
    else:
        dims = int(next(letter for letter in name if letter in "123"))
        window = math.prod(_pair(call.argument(1, "kernel_size", 1), dims))
    return call.out.numel * window, window


def _sdpa(call: _Call) -> tuple[int, int]:
    query, key, value = call.tensors[:3]
    causal = call.argument(5, "is_causal", False) is True
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    pairs = pairs // 2 if causal else pairs
    return pairs * (2 * query.shape[-1] + 2 * value.shape[-1] + 10), max(query.shape[-1], key.shape[-2])


def _rnn(call: _Call) -> tuple[int, int]:
    source, name = call.tensors[0], base_name(call.node.op)
    if name.endswith("_cell"):
        weights = call.tensors_in(call.node.args[2:])
    else:
        # (input, state, weights, ...), or with packed sequences (data, lengths, state, weights, ...)
        weights = call.tensors_in(call.node.args[3 if call.node.op.endswith(".data") else 2])
    matrices = [spec for spec in weights if len(spec.shape) == 2]
    rows = math.prod(source.shape[:-1])
    gates = sum(spec.shape[0] for spec in matrices) // 2
    longest = max((spec.shape[1] for spec in matrices), default=1)
    return 2 * rows * sum(spec.numel for spec in matrices) + 10 * rows * gates, 2 * longest


def _loss(call: _Call) -> tuple[int, int]:
    source, name = call.tensors[0], base_name(call.node.op)
    reduced = source.numel // max(1, call.out.numel)
    return source.numel * _LOSS_FLOPS.get(name, 4), reduced


def _nothing(call: _Call) -> tuple[int, int]:
    del call
    return 0, 1


_RULES: dict[Family, _Rule] = {
    "gemm": _gemm,
    "conv": _conv,
    "pointwise": _pointwise,
    "reduction": _reduction,
    "norm": _norm,
    "pool": _pool,
    "layout": _nothing,
    "view": _nothing,
    "constant": _nothing,
    "sdpa": _sdpa,
    "rnn": _rnn,
    "embedding": _nothing,
    "loss": _loss,
    "random": lambda call: (call.out.numel, 1),
    "other": _nothing,
}
