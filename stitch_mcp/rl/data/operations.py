"""The operations that made tasks consist of: which shapes each takes, what it gives, and how it is written.

Shapes are `(rows, columns)` (a matrix), `(batch, steps, width)` (a sequence) or `(batch, channels, height,
width)` (an image). Constraints are met by choosing, never by trying: an operation that does not fit a shape
is not offered.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Shape = tuple[int, ...]
_WIDTHS = (32, 48, 64, 96, 128, 192, 256, 384, 512)
_CHANNELS = (8, 16, 24, 32, 64)


@dataclass(frozen=True)
class Applied:
    """One use of an operation."""

    shape: Shape
    """Of its output."""
    call: str
    """Expression over the arguments `{0}`, `{1}`; modules and parameters are `self.{name}`."""
    modules: str = ""
    """Right-hand side of `self.{name} = ...`; "" where it has no state."""
    flops: float = 0.0


@dataclass(frozen=True)
class TaskOperation:
    """An operation and where it may stand."""

    name: str
    """As torch calls it: the name by which tasks are compared with others."""
    ranks: tuple[int, ...]
    apply: Callable[[Shape, random.Random], Applied | None]
    """Gives None where this shape does not fit after all."""
    inputs: int = 1
    """Two take tensors of one shape."""
    weight: float = 1.0
    """How often it is drawn, relative to others."""
    heavy: bool = field(default=False)
    """Matrix products, convolutions and attention: what makes a task harder."""


def _elements(shape: Sequence[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _plain(call: str) -> Callable[[Shape, random.Random], Applied]:
    """An elementwise operation."""
    return lambda shape, rng: Applied(shape, call, flops=float(_elements(shape)))


def _last(call: str) -> Callable[[Shape, random.Random], Applied]:
    """One over the last dimension that keeps the shape."""
    return lambda shape, rng: Applied(
        shape, call.replace("WIDTH", str(shape[-1])), flops=4.0 * _elements(shape)
    )


def _reduced(call: str) -> Callable[[Shape, random.Random], Applied | None]:
    """One over the last dimension that removes it."""

    def apply(shape: Shape, rng: random.Random) -> Applied | None:
        del rng
        return Applied(shape[:-1], call, flops=float(_elements(shape))) if len(shape) == 3 else None

    return apply


def _stateful(modules: str, call: str = "self.{name}({0})") -> Callable[[Shape, random.Random], Applied]:
    """A module or parameter over the last dimension, WIDTH in its text."""
    return lambda shape, rng: Applied(
        shape, call, modules.replace("WIDTH", str(shape[-1])), flops=4.0 * _elements(shape)
    )


def _channels(modules: str) -> Callable[[Shape, random.Random], Applied | None]:
    """A normalization over the channels of an image, in groups of four."""

    def apply(shape: Shape, rng: random.Random) -> Applied | None:
        del rng
        channels = shape[1]
        if channels % 4:
            return None
        text = modules.replace("CHANNELS", str(channels)).replace("GROUPS", str(channels // 4))
        return Applied(shape, "self.{name}({0})", text, flops=6.0 * _elements(shape))

    return apply


def _linear(shape: Shape, rng: random.Random) -> Applied:
    width = rng.choice(_WIDTHS)
    bias = rng.choice(("", ", bias=False"))
    out = (*shape[:-1], width)
    flops = 2.0 * _elements(shape) * width
    return Applied(out, "self.{name}({0})", f"nn.Linear({shape[-1]}, {width}{bias})", flops)


def _conv2d(shape: Shape, rng: random.Random) -> Applied | None:
    batch, channels, height, width = shape
    out, kernel = rng.choice(_CHANNELS), rng.choice((1, 3, 5))
    stride = rng.choice((1, 1, 2))
    if min(height, width) < kernel + 1:
        return None
    text = f"nn.Conv2d({channels}, {out}, {kernel}, stride={stride}, padding={kernel // 2})"
    size = tuple((side - 1) // stride + 1 for side in (height, width))
    flops = 2.0 * batch * out * size[0] * size[1] * channels * kernel * kernel
    return Applied((batch, out, *size), "self.{name}({0})", text, flops)


def _depthwise(shape: Shape, rng: random.Random) -> Applied | None:
    del rng
    if min(shape[2:]) < 3:
        return None
    text = f"nn.Conv2d({shape[1]}, {shape[1]}, 3, padding=1, groups={shape[1]})"
    return Applied(shape, "self.{name}({0})", text, flops=18.0 * _elements(shape))


def _pool(module: str) -> Callable[[Shape, random.Random], Applied | None]:
    def apply(shape: Shape, rng: random.Random) -> Applied | None:
        kernel = rng.choice((2, 3))
        if min(shape[2:]) < 2 * kernel:
            return None
        size = tuple((side - kernel) // kernel + 1 for side in shape[2:])
        return Applied(
            (*shape[:2], *size), "self.{name}({0})", f"nn.{module}({kernel})", float(_elements(shape))
        )

    return apply


def _global_mean(shape: Shape, rng: random.Random) -> Applied:
    del rng
    return Applied(shape[:2], "{0}.mean(dim=(2, 3))", flops=float(_elements(shape)))


def _conv1d(shape: Shape, rng: random.Random) -> Applied | None:
    batch, steps, width = shape
    out, kernel = rng.choice(_CHANNELS), rng.choice((3, 5))
    if steps < kernel:
        return None
    text = f"nn.Conv1d({width}, {out}, {kernel}, padding={kernel // 2})"
    call = "self.{name}({0}.transpose(1, 2)).transpose(1, 2)"
    return Applied((batch, steps, out), call, text, 2.0 * batch * steps * width * out * kernel)


def _attention(shape: Shape, rng: random.Random) -> Applied | None:
    batch, steps, width = shape
    heads = rng.choice((2, 4))
    if width % (heads * 8):
        return None
    split = f".view({batch}, {steps}, {heads}, {width // heads}).transpose(1, 2)"
    call = (
        "F.scaled_dot_product_attention("
        f"*[part{split} for part in self.{{name}}({{0}}).chunk(3, dim=-1)]"
        f").transpose(1, 2).reshape({batch}, {steps}, {width})"
    )
    flops = 6.0 * batch * steps * width * width + 4.0 * batch * steps * steps * width
    return Applied(shape, call, f"nn.Linear({width}, {3 * width}, bias=False)", flops)


def _gram(shape: Shape, rng: random.Random) -> Applied | None:
    del rng
    batch, steps, width = shape
    return Applied(
        (batch, steps, steps),
        "torch.bmm({0}, {1}.transpose(1, 2))",
        flops=2.0 * batch * steps * steps * width,
    )


_ALL = (2, 3, 4)
OPERATIONS: tuple[TaskOperation, ...] = (
    TaskOperation("relu", _ALL, _plain("torch.relu({0})")),
    TaskOperation("gelu", _ALL, _plain("F.gelu({0})")),
    TaskOperation("silu", _ALL, _plain("F.silu({0})")),
    TaskOperation("tanh", _ALL, _plain("torch.tanh({0})")),
    TaskOperation("sigmoid", _ALL, _plain("torch.sigmoid({0})")),
    TaskOperation("leaky_relu", _ALL, _plain("F.leaky_relu({0}, 0.1)")),
    TaskOperation("elu", _ALL, _plain("F.elu({0})")),
    TaskOperation("softplus", _ALL, _plain("F.softplus({0})")),
    TaskOperation("hardswish", _ALL, _plain("F.hardswish({0})")),
    TaskOperation("mish", _ALL, _plain("F.mish({0})")),
    TaskOperation("clamp", _ALL, _plain("torch.clamp({0}, -1.0, 1.0)")),
    TaskOperation("abs", _ALL, _plain("torch.abs({0})")),
    TaskOperation("square", _ALL, _plain("torch.square({0})")),
    TaskOperation("rsqrt", _ALL, _plain("torch.rsqrt({0} * {0} + 1.0)")),
    TaskOperation("add", _ALL, _plain("{0} + {1}"), inputs=2, weight=2.0),
    TaskOperation("mul", _ALL, _plain("{0} * {1}"), inputs=2, weight=2.0),
    TaskOperation("sub", _ALL, _plain("{0} - {1}"), inputs=2),
    TaskOperation("maximum", _ALL, _plain("torch.maximum({0}, {1})"), inputs=2),
    TaskOperation("softmax", (2, 3), _last("torch.softmax({0}, dim=-1)")),
    TaskOperation("log_softmax", (2, 3), _last("torch.log_softmax({0}, dim=-1)")),
    TaskOperation("normalize", (2, 3), _last("F.normalize({0}, dim=-1)")),
    TaskOperation("cumsum", (2, 3), _last("torch.cumsum({0}, dim=-1)"), weight=0.5),
    TaskOperation("scale", (2, 3), _stateful("nn.Parameter(torch.rand(WIDTH) + 0.5)", "{0} * self.{name}")),
    TaskOperation("bias", (2, 3), _stateful("nn.Parameter(torch.randn(WIDTH))", "{0} + self.{name}")),
    TaskOperation("layer_norm", (2, 3), _stateful("nn.LayerNorm(WIDTH)"), weight=2.0),
    TaskOperation("rms_norm", (2, 3), _stateful("nn.RMSNorm(WIDTH)")),
    TaskOperation("linear", (2, 3), _linear, weight=4.0, heavy=True),
    TaskOperation("mean", (3,), _reduced("{0}.mean(dim=-1)")),
    TaskOperation("amax", (3,), _reduced("{0}.amax(dim=-1)")),
    TaskOperation("logsumexp", (3,), _reduced("torch.logsumexp({0}, dim=-1)")),
    TaskOperation("conv1d", (3,), _conv1d, weight=2.0, heavy=True),
    TaskOperation("attention", (3,), _attention, weight=2.0, heavy=True),
    TaskOperation("bmm", (3,), _gram, inputs=2, weight=2.0, heavy=True),
    TaskOperation("conv2d", (4,), _conv2d, weight=5.0, heavy=True),
    TaskOperation("depthwise_conv2d", (4,), _depthwise, weight=2.0, heavy=True),
    TaskOperation("group_norm", (4,), _channels("nn.GroupNorm(GROUPS, CHANNELS)"), weight=2.0),
    TaskOperation("instance_norm", (4,), _channels("nn.InstanceNorm2d(CHANNELS, affine=True)")),
    TaskOperation("max_pool2d", (4,), _pool("MaxPool2d"), weight=2.0),
    TaskOperation("avg_pool2d", (4,), _pool("AvgPool2d"), weight=2.0),
    TaskOperation("global_mean", (4,), _global_mean),
)
