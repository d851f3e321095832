"""Fused pointwise chains and reductions: stitched, built and compared with torch in double precision."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.planner.stitch_support import Built, assert_equal_to_torch, leaves, made


class Each(nn.Module):
    """Many functions of the same inputs, so that one build tests them all."""

    def __init__(self, *functions: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(function(*inputs) for function in self.functions)


@pytest.mark.slow
def test_every_common_pointwise_operation(tmp_path: Path) -> None:
    functions = [
        torch.exp, torch.tanh, torch.sigmoid, torch.abs, torch.neg, torch.sin, torch.cos, torch.erf,
        torch.floor, torch.round, torch.sign, torch.relu, functional.silu, functional.mish, functional.gelu,
        functional.hardswish, functional.softplus, functional.elu, functional.selu, functional.relu6,
        functional.logsigmoid, lambda x: functional.leaky_relu(x, 0.2), lambda x: x.clamp(-0.5, 0.7),
        lambda x: x.clamp(min=0.1), lambda x: x.clamp(max=0.1), lambda x: x**2, lambda x: x**3,
        lambda x: 2 - x, lambda x: x / 3, lambda x: 1 / (x + 9), lambda x: (x > 0.5) & (x < 1),
        lambda x: torch.where(x > 0, x, 0.25 * x), lambda x: x.masked_fill(x < 0, -math.inf),
        lambda x: (x * 3).to(torch.int64), lambda x: (x > 0).float(), lambda x: torch.rsqrt(x.abs() + 1),
        lambda x: functional.celu(x, 0.7), lambda x: torch.lerp(x, -x, 0.3), lambda x: x % 2,
        lambda x: torch.maximum(x, -x), lambda x: torch.atan2(x, x + 1), lambda x: x.isnan(),
    ]  # fmt: skip
    result = assert_equal_to_torch(Each(*functions), [torch.randn(5, 37) * 2], tmp_path)
    assert set(result.kinds) == {"pointwise"}


@pytest.mark.slow
def test_every_reduction_over_rows_columns_and_all(tmp_path: Path) -> None:
    functions = [
        lambda x: x.sum(-1), lambda x: x.mean(1), lambda x: x.amax(0), lambda x: x.amin((0, 2)),
        lambda x: x.var(-1), lambda x: x.std(1, unbiased=False), lambda x: x.mean(),
        lambda x: x.sum((0, 1, 2)),
        lambda x: torch.logsumexp(x, 1), lambda x: torch.softmax(x, 1), lambda x: torch.log_softmax(x, -1),
        lambda x: torch.softmax(x, 0), lambda x: functional.normalize(x, dim=1), lambda x: x.norm(dim=-1),
        lambda x: functional.normalize(x, p=1.0, dim=-1), lambda x: x.abs().amax((1, 2), keepdim=True) * x,
        lambda x: x - x.mean((0, 2), keepdim=True), lambda x: functional.layer_norm(x, (33, 21)),
        lambda x: functional.rms_norm(x, (21,)), lambda x: x.sum(1) / (x.std(1) + 1),
        lambda x: (x > 0).any(-1), lambda x: (x > -9).all(1), lambda x: x.prod(-1),
    ]  # fmt: skip
    assert_equal_to_torch(Each(*functions), [torch.randn(4, 33, 21)], tmp_path)


@pytest.mark.slow
def test_broadcasts_of_every_kind_are_strided_reads(tmp_path: Path) -> None:
    functions = [
        lambda x, r, c, s: x + r, lambda x, r, c, s: x * c, lambda x, r, c, s: x * s + r * c,
        lambda x, r, c, s: torch.exp(r) - c, lambda x, r, c, s: (x + c).transpose(1, 2) * 2,
        lambda x, r, c, s: torch.softmax(x.transpose(0, 2) + 1, -1),
        lambda x, r, c, s: x[:, 1::2, :-3] / (s + 4),
        lambda x, r, c, s: x.permute(2, 0, 1).flatten(1).tanh(), lambda x, r, c, s: x[1] - x[:1],
    ]  # fmt: skip
    x = torch.randn(6, 10, 40)
    inputs = [x, torch.randn(40), torch.randn(10, 1), torch.rand(())]
    result = assert_equal_to_torch(Each(*functions), inputs, tmp_path)
    assert set(result.kinds) <= {"pointwise", "rows"}


def test_special_values_come_out_as_torch_has_them(tmp_path: Path) -> None:
    x = torch.randn(8, 24)
    x[0, 3], x[1, 5], x[2, 7], x[3] = math.nan, math.inf, -math.inf, -math.inf
    functions = (
        lambda v: torch.softmax(v, -1),
        lambda v: v.amax(-1),
        lambda v: torch.log_softmax(v, -1),
        lambda v: torch.logsumexp(v, -1),
        lambda v: torch.logsumexp(v, 0),
        lambda v: torch.logsumexp(v, (0, 1)),
        lambda v: torch.logsumexp(-v, -1),
        lambda v: v.amin(-1),
        lambda v: torch.max(v),
        lambda v: v.amax(0),
        lambda v: v.sum(-1),
        lambda v: v.mean(-1),
        lambda v: v.var(-1),
        lambda v: v.std(0),
        lambda v: v.prod(-1),
        lambda v: v.norm(dim=-1),
        lambda v: v.norm(p=float("inf"), dim=-1),
        lambda v: torch.softmax(v, 0),
        torch.relu,
        lambda v: v.clamp(-1, 1),
        torch.sigmoid,
        lambda v: functional.layer_norm(v, (24,)),
    )
    module = Each(*functions)
    actual = Built(made(module, [x]).stitched, module, tmp_path)([x])
    for ours, eager in zip(actual, module(x), strict=True):
        torch.testing.assert_close(ours, eager, equal_nan=True, rtol=1e-5, atol=1e-6)


def test_inputs_of_any_stride_and_offset_are_honoured(tmp_path: Path) -> None:
    class Plain(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x + y, dim=-1)

    module = Plain()
    built = Built(made(module, [torch.randn(6, 8), torch.randn(8)]).stitched, module, tmp_path)
    base = torch.randn(16, 20)
    for x in (base.t()[2:14:2, 3:11], base[1:7, 2:10], base[3:9, ::2][:, :8]):
        y = base[0, 1:17:2]
        torch.testing.assert_close(built([x, y])[0], module(x, y))


def test_another_shape_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    from stitch_tools.worker.runtime.native import ProgramError

    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    built = Built(made(Scaled(), [torch.randn(4, 5)]).stitched, Scaled(), tmp_path)
    with pytest.raises(ProgramError) as caught:
        built([torch.randn(3, 5)])
    assert caught.value.status == "unsupported"
    assert "input 0" in caught.value.message


def test_the_same_program_runs_with_any_number_of_threads(tmp_path: Path) -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(200)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.gelu(self.norm(x)).mean(0)

    module, x = Norm(), torch.randn(3000, 200)
    stitched = made(module, [x]).stitched
    one = Built(stitched, module, tmp_path, threads=1)([x])[0]
    for threads in (2, 3, 8):
        torch.testing.assert_close(Built(stitched, module, tmp_path, threads=threads)([x])[0], one)


def test_tensors_of_no_and_of_one_element(tmp_path: Path) -> None:
    functions = (lambda x, y: torch.exp(x) + 1, lambda x, y: y.softmax(-1), lambda x, y: (y * 2).sum())
    inputs = [torch.randn(0, 7), torch.randn(1, 1)]
    module = Each(*functions)
    actual = Built(made(module, inputs).stitched, module, tmp_path)(inputs)
    for ours, eager in zip(actual, module(*inputs), strict=True):
        torch.testing.assert_close(ours, eager)


def test_constants_that_the_reference_makes_itself(tmp_path: Path) -> None:
    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            steps = torch.arange(6, dtype=torch.float32) * 0.5
            made_here = torch.full((1, 6), 2.5) - torch.full((1, 6), -1.5).neg()
            return x * torch.tensor([1.0, -2.0, 3.0, 0.5, 0.0, 9.0]) + steps + made_here

    assert_equal_to_torch(Own(), [torch.randn(3, 6)], tmp_path)


def test_outputs_may_be_inputs_views_and_one_value_twice(tmp_path: Path) -> None:
    class Echo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4))

        def forward(self, x: torch.Tensor) -> dict[str, object]:
            y = torch.exp(x)
            return {"y": y, "again": [y, y.t()], "weight": self.weight.t(), "x": x, "slice": y[1:, 2]}

    module, x = Echo(), torch.randn(3, 4)
    actual = Built(made(module, [x]).stitched, module, tmp_path)([x])
    for ours, eager in zip(actual, leaves(module(x)), strict=True):
        torch.testing.assert_close(ours, eager.detach())


def test_a_fused_value_that_is_also_an_output_is_stored_once(tmp_path: Path) -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            total = x + y
            return functional.layer_norm(total, (64,)), total

    result = assert_equal_to_torch(Both(), [torch.randn(16, 64), torch.randn(16, 64)], tmp_path)
    assert result.kinds == ["rows"]


def test_a_mean_over_everything_is_cut_into_chunks(tmp_path: Path) -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return ((x - y) ** 2).mean() * self.scale

    result = assert_equal_to_torch(Loss(), [torch.randn(256, 300), torch.randn(256, 300)], tmp_path)
    assert "in 256 chunks" in result.source
    assert "joined" in result.source


def test_transposed_results_and_short_last_dims_go_through_tiles_and_longer_loops(tmp_path: Path) -> None:
    functions = [
        lambda x, y: x.permute(0, 2, 3, 1).contiguous() + 1,
        lambda x, y: (x + y.transpose(2, 3)).tanh(),
        lambda x, y: torch.relu(x.transpose(1, 3)),
    ]
    assert_equal_to_torch(
        Each(*functions), [torch.randn(2, 37, 50, 50), torch.randn(2, 37, 50, 50)], tmp_path
    )


def test_names_of_a_reference_do_not_meet_those_of_the_program(tmp_path: Path) -> None:
    class Names(nn.Module):
        def forward(self, memory: torch.Tensor, status: torch.Tensor, double: torch.Tensor) -> torch.Tensor:
            return torch.exp(memory) + status * double

    assert_equal_to_torch(Names(), [torch.randn(3), torch.randn(3), torch.randn(3)], tmp_path)
