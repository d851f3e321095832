"""Convolutions of volumes in CUDA programs: run on the CPU here, and built for three GPUs."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from stitch_planner.stitcher.emit.cuda.conv_calls import volume_tiles
from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.library_calls import call_text
from stitch_planner.stitcher.emit.cuda.testing import OnHost, build_for_gpus, lowered
from stitch_planner.stitcher.lower.kernel_ir import KernelProgram, LibraryCall
from stitch_planner.stitcher.lower.operations import VolumeConvOp
from stitch_tools.models.task import Contract, Precision

LARGEST_ERROR: dict[Precision, float] = {"fp32": 1e-5, "tf32": 1e-2}
"""Over the result's rms. TF32 keeps 10 bits of an operand: products are off by up to 2**-10 of their size."""

VOLUMES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "3x3x3": (lambda: nn.Conv3d(3, 20, 3), (2, 3, 6, 7, 9)),
    "uneven window": (lambda: nn.Conv3d(4, 8, (3, 5, 7), padding=(1, 0, 3), bias=False), (2, 4, 5, 8, 9)),
    "stride": (lambda: nn.Conv3d(9, 12, (2, 3, 1), stride=(2, 3, 2), padding=(0, 1, 0)), (1, 9, 6, 8, 9)),
    "dilation": (lambda: nn.Conv3d(2, 6, 3, padding=2, dilation=(1, 2, 3), bias=False), (1, 2, 5, 7, 8)),
    "groups": (lambda: nn.Conv3d(6, 9, 2, groups=3), (2, 6, 4, 4, 5)),
    "pixel": (lambda: nn.Conv3d(16, 40, 1), (2, 16, 3, 3, 4)),
    "same": (lambda: nn.Conv3d(4, 5, 3, padding="same"), (1, 4, 3, 4, 5)),
    "many channels": (lambda: nn.Conv3d(8, 72, 2), (1, 8, 3, 4, 5)),
    "transposed": (lambda: nn.ConvTranspose3d(3, 16, 3, stride=2, padding=1), (2, 3, 4, 5, 3)),
    "transposed whole": (lambda: nn.ConvTranspose3d(5, 7, (3, 5, 2), bias=False), (1, 5, 3, 4, 6)),
    "transposed ends": (
        lambda: nn.ConvTranspose3d(6, 9, 3, stride=(2, 1, 3), padding=1, output_padding=(1, 0, 2)),
        (2, 6, 3, 4, 2),
    ),
    "transposed dilation": (
        lambda: nn.ConvTranspose3d(4, 6, 3, stride=2, padding=1, dilation=2, bias=False),
        (1, 4, 3, 4, 5),
    ),
    "transposed groups": (
        lambda: nn.ConvTranspose3d(8, 12, (3, 5, 7), stride=2, padding=(1, 2, 3), groups=4),
        (1, 8, 3, 4, 5),
    ),
    "transposed gaps": (lambda: nn.ConvTranspose3d(4, 5, 1, stride=2), (1, 4, 2, 3, 3)),
}


class Volumes(nn.Module):
    """All shapes side by side: one program, and one build."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(make() for make, _ in VOLUMES.values())

    def forward(self, *volumes: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layer(volume) for layer, volume in zip(self.layers, volumes, strict=True))


class VolumeBlock(nn.Module):
    """A convolution with a norm, a residual and a ReLU; then what no call takes in."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv3d(6, 6, 3, padding=1), nn.BatchNorm3d(6)
        self.up = nn.ConvTranspose3d(6, 18, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.max_pool3d(self.up(torch.relu(self.norm(self.first(x)) + x)), 2)


def randomised(module: nn.Module) -> nn.Module:
    """The module in eval mode, with statistics of norms that matter."""
    for name, value in module.named_buffers():
        if value.is_floating_point():
            nn.init.uniform_(value, 0.5, 1.5) if "var" in name else nn.init.normal_(value)
    return module.eval()


def program_of(module: nn.Module, inputs: list[torch.Tensor], precision: Precision) -> KernelProgram:
    return lowered(module, inputs, Contract(mode="eval", conv_precision=precision))


def named_state(module: nn.Module) -> dict[str, torch.Tensor]:
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: value.detach() for name, value in state.items()}


def errors(module: nn.Module, inputs: list[torch.Tensor], results: list[torch.Tensor]) -> list[float]:
    """The largest error of each result over its rms."""
    with torch.no_grad():
        exact = module.double()(*(x.double() for x in inputs))
    pairs = zip(results, exact if isinstance(exact, tuple) else (exact,), strict=True)
    return [
        float((one.double().cpu() - true).abs().max() / true.square().mean().sqrt()) for one, true in pairs
    ]


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_convolutions_of_volumes_agree_with_float64(precision: Precision, tmp_path: Path) -> None:
    module, inputs = Volumes().eval(), [torch.randn(shape) for _, shape in VOLUMES.values()]
    text = emit_cuda(program_of(module, inputs, precision))
    results = OnHost(text, tmp_path).run(inputs, named_state(module))
    assert max(errors(module, inputs, results)) < LARGEST_ERROR[precision]


class VolumeEndings(nn.Module):
    """Element-wise operations behind convolutions; the last result is read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up, self.twice = (
            nn.Conv3d(4, 6, 3),
            nn.ConvTranspose3d(4, 5, 2, stride=2),
            nn.Conv3d(4, 3, 1),
        )
        self.offset = nn.Parameter(torch.randn(6, 1, 1, 1))

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
        down = torch.sigmoid(functional.leaky_relu(self.down(x), 0.2) + self.offset)
        up = functional.hardswish(self.up(x) + other) * 0.5
        twice = self.twice(x)
        return down, functional.max_pool3d(up, 2), torch.tanh(twice), functional.max_pool3d(twice, 2)


class VolumeTails(nn.Module):
    """Both, as one program."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.endings = VolumeBlock(), VolumeEndings()

    def forward(self, x: torch.Tensor, y: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.block(x), *self.endings(y, other)


TAILS = ((2, 6, 4, 5, 6), (2, 4, 4, 5, 6), (2, 5, 8, 10, 12))
"""Inputs of VolumeTails."""


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_what_follows_a_volume_is_part_of_its_call(precision: Precision, tmp_path: Path) -> None:
    module, inputs = randomised(VolumeTails()), [torch.randn(shape) for shape in TAILS]
    program = program_of(module, inputs, precision)
    calls = [kernel.operation for kernel in program.kernels if isinstance(kernel, LibraryCall)]
    first, *others = (operation for operation in calls if isinstance(operation, VolumeConvOp))
    assert first.norm is not None
    assert [item.kind for item in first.post] == ["add", "relu"]
    assert [operation.ending is not None for operation in others] == [False, True, True, False]
    # Five convolutions, three poolings, and the tanh of a result that a pooling reads as well.
    assert len(program.kernels) == 9
    results = OnHost(emit_cuda(program), tmp_path).run(inputs, named_state(module))
    assert max(errors(module, inputs, results)) < LARGEST_ERROR[precision]


class VolumeTimesLater(nn.Module):
    """What follows the convolution reads a result of the program that is made behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv3d(2, 3, 1)

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = self.layer(x)
        sums = other.cumsum(-1)
        return made * sums, sums


def test_no_call_takes_in_what_reads_a_later_result(tmp_path: Path) -> None:
    module, inputs = VolumeTimesLater().eval(), [torch.randn(1, 2, 3, 4, 5), torch.randn(1, 3, 3, 4, 5)]
    program = program_of(module, inputs, "fp32")
    calls = [kernel.operation for kernel in program.kernels if isinstance(kernel, LibraryCall)]
    assert [call.ending for call in calls if isinstance(call, VolumeConvOp)] == [None]
    results = OnHost(emit_cuda(program), tmp_path).run(inputs, named_state(module))
    assert max(errors(module, inputs, results)) < LARGEST_ERROR["fp32"]


def test_nan_and_infinity_stay_where_their_windows_are(tmp_path: Path) -> None:
    module = nn.Sequential(nn.ConvTranspose3d(3, 5, 3, stride=2, padding=1), nn.ReLU()).eval()
    x = torch.randn(1, 3, 4, 4, 5)
    x[0, 1, 2, 3, 0], x[0, 2, 0, 1, 4] = torch.nan, torch.inf
    text = emit_cuda(program_of(module, [x], "tf32"))
    (result,) = OnHost(text, tmp_path).run([x], named_state(module))
    torch.testing.assert_close(result, module(x).detach(), equal_nan=True, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("precision", "tiles"), [("fp32", "<0, 0>"), ("tf32", "<2, 1>")])
def test_own_tensor_core_tiles_are_used_only_where_tf32_is_allowed(precision: Precision, tiles: str) -> None:
    program = program_of(nn.Conv3d(3, 24, 3).eval(), [torch.randn(1, 3, 4, 4, 4)], precision)
    (kernel,) = program.kernels
    assert isinstance(kernel, LibraryCall)
    assert call_text(kernel.operation).type == f"stitch::cuda::VolumeConv{tiles}"


@pytest.mark.parametrize(
    ("channels", "tiles"),
    [(1, (1, 1)), (16, (1, 1)), (17, (2, 1)), (64, (4, 1)), (65, (3, 2)), (96, (3, 2)), (128, (4, 2))],
)
def test_tiles_of_a_block_waste_few_channels(channels: int, tiles: tuple[int, int]) -> None:
    assert volume_tiles(channels) == tiles


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize(
    "archs",
    [("sm_90",), pytest.param(("sm_80", "sm_100", "sm_120"), marks=pytest.mark.exhaustive)],
    ids=["hopper", "others"],
)
def test_a_program_with_volumes_builds_for_each_architecture(archs: tuple[str, ...], tmp_path: Path) -> None:
    program = program_of(randomised(VolumeBlock()), [torch.randn(2, 6, 4, 5, 6)], "tf32")
    build = build_for_gpus(emit_cuda(program), tmp_path, archs)
    assert build.ok, [row.message for row in build.diagnostics]
    assert build.diagnostics == ()
    assert {row.arch for row in build.resources} == set(archs)
