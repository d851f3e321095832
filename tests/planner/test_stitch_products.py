"""Products whose sides or bias are no plain parameters: given, computed, or views of parameters."""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from tests.planner.stitch_support import Built, assert_equal_to_torch, made


class Products(nn.Module):
    """Each kind of bias beside each kind of right side."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(32, 24)), nn.Parameter(torch.randn(32))
        self.both = nn.Parameter(torch.randn(64))

    def forward(self, x: torch.Tensor, w: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        flat = x.flatten(0, 1)
        return [
            functional.linear(x, w, self.b),
            functional.linear(flat, self.w * 2 + 1, self.b),
            functional.relu(functional.linear(flat, w, self.b)) * 0.5,
            functional.linear(flat, w, self.b) + z,
            functional.linear(flat, w, self.both[32:]),
            functional.linear(flat, w, self.both.view(32, 2)[:, 1]),
            functional.linear(flat, w, self.b * 3) * z,
            functional.linear(flat, self.w, self.b * 3).tanh(),
            functional.linear(flat, self.w, self.both.view(32, 2)[:, 1]) + z,
            torch.addmm(self.b, flat, w.t()),
            torch.addmm(z[0], flat, w.t()),
            functional.linear(flat[0], w, self.b),
            torch.baddbmm(self.b, x, w.t().expand(5, 24, 32)),
            torch.baddbmm(z[:4].expand(5, 4, 32), x, w.t().expand(5, 24, 32), alpha=0.5) + z[:4],
            torch.addmm(self.b, flat, self.w.t(), alpha=-2) * 3,
            torch.relu(torch.addmm(z, flat, self.w.t())),
            torch.addmm(torch.full_like(z, torch.nan), flat, w.t(), beta=0),
        ]


def test_a_bias_is_added_whatever_the_weight_and_the_bias_are(tmp_path: Path) -> None:
    inputs = [torch.randn(5, 4, 24), torch.randn(32, 24), torch.randn(20, 32)]
    result = assert_equal_to_torch(Products(), inputs, tmp_path)
    gemms = [step for step in result.plan.steps if step.family == "gemm"]
    assert len(gemms) == 17
    assert ("linear", "relu", "mul") in [step.ops for step in gemms]
    assert ("linear", "add") in [step.ops for step in gemms]


def test_a_parameter_or_a_view_of_one_may_be_an_output(tmp_path: Path) -> None:
    class Returned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.unused = nn.Parameter(torch.randn(5, 7)), nn.Parameter(torch.randn(3))
            self.register_buffer("count", torch.arange(4))

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [x * 2, self.w, self.unused, self.w.t(), self.w[1:, ::2], self.w, self.get_buffer("count")]

    module, x = Returned(), torch.randn(6, 4)
    actual = Built(made(module, [x]).stitched, module, tmp_path)([x])
    for ours, eager in zip(actual, module(x), strict=True):
        assert torch.equal(ours, eager.detach())
