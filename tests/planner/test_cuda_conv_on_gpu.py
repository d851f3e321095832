"""Convolutions of CUDA programs on a GPU: errors, NaN, other weights, graphs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.testing import OnGpu, lowered
from stitch_tools.models.task import Contract
from tests.planner.test_cuda_convolutions import SHAPES, Branches, Chain, Shifted, Transposed
from tests.planner.test_cuda_image_order import DenseBlock, Fire, Growing, Inception, ShuffleUnit

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here: not measured"),
]

LARGEST_ERROR = {"fp32": 1e-5, "tf32": 1e-2}
"""Over the result's rms. TF32 keeps 10 bits of an operand: products are off by up to 2**-10 of their size."""


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    rms = float(exact.pow(2).mean().sqrt())
    return float((found.double().cpu() - exact).abs().max()) / max(rms, 1e-30)


def randomised(module: nn.Module) -> nn.Module:
    """The module in eval mode, with statistics and scales of norms that matter."""
    for name, value in module.named_buffers():
        if value.is_floating_point():
            nn.init.uniform_(value, 0.5, 1.5) if "var" in name else nn.init.normal_(value)
    return module.eval()


def state(module: nn.Module) -> Mapping[str, torch.Tensor]:
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: value.detach().cuda() for name, value in named.items()}


def on_gpu(module: nn.Module, inputs: Sequence[torch.Tensor], folder: Path, precision: str) -> OnGpu:
    contract = Contract(mode="eval", conv_precision=precision)  # type: ignore[arg-type]
    return OnGpu(emit_cuda(lowered(module, inputs, contract)), folder, state(module))


class Every(nn.Module):
    """All shapes side by side: one program, and one build."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(make() for make, _ in SHAPES.values())

    def forward(self, *images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layer(image) for layer, image in zip(self.layers, images, strict=True))


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_convolutions_of_all_shapes_agree_with_float64(precision: str, tmp_path: Path) -> None:
    errors = agrees(Every().eval(), [torch.randn(shape) for _, shape in SHAPES.values()], tmp_path, precision)
    print(dict(zip(SHAPES, errors, strict=True)))


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Chain, (2, 3, 18, 14)),
        (Transposed, (2, 8, 5, 4)),
        (Branches, (2, 16, 20, 20)),
        (Shifted, (2, 11, 7, 6)),
        (Inception, (2, 48, 8, 8)),
        (Growing, (2, 8, 6, 8)),
        (lambda: Fire(3, 6, 8), (2, 3, 7, 8)),
        (lambda: ShuffleUnit(24, 3), (2, 24, 14, 14)),
        (lambda: ShuffleUnit(24, 3), (5, 24, 14, 14)),
    ],
)
def test_chains_of_convolutions_agree_with_float64(
    module: Callable[[], nn.Module], shape: tuple[int, ...], precision: str, tmp_path: Path
) -> None:
    agrees(randomised(module()), [torch.randn(shape)], tmp_path, precision)


def agrees(module: nn.Module, inputs: list[torch.Tensor], folder: Path, precision: str) -> list[float]:
    """Errors of the outputs over their rms, none of them too large; a second run gives the same bits."""
    program = on_gpu(module, inputs, folder, precision)
    found = program.run([x.cuda() for x in inputs])
    again = program.run([x.cuda() for x in inputs])
    with torch.no_grad():
        exact = module.double()(*(x.double() for x in inputs))
    expected = exact if isinstance(exact, tuple) else (exact,)
    errors = [error(one, true) for one, true in zip(found, expected, strict=True)]
    assert max(errors) < LARGEST_ERROR[precision], errors
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    return errors


@pytest.mark.parametrize("make", [lambda: DenseBlock(32, 32, 3), lambda: ShuffleUnit(24, 3)])
def test_images_that_are_normalised_by_their_batch_agree_with_float64(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    module = make().train()
    x = torch.randn(4, 32 if isinstance(module, DenseBlock) else 24, 20, 20)
    contract = Contract(mode="train", conv_precision="fp32")
    program = OnGpu(emit_cuda(lowered(module, [x], contract)), tmp_path, state(module))
    (found,) = program.run([x.cuda()])
    assert error(found, module.double()(x.double()).detach()) < LARGEST_ERROR["fp32"]


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_what_is_not_finite_stays_at_its_own_pixels_where_strides_are_folded(
    precision: str, tmp_path: Path
) -> None:
    module, x = nn.Conv2d(3, 96, 11, stride=4, padding=2).eval(), torch.randn(2, 3, 64, 64)
    program = on_gpu(module, [x], tmp_path, precision)
    for value in (torch.nan, torch.inf, 1.0):
        x[1, 2, 30, 41] = value
        (found,) = program.run([x.cuda()])
        assert torch.equal(found.cpu().isfinite(), module(x).isfinite())


class Ends(nn.Module):
    """A bias and a residual in front of a ReLU: what cuDNN's fused call takes in."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(32, 32, window, padding=window // 2)
        self.second = nn.Conv2d(32, 32, window, padding=window // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + x)


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize("window", [1, 3])
def test_nan_goes_through_a_fused_relu_to_the_pixels_that_torch_has_it_at(
    window: int, precision: str, tmp_path: Path
) -> None:
    module, x = Ends(window).eval(), torch.randn(2, 32, 14, 14)
    x[1, 7, 3, 5] = torch.nan
    (found,) = on_gpu(module, [x], tmp_path, precision).run([x.cuda()])
    with torch.no_grad():
        expected = module(x)
    assert torch.equal(found.cpu().isnan(), expected.isnan())


def test_other_weights_need_no_other_program(tmp_path: Path) -> None:
    module, x = Ends(3).eval(), torch.randn(2, 32, 14, 14)
    program = on_gpu(module, [x], tmp_path, "fp32")
    for value in module.parameters():
        nn.init.normal_(value, std=0.1)
    program.load(state(module))
    (found,) = program.run([x.cuda()])
    assert error(found, module.double()(x.double()).detach()) < LARGEST_ERROR["fp32"]


def test_a_forward_is_captured_into_a_graph_and_replayed(tmp_path: Path) -> None:
    module, x = randomised(Chain()), torch.randn(2, 3, 18, 14)
    program = on_gpu(module, [x], tmp_path, "tf32")
    first, second = x.cuda(), torch.randn_like(x).cuda()
    (expected,) = program.run([second])
    replay, (output,) = program.captured([first])
    first.copy_(second)
    replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(output, expected, rtol=0, atol=0)
