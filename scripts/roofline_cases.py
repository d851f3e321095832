"""References of `scripts/roofline`: one for each template family, at one to three sizes."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional

SMALL = 1 << 18
"""Elements of a first input on a CPU, about."""


@dataclass(frozen=True)
class Values:
    """An input: normally distributed numbers, or integers below a limit."""

    shape: tuple[int, ...]
    below: int | None = None
    dtype: torch.dtype = torch.float32

    def make(self, device: str) -> torch.Tensor:
        """Random values from torch's global generator."""
        if self.below is not None:
            return torch.randint(self.below, self.shape, device=device)
        return torch.randn(self.shape, device=device).to(self.dtype)

    def blank(self) -> torch.Tensor:
        """Zeros, whose pages no one touches: for a capture."""
        kind = torch.int64 if self.below is not None else self.dtype
        return torch.zeros(self.shape, dtype=kind)


@dataclass(frozen=True)
class TemplateCase:
    """A reference at one size."""

    family: str
    name: str
    module: Callable[[], nn.Module]
    inputs: tuple[Values, ...]
    reads: int = 1
    """How often the first input has to be read: 2 where statistics come before their use, of more elements
    than a multiprocessor can hold."""
    train: bool = False
    precision: str = "fp32"
    """Least precise format of products and convolutions, for program and eager alike."""

    @property
    def size(self) -> str:
        """The shape of the first input."""
        return " x ".join(str(size) for size in self.inputs[0].shape)

    @property
    def label(self) -> str:
        """What tells it from all others."""
        return f"{self.name} [{self.size}]"


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> object:
        """What the function says."""
        return self.function(*inputs)


def _of(function: Callable[..., object]) -> Callable[[], nn.Module]:
    return lambda: Calls(function)


def _case(
    family: str,
    name: str,
    function: Callable[..., object],
    *shapes: tuple[int, ...],
    reads: int = 1,
    dtype: torch.dtype = torch.float32,
) -> TemplateCase:
    inputs = tuple(Values(shape, dtype=dtype) for shape in shapes)
    return TemplateCase(family, name, _of(function), inputs, reads)


def _module(
    family: str,
    name: str,
    make: Callable[[], nn.Module],
    *inputs: Values,
    reads: int = 1,
    train: bool = False,
    precision: str = "fp32",
) -> TemplateCase:
    return TemplateCase(family, name, make, inputs, reads, train, precision)


def pointwise_cases() -> list[TemplateCase]:
    """Element-wise expressions of one to three operands, and broadcasting ones."""
    cases: list[TemplateCase] = []
    for count in (1 << 24, 1 << 27):
        flat = (count,)
        cases += [
            _case("pointwise", "relu", torch.relu, flat),
            _case("pointwise", "add", torch.add, flat, flat),
            _case("pointwise", "a * b + c", lambda a, b, c: a * b + c, flat, flat, flat),
        ]
    image, rows = (64, 256, 56, 56), (32768, 4096)
    one = (1, 256, 1, 1)
    return [
        *cases,
        _case("pointwise", "gelu", functional.gelu, (1 << 26,)),
        _case("pointwise", "silu(a) * b", lambda a, b: functional.silu(a) * b, (1 << 26,), (1 << 26,)),
        _case("pointwise", "x > 0", lambda x: x > 0, (1 << 26,)),
        _case("pointwise", "x + bias of a row", torch.add, rows, rows[1:]),
        _case("pointwise", "x * factor of a row", torch.mul, rows, (rows[0], 1)),
        _case("pointwise", "scale and shift of a channel", lambda x, a, b: x * a + b, image, one, one),
        _case("pointwise", "relu, fp16", torch.relu, (1 << 27,), dtype=torch.float16),
        _case("pointwise", "relu, bf16", torch.relu, (1 << 27,), dtype=torch.bfloat16),
    ]


def reduction_cases() -> list[TemplateCase]:
    """Sums, means and places over rows, columns and everything."""
    return [
        _case("reduction", "sum of rows", lambda x: x.sum(-1), (16384, 4096)),
        _case("reduction", "sum of short rows", lambda x: x.sum(-1), (1 << 20, 64)),
        _case("reduction", "sum of long rows", lambda x: x.sum(-1), (128, 1 << 20)),
        _case("reduction", "mean of everything", torch.mean, (1 << 27,)),
        _case("reduction", "sum of columns", lambda x: x.sum(0), (65536, 1024)),
        _case("reduction", "sum of the middle", lambda x: x.sum(1), (64, 512, 4096)),
        _case("reduction", "maximum of the middle", lambda x: x.amax(1), (64, 512, 4096)),
        _case("reduction", "argmax of rows", lambda x: x.argmax(-1), (16384, 4096)),
        _case("reduction", "cumsum of rows", lambda x: x.cumsum(-1), (16384, 4096)),
    ]


def norm_cases() -> list[TemplateCase]:
    """Softmax and the norms."""
    rows, narrow, wide = (16384, 4096), (1 << 20, 64), (4096, 32768)
    image = Values((64, 256, 56, 56))
    flat = [
        _case("softmax", name, lambda x, f=function: f(x, -1), shape)
        for name, function in (("softmax", torch.softmax), ("log_softmax", torch.log_softmax))
        for shape in (rows, narrow, wide)
    ]
    return [
        *flat,
        _case("softmax", "softmax of channels", lambda x: torch.softmax(x, 1), (64, 64, 128, 128)),
        _module("norm", "layer_norm", lambda: nn.LayerNorm(4096), Values(rows)),
        _module("norm", "layer_norm", lambda: nn.LayerNorm(768), Values((65536, 768))),
        _module("norm", "layer_norm", lambda: nn.LayerNorm(32768), Values(wide)),
        _module("norm", "rms_norm", lambda: nn.RMSNorm(4096), Values(rows)),
        _module("norm", "group_norm, 32 groups", lambda: nn.GroupNorm(32, 256), image),
        _module("norm", "group_norm, 8 groups", lambda: nn.GroupNorm(8, 256), image, reads=2),
        _module("norm", "instance_norm", lambda: nn.InstanceNorm2d(256), image, train=True),
        _module("norm", "batch_norm, train", lambda: nn.BatchNorm2d(256), image, reads=2, train=True),
        _module("norm", "batch_norm, eval", lambda: nn.BatchNorm2d(256), image),
    ]


def moving_cases() -> list[TemplateCase]:
    """What computes little or nothing: pools, layouts, joins, lookups."""
    images, heads = (64, 128, 112, 112), (32, 1024, 16, 64)
    pool = Values(images)
    return [
        _module("pool", "max_pool2d 2/2", lambda: nn.MaxPool2d(2), pool),
        _module("pool", "max_pool2d 3/2", lambda: nn.MaxPool2d(3, 2, 1), pool),
        _module("pool", "avg_pool2d 2/2", lambda: nn.AvgPool2d(2), pool),
        _module("pool", "adaptive_avg_pool2d to 1", lambda: nn.AdaptiveAvgPool2d(1), pool),
        _case("layout", "transpose", lambda x: x.t().contiguous(), (8192, 8192)),
        _case("layout", "channels to the end", lambda x: x.permute(0, 2, 3, 1).contiguous(), images),
        _case("layout", "heads before time", lambda x: x.permute(0, 2, 1, 3).contiguous(), heads),
        _case("layout", "flip of rows", lambda x: x.flip(-1), (16384, 4096)),
        _case("join", "cat of channels", lambda a, b: torch.cat((a, b), 1), images, images),
        _case("join", "pad", lambda x: functional.pad(x, (1, 1, 1, 1)), images),
        _module("lookup", "embedding", lambda: nn.Embedding(50257, 1024), Values((32, 2048), below=50257)),
        TemplateCase(
            "lookup",
            "rows by index",
            _of(lambda x, index: x[index]),
            (Values((65536, 1024)), Values((65536,), below=65536)),
        ),
        TemplateCase(
            "lookup",
            "gather",
            _of(lambda x, index: x.gather(1, index)),
            (Values((16384, 4096)), Values((16384, 4096), below=4096)),
        ),
    ]


def product_cases() -> list[TemplateCase]:
    """Matrix products, attention, convolutions and recurrences."""
    square, image = (4096, 4096), Values((32, 256, 56, 56))
    cases: list[TemplateCase] = []
    for precision in ("fp32", "tf32"):
        square_inputs = (Values(square), Values(square))
        cases += [
            TemplateCase("product", f"{precision} matmul", _of(torch.mm), square_inputs, precision=precision),
            _module(
                "product",
                f"{precision} linear to 4096",
                lambda: nn.Linear(4096, 4096),
                Values((16384, 4096)),
                precision=precision,
            ),
            TemplateCase(
                "attention",
                f"{precision} causal attention",
                _of(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True)),
                (Values((8, 16, 2048, 64)),) * 3,
                precision=precision,
            ),
            _module(
                "convolution",
                f"{precision} conv2d 3x3 to 256",
                lambda: nn.Conv2d(256, 256, 3, 1, 1, bias=False),
                image,
                precision=precision,
            ),
            _module(
                "convolution",
                f"{precision} conv2d 1x1 to 512",
                lambda: nn.Conv2d(256, 512, 1, bias=False),
                image,
                precision=precision,
            ),
        ]
    return [
        *cases,
        TemplateCase(
            "product",
            "fp32 matmul of few rows",
            _of(torch.mm),
            (Values((16, 8192)), Values((8192, 8192))),
        ),
        _module(
            "convolution",
            "depthwise conv2d 3x3",
            lambda: nn.Conv2d(128, 128, 3, 1, 1, groups=128, bias=False),
            Values((64, 128, 112, 112)),
        ),
        _module("recurrence", "LSTM of 256", lambda: nn.LSTM(256, 256), Values((512, 10, 256))),
        _module("recurrence", "GRU of 256", lambda: nn.GRU(256, 256), Values((512, 10, 256))),
    ]


def cases_by_label(*, small: bool) -> dict[str, TemplateCase]:
    """Every case; those that should reach 85 % of the copy bandwidth come first. `small`: for a CPU."""
    cases = [*pointwise_cases(), *norm_cases(), *reduction_cases(), *moving_cases(), *product_cases()]
    chosen = (_shortened(case) if small else case for case in cases)
    return {case.label: case for case in chosen}


def _shortened(case: TemplateCase) -> TemplateCase:
    """The case with fewer rows, images or steps, for a CPU."""
    if case.family == "lookup":  # its indices say how many rows there are
        return case
    first = case.inputs[0].shape
    leading = max(1, min(first[0], SMALL // math.prod(first[1:])))
    alone = case.family == "product"  # rows of the first factor; the second has others
    inputs = tuple(
        replace(value, shape=(leading, *value.shape[1:]))
        if value.shape[:1] == first[:1] and (place == 0 or not alone)
        else value
        for place, value in enumerate(case.inputs)
    )
    return replace(case, inputs=inputs)
