"""Which torch operations are scalar expressions, and which expression each is."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from stitch_planner.stitcher.lower.graph_index import argument
from stitch_planner.stitcher.lower.kernel_ir import Scalar
from stitch_planner.stitcher.lower.scalar_bodies import FLOATS, BodyBuilder
from stitch_tools.models.graph import Argument, GraphNode, ValueRef


@dataclass(frozen=True)
class Site:
    """One node while it is turned into instructions."""

    builder: BodyBuilder
    node: GraphNode
    value: Callable[[ValueRef], int]
    """Position of an operand's value at the current element."""

    @property
    def dtype(self) -> Scalar:
        """Element type of the node's result."""
        return self.node.outputs[0].dtype  # pyright: ignore[reportReturnType]  # `refusal` made sure of it

    def tensor(self, position: int, name: str = "") -> int:
        """An operand in its own type. A number becomes a constant of the result's type."""
        return self.any(argument(self.node, position, name))

    def any(self, value: Argument) -> int:
        """Any argument as a value."""
        if isinstance(value, ValueRef):
            return self.value(value)
        if isinstance(value, bool | int | float | str):
            return self.builder.const(number(value), _constant_type(value, self.dtype))
        raise TypeError(f"{self.node.op}: {value!r} is no operand")

    def result(self, position: int, name: str = "") -> int:
        """An operand as the result's type."""
        return self.builder.cast(self.tensor(position, name), self.dtype)

    def number(self, position: int, name: str, default: float) -> float:
        """A Python number that the call was given."""
        given = argument(self.node, position, name)
        return default if given is None else number(given)

    def constant(self, value: float) -> int:
        """A constant of the result's type."""
        return self.builder.const(value, self.dtype)

    def call(self, function: str, *args: int) -> int:
        """A function's value in the result's type."""
        return self.builder.op(function, args, self.dtype)


def number(value: Argument) -> float:
    """A Python number from an argument; strings are the non-finite ones."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, str) and value in ("inf", "-inf", "nan"):
        return math.inf if value == "inf" else -math.inf if value == "-inf" else math.nan
    raise TypeError(f"{value!r} is not a number")


def _constant_type(value: Argument, result: Scalar) -> Scalar:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64" if result not in FLOATS else result
    return result if result in FLOATS else "float32"


Expression = Callable[[Site], int]


def unary(function: str) -> Expression:
    """One function of one operand, computed in the result's type."""
    return lambda s: s.call(function, s.result(0))


def binary(function: str) -> Expression:
    """One function of two operands, computed in the result's type."""
    return lambda s: s.call(function, s.result(0), s.result(1))


def compare(function: str) -> Expression:
    """A comparison in the operands' common type."""

    def build(site: Site) -> int:
        pair = (_operand(site, 0, 1), _operand(site, 1, 0))
        args, _ = site.builder.promote(pair)
        return site.builder.op(function, args, "bool")

    return build


def _operand(site: Site, position: int, other: int) -> int:
    """A comparison's operand; a Python number takes the other operand's type where that can hold it."""
    given = argument(site.node, position, "other")
    if isinstance(given, ValueRef):
        return site.value(given)
    partner = site.builder.dtype(site.tensor(other))
    if isinstance(given, int) and partner == "bool" and not isinstance(given, bool):
        return site.builder.const(given, "int64")
    keeps = partner in FLOATS or isinstance(given, int)
    return site.builder.const(number(given), partner if keeps else "float32")


def _with_alpha(function: str) -> Expression:
    def build(site: Site) -> int:
        alpha = site.number(2, "alpha", 1)
        second = site.result(1, "other")
        scaled = second if alpha == 1 else site.call("mul", second, site.constant(alpha))
        return site.call(function, site.result(0), scaled)

    return build


def _reversed_subtract(site: Site) -> int:
    return site.call("sub", site.result(1, "other"), site.result(0))


def _divide(site: Site) -> int:
    mode = argument(site.node, 2, "rounding_mode")
    if mode == "floor":
        return site.call("floor_divide", site.result(0), site.result(1))
    quotient = site.call("div", site.result(0), site.result(1))
    return site.call("trunc", quotient) if mode == "trunc" and site.dtype in FLOATS else quotient


def _power(site: Site) -> int:
    exponent = argument(site.node, 1, "exponent")
    base = site.result(0)
    if isinstance(exponent, int | float) and not isinstance(exponent, bool):
        special = _small_power(site, base, float(exponent))
        if special is not None:
            return special
    return site.call("pow", base, site.result(1, "exponent"))


def _small_power(site: Site, base: int, exponent: float) -> int | None:
    squared = site.call("mul", base, base)
    if exponent in (2.0, 3.0, 4.0):
        return {2.0: squared, 3.0: site.call("mul", squared, base), 4.0: site.call("mul", squared, squared)}[
            exponent
        ]
    names = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
    return site.call(names[exponent], base) if exponent in names and site.dtype in FLOATS else None


def _gelu(site: Site) -> int:
    tanh = argument(site.node, 1, "approximate") == "tanh"
    return site.call("gelu_tanh" if tanh else "gelu_erf", site.result(0))


def _clamp(site: Site) -> int:
    low, high = argument(site.node, 1, "min"), argument(site.node, 2, "max")
    value = site.result(0)
    if low is not None and high is not None:
        return site.call("clamp", value, site.result(1, "min"), site.result(2, "max"))
    if low is not None:
        return site.call("maximum", value, site.result(1, "min"))
    return site.call("minimum", value, site.result(2, "max"))


def _hardtanh(site: Site) -> int:
    low, high = site.number(1, "min_val", -1.0), site.number(2, "max_val", 1.0)
    return site.call("clamp", site.result(0), site.constant(low), site.constant(high))


def _with_numbers(function: str, *defaults: tuple[str, float]) -> Expression:
    """A function of one operand and constants that follow it in the call."""

    def build(site: Site) -> int:
        extra = [site.constant(site.number(i + 1, name, value)) for i, (name, value) in enumerate(defaults)]
        return site.call(function, site.result(0), *extra)

    return build


def _where(site: Site) -> int:
    condition = site.builder.cast(site.tensor(0), "bool")
    return site.call("where", condition, site.result(1), site.result(2))


def _masked_fill(site: Site) -> int:
    mask = site.builder.cast(site.tensor(1), "bool")
    return site.call("where", mask, site.result(2, "value"), site.result(0))


def _identity(site: Site) -> int:
    return site.result(0)


def _rounded(function: str) -> Expression:
    """A function that leaves integers as they are."""
    return lambda s: s.call(function, s.result(0)) if s.dtype in FLOATS else s.result(0)


def _logical_not(site: Site) -> int:
    return site.builder.op("logical_not", (site.builder.cast(site.tensor(0), "bool"),), "bool")


def _logical(function: str) -> Expression:
    def build(site: Site) -> int:
        args = tuple(site.builder.cast(site.tensor(i), "bool") for i in (0, 1))
        return site.builder.op(function, args, "bool")

    return build


def _filled(value: float | None) -> Expression:
    """A tensor of one value: a constant, or the call's `fill_value`."""

    def build(site: Site) -> int:
        return site.constant(site.number(1, "fill_value", 0.0) if value is None else value)

    return build


def _lone_number(site: Site) -> int:
    """scalar_tensor: its first argument as a tensor."""
    return site.constant(site.number(0, "s", 0.0))


def _counted(site: Site) -> int:
    """arange: start + index * step."""
    numbers = [number(item) for item in site.node.args]
    start = numbers[0] if len(numbers) > 1 else 0
    step = numbers[2] if len(numbers) > 2 else 1
    place = site.builder.cast(site.builder.index(0), site.dtype)
    return site.call("add", site.call("mul", place, site.constant(step)), site.constant(start))


def _is_inf(site: Site) -> int:
    if site.builder.dtype(site.tensor(0)) not in FLOATS:
        return site.builder.const(False, "bool")
    size = site.builder.op("abs", (site.tensor(0),), site.builder.dtype(site.tensor(0)))
    return site.builder.op("eq", (size, site.builder.const(math.inf, site.builder.dtype(size))), "bool")


def _prelu(site: Site) -> int:
    return site.call("leaky_relu", site.result(0), site.result(1))


def _addcmul(site: Site) -> int:
    factor, first = site.number(3, "value", 1), site.result(1)
    # In torch's order: the product of both operands alone may overflow.
    scaled = first if factor == 1 else site.call("mul", site.constant(factor), first)
    return site.call("add", site.result(0), site.call("mul", scaled, site.result(2)))


def _lerp(site: Site) -> int:
    """From the nearer end, as torch has it: a weight of 1 gives `end` itself, and infinity keeps its sign."""
    start, end, share = site.result(0), site.result(1), site.result(2)
    span = site.call("sub", end, start)
    forwards = site.call("add", start, site.call("mul", share, span))
    rest = site.call("sub", site.constant(1), share)
    backwards = site.call("sub", end, site.call("mul", span, rest))
    near = site.builder.op("lt", (site.call("abs", share), site.constant(0.5)), "bool")
    return site.call("where", near, forwards, backwards)


def _batch_norm_eval(site: Site) -> int:
    """(x - mean) / sqrt(var + eps) * weight + bias, all but x one for each channel."""
    variance = site.call("add", site.result(4), site.constant(site.number(7, "eps", 1e-5)))
    scale = site.call("rsqrt", variance)
    value = site.call("mul", site.call("sub", site.result(0), site.result(3)), scale)
    if argument(site.node, 1, "weight") is not None:
        value = site.call("mul", value, site.result(1))
    return value if argument(site.node, 2, "bias") is None else site.call("add", value, site.result(2))


def _several(*names: str, build: Expression) -> dict[str, Expression]:
    return dict.fromkeys(names, build)


COPIES = frozenset(
    f"aten.{name}"
    for name in (
        "to.dtype",
        "to.dtype_layout",
        "to.device",
        "to.other",
        "_to_copy.default",
        "type_as.default",
        "clone.default",
        "contiguous.default",
        "float.default",
        "alias.default",
        "detach.default",
        "detach_.default",
        "lift_fresh_copy.default",
        "positive.default",
    )
)
"""Operations that give their operand's values, perhaps in another type."""

DROPOUTS = frozenset(f"aten.{name}.default" for name in ("dropout", "feature_dropout", "alpha_dropout"))
"""Identities unless they train."""

_UNARY = (
    "exp expm1 log log1p log2 log10 exp2 tanh sigmoid sqrt rsqrt abs neg sin cos tan asin acos atan sinh "
    "cosh erf erfc sign reciprocal relu silu mish hardswish hardsigmoid square "
    "log_sigmoid"
)

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")

EXPRESSIONS: dict[str, Expression] = {
    **{f"aten.{name}.default": unary(name) for name in _UNARY.split()},
    **{f"aten.{name}.default": _rounded(name) for name in ("floor", "ceil", "trunc", "round")},
    "aten.log_sigmoid.default": unary("log_sigmoid"),
    "aten.relu6.default": lambda s: s.call("clamp", s.result(0), s.constant(0), s.constant(6)),
    "aten.gelu.default": _gelu,
    "aten.hardtanh.default": _hardtanh,
    "aten.leaky_relu.default": _with_numbers("leaky_relu", ("negative_slope", 0.01)),
    "aten.elu.default": _with_numbers("elu", ("alpha", 1.0), ("scale", 1.0), ("input_scale", 1.0)),
    "aten.celu.default": lambda s: s.call(
        "elu",
        s.result(0),
        s.constant(s.number(1, "alpha", 1.0)),
        s.constant(1),
        s.constant(1 / s.number(1, "alpha", 1.0)),
    ),
    "aten.selu.default": lambda s: s.call(
        "elu",
        s.result(0),
        s.constant(1.6732632423543772),
        s.constant(1.0507009873554805),
        s.constant(1),
    ),
    "aten.softplus.default": _with_numbers("softplus", ("beta", 1.0), ("threshold", 20.0)),
    "aten.prelu.default": _prelu,
    "aten.threshold.default": lambda s: s.call(
        "where",  # a NaN is not below the threshold and stays
        s.builder.op("le", (s.result(0), s.constant(s.number(1, "threshold", 0))), "bool"),
        s.constant(s.number(2, "value", 0)),
        s.result(0),
    ),
    **_several("aten.add.Tensor", "aten.add.Scalar", build=_with_alpha("add")),
    **_several(
        "aten.sub.Tensor",
        "aten.sub.Scalar",
        "aten.subtract.Tensor",
        "aten.subtract.Scalar",
        build=_with_alpha("sub"),
    ),
    **_several("aten.rsub.Scalar", "aten.rsub.Tensor", build=_reversed_subtract),
    **_several(
        "aten.mul.Tensor",
        "aten.mul.Scalar",
        "aten.multiply.Tensor",
        "aten.multiply.Scalar",
        build=binary("mul"),
    ),
    **_several(
        *(f"aten.{name}.{kind}" for name in ("div", "divide") for kind in ("Tensor", "Scalar")),
        *(f"aten.{name}.{kind}_mode" for name in ("div", "divide") for kind in ("Tensor", "Scalar")),
        build=_divide,
    ),
    "aten.true_divide.Tensor": _divide,
    **_several("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar", build=_power),
    "aten.copy.default": lambda s: s.result(1),
    "aten.maximum.default": binary("maximum"),
    "aten.minimum.default": binary("minimum"),
    "aten.max.other": binary("maximum"),
    "aten.min.other": binary("minimum"),
    "aten.atan2.default": binary("atan2"),
    **_several("aten.fmod.Tensor", "aten.fmod.Scalar", build=binary("fmod")),
    **_several("aten.remainder.Tensor", "aten.remainder.Scalar", build=binary("remainder")),
    **_several("aten.clamp.default", "aten.clamp.Tensor", build=_clamp),
    **_several(
        "aten.clamp_min.default",
        "aten.clamp_min.Tensor",
        build=lambda s: s.call("maximum", s.result(0), s.result(1)),
    ),
    **_several(
        "aten.clamp_max.default",
        "aten.clamp_max.Tensor",
        build=lambda s: s.call("minimum", s.result(0), s.result(1)),
    ),
    **_several(
        "aten.where.self",
        "aten.where.ScalarOther",
        "aten.where.ScalarSelf",
        "aten.where.Scalar",
        build=_where,
    ),
    **_several("aten.masked_fill.Scalar", "aten.masked_fill.Tensor", build=_masked_fill),
    **{f"aten.{name}.{kind}": compare(name) for name in _COMPARISONS for kind in ("Tensor", "Scalar")},
    "aten.logical_not.default": _logical_not,
    "aten.bitwise_not.default": _logical_not,
    "aten.logical_and.default": _logical("logical_and"),
    "aten.logical_or.default": _logical("logical_or"),
    **_several("aten.bitwise_and.Tensor", "aten.__and__.Tensor", build=_logical("logical_and")),
    **_several("aten.bitwise_or.Tensor", "aten.__or__.Tensor", build=_logical("logical_or")),
    "aten.isnan.default": lambda s: s.builder.op("is_nan", (s.tensor(0),), "bool"),
    "aten.isinf.default": _is_inf,
    "aten.addcmul.default": _addcmul,
    **_several("aten.lerp.Scalar", "aten.lerp.Tensor", build=_lerp),
    "aten.batch_norm.default": _batch_norm_eval,
    **_several("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default", build=_filled(0)),
    **_several("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default", build=_filled(1)),
    **_several("aten.full.default", "aten.full_like.default", build=_filled(None)),
    "aten.scalar_tensor.default": _lone_number,
    "aten.new_full.default": lambda s: s.constant(s.number(2, "fill_value", 0.0)),
    **_several("aten.arange.default", "aten.arange.start", "aten.arange.start_step", build=_counted),
    **dict.fromkeys(COPIES | DROPOUTS, _identity),
}
"""Expression of each pointwise operation."""


def refusal(node: GraphNode) -> str | None:
    """Why a pointwise node cannot be an expression after all; None when it can."""
    types = {out.dtype for out in node.outputs}
    if node.op in DROPOUTS and argument(node, 2, "train") is True:
        return "dropout in training draws random numbers"
    if node.op.startswith(("aten.bitwise_", "aten.__")) and types != {"bool"}:
        return "bit operations on integers have no template"
    if node.op == "aten.batch_norm.default":
        return _batch_norm_refusal(node)
    needs_float = {"pow", "div", "divide", "fmod", "remainder", "atan2"}
    if node.op.split(".")[1] in needs_float and not types <= set(FLOATS):
        return f"{node.op} on integers has no template"
    return None


def _batch_norm_refusal(node: GraphNode) -> str | None:
    if argument(node, 5, "training") is not False:
        return ""  # batch norm in training has a template of its own, which says why
    return None if argument(node, 3, "running_mean") is not None else "no running statistics"
