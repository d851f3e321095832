"""Convolutions of volumes in CUDA programs on a GPU: errors by every way, NaN, graphs."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.testing import OnGpu, lowered
from stitch_tools.models.task import Contract, Precision
from tests.planner.test_cuda_volumes import (
    LARGEST_ERROR,
    TAILS,
    VOLUMES,
    VolumeBlock,
    Volumes,
    VolumeTails,
    errors,
    named_state,
    randomised,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here: not measured"),
]

CASES: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]] = {
    "shapes": (lambda: Volumes().eval(), tuple(shape for _, shape in VOLUMES.values())),
    "tails": (lambda: randomised(VolumeTails()), TAILS),
    # More results than one block computes, more terms than the stages of its pipeline hold.
    "blocks": (lambda: nn.Conv3d(20, 130, 3, padding=1).eval(), ((2, 20, 5, 6, 7),)),
    "transposed blocks": (
        lambda: nn.ConvTranspose3d(20, 50, 3, stride=2, padding=1).eval(),
        ((2, 20, 5, 6, 7),),
    ),
}
WAYS = {"tiles": "kTiles", "planar": "kPlanar, kLast", "last": "kLast"}
"""Of volume_conv.cuh, by name. The library has no kernel for some shapes as they lie."""


def program_on_gpu(
    module: nn.Module, inputs: list[torch.Tensor], folder: Path, precision: Precision, ways: str = ""
) -> OnGpu:
    """The program of a module; `ways` are those that it may choose among."""
    contract = Contract(mode="eval", conv_precision=precision)
    only = f"#define STITCH_VOLUME_WAYS {ways}\n" if ways else ""
    return OnGpu(only + emit_cuda(lowered(module, inputs, contract)), folder, named_state(module))


@pytest.mark.parametrize(
    ("precision", "way"), [("tf32", "tiles"), ("tf32", "planar"), ("tf32", "last"), ("fp32", "planar")]
)
@pytest.mark.parametrize("case", CASES)
def test_every_way_agrees_with_float64(case: str, precision: Precision, way: str, tmp_path: Path) -> None:
    make, shapes = CASES[case]
    module, inputs = make(), [torch.randn(shape) for shape in shapes]
    program = program_on_gpu(module, inputs, tmp_path, precision, WAYS[way])
    results = program.run([x.cuda() for x in inputs])
    again = program.run([x.cuda() for x in inputs])
    assert all(torch.equal(one, other) for one, other in zip(results, again, strict=True))
    assert max(errors(module, inputs, results)) < LARGEST_ERROR[precision]


def test_nan_and_infinity_stay_where_their_windows_are(tmp_path: Path) -> None:
    module = nn.Sequential(nn.ConvTranspose3d(3, 5, 3, stride=2, padding=1), nn.ReLU()).eval()
    x = torch.randn(1, 3, 4, 4, 5)
    x[0, 1, 2, 3, 0], x[0, 2, 0, 1, 4] = torch.nan, torch.inf
    (result,) = program_on_gpu(module, [x], tmp_path, "tf32", WAYS["tiles"]).run([x.cuda()])
    expected = module(x).detach()
    assert torch.equal(result.cpu().isnan(), expected.isnan())
    assert torch.equal(result.cpu().isinf(), expected.isinf())


def test_a_forward_is_captured_into_a_graph_and_replayed(tmp_path: Path) -> None:
    module, x = randomised(VolumeBlock()), torch.randn(2, 6, 4, 5, 6)
    program = program_on_gpu(module, [x], tmp_path, "tf32")
    first, second = x.cuda(), torch.randn_like(x).cuda()
    (expected,) = program.run([second])
    replay, (output,) = program.captured([first])
    first.copy_(second)
    replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(output, expected, rtol=0, atol=0)
