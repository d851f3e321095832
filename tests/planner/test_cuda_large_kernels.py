"""Kernels for large tensors on GPUs: tiles that are turned, rows cut into chunks, biases that move."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.schedule import ColumnSchedule, column_schedule
from stitch_planner.stitcher.emit.cuda.testing import OnGpu, OnHost, build_for_gpus, lowered
from stitch_planner.stitcher.emit.cuda.tiles import tiles_of
from stitch_planner.stitcher.lower.kernel_ir import LibraryCall, PointwiseKernel
from stitch_planner.stitcher.lower.operations import ConvOp
from tests.planner.cuda_support import MACHINES, Table, assert_as_torch


def last(*shape: int) -> torch.Tensor:
    """An image whose channels are innermost, as a window on a dense tensor."""
    n, c, h, w = shape
    return torch.randn(n, h, w, c)


TURNED: Table = {
    "turned": (lambda x: torch.tanh(x.permute(0, 3, 1, 2)), [last(2, 70, 13, 17)]),
    "turned beside one that is not": (
        lambda x, y: x.permute(0, 3, 1, 2) * 2 + y,
        [last(3, 64, 12, 12), torch.randn(3, 64, 12, 12)],
    ),
    "two turned, and a vector": (
        lambda x, y, b: torch.relu(x.permute(0, 3, 1, 2) + b[:, None, None]) - y.permute(0, 3, 1, 2),
        [last(2, 40, 15, 15), last(2, 40, 15, 15), torch.randn(40)],
    ),
    "few channels": (lambda x: x.permute(0, 3, 1, 2) + 1, [last(1, 9, 60, 60)]),
    "groups of channels, each with an operand": (
        lambda x, g: x.permute(0, 3, 1, 2).unflatten(1, (8, 4)) * g[:, :, None, None, None],
        [last(2, 32, 30, 30), torch.randn(2, 8)],
    ),
    "truths": (lambda x, y: x.t() > y, [torch.randn(200, 100), torch.randn(100, 200)]),
    "doubles": (lambda x: x.t().double() * 3, [torch.randn(300, 90).double()]),
    "with an index": (lambda x: x.t() * torch.arange(200.0), [torch.randn(200, 130)]),
}
CHUNKS: Table = {
    "norm of all": (lambda x: x / torch.norm(x, p=2), [torch.rand(4, 30, 90, 100)]),
    "mean of all with a broadcast": (
        lambda x, t: torch.mean(torch.clamp(1 - x * t, min=0)),
        [torch.randn(300, 256), torch.randn(256).sign()],
    ),
    "rows": (
        lambda x: (x - x.mean(1, keepdim=True)) * x.amax(1, keepdim=True),
        [torch.rand(3, 400000)],
    ),
    "softmax of long rows": (lambda x: x.softmax(1), [torch.randn(2, 600000)]),
    "columns": (lambda x: x.exp().mean(1), [torch.randn(2, 4096, 40)]),
    "columns with elements": (
        lambda x: x * torch.rsqrt(x.square().mean(1, keepdim=True)),
        [torch.rand(2, 16384, 33)],
    ),
    "two sums and a row's operand": (
        lambda x, b: ((x + b).sum(1) * x.square().sum(1), x.amin(1)),
        [torch.rand(5, 30000), torch.rand(5, 1)],
    ),
    "a softmax that is stored in another order": (
        lambda x: torch.sigmoid(x.permute(0, 3, 1, 2).softmax(1) * 2).contiguous(),
        [last(2, 64, 24, 24)],
    ),
    "groups of channels": (
        lambda x: x.permute(0, 3, 1, 2).unflatten(1, (16, 4)).exp().sum((2, 3, 4)),
        [last(2, 64, 60, 60)],
    ),
    "largest with NaN": (
        lambda x: x.amax(1),
        [torch.randn(2, 20000).index_fill(1, torch.tensor(9), torch.nan)],
    ),
}


POOLED: Table = {
    "largest of what is computed": (
        lambda x, b: functional.max_pool2d(torch.tanh(x.permute(0, 3, 1, 2) * 3 + b[:, None, None]), 2) - 1,
        [last(2, 64, 93, 91), torch.randn(64)],
    ),
    "softmax over few channels": (lambda x: x.softmax(1), [torch.randn(2, 60, 190, 180)]),
    "average of windows that are no squares": (
        lambda x: functional.avg_pool2d(x.permute(0, 3, 1, 2).exp(), (4, 3)),
        [last(2, 64, 95, 91)],
    ),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_results_are_torch_s(machine: type[OnHost | OnGpu], tmp_path: Path) -> None:
    text = assert_as_torch({**TURNED, **CHUNKS, **POOLED}, machine, tmp_path)
    assert text.count("tiled_pointwise(") > len(TURNED)
    assert text.count("_chunks{") >= len(CHUNKS) - 1


def pointwise(function: nn.Module, *inputs: torch.Tensor) -> list[PointwiseKernel]:
    return [k for k in lowered(function, inputs).kernels if isinstance(k, PointwiseKernel)]


class Turns(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x.permute(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("shape", "sides"),
    [
        ((2, 128, 30, 30), (64, 64)),
        ((2, 32, 64, 64), (32, 128)),
        ((2, 8, 64, 64), (8, 512)),
        ((64, 128, 3, 3), (64, 16)),
        ((2, 4, 64, 64), None),  # lines of 16 bytes
        ((1, 32, 8, 8), None),  # over before tiles would pay
    ],
)
def test_tiles_fit_the_sides_that_they_turn(shape: tuple[int, ...], sides: tuple[int, int] | None) -> None:
    (kernel,) = pointwise(Turns(), last(*shape))
    tiles = tiles_of(kernel)
    assert (None if tiles is None else (tiles.turned_tile, tiles.last_tile)) == sides


class TurnsTwo(nn.Module):
    def forward(self, truths: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.where(truths.t(), x.t(), 1)


def test_gaps_between_staged_numbers_fit_the_memory_of_a_block() -> None:
    truths = torch.ones(200, 300, dtype=torch.bool)
    (kernel,) = pointwise(TurnsTwo(), truths, torch.arange(60000).reshape(200, 300))
    tiles = tiles_of(kernel)
    assert tiles is not None
    # An int64 and a bool fill 16 bytes; the widest comes first, so that a third leaves no more gaps.
    assert [kernel.loads[n].buffer.dtype for n in tiles.staged] == ["int64", "bool"]
    assert tiles.last_tile * (tiles.turned_tile + 1) * 16 <= 48 << 10


def test_a_kept_column_of_very_many_operands_has_one_element_a_thread() -> None:
    assert column_schedule(1 << 16, 16, cell_bytes=132) == ColumnSchedule(32, 16, 1)


class Reduces(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.softmax(self.dim) if self.dim == 0 else x.sum(self.dim)


@pytest.mark.parametrize(
    ("dim", "shape", "kernels"),
    [
        (1, (3, 40000), 2),
        (1, (3, 4001), 1),  # a prime number of elements
        (1, (2000, 8192), 1),  # rows enough
        (0, (40000,), 1),  # five kernels take longer
        (0, (4000000,), 5),  # its sum depends on its largest
    ],
)
def test_few_long_rows_are_cut(dim: int, shape: tuple[int, ...], kernels: int) -> None:
    program = lowered(Reduces(dim), [torch.randn(shape)])
    assert len(program.kernels) == kernels


class Convolves(nn.Module):
    """A convolution, and one way to go on."""

    def __init__(self, tail: str, *, transposed: bool = False) -> None:
        super().__init__()
        self.tail = tail
        self.conv = nn.ConvTranspose2d(16, 16, 3) if transposed else nn.Conv2d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        if self.tail == "mish":
            return functional.mish(y)
        if self.tail == "relu":
            return torch.relu(y) * 2
        if self.tail == "pool":
            return functional.max_pool2d(y, 2).clamp(0, 1)
        if self.tail == "sum":
            return torch.relu(y + x)
        if self.tail == "softmax":
            return y.softmax(1)
        return self.norm(y) if self.tail == "norm" else y


@pytest.mark.parametrize(
    ("tail", "transposed", "keeps"),
    [
        ("mish", False, False),
        ("softmax", True, False),
        ("pool", True, False),
        ("sum", False, True),  # a residual, which the call adds
        ("relu", False, True),  # cuDNN's fused call ends with it
        ("relu", True, False),
        ("norm", False, True),
        ("", False, True),
    ],
)
def test_a_bias_is_added_where_that_costs_nothing(
    tail: str, transposed: bool, keeps: bool, tmp_path: Path
) -> None:
    module, x = Convolves(tail, transposed=transposed), torch.randn(2, 16, 20, 20)
    program = lowered(module, [x])
    calls = [k.operation for k in program.kernels if isinstance(k, LibraryCall)]
    (conv,) = [call for call in calls if isinstance(call, ConvOp)]
    assert (conv.bias is not None) == keeps
    if tail != "pool":
        return
    (y,) = OnHost(emit_cuda(program), tmp_path).run([x], dict(module.named_parameters()))
    torch.testing.assert_close(y, module(x).detach(), rtol=1e-4, atol=1e-5)


class Normed(nn.Module):
    """Norms of large images between element-wise operations."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 3), nn.Conv2d(3, 32, 3)
        self.groups, self.batch = nn.GroupNorm(8, 32), nn.BatchNorm2d(32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gelu = functional.gelu(self.first(x))
        return self.groups(gelu), self.batch(self.second(x) + 3) * 2


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_norms_of_large_images_are_computed_with_what_surrounds_them(
    machine: type[OnHost | OnGpu], tmp_path: Path
) -> None:
    module, x = Normed(), torch.randn(2, 3, 259, 259)
    program = lowered(module, [x])
    calls = [type(k.operation) for k in program.kernels if isinstance(k, LibraryCall)]
    assert calls == [ConvOp, ConvOp]
    parameters = {name: value.detach() for name, value in module.state_dict().items()}
    outputs = machine(emit_cuda(program), tmp_path).run([x], parameters)
    expected = module.double()(x.double())
    for ours, theirs in zip(outputs, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs.detach(), rtol=2e-3, atol=2e-3)


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize(
    "archs",
    [("sm_90",), pytest.param(("sm_80", "sm_100", "sm_120"), marks=pytest.mark.exhaustive)],
    ids=["hopper", "others"],
)
def test_such_kernels_are_built_for_gpus(archs: tuple[str, ...], tmp_path: Path) -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return TURNED["turned"][0](x), CHUNKS["rows"][0](y)  # type: ignore[return-value]

    program = lowered(Both(), [last(2, 70, 13, 17), torch.randn(3, 400000)])
    build = build_for_gpus(emit_cuda(program), tmp_path, archs)
    assert build.ok, [row.message for row in build.diagnostics]
