"""Large float32 products of CUDA programs: when they may be split, what the program says, how it builds."""

from pathlib import Path

import pytest
import torch
from torch import nn

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.testing import OnGpu, OnHost, build_for_gpus, lowered
from stitch_planner.stitcher.lower.kernel_ir import LibraryCall
from stitch_planner.stitcher.lower.operations import MatmulOp
from stitch_tools.models.task import Contract
from tests.planner.cuda_support import needs_gpu

LARGE = (256, 512, 512)
"""Rows, depth and columns of the smallest product that may be split, or nearly."""


class Layers(nn.Module):
    """Products of all kinds that a program splits: with a bias, with a residual, batched, of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(512, 512), nn.Linear(512, 512, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.second(torch.relu(self.first(x))) + x
        pairs = hidden.view(2, 128, 512).transpose(1, 2)
        return hidden, torch.bmm(pairs, y)


INPUTS = [torch.randn(256, 512), torch.randn(2, 128, 1024)]


def weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in module.named_parameters()}


def may_split(m: int, k: int, n: int, precision: str = "fp32") -> bool:
    contract = Contract(mode="eval", matmul_precision=precision)  # type: ignore[arg-type]
    (call,) = lowered(nn.Linear(k, n, bias=False).eval(), [torch.empty(m, k)], contract).kernels
    assert isinstance(call, LibraryCall)
    assert isinstance(call.operation, MatmulOp)
    return call.operation.may_split


def test_large_float32_products_may_be_split() -> None:
    assert may_split(*LARGE)
    assert may_split(32, 2048, 1024)


@pytest.mark.parametrize("sizes", [(255, 512, 512), (16, 4096, 1024), (4096, 4096, 16), (4096, 32, 4096)])
def test_small_narrow_and_short_products_are_the_librarys(sizes: tuple[int, int, int]) -> None:
    assert not may_split(*sizes)


def test_a_contract_that_allows_tf32_gets_plain_tf32() -> None:
    assert not may_split(*LARGE, "tf32")


def test_the_program_passes_constant_weights_to_be_split_and_says_so() -> None:
    text = emit_cuda(lowered(Layers().eval(), INPUTS))
    assert text.count("three products of halves with float32's errors") == 3
    assert "/*allow_tf32=*/false}, p_second_weight_, nullptr, false)" in " ".join(text.split())
    assert "/*allow_tf32=*/false}, nullptr, nullptr, false)" in " ".join(text.split())


def test_a_relu_behind_a_large_product_is_the_products_own() -> None:
    large = lowered(nn.Sequential(nn.Linear(512, 512), nn.ReLU()).eval(), [torch.empty(256, 512)])
    small = lowered(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval(), [torch.empty(4, 8)])
    assert [type(kernel).__name__ for kernel in large.kernels] == ["LibraryCall"]
    assert [type(kernel).__name__ for kernel in small.kernels] == ["LibraryCall", "PointwiseKernel"]


@pytest.mark.parametrize(
    "machine", [pytest.param(OnHost, id="host"), pytest.param(OnGpu, id="gpu", marks=needs_gpu)]
)
def test_programs_with_split_products_agree_with_float64(
    machine: type[OnHost | OnGpu], tmp_path: Path
) -> None:
    module = Layers().eval()
    outputs = machine(emit_cuda(lowered(module, INPUTS)), tmp_path).run(INPUTS, weights(module), calls=2)
    with torch.no_grad():
        exact = module.double()(*(x.double() for x in INPUTS))
    for ours, theirs in zip(outputs, exact, strict=True):
        rms = theirs.pow(2).mean().sqrt()
        assert float((ours.double() - theirs).abs().max() / rms) < 1e-5


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize(
    "archs",
    [("sm_90",), pytest.param(("sm_80", "sm_100", "sm_120"), marks=pytest.mark.exhaustive)],
    ids=["hopper", "others"],
)
def test_split_products_build_for_every_architecture(archs: tuple[str, ...], tmp_path: Path) -> None:
    build = build_for_gpus(emit_cuda(lowered(Layers().eval(), INPUTS)), tmp_path, archs)
    assert build.ok, [row.message for row in build.diagnostics]
    assert build.diagnostics == ()
    assert {row.arch for row in build.resources} == set(archs)
