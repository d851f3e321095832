"""Long sums of values far from zero: as exact as torch's own, and equal values have no variance."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.testing import OnHost, lowered
from tests.planner.stitch_support import Built, leaves, made


class Reducing(nn.Module):
    """Every reduction that a long sum is behind, each of an input of its own."""

    def forward(
        self, line: torch.Tensor, table: torch.Tensor, lines: torch.Tensor, pixels: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return (
            line.sum(),
            line.mean(),
            line.var(),
            (line - line.mean()) / line.std(),
            line.norm(),
            table.sum(0),
            table.var(0),
            lines.sum((0, 2)),
            lines.logsumexp((0, 2)),
            pixels.std(),
        )


def inputs(length: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(length) + 1000,
        torch.randn(length // 8, 7) + 1000,
        torch.randn(length // 32, 4, 8) + 1000,
        torch.rand(4, length // 4) * 255,
    ]


def errors(
    module: nn.Module, given: list[torch.Tensor], ours: list[torch.Tensor]
) -> list[tuple[float, float]]:
    """For each output: our largest error and torch's, against float64."""
    eager, exact = leaves(module(*given)), leaves(module.double()(*(x.double() for x in given)))
    module.float()
    distances = [
        [float((value.double() - true).abs().max()) for value in (a, b)]
        for a, b, true in zip(ours, eager, exact, strict=True)
    ]
    units = [float(true.abs().max()) * torch.finfo(torch.float32).eps for true in exact]
    return [(mine, max(own, unit)) for (mine, own), unit in zip(distances, units, strict=True)]


@pytest.mark.parametrize("threads", [1, 2])
def test_long_sums_are_as_exact_as_those_of_torch(threads: int, tmp_path: Path) -> None:
    module, given = Reducing(), inputs(2**21)
    ours = Built(made(module, given).stitched, module, tmp_path, threads=threads)(given)
    for place, (mine, own) in enumerate(errors(module, given, ours)):
        assert mine <= 4 * own, place


def test_long_sums_on_a_gpu_are_cut_into_runs(tmp_path: Path) -> None:
    module, given = Reducing(), inputs(2**20)
    ours = OnHost(emit_cuda(lowered(module, given)), tmp_path).run(given)
    for place, (mine, own) in enumerate(errors(module, given, ours)):
        assert mine <= 4 * own, place


class Norms(nn.Module):
    """Norms and weights over long rows."""

    def forward(self, x: torch.Tensor, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            functional.layer_norm(x, x.shape[-1:]),
            functional.rms_norm(x, x.shape[-1:]),
            torch.softmax(x - 1000, -1),
            functional.group_norm(image, 2),
            functional.instance_norm(image),
        )


def test_norms_of_long_rows_are_as_exact_as_those_of_torch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, given = Norms(), [torch.randn(2, 300_000) + 1000, torch.randn(2, 4, 300, 300) + 1000]
    ours = Built(made(module, given).stitched, module, tmp_path)(given)
    for place, (mine, own) in enumerate(errors(module, given, ours)):
        assert mine <= 4 * own, place


class Spread(nn.Module):
    """Variances along rows and along columns."""

    def forward(self, rows: torch.Tensor, columns: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (rows + 1e3).var(-1), (columns + 1e3).var(0), (rows + 1e3).std(-1)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_equal_values_have_no_variance(on_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As users compile: without contracted products a last bit is left.
    monkeypatch.delenv("CXX", raising=False)
    torch.manual_seed(0)
    module = Spread()
    given = [torch.randn(8, 1).repeat(1, 20_000), torch.randn(1, 7).repeat(30_000, 1)]
    if on_gpu:
        ours = OnHost(emit_cuda(lowered(module, given)), tmp_path).run(given)
    else:
        ours = Built(made(module, given).stitched, module, tmp_path)(given)
    assert not any(value.any() for value in ours), ours


class Windows(nn.Module):
    """Averages over large windows, one of them global."""

    def forward(self, image: torch.Tensor, signal: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            functional.avg_pool2d(image, (200, 199), (100, 57), padding=(3, 2)),
            functional.adaptive_avg_pool2d(image, 1),
            functional.adaptive_avg_pool2d(image, (2, 3)),
            functional.avg_pool2d(signal, (1, 30_000), 10_000),
        )


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_large_windows_are_averaged_as_exactly_as_in_torch(
    layout: torch.memory_format, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    module = Windows()
    given = [torch.randn(2, 3, 400, 500) + 1000, torch.randn(1, 3, 1, 90_000) + 1000]
    given = [x.to(memory_format=layout) for x in given]
    ours = Built(made(module, given).stitched, module, tmp_path)(given)
    # A global average of a channels-last image is added in columns: five last places off, torch is one off.
    factor = 4 if layout is torch.contiguous_format else 8
    for place, (mine, own) in enumerate(errors(module, given, ours)):
        assert mine <= factor * own, (place, mine, own)
        assert mine <= 4e-3, (place, mine)  # torch adds a window in one chain, which is no measure
