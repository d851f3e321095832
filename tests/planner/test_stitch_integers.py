"""Every scalar operation on every element type: what torch takes is compiled and equal."""

import operator
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.planner.stitch_support import Built, made

Function = Callable[..., torch.Tensor]

NAMES = (
    "abs neg floor ceil trunc round sign square relu reciprocal exp log1p tanh sigmoid sqrt sin erf isnan "
    "isinf logical_not bitwise_not positive ones_like"
)
NAMES_OF_TWO = "add sub mul div maximum minimum eq lt atan2 logical_or"
ONE: dict[str, Function] = {name: getattr(torch, name) for name in NAMES.split()} | {
    "relu6": functional.relu6,
    "threshold": lambda x: functional.threshold(x, 1, 5),
    "clamp": lambda x: x.clamp(1, 3),
    "clamp to a half": lambda x: x.clamp(min=0.5),
    "add -3": lambda x: x + -3,
    "add True": lambda x: x + True,
    "add a half": lambda x: x + 0.5,
    "2 - x": lambda x: 2 - x,
    "x / 3": lambda x: x / 3,
    "x // 3": lambda x: x // 3,
    "x % 2.5": lambda x: x % 2.5,
    "x squared": lambda x: x**2,
    "2 to the x": lambda x: 2.0**x,
    "x == -1": lambda x: x == -1,
    "x > 0.5": lambda x: x > 0.5,
    "x == 2": lambda x: x == 2,
    "where number": lambda x: torch.where(x > 1, x, 0),
    "where numbers": lambda x: torch.where(x > 1, 1, 0),
    "masked": lambda x: x.masked_fill(x > 1, -1),
    "full": lambda x: torch.full_like(x, 3),
    "lone number": lambda x: x + torch.scalar_tensor(3.0),
    "to bytes": lambda x: x.to(torch.uint8),
    "to bool": lambda x: x.bool(),
    "to double": lambda x: x.double() * 1.1,
    "addcmul": lambda x: torch.addcmul(x, x, x, value=2),
    "twice": lambda x: torch.add(x, x, alpha=3),
    "and": lambda x: x & x,
    "sum": lambda x: x.sum(-1),
    "largest": lambda x: x.amax(0),
    "any": lambda x: x.any(-1),
    "count": lambda x: (x > 1).sum(),
}
TWO: dict[str, Function] = {
    **{name: getattr(torch, name) for name in NAMES_OF_TWO.split()},
    "where": lambda a, b: torch.where(a > b, a, b),
    "clamp": lambda a, b: a.clamp(min=b),
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "and": operator.and_,
}
TYPES = {torch.int64: -4, torch.int32: -4, torch.uint8: 0, torch.bool: 0, torch.float32: -4}
"""Element types, and the smallest value of the operands."""


class Each(nn.Module):
    """Many functions of the same inputs, so that one build tests them all."""

    def __init__(self, functions: Sequence[tuple[Function, Sequence[int]]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(function(*(inputs[place] for place in places)) for function, places in self.functions)


def operands() -> list[torch.Tensor]:
    drawn = torch.Generator().manual_seed(3)
    return [torch.randint(low, 5, (3, 19), generator=drawn).to(kind) for kind, low in TYPES.items()]


def taken(function: Function, given: Sequence[torch.Tensor]) -> bool:
    """Whether torch itself computes it."""
    try:
        function(*given)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def left(name: str, kinds: Sequence[torch.dtype]) -> bool:
    """Whether no template takes it, and a program would leave it to PyTorch."""
    if name in ("bitwise_not", "and"):
        return any(kind != torch.bool for kind in kinds)
    if name == "x squared":
        return not kinds[0].is_floating_point
    return name == "x // 3" or (name == "largest" and kinds[0] == torch.bool)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_what_torch_takes_of_whole_numbers_is_compiled_and_equal(count: int, tmp_path: Path) -> None:
    inputs = operands()
    cases: list[tuple[str, Function, tuple[int, ...]]] = []
    for name, function in (ONE if count == 1 else TWO).items():
        for first in range(len(inputs)):
            # Two operands: of neighboring types, in both orders over the whole cycle of types.
            places = (first,) if count == 1 else (first, (first + 1 + len(name) % 3) % len(inputs))
            given = [inputs[place] for place in places]
            if taken(function, given) and not left(name, [tensor.dtype for tensor in given]):
                cases.append((name, function, places))
    module = Each([(function, places) for _, function, places in cases])
    actual = Built(made(module, inputs).stitched, module, tmp_path)(inputs)
    for (name, _, places), ours, theirs in zip(cases, actual, module(*inputs), strict=True):
        kinds = [inputs[place].dtype for place in places]
        torch.testing.assert_close(
            ours, theirs, equal_nan=True, msg=lambda m, n=name, k=kinds: f"{n} {k}: {m}"
        )


@pytest.mark.parametrize("function", [torch.floor, torch.ceil, torch.trunc, torch.round])
def test_rounding_a_whole_number_calls_nothing(function: Function) -> None:
    assert (
        "math::" not in made(Each([(function, (0,))]), [torch.tensor([[3, -4]])]).source.split("struct", 1)[1]
    )
