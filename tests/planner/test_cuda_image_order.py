"""Which order of memory CUDA programs give to images, and joins whose operands are written in place."""

from pathlib import Path

import pytest
import torch
from torch import nn

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.testing import build_for_gpus, lowered
from stitch_planner.stitcher.lower.cuda.image_plan import kind_of
from stitch_planner.stitcher.lower.kernel_ir import KernelProgram, LibraryCall, LibraryOp
from stitch_planner.stitcher.lower.operations import BatchNormOp, ConcatOp, NormPairOp
from stitch_planner.stitcher.lower.templates.conv import ConvShape
from tests.planner.test_cuda_convolutions import agrees, convolutions


class ShuffleUnit(nn.Module):
    """Grouped 1x1 convolutions around a depthwise one, with a shuffle of the channels and a shortcut."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.first = nn.Conv2d(channels, channels, 1, groups=groups, bias=False)
        self.norm_1 = nn.BatchNorm2d(channels)
        self.window = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.norm_2 = nn.BatchNorm2d(channels)
        self.last = nn.Conv2d(channels, 2 * channels, 1, groups=groups, bias=False)
        self.norm_3 = nn.BatchNorm2d(2 * channels)
        self.shortcut = nn.Conv2d(channels, 2 * channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm_1(self.first(x)))
        y = self.norm_2(self.window(y))
        n, c, h, w = y.shape
        y = y.view(n, self.groups, c // self.groups, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        return torch.relu(self.norm_3(self.last(y))) + self.shortcut(x)


class Fire(nn.Module):
    """A squeeze of few channels, and two convolutions of it side by side."""

    def __init__(self, channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.one = nn.Conv2d(squeezed, expanded, 1)
        self.three = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.squeeze(x))
        return torch.cat([torch.relu(self.one(x)), torch.relu(self.three(x))], 1)


class DenseBlock(nn.Module):
    """Each layer reads all that came before, joined anew."""

    def __init__(self, channels: int, growth: int, layers: int) -> None:
        super().__init__()
        widths = [channels + growth * i for i in range(layers)]
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths)
        self.layers = nn.ModuleList(nn.Conv2d(w, growth, 3, padding=1, bias=False) for w in widths)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for norm, layer in zip(self.norms, self.layers, strict=True):
            features.append(layer(torch.relu(norm(x))))
            x = torch.cat(features, 1)
        return x


class Growing(nn.Module):
    """Joins of joins, one of which is also a result, and an operand that comes twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = self.a(x), self.b(x)
        both = torch.cat([a, b], 1)
        more = torch.cat([both, torch.sigmoid(a), x], 1)
        return both, more, torch.cat([b, b], 1)


class Inception(nn.Module):
    """An inception module: most bytes lie in the caller's order, two branches want the other."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.reduce = nn.Conv2d(48, 16, 1), nn.Conv2d(48, 8, 1)
        self.three, self.pooled = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(48, 16, 1)
        self.pool = nn.MaxPool2d(3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.one(x), self.three(self.reduce(x)), self.pooled(self.pool(x))], 1)


def operations(program: KernelProgram) -> list[LibraryOp]:
    return [kernel.operation for kernel in program.kernels if isinstance(kernel, LibraryCall)]


def copies(program: KernelProgram) -> int:
    """Kernels and calls that compute nothing."""
    return sum(not kernel.nodes for kernel in program.kernels)


@pytest.mark.parametrize("batch", [2, 5], ids=["calls by image", "calls by group"])
def test_a_chain_without_windows_over_all_channels_stays_channels_first(batch: int, tmp_path: Path) -> None:
    program = agrees(ShuffleUnit(12, 3).train(), [torch.randn(batch, 12, 6, 10)], tmp_path)
    assert all(operation.planar for operation in convolutions(program))
    # The shuffle itself.
    assert copies(program) == 1


def test_few_channels_are_convolved_where_they_are_joined(tmp_path: Path) -> None:
    program = agrees(Fire(3, 6, 8).eval(), [torch.randn(2, 3, 7, 8)], tmp_path)
    assert all(operation.planar for operation in convolutions(program))
    assert len(program.kernels) == 3
    assert convolutions(program)[-1].out.offset == 8 * 7 * 8


def test_a_dense_block_is_written_to_one_image(tmp_path: Path) -> None:
    program = agrees(DenseBlock(8, 4, 3).train(), [torch.randn(2, 8, 6, 5)], tmp_path)
    found = convolutions(program)
    assert not any(operation.planar for operation in found)
    joins = [operation for operation in operations(program) if isinstance(operation, ConcatOp)]
    assert len({operation.out.buffer.name for operation in joins}) == 1
    # Every layer's result is copied once, next to those before it.
    assert [len(operation.sources) for operation in joins] == [1, 1, 1]
    # The image comes in, the first layer's is turned, and the result goes out.
    assert copies(program) == 3


@pytest.mark.parametrize("growth", [3, 4])
def test_slices_of_any_width_are_normalised_where_they_lie(growth: int, tmp_path: Path) -> None:
    class Growth(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = [8 + growth * i for i in range(3)]
            self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths)
            self.layers = nn.ModuleList(nn.Conv2d(width, growth, 1, bias=False) for width in widths)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for norm, layer in zip(self.norms, self.layers, strict=True):
                x = torch.cat([x, layer(torch.relu(norm(x)))], 1)
            return x.mean((2, 3))

    program = agrees(Growth().train(), [torch.randn(2, 8, 6, 6)], tmp_path)
    norms = [operation for operation in operations(program) if isinstance(operation, BatchNormOp)]
    assert [operation.source.is_dense for operation in norms] == [True, False, False]


class Shortcut(nn.Module):
    """The end of a residual block whose shortcut is normalised, too."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.one, self.other = nn.Conv2d(8, 8, window, padding=window // 2), nn.Conv2d(8, 8, 1)
        self.norm_1, self.norm_2 = nn.BatchNorm2d(8), nn.BatchNorm2d(8, eps=1e-3, affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(nn.functional.silu(self.norm_2(self.other(x))) + self.norm_1(self.one(x)))


@pytest.mark.parametrize(("window", "size"), [(1, 136), (3, 34)], ids=["channels first", "channels last"])
def test_two_norms_that_are_added_are_one_call(window: int, size: int, tmp_path: Path) -> None:
    program = agrees(Shortcut(window).train(), [torch.randn(2, 8, size, size)], tmp_path)
    (pair,) = [operation for operation in operations(program) if isinstance(operation, BatchNormOp)]
    assert isinstance(pair, NormPairOp)
    assert pair.channels_last == (window == 3)


class Residual(nn.Module):
    """A convolution whose residual begins one element behind an aligned address."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(16, 16, window, padding=window // 2)

    def forward(self, x: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        last = self.layer.kernel_size[0] > 1
        residual = flat[1:].view(n, h, w, c).permute(0, 3, 1, 2) if last else flat[1:].view(n, c, h, w)
        return torch.relu(self.layer(x) + residual)


@pytest.mark.parametrize("window", [1, 3], ids=["channels first", "channels last"])
def test_a_residual_is_copied_where_groups_of_four_cannot_be_read(window: int, tmp_path: Path) -> None:
    program = agrees(Residual(window).eval(), [torch.randn(2, 16, 6, 8), torch.randn(1537)], tmp_path)
    (operation,) = convolutions(program)
    assert operation.planar == (window == 1)
    assert [view.offset % 4 for view in operation.operands] == [0]


def test_joins_of_joins_and_of_one_operand_twice_are_right(tmp_path: Path) -> None:
    agrees(Growing().eval(), [torch.randn(2, 8, 6, 8)], tmp_path)


def test_the_order_with_fewer_bytes_to_turn_is_taken(tmp_path: Path) -> None:
    program = agrees(Inception().eval(), [torch.randn(2, 48, 8, 8)], tmp_path)
    assert sorted(operation.planar for operation in convolutions(program)) == [False, True, True, True]
    # To the convolution of 3 x 3, and from it into its slice.
    assert copies(program) == 2


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5])
def test_depthwise_convolutions_stay_channels_first(kernel: int, stride: int, tmp_path: Path) -> None:
    module = nn.Sequential(
        nn.Conv2d(12, 12, 1), nn.Conv2d(12, 12, kernel, stride, kernel // 2, groups=12), nn.BatchNorm2d(12)
    )
    program = agrees(module.eval(), [torch.randn(2, 12, 13, 16)], tmp_path)
    assert all(operation.planar for operation in convolutions(program))


def test_what_has_no_planar_kernel() -> None:
    def kind(channels: int, results: int, width: int = 8, **shape: tuple[int, int]) -> str | None:
        numbers = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), **shape}
        shapes = (2, channels, 8, width), (2, results, 8, width)
        return kind_of(ConvShape(1, dilation=(1, 1), transposed=False, **numbers), *shapes)

    assert kind(16, 8) == "product"
    assert kind(16, 8, stride=(2, 2)) is None
    assert kind(16, 8, padding=(1, 1)) is None
    assert kind(5, 8, width=7) == "product"
    assert kind(5, 8, width=8) == "direct"
    assert kind(6, 8, kernel=(3, 3), padding=(1, 1)) == "direct"
    assert kind(8, 8, kernel=(3, 3), padding=(1, 1)) is None
    assert kind(16, 16, kernel=(3, 3), padding=(1, 1)) is None


class Planes(nn.Module):
    """Every kernel for N, C, H, W images, folded strides, and two norms that are added."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = nn.Sequential(ShuffleUnit(12, 3), nn.Conv2d(24, 6, 1), nn.ReLU(), Fire(6, 6, 8))
        self.folded = nn.Sequential(nn.Conv2d(3, 8, 11, 4, 2), Shortcut(3))

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.chain(x), self.folded(image)


@pytest.mark.nvcc
def test_kernels_for_images_in_either_order_are_built_for_gpus(tmp_path: Path) -> None:
    program = lowered(Planes().train(), [torch.randn(2, 12, 8, 8), torch.randn(2, 3, 144, 144)])
    build = build_for_gpus(emit_cuda(program), tmp_path, ["sm_90"])
    assert build.ok, [row.message for row in build.diagnostics]
    assert any(isinstance(operation, NormPairOp) for operation in operations(program))
