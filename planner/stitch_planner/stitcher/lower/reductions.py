"""Operations that reduce: which dims, and the expression written out in primitive reductions.

Composite operations (softmax, LayerNorm, ...) become the same sums and maxima as a model that writes them
out, so one kernel family serves both.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from stitch_planner.stitcher.lower.graph_index import GraphIndex, argument, value_key
from stitch_planner.stitcher.lower.kernel_ir import SCALAR_BYTES, Scalar
from stitch_planner.stitcher.lower.scalar_bodies import FLOATS, BodyBuilder
from stitch_planner.stitcher.lower.scalars import number
from stitch_tools.models.graph import Argument, GraphNode, ValueRef


@dataclass(frozen=True)
class ReductionFrame:
    """The iteration space of a fused group."""

    full: tuple[int, ...]
    """Shape of the values that have one element for each point."""
    shape: tuple[int, ...]
    """The same elements as loop dims: `full`, except where a norm splits channels into groups."""
    reduced: tuple[int, ...] = ()
    """Dims of `shape` that reductions run over."""

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """Shape of a reduction's result with keepdim."""
        return tuple(1 if d in self.reduced else size for d, size in enumerate(self.shape))

    @property
    def outer_shape(self) -> tuple[int, ...]:
        """Shape of a reduction's result without keepdim."""
        return tuple(size for d, size in enumerate(self.shape) if d not in self.reduced)

    @property
    def length(self) -> int:
        """Elements behind one reduced value."""
        return prod(self.shape[d] for d in self.reduced)


def pointwise_frame(shape: tuple[int, ...]) -> ReductionFrame:
    """The space of a node without reductions."""
    return ReductionFrame(shape, shape)


@dataclass(frozen=True)
class RowSite:
    """One reducing node while it is turned into instructions."""

    builder: BodyBuilder
    node: GraphNode
    frame: ReductionFrame
    value: Callable[[ValueRef], int]
    """Position of an operand's value; operands smaller than the space are spread over it."""
    spread: Callable[[ValueRef, int], int]
    """Position of a one-dimensional operand's value that varies along one dim of `frame.full`."""

    @property
    def dtype(self) -> Scalar:
        """Type of the result."""
        return self.node.outputs[0].dtype  # pyright: ignore[reportReturnType]  # `refusal` made sure of it

    def operand(self) -> int:
        """The value that is reduced, in the result's type."""
        return self.builder.cast(self.value(_ref(self.node.args[0])), self.dtype)

    def optional(self, position: int, name: str) -> int | None:
        """A weight that spreads over the trailing dims by broadcasting; None where the call has none."""
        given = argument(self.node, position, name)
        return None if given is None else self.value(_ref(given))

    def number(self, position: int, name: str, default: float) -> float:
        """A Python number that the call was given."""
        given = argument(self.node, position, name)
        return default if given is None else number(given)

    def mean(self, value: int) -> int:
        """Mean over the reduced dims."""
        total = self.builder.reduce("sum", value)
        # A division for each row costs nothing, and a reciprocal would be rounded before the product is: for
        # rows whose spread is small beside their mean that alone is visible in the result.
        return self.builder.div(
            total, self.builder.const(max(self.frame.length, 1), self.builder.dtype(total))
        )

    def centered(self, value: int) -> tuple[int, int]:
        """The value minus its mean, and its variance (a pass of its own: no cancellation).

        The mean is rounded, and in rows whose spread is small beside it that slip would be most of the
        result; the mean of the differences is just the slip, and is taken off again, and its square off the
        variance. Equal values differ from their mean by few units in the last place: there all of this is
        exact, and the variance 0.
        """
        b = self.builder
        rough = b.sub(value, self.mean(value))
        slip = self.mean(rough)
        variance = b.sub(self.mean(b.mul(rough, rough)), b.mul(slip, slip))
        # Rounding may leave a little less than nothing; a NaN stays.
        floor = b.const(0.0, b.dtype(variance))
        return b.sub(rough, slip), b.op("maximum", (variance, floor), b.dtype(variance))

    def shifted_exp(self, value: int) -> tuple[int, int, int]:
        """exp(x - max), its sum, and max. NaN in a row of -inf, as torch's softmax."""
        b = self.builder
        top = b.reduce("max", value)
        powers = b.op("exp", (b.sub(value, top),), b.dtype(value))
        return powers, b.reduce("sum", powers), top


def _ref(value: Argument) -> ValueRef:
    assert isinstance(value, ValueRef), value
    return value


Build = Callable[[RowSite], int]
Dims = Callable[[GraphNode, tuple[int, ...]], tuple[int, ...]]


@dataclass(frozen=True)
class Reduction:
    """How one operation reduces."""

    dims: Dims
    """Reduced dims of the operand, given the node and the operand's shape."""
    build: Build
    per_row: bool
    """Whether the result has one element for each row (a sum) or for each element (a softmax)."""


def _listed(position: int) -> Dims:
    """Dims from an argument that is an int, a list, or absent (all)."""

    def find(node: GraphNode, shape: tuple[int, ...]) -> tuple[int, ...]:
        given = argument(node, position, "dim")
        if given is None or given == ():
            return tuple(range(len(shape)))
        dims = given if isinstance(given, tuple) else (given,)
        return tuple(sorted(int(number(d)) % len(shape) for d in dims))

    return find


def _all(node: GraphNode, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(range(len(shape)))


def _trailing(node: GraphNode, shape: tuple[int, ...]) -> tuple[int, ...]:
    """As many trailing dims as `normalized_shape` has."""
    given = node.args[1]
    count = len(given) if isinstance(given, tuple) else 1
    return tuple(range(len(shape) - count, len(shape)))


def _reduce(kind: str) -> Build:
    return lambda s: s.builder.reduce(kind, s.operand())


def _softmax(s: RowSite) -> int:
    # One reciprocal a row instead of a division for each element.
    powers, total, _ = s.shifted_exp(s.operand())
    return s.builder.mul(powers, s.builder.op("reciprocal", (total,), s.dtype))


def _log_softmax(s: RowSite) -> int:
    value = s.operand()
    _, total, top = s.shifted_exp(value)
    # (x - max) - log(sum): the log of a softmax would be -inf wherever the softmax underflows.
    return s.builder.sub(s.builder.sub(value, top), s.builder.op("log", (total,), s.dtype))


def _logsumexp(s: RowSite) -> int:
    b, value = s.builder, s.operand()
    top = b.reduce("max", value)
    # In a row of -inf, and beside +inf, x - max is NaN: such rows are shifted by nothing, as torch does it.
    endless = b.op("eq", (b.op("abs", (top,), s.dtype), b.const(math.inf, s.dtype)), "bool")
    shift = b.op("where", (endless, b.const(0.0, s.dtype), top), s.dtype)
    total = b.reduce("sum", b.op("exp", (b.sub(value, shift),), s.dtype))
    return b.add(b.op("log", (total,), s.dtype), shift)


def _affine(s: RowSite, value: int, weight: int | None, bias: int | None) -> int:
    value = value if weight is None else s.builder.mul(value, weight)
    return value if bias is None else s.builder.add(value, bias)


def _inverse_deviation(s: RowSite, variance: int, eps: float) -> int:
    raised = s.builder.add(variance, s.builder.const(eps, s.dtype))
    return s.builder.op("rsqrt", (raised,), s.dtype)


def _layer_norm(s: RowSite) -> int:
    difference, variance = s.centered(s.operand())
    scaled = s.builder.mul(difference, _inverse_deviation(s, variance, s.number(4, "eps", 1e-5)))
    return _affine(s, scaled, s.optional(2, "weight"), s.optional(3, "bias"))


def _rms_norm(s: RowSite) -> int:
    value = s.operand()
    eps = s.number(3, "eps", 1.1920928955078125e-07 if s.dtype == "float32" else 2.220446049250313e-16)
    scale = _inverse_deviation(s, s.mean(s.builder.mul(value, value)), eps)
    return _affine(s, s.builder.mul(value, scale), s.optional(2, "weight"), None)


def _channel_norm(*, eps: int, weight: int, bias: int) -> Callable[[RowSite], int]:
    """A norm with a weight and a bias for each channel; the numbers are the arguments' positions."""

    def emit(s: RowSite) -> int:
        difference, variance = s.centered(s.operand())
        scaled = s.builder.mul(difference, _inverse_deviation(s, variance, s.number(eps, "eps", 1e-5)))
        return _affine(s, scaled, _by_channel(s, weight, "weight"), _by_channel(s, bias, "bias"))

    return emit


def _by_channel(s: RowSite, position: int, name: str) -> int | None:
    given = argument(s.node, position, name)
    return None if given is None else s.spread(_ref(given), 1)


def _correction(node: GraphNode) -> float:
    if node.op.endswith(".correction"):
        given = argument(node, 2, "correction")
        return 1.0 if given is None else number(given)
    position = 2 if node.op.endswith(".dim") else 1
    return 0.0 if argument(node, position, "unbiased") is False else 1.0


def _variance(s: RowSite) -> int:
    _, variance = s.centered(s.operand())
    left = s.frame.length - _correction(s.node)
    if left > 0:
        return s.builder.scaled(variance, s.frame.length / left)
    # torch divides the sum of squares by nothing then: infinity, and NaN where the sum is 0.
    return s.builder.div(variance, s.builder.const(0.0, s.dtype))


def _deviation(s: RowSite) -> int:
    return s.builder.op("sqrt", (_variance(s),), s.dtype)


def _vector_norm(position: int) -> Build:
    def build(s: RowSite) -> int:
        order = s.number(position, "ord" if position == 1 else "p", 2.0)
        b, value = s.builder, s.operand()
        # Orders 1 and infinity need no root, and so no second rounding.
        if order == 2.0:
            return b.op("sqrt", (b.reduce("sum", b.mul(value, value)),), s.dtype)
        size = b.op("abs", (value,), s.dtype)
        return b.reduce("sum" if order == 1.0 else "max" if order > 0 else "min", size)

    return build


def _any_all(kind: str) -> Build:
    def build(s: RowSite) -> int:
        b = s.builder
        # First to bool, since 0.5 is true and would become 0 as an integer; then to int32, which reductions
        # know.
        flag = b.cast(b.cast(s.value(_ref(s.node.args[0])), "bool"), "int32")
        return b.cast(b.reduce(kind, flag), "bool")

    return build


def _loss(term: Callable[[RowSite, int], int]) -> Build:
    """The mean or sum of what `term` makes of the difference of both operands."""

    def build(s: RowSite) -> int:
        b, target = s.builder, s.value(_ref(s.node.args[1]))
        value = term(s, b.sub(s.operand(), b.cast(target, s.dtype)))
        return s.mean(value) if _loss_reduction(s.node) == 1 else b.reduce("sum", value)

    return build


def _loss_reduction(node: GraphNode) -> int:
    return int(number(argument(node, 2, "reduction", 1)))


def _square(s: RowSite, difference: int) -> int:
    return s.builder.mul(difference, difference)


def _absolute(s: RowSite, difference: int) -> int:
    return s.builder.op("abs", (difference,), s.dtype)


def _smooth(s: RowSite, difference: int) -> int:
    """A square over 2 beta below beta, a line beyond."""
    beta, b, size = s.number(3, "beta", 1.0), s.builder, _absolute(s, difference)
    if beta == 0:
        return size
    inside = b.op("lt", (size, b.const(beta, s.dtype)), "bool")
    square = b.scaled(b.mul(size, size), 0.5 / beta)
    return b.op("where", (inside, square, b.sub(size, b.const(0.5 * beta, s.dtype))), s.dtype)


def _huber(s: RowSite, difference: int) -> int:
    """Half a square up to delta, a line of that slope beyond."""
    delta, b, size = s.number(3, "delta", 1.0), s.builder, _absolute(s, difference)
    inside = b.op("le", (size, b.const(delta, s.dtype)), "bool")
    line = b.scaled(b.sub(size, b.const(0.5 * delta, s.dtype)), delta)
    return b.op("where", (inside, b.scaled(b.mul(size, size), 0.5), line), s.dtype)


def _kl_div(s: RowSite) -> int:
    """Target * (log(target) - input), where a target of 0 counts nothing; or of a logarithm as target."""
    b, value = s.builder, s.operand()
    target = b.cast(s.value(_ref(s.node.args[1])), s.dtype)
    if argument(s.node, 3, "log_target") is True:
        term = b.mul(b.op("exp", (target,), s.dtype), b.sub(target, value))
    else:
        zero = b.const(0.0, s.dtype)
        entropy = b.mul(target, b.op("log", (target,), s.dtype))
        is_zero = b.op("eq", (target, zero), "bool")
        term = b.sub(b.op("where", (is_zero, zero, entropy), s.dtype), b.mul(target, value))
    return s.mean(term) if _loss_reduction(s.node) == 1 else b.reduce("sum", term)


def _instance_dims(node: GraphNode, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(range(2, len(shape)))


def _batch_dims(node: GraphNode, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dim for dim in range(len(shape)) if dim != 1)


BATCH_STATISTICS = "aten._native_batch_norm_legit.no_stats"
"""batch_norm by statistics of its batch, where nobody wants to have these."""
_AVERAGES = {f"aten.{kind}avg_pool{k}d.default": k for kind in ("", "adaptive_") for k in (1, 2, 3)}
"""The dims of an image that each averages over."""


def is_global_average(node: GraphNode, index: GraphIndex) -> bool:
    """Whether a pooling is the mean of whole images."""
    dims = _AVERAGES.get(node.op)
    if dims is None or any(size != 1 for size in node.outputs[0].shape[-dims:]):
        return False
    if "adaptive" in node.op:
        return True
    sizes = index.shape(value_key(node.args[0]))[-dims:]
    kernel = _each(argument(node, 1, "kernel_size"), dims)
    padding = _each(argument(node, 3, "padding", 0), dims)
    plain = argument(node, 6, "divisor_override") is None and not any(padding)
    return plain and kernel == sizes


def _each(value: Argument, dims: int) -> tuple[int, ...]:
    """A number for each dim, from one or from several."""
    values = value if isinstance(value, tuple) else (value,)
    numbers = tuple(int(number(one)) for one in values)
    return numbers if len(numbers) == dims else numbers * dims


def _image_dims(node: GraphNode, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(range(len(shape) - _AVERAGES[node.op], len(shape)))


REDUCTIONS: dict[str, Reduction] = {
    "aten.mean.dim": Reduction(_listed(1), lambda s: s.mean(s.operand()), True),
    "aten.mean.default": Reduction(_all, lambda s: s.mean(s.operand()), True),
    "aten.sum.dim_IntList": Reduction(_listed(1), _reduce("sum"), True),
    "aten.sum.default": Reduction(_all, _reduce("sum"), True),
    "aten.amax.default": Reduction(_listed(1), _reduce("max"), True),
    "aten.amin.default": Reduction(_listed(1), _reduce("min"), True),
    "aten.max.default": Reduction(_all, _reduce("max"), True),
    "aten.min.default": Reduction(_all, _reduce("min"), True),
    "aten.prod.dim_int": Reduction(_listed(1), _reduce("prod"), True),
    "aten.prod.default": Reduction(_all, _reduce("prod"), True),
    "aten.any.dim": Reduction(_listed(1), _any_all("max"), True),
    "aten.all.dim": Reduction(_listed(1), _any_all("min"), True),
    "aten.logsumexp.default": Reduction(_listed(1), _logsumexp, True),
    "aten.var.correction": Reduction(_listed(1), _variance, True),
    "aten.var.dim": Reduction(_listed(1), _variance, True),
    "aten.var.default": Reduction(_all, _variance, True),
    "aten.std.correction": Reduction(_listed(1), _deviation, True),
    "aten.std.dim": Reduction(_listed(1), _deviation, True),
    "aten.std.default": Reduction(_all, _deviation, True),
    "aten.linalg_vector_norm.default": Reduction(_listed(2), _vector_norm(1), True),
    "aten.norm.ScalarOpt_dim": Reduction(_listed(2), _vector_norm(1), True),
    "aten.norm.Scalar": Reduction(_all, _vector_norm(1), True),
    "aten.mse_loss.default": Reduction(_all, _loss(_square), True),
    "aten.l1_loss.default": Reduction(_all, _loss(_absolute), True),
    "aten.smooth_l1_loss.default": Reduction(_all, _loss(_smooth), True),
    "aten.huber_loss.default": Reduction(_all, _loss(_huber), True),
    "aten.kl_div.default": Reduction(_all, _kl_div, True),
    "aten.softmax.int": Reduction(_listed(1), _softmax, False),
    "aten._softmax.default": Reduction(_listed(1), _softmax, False),
    "aten.log_softmax.int": Reduction(_listed(1), _log_softmax, False),
    "aten._log_softmax.default": Reduction(_listed(1), _log_softmax, False),
    "aten.layer_norm.default": Reduction(_trailing, _layer_norm, False),
    "aten.rms_norm.default": Reduction(_trailing, _rms_norm, False),
    "aten.group_norm.default": Reduction(_all, _channel_norm(eps=4, weight=2, bias=3), False),
    BATCH_STATISTICS: Reduction(_batch_dims, _channel_norm(eps=5, weight=1, bias=2), False),
    "aten.instance_norm.default": Reduction(_instance_dims, _channel_norm(eps=7, weight=1, bias=2), False),
    **{op: Reduction(_image_dims, lambda s: s.mean(s.operand()), True) for op in _AVERAGES},
}
"""Every operation that reduces, with its expression."""


def reduction_frame(node: GraphNode, index: GraphIndex) -> ReductionFrame:
    """The space that a reducing node iterates over."""
    shape = index.shape(value_key(node.args[0]))
    if node.op == "aten.group_norm.default":
        groups = int(number(node.args[1]))
        # Channels are split into two loop dims, so that a group is a row like any other.
        split = (shape[0], groups, shape[1] // groups, prod(shape[2:]))
        return ReductionFrame(shape, split, (2, 3))
    return ReductionFrame(shape, shape, REDUCTIONS[node.op].dims(node, shape))


def refusal(node: GraphNode, index: GraphIndex) -> str | None:
    """Why a reducing node has no template after all; None when it has one."""
    operand = index.spec(value_key(node.args[0]))
    types = {operand.dtype, *(out.dtype for out in node.outputs)}
    unknown = types - set(SCALAR_BYTES)
    if unknown:
        return f"no template computes in {', '.join(sorted(unknown))}"
    if operand.numel == 0 or not operand.shape:
        return "a reduction over an empty tensor or a single number"
    if node.op in ("aten.any.dim", "aten.all.dim"):
        return None
    if node.outputs[0].dtype not in FLOATS and "float32" in types:
        return f"{node.op} to an integer type has no template"
    if operand.dtype == "bool" and node.outputs[0].dtype == "bool":
        return f"{node.op} of bool has no template"
    if node.op.endswith(("_loss.default", "kl_div.default")):
        other = index.spec(value_key(node.args[1]))
        alike = (other.shape, other.dtype) == (operand.shape, operand.dtype)
        plain = _loss_reduction(node) != 0 and alike
        return None if plain else "a loss of each element, or of unlike tensors, has no template"
    if node.op in _AVERAGES and not is_global_average(node, index):
        return ""  # a pooling, that another family has
    return _special_refusal(node)


def _special_refusal(node: GraphNode) -> str | None:
    if node.op.startswith(("aten.linalg_vector_norm", "aten.norm")):
        order = argument(node, 1, "ord")
        supported = order is None or number(order) in (1.0, 2.0, math.inf, -math.inf)
        return None if supported else f"a vector norm of order {order} has no template"
    if node.op == "aten.instance_norm.default" and argument(node, 5, "use_input_stats") is False:
        return "instance norm with running statistics has no template"
    return None
