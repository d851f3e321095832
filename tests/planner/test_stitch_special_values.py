"""Scalar operations on NaN, infinity, signed zeros, subnormal and large numbers, as PyTorch has them."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.testing import OnHost, lowered
from tests.planner.stitch_support import Built, made
from tests.sampling import sampled

Function = Callable[..., torch.Tensor]

VALUES = (
    math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, -1e-45, 1e-40, -1e-40, 1.2e-38, 3.4e38, -3.4e38,
    1e20, -1e20, 1.0, -1.0, 0.1, -0.1, 0.3, 2.5, -2.5, 6.0, -3.0, 7.0, -7.0, 20.5, 88.0, -88.0, 104.0, -104.0,
    0.5, -0.5,
)  # fmt: skip
FEW = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, 2e19, -2e19, 1.5, -1.5, 0.25)

NAMES = (
    "exp expm1 log log1p log2 log10 exp2 tanh sigmoid sqrt rsqrt abs neg sin cos tan asin acos atan sinh "
    "cosh erf erfc sign reciprocal relu square floor ceil trunc round isnan isinf logical_not"
)
ACTIVATIONS = (
    "silu mish hardswish hardsigmoid logsigmoid relu6 gelu hardtanh leaky_relu elu celu selu softplus"
)
ONE: dict[str, Function] = {
    **{name: getattr(torch, name) for name in NAMES.split()},
    **{name: getattr(functional, name) for name in ACTIVATIONS.split()},
    "gelu tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "threshold": lambda x: functional.threshold(x, 0.1, 5.0),
    "elu of 2": lambda x: functional.elu(x, 2.0),
    "celu of 2": lambda x: functional.celu(x, 2.0),
    "softplus of 3": lambda x: functional.softplus(x, 3.0, 5.0),
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp from": lambda x: x.clamp(min=0.1),
    "clamp to": lambda x: x.clamp(max=0.1),
    "squared": lambda x: x**2,
    "cubed": lambda x: x**3,
    "to the fourth": lambda x: x**4,
    "root": lambda x: x**0.5,
    "inverse root": lambda x: x**-0.5,
    "inverse": lambda x: x**-1,
    "to the 1.5": lambda x: x**1.5,
    "2 to the x": lambda x: 2.0**x,
    "add alpha": lambda x: torch.add(x, x, alpha=2),
    "from 2": lambda x: 2 - x,
    "by 3": lambda x: x / 3,
    "3 by x": lambda x: 3 / x,
    "modulo 2.5": lambda x: x % 2.5,
    "modulo -2.5": lambda x: x % -2.5,
    "modulo inf": lambda x: x % math.inf,
    "fmod 2.5": lambda x: torch.fmod(x, 2.5),
    "floor by 0.1": lambda x: torch.div(x, 0.1, rounding_mode="floor"),
    "floor by -3": lambda x: torch.div(x, -3, rounding_mode="floor"),
    "trunc by 0.1": lambda x: torch.div(x, 0.1, rounding_mode="trunc"),
    "masked": lambda x: x.masked_fill(x < 0, -math.inf),
    "bool": lambda x: x.bool(),
    "greater": lambda x: x > 0,
    "at most inf": lambda x: x <= math.inf,
    "unequal": lambda x: x != 0,
}
NAMES_OF_TWO = (
    "add sub mul div maximum minimum max min atan2 fmod remainder pow eq ne lt le gt ge "
    "logical_and logical_or"
)
TWO: dict[str, Function] = {
    **{name: getattr(torch, name) for name in NAMES_OF_TWO.split()},
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "clamp_min": torch.clamp_min,
    "clamp_max": torch.clamp_max,
    "clamp": lambda a, b: a.clamp(min=b),
    "lerp number": lambda a, b: torch.lerp(a, b, 0.3),
}
THREE: dict[str, Function] = {
    "clamp": torch.clamp,
    "where": lambda a, b, c: torch.where(a > 0, b, c),
    "addcmul": lambda a, b, c: torch.addcmul(a, b, c, value=0.5),
    "lerp": torch.lerp,
}
SIGNED = ("floor", "modulo", "remainder", "fmod", "trunc", "neg", "round", "ceil", "abs")
"""Functions whose zeros have the sign that PyTorch's have."""


class Each(nn.Module):
    """Many functions of the same inputs, so that one build tests them all."""

    def __init__(self, functions: Sequence[Function]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(function(*inputs) for function in self.functions)


def combined(values: Sequence[float], count: int) -> list[torch.Tensor]:
    """Every combination of `count` values."""
    grid = torch.meshgrid(*[torch.tensor(values)] * count, indexing="ij")
    return [part.reshape(-1).clone() for part in grid]


def difference(
    name: str, given: Sequence[torch.Tensor], ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor
) -> str:
    """What is wrong with a result; "" where it agrees."""
    if not eager.is_floating_point():
        wrong = ours != eager
    else:
        # Where PyTorch's own float32 strays from float64 (an intermediate overflows, fmod of operands
        # far apart is NaN, gelu and lerp cancel), ours may have float64's value instead.
        slack = 1e-6 if name.startswith(("gelu", "lerp")) else 1e-37
        like = [torch.isclose(ours, x, rtol=2e-5, atol=slack, equal_nan=True) for x in (eager, exact.float())]
        wrong = ~(like[0] | like[1])
        if name.startswith(SIGNED):
            wrong |= ~(eager.isnan() | ours.isnan()) & (torch.signbit(ours) != torch.signbit(eager))
    places = wrong.nonzero().flatten().tolist()[:4]
    cases = [f"{[x[p].item() for x in given]}: {ours[p].item()}, not {eager[p].item()}" for p in places]
    return f"{name} ({int(wrong.sum())}): " + "; ".join(cases) if cases else ""


FUNCTIONS = {1: (ONE, VALUES), 2: (TWO, VALUES), 3: (THREE, FEW)}
"""By the number of operands."""


@pytest.mark.parametrize(
    ("count", "target"),
    sampled(
        ((count, target) for count in FUNCTIONS for target in ("cpu", "cuda")),
        [(1, "cpu"), (2, "cpu"), (2, "cuda"), (3, "cuda")],
    ),
)
def test_special_operands_give_what_they_give_in_pytorch(count: int, target: str, tmp_path: Path) -> None:
    functions, values = FUNCTIONS[count]
    module, given = Each(list(functions.values())), combined(values, count)
    if target == "cpu":
        ours = Built(made(module, given).stitched, module, tmp_path)(given)
    else:
        ours = OnHost(emit_cuda(lowered(module, given)), tmp_path).run(given)
    results = zip(functions, ours, module(*given), module(*(x.double() for x in given)), strict=True)
    assert not [text for name, *each in results if (text := difference(name, given, *each))]


def test_floor_division_counts_how_often_the_divisor_goes_in(tmp_path: Path) -> None:
    module = Each(
        [
            lambda a, b, c, d: torch.div(a, b, rounding_mode="floor"),
            lambda a, b, c, d: torch.div(c, d, rounding_mode="floor"),
        ]
    )
    pair = torch.tensor([1.0, 6.0, -1.0, 1.0, 0.6]), torch.tensor([0.1, 0.1, 0.1, -0.1, 0.2])
    given = [*pair, *(x.double() for x in pair)]
    ours = Built(made(module, given).stitched, module, tmp_path)(given)
    for one, eager in zip(ours, module(*given), strict=True):
        assert torch.equal(one, eager)
    assert ours[0][0] == 9


class Spread(nn.Module):
    """Variances with more degrees of freedom taken off than there are."""

    def forward(self, x: torch.Tensor, equal: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            x.var(-1, correction=4),
            x.std(-1, correction=5),
            x.var(0, correction=3),
            x.std((0, 1), correction=12),
            x[:, :1].var(-1),
            equal.var(-1, correction=4),
            equal.std(0, correction=9),
        )


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_variance_without_degrees_of_freedom_is_that_of_pytorch(target: str, tmp_path: Path) -> None:
    module = Spread()
    given = [torch.randn(3, 4, generator=torch.Generator().manual_seed(1)), torch.ones(3, 4)]
    if target == "cpu":
        ours = Built(made(module, given).stitched, module, tmp_path)(given)
    else:
        ours = OnHost(emit_cuda(lowered(module, given)), tmp_path).run(given)
    for one, eager in zip(ours, module(*given), strict=True):
        assert torch.equal(one.nan_to_num(nan=-1.0), eager.nan_to_num(nan=-1.0)), (one, eager)
