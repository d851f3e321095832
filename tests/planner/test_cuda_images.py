"""Pooling, resizing, joining and rearranging on GPUs: programs run on the host, and on a GPU where one is."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.testing import OnGpu, OnHost, build_for_gpus, lowered
from tests.gpu_archs import each_arch
from tests.planner.cuda_support import MACHINES, Function, Table, Together, assert_as_torch


def last(function: Function) -> Function:
    """The function of an image whose channels lie innermost in memory."""
    return lambda x, *more: function(x.permute(0, 3, 1, 2), *more)


def with_nan() -> torch.Tensor:
    x = torch.randn(1, 4, 5, 5)
    x[0, 1, 2, 2] = torch.nan
    return x


POOLS: dict[str, Function] = {
    "max": lambda x: functional.max_pool2d(x, 3, 2, 1),
    "max, dilated": lambda x: functional.max_pool2d(x, 2, 1, 1, dilation=2),
    "max, hanging over": lambda x: functional.max_pool2d(x, 3, 2, ceil_mode=True),
    "average": lambda x: functional.avg_pool2d(x, 3, 2, 1),
    "average without padding": lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "average, hanging over": lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "average by another number": lambda x: functional.avg_pool2d(x, 2, divisor_override=3),
    "adaptive average": lambda x: functional.adaptive_avg_pool2d(x, (3, 2)),
    "adaptive max": lambda x: functional.adaptive_max_pool2d(x, (4, 5)),
    "mean of images": lambda x: functional.adaptive_avg_pool2d(torch.relu(x), 1).flatten(1),
    "window over everything": lambda x: functional.avg_pool2d(x, (9, 7)),
    "nearest": lambda x: functional.interpolate(x, scale_factor=2),
    "nearest to a size": lambda x: functional.interpolate(x, size=(5, 11)),
    "bilinear": lambda x: functional.interpolate(x, size=(5, 11), mode="bilinear"),
    "bilinear, corners": lambda x: functional.interpolate(
        x, scale_factor=2, mode="bilinear", align_corners=True
    ),
}
LINES: Table = {
    "max of lines": (lambda x: functional.max_pool1d(x, 3, 2, 1), [torch.randn(3, 5, 17)]),
    "average of lines": (lambda x: functional.avg_pool1d(x, 4, 3), [torch.randn(3, 5, 17)]),
    "adaptive average of lines": (lambda x: functional.adaptive_avg_pool1d(x, 4), [torch.randn(3, 5, 17)]),
    "mean of lines": (lambda x: functional.adaptive_avg_pool1d(x, 1), [torch.randn(3, 5, 17)]),
    "max of volumes": (lambda x: functional.max_pool3d(x, 2, 2), [torch.randn(2, 3, 7, 6, 5)]),
    "average of volumes": (lambda x: functional.avg_pool3d(x, 3, 2, 1), [torch.randn(2, 3, 7, 6, 5)]),
    "adaptive average of volumes": (
        lambda x: functional.adaptive_avg_pool3d(x, (2, 2, 3)),
        [torch.randn(2, 3, 7, 6, 5)],
    ),
    "mean of volumes": (lambda x: functional.adaptive_avg_pool3d(x, 1), [torch.randn(2, 3, 7, 6, 5)]),
    "NaN in a window": (lambda x: functional.max_pool2d(x, 3, 2, 1), [with_nan()]),
    "one pixel": (lambda x: functional.avg_pool2d(x, 3, 1, 1), [torch.randn(1, 3, 1, 1)]),
}
MOVED: Table = {
    "cat of channels": (lambda x, y: torch.cat([x, y * 2, x], 1), [torch.randn(2, 3, 5, 7) for _ in "ab"]),
    "cat of the last dim": (lambda x, y: torch.cat([x, y], -1), [torch.randn(3, 5), torch.randn(3, 2)]),
    "cat of channels in fours": (lambda x, y: torch.cat([x, y], 1), [torch.randn(2, 4, 4, 4) for _ in "ab"]),
    "cat of channels last": (
        last(lambda x, y: torch.cat([x, y.permute(0, 3, 1, 2) * 2], 1)),
        [torch.randn(2, 5, 7, 8), torch.randn(2, 5, 7, 4)],
    ),
    "cat of mixed orders": (
        last(lambda x, y: torch.cat([x, y], 1)),
        [torch.randn(2, 5, 7, 8), torch.randn(2, 3, 5, 7)],
    ),
    "cat of a hundred": (
        lambda x: torch.cat([x[:, :, k : k + 1 + k % 3] for k in range(100)], 2),
        [torch.randn(2, 3, 110)],
    ),
    "cat of whole numbers": (lambda x, y: torch.cat([x, y]), [torch.arange(5), torch.arange(4)]),
    "cat of masks": (lambda x, y: torch.cat([x > 0, y > 0], 1), [torch.randn(3, 5) for _ in "ab"]),
    "stack": (lambda x, y: torch.stack([x, y], 1), [torch.randn(3, 5, 17) for _ in "ab"]),
    "pad": (lambda x: functional.pad(x, (1, 2, 0, 3), value=2.0), [torch.randn(2, 3, 5, 7)]),
    "flip": (lambda x: torch.flip(x, (1, 3)), [torch.randn(2, 3, 5, 7)]),
    "roll": (lambda x: torch.roll(x, (-2, 1), (1, 2)) * 2, [torch.randn(2, 5, 6, 3)]),
    "pixel shuffle": (lambda x: functional.pixel_shuffle(x, 2), [torch.randn(2, 8, 5, 7)]),
    "pixel unshuffle": (lambda x: functional.pixel_unshuffle(x, 2), [torch.randn(2, 3, 4, 6)]),
    "channel shuffle": (
        lambda x: x.view(2, 3, 4, 5, 7).transpose(1, 2).reshape(2, 12, 5, 7),
        [torch.randn(2, 12, 5, 7)],
    ),
    "to channels last": (lambda x: x.permute(0, 2, 3, 1).contiguous(), [torch.randn(2, 48, 33, 35)]),
    "from channels last": (last(lambda x: x.contiguous()), [torch.randn(2, 33, 35, 48)]),
    "a few channels to the front": (last(lambda x: x.contiguous()), [torch.randn(2, 47, 43, 3)]),
    "unfold": (lambda x: x.unfold(2, 2, 2).unfold(3, 3, 1).reshape(2, -1), [torch.randn(2, 3, 4, 6)]),
    "triangles": (lambda x: (torch.triu(x, 1), torch.tril(x)), [torch.randn(2, 7, 5)]),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("channels", [8, 3])
def test_pools_of_both_orders_of_memory_are_torch_s(
    channels: int, machine: type[OnHost | OnGpu], tmp_path: Path
) -> None:
    table: dict[str, tuple[Function, list[torch.Tensor]]] = {}
    for name, function in POOLS.items():
        table[name] = function, [torch.randn(2, channels, 9, 7)]
        table[f"{name}, channels last"] = last(function), [torch.randn(2, 9, 7, channels)]
    assert_as_torch(table, machine, tmp_path)


@pytest.mark.parametrize("machine", MACHINES)
def test_pools_of_lines_and_volumes_are_torch_s(machine: type[OnHost | OnGpu], tmp_path: Path) -> None:
    assert_as_torch(LINES, machine, tmp_path)


@pytest.mark.parametrize("machine", MACHINES)
def test_what_moves_elements_puts_each_where_torch_does(
    machine: type[OnHost | OnGpu], tmp_path: Path
) -> None:
    text = assert_as_torch(MOVED, machine, tmp_path)
    assert text.count("StridedCopy<true") >= 3, "large transposes turn tiles"
    assert "cublas" not in text.lower().split("struct StitchHandle")[-1], "nothing here needs the library"


@pytest.mark.nvcc
@pytest.mark.slow
@each_arch
@pytest.mark.parametrize("table", [pytest.param(LINES, id="pools"), pytest.param(MOVED, id="copies")])
def test_such_programs_build(table: Table, archs: tuple[str, ...], tmp_path: Path) -> None:
    together = Together(table)
    build = build_for_gpus(emit_cuda(lowered(together, together.inputs)), tmp_path, archs)
    assert build.ok, [row.message for row in build.diagnostics]
    assert build.diagnostics == ()
