"""Norms by an image's own statistics on GPUs: run on the host, and on a GPU where one is."""

import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.norms import pixel_schedule, planar_schedule
from stitch_planner.stitcher.emit.cuda.testing import OnGpu, OnHost, build_for_gpus, cuda_headers, lowered
from stitch_planner.stitcher.lower.cuda.norms import fits_tile
from stitch_planner.stitcher.lower.kernel_ir import LibraryCall
from stitch_tools.compile.cpp import cpp_command
from stitch_tools.compile.headers import native_include
from stitch_tools.compile.toolchain import find_cpp_compiler
from tests.gpu_archs import each_arch
from tests.planner.cuda_support import MACHINES

Case = tuple[nn.Module, tuple[int, ...]]


CASES: list[Case] = [
    (nn.BatchNorm1d(3), (7, 3)),
    (nn.BatchNorm2d(3), (1, 3, 5, 7)),
    (nn.BatchNorm2d(8), (2, 8, 1, 1)),
    (nn.BatchNorm2d(64), (4, 64, 33, 17)),
    (nn.BatchNorm2d(5), (3, 5, 64, 64)),
    (nn.BatchNorm2d(4), (2, 4, 160, 160)),
    (nn.BatchNorm3d(6), (2, 6, 3, 5, 4)),
    (nn.BatchNorm2d(20, affine=False), (5, 20, 13, 11)),
    (nn.GroupNorm(1, 3), (1, 3, 5, 7)),
    (nn.GroupNorm(4, 8), (2, 8, 1, 1)),
    (nn.GroupNorm(8, 64), (3, 64, 33, 17)),
    (nn.GroupNorm(2, 160), (2, 160, 31, 16)),
    (nn.GroupNorm(2, 4, affine=False), (2, 4, 256, 130)),
    (nn.GroupNorm(3, 96), (1, 96, 9, 9)),
    (nn.InstanceNorm2d(5, affine=True), (2, 5, 9, 9)),
]


class Tail(nn.Module):
    """act(norm(x) + residual) of each case, with channels first or last in memory."""

    def __init__(self, norms: list[nn.Module], *, last: bool) -> None:
        super().__init__()
        self.norms, self.last = nn.ModuleList(norms), last

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.last:
            tensors = tuple(x.movedim(-1, 1) for x in tensors)
        pairs = zip(tensors[::2], tensors[1::2], self.norms, strict=True)
        return tuple(torch.relu(norm(x) + residual) for x, residual, norm in pairs)


def drawn(shape: tuple[int, ...], *, last: bool) -> list[torch.Tensor]:
    """Values far from 0 beside their spread: what a sum of squares would not survive."""
    shape = (shape[0], *shape[2:], shape[1]) if last else shape
    return [torch.randn(shape) * 3 + 50, torch.randn(shape)]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("last", [False, True], ids=["planes", "pixels"])
def test_a_norm_is_as_exact_as_torch_s(last: bool, machine: type[OnHost | OnGpu], tmp_path: Path) -> None:
    module = Tail([norm for norm, _ in CASES], last=last).float()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    inputs = [x for _, shape in CASES for x in drawn(shape, last=last)]
    program = lowered(module, inputs)
    assert sum(isinstance(kernel, LibraryCall) for kernel in program.kernels) >= len(CASES)
    state = {name: value.detach().clone() for name, value in module.state_dict().items()}
    ours = machine(emit_cuda(program), tmp_path).run(inputs, state, calls=2)
    eager = module(*inputs)
    exact = module.double()(*(x.double() for x in inputs))
    for (norm, shape), one, theirs, truth in zip(CASES, ours, eager, exact, strict=True):
        error, allowed = (one - truth).abs().max().item(), (theirs - truth).abs().max().item()
        assert error <= 2 * allowed + 8e-6, (norm, shape)


def test_a_far_outlier_does_not_drown_the_variance_of_the_others(tmp_path: Path) -> None:
    x = torch.randn(2, 4, 64, 64)
    x[0, :, 0, 0] = 1e4
    module = nn.BatchNorm2d(4)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    (ours,) = OnHost(emit_cuda(lowered(module, [x])), tmp_path).run([x], state)
    exact = nn.BatchNorm2d(4).double()(x.double())
    torch.testing.assert_close(ours.double(), exact.detach(), rtol=1e-5, atol=1e-6)


def test_equal_values_have_no_variance(tmp_path: Path) -> None:
    x = torch.full((3, 4, 20, 20), 1234.5678)
    module = nn.BatchNorm2d(4)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    (ours,) = OnHost(emit_cuda(lowered(module, [x])), tmp_path).run([x], state)
    assert ours.abs().max() == 0


def test_nan_stays_in_its_channel(tmp_path: Path) -> None:
    x = torch.randn(2, 5, 30, 31)
    x[1, 3, 4, 5] = torch.nan
    module = nn.BatchNorm2d(5)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    (ours,) = OnHost(emit_cuda(lowered(module, [x])), tmp_path).run([x], state)
    assert ours.isnan().all(dim=(0, 2, 3)).tolist() == [False, False, False, True, False]
    assert ours.isnan().any(dim=(0, 2, 3)).tolist() == [False, False, False, True, False]


@pytest.mark.parametrize("machine", MACHINES)
def test_few_long_rows_are_shared_by_many_blocks(machine: type[OnHost | OnGpu], tmp_path: Path) -> None:
    module = nn.LayerNorm([3, 130, 120])
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 3, 130, 120) + 20
    program = lowered(module, [x])
    assert [isinstance(kernel, LibraryCall) for kernel in program.kernels] == [True]
    (ours,) = machine(emit_cuda(program), tmp_path).run(
        [x], {k: v.detach() for k, v in module.state_dict().items()}
    )
    exact = module.double()(x.double()).detach()
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("images", "channels", "area", "groups"),
    [(64, 64, 112 * 112, 0), (2, 2048, 49, 0), (1, 1, 7, 0), (16, 64, 64 * 64, 8), (112, 64, 512 * 512, 8)],
)
def test_every_part_of_a_unit_has_work(images: int, channels: int, area: int, groups: int) -> None:
    plan = planar_schedule(images, channels, area, groups)
    units = images * groups or channels
    in_groups = images * channels * area // units // plan.vector
    assert 1 <= plan.splits <= in_groups
    assert plan.kept == 0 or plan.threads * plan.kept >= in_groups


@pytest.mark.parametrize(
    ("channels", "group_size"), [(64, 1), (96, 32), (3, 3), (2048, 1), (512, 128), (5, 1)]
)
def test_a_tile_of_channels_holds_whole_groups(channels: int, group_size: int) -> None:
    assert fits_tile(channels, group_size)
    plan = pixel_schedule(2, 1000, channels, group_size)
    tile = plan.width * plan.vector
    assert tile % group_size == 0 or tile >= channels
    assert 1 <= plan.splits <= 1000
    assert plan.threads % tile == 0


HEADERS = (
    *("grid", "moments", "planar_norm", "pixel_norm", "pool", "resize", "restride", "concat"),
    *("scan", "extreme", "embedding", "class_loss"),
)


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_compiles_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / "main.cpp").write_text(f'#define STITCH_ON_HOST 1\n#include "stitch/cuda/{name}.cuh"\n')
    command = cpp_command(find_cpp_compiler(), "main.cpp", "out.so", [cuda_headers(), native_include()])
    flags = ["-fsyntax-only", "-Wno-unknown-pragmas", "-Werror"]
    done = subprocess.run([*command, *flags], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.nvcc
@pytest.mark.slow
@each_arch
@pytest.mark.parametrize("last", [False, True], ids=["planes", "pixels"])
def test_norms_build_without_spills(last: bool, archs: tuple[str, ...], tmp_path: Path) -> None:
    inputs = drawn((8, 64, 56, 56), last=last)
    text = emit_cuda(lowered(Tail([nn.BatchNorm2d(64)], last=last), inputs))
    build = build_for_gpus(text, tmp_path, archs)
    assert build.ok, [row.message for row in build.diagnostics]
    assert build.diagnostics == ()
    assert sum(row.spill_store_bytes + row.spill_load_bytes for row in build.resources) == 0
