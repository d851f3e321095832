"""Convolutions in CUDA programs: written from modules, run on the CPU here, built for three GPUs."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from stitch_planner.planning import make_plan
from stitch_planner.stitcher.emit.cuda.conv_calls import is_depthwise
from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.library_calls import call_text
from stitch_planner.stitcher.emit.cuda.testing import OnHost, build_for_gpus, lowered
from stitch_planner.stitcher.graph.partition import partition
from stitch_planner.stitcher.graph.simplify import simplify
from stitch_planner.stitcher.lower.cuda.templates import cuda_templates
from stitch_planner.stitcher.lower.graph_index import GraphIndex
from stitch_planner.stitcher.lower.kernel_ir import KernelProgram, LibraryCall
from stitch_planner.stitcher.lower.operations import ConvOp, StridedCopyOp
from stitch_tools.graph.build import build_graph
from stitch_tools.models.task import Contract, Task
from stitch_tools.worker.capture.graph_capture import capture
from tests.gpu_archs import each_arch
from tests.planner.stitch_support import NO_FACTS


def agrees(module: nn.Module, inputs: list[torch.Tensor], folder: Path) -> KernelProgram:
    """The module's program, after its outputs on the CPU were found equal to float64's."""
    for name, value in module.named_buffers():
        if value.is_floating_point():
            nn.init.uniform_(value, 0.5, 1.5) if "var" in name else nn.init.normal_(value)
    for name, value in module.named_parameters():
        if "norm" in name:
            nn.init.normal_(value)
    program = lowered(module, inputs)
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    found = OnHost(emit_cuda(program), folder).run(inputs, {k: v.detach() for k, v in named.items()})
    with torch.no_grad():
        exact = module.double()(*(x.double() for x in inputs))
    for one, expected in zip(found, exact if isinstance(exact, tuple) else (exact,), strict=True):
        torch.testing.assert_close(one.double(), expected, rtol=2e-4, atol=2e-5)
    return program


def convolutions(program: KernelProgram) -> list[ConvOp]:
    found = (kernel.operation for kernel in program.kernels if isinstance(kernel, LibraryCall))
    return [operation for operation in found if isinstance(operation, ConvOp)]


SHAPES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "3x3": (lambda: nn.Conv2d(12, 8, 3, padding=1), (2, 12, 9, 7)),
    "stride": (lambda: nn.Conv2d(8, 12, (3, 5), stride=(2, 3), padding=(1, 2)), (2, 8, 11, 13)),
    "dilation": (lambda: nn.Conv2d(8, 6, 3, padding=2, dilation=(2, 1), bias=False), (1, 8, 9, 8)),
    "groups": (lambda: nn.Conv2d(12, 18, 3, groups=3), (2, 12, 6, 5)),
    "pixel": (lambda: nn.Conv2d(16, 24, 1), (2, 16, 5, 5)),
    "pixel by groups": (lambda: nn.Conv2d(16, 24, 1, groups=4, bias=False), (2, 16, 5, 5)),
    "image": (lambda: nn.Conv2d(3, 8, 7, stride=2, padding=3), (2, 3, 17, 15)),
    "wide strides": (lambda: nn.Conv2d(3, 8, 11, stride=4, padding=2), (2, 3, 30, 35)),
    "patches": (lambda: nn.Conv2d(3, 16, 4, stride=4), (2, 3, 16, 13)),
    "gray image": (lambda: nn.Conv2d(1, 6, 5), (2, 1, 12, 12)),
    "five channels": (lambda: nn.Conv2d(5, 7, 3), (2, 5, 8, 8)),
    "same": (lambda: nn.Conv2d(4, 5, 3, padding="same"), (2, 4, 6, 7)),
    "transposed": (lambda: nn.ConvTranspose2d(8, 12, 2, stride=2), (2, 8, 5, 6)),
    "transposed 3x3": (
        lambda: nn.ConvTranspose2d(6, 9, 3, stride=(2, 3), padding=1, output_padding=(1, 2), dilation=(1, 2)),
        (2, 6, 5, 4),
    ),
    "transposed by groups": (
        lambda: nn.ConvTranspose2d(8, 12, 3, groups=2, bias=False, padding=1),
        (1, 8, 6, 6),
    ),
    "line": (lambda: nn.Conv1d(6, 10, 3, padding=1, stride=2), (3, 6, 17)),
    "causal line": (lambda: nn.Conv1d(8, 8, 4, groups=8, padding=3), (2, 8, 15)),
    "transposed line": (lambda: nn.ConvTranspose1d(5, 6, 4, stride=3), (2, 5, 9)),
    "depthwise": (lambda: nn.Conv2d(12, 12, 3, padding=1, groups=12), (2, 12, 9, 11)),
    "depthwise stride": (lambda: nn.Conv2d(6, 6, 5, 2, 2, groups=6, bias=False), (2, 6, 13, 10)),
    "depthwise 7x7": (lambda: nn.Conv2d(5, 5, 7, padding=3, groups=5), (1, 5, 9, 8)),
    "depthwise dilation": (lambda: nn.Conv2d(8, 8, 3, dilation=2, groups=8), (1, 8, 9, 8)),
    "depthwise multiplier": (lambda: nn.Conv2d(4, 8, 3, groups=4), (2, 4, 7, 7)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_convolution_of_any_shape_is_one_call(name: str, tmp_path: Path) -> None:
    make, shape = SHAPES[name]
    (operation,) = convolutions(agrees(make().eval(), [torch.randn(shape)], tmp_path))
    depthwise = {"causal line", "depthwise", "depthwise stride", "depthwise 7x7"}
    assert is_depthwise(operation) == (name in depthwise)


class Chain(nn.Module):
    """Image, convolution with norm and ReLU, depthwise one with norm and ReLU6, a pixel with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.deep = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.deep_norm = nn.BatchNorm2d(16)
        self.last = nn.Conv2d(16, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        y = functional.relu6(self.deep_norm(self.deep(x)))
        return torch.relu(self.last(y) + x)


def test_a_chain_stays_channels_last_and_takes_in_norms_residual_and_relu(tmp_path: Path) -> None:
    program = agrees(Chain().eval(), [torch.randn(2, 3, 18, 14)], tmp_path)
    first, deep, last = convolutions(program)
    assert first.norm is not None
    assert deep.norm is not None
    assert not first.source.is_channels_last, "the caller's image is turned by the call itself"
    assert deep.source.is_channels_last
    assert last.source.is_channels_last
    assert [item.kind for item in last.post] == ["add", "relu"]
    assert deep.post == (), "cuDNN's call has no ReLU6"
    # Three convolutions, ReLU6, and the result in the caller's order of memory.
    assert len(program.kernels) == 5


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_batch_norm_is_folded_in_eval_mode_only(mode: str) -> None:
    module = nn.Sequential(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8)).train(mode == "train")
    contract = Contract(mode="train" if module.training else "eval")
    graph = simplify(build_graph(capture(module, [torch.randn(2, 4, 6, 6)]), contract, None))
    first = partition(GraphIndex(graph), cuda_templates(contract))[0]
    assert first.family == "conv"
    assert len(first.nodes) == (1 if mode == "train" else 2)


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.ConvTranspose2d(8, 6, 3, stride=2, groups=2), nn.BatchNorm2d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.up(x)))


def test_a_norm_is_folded_into_a_transposed_convolution(tmp_path: Path) -> None:
    (operation,) = convolutions(agrees(Transposed().eval(), [torch.randn(2, 8, 5, 4)], tmp_path))
    assert operation.norm is not None


class Branches(nn.Module):
    """Two convolutions that read one image, then what no call of cuDNN takes in."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(self.wide(x)) + functional.silu(self.deep(x))


def test_an_image_that_two_convolutions_read_is_turned_once(tmp_path: Path) -> None:
    program = agrees(Branches().eval(), [torch.randn(2, 16, 20, 20)], tmp_path)
    turned = [
        kernel
        for kernel in program.kernels
        if isinstance(kernel, LibraryCall) and isinstance(kernel.operation, StridedCopyOp)
    ]
    assert len(turned) == 1
    assert [operation.post for operation in convolutions(program)] == [(), ()]


class Shuffled(nn.Module):
    """A channel shuffle between convolutions by groups."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(12, 24, 1, groups=3), nn.Conv2d(24, 12, 1, groups=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        n, c, h, w = y.shape
        return self.second(y.view(n, 3, c // 3, h, w).transpose(1, 2).contiguous().view(n, c, h, w))


def test_a_channel_shuffle_between_convolutions_is_one_copy_in_their_order(tmp_path: Path) -> None:
    program = agrees(Shuffled().eval(), [torch.randn(2, 12, 6, 5)], tmp_path)
    # The caller's image turned, both convolutions, the shuffle between them, the result turned back.
    assert len(program.kernels) == 5
    assert [operation.source.is_channels_last for operation in convolutions(program)] == [True, True]


class Shifted(nn.Module):
    """Convolutions of windows: channels of a larger image, rows of memory that begin anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Conv2d(9, 4, 3), nn.Conv1d(9, 5, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.one(x[:, 1:10, :, 1:]), self.other(x[:, :9, 3])


def test_windows_on_an_image_are_copied_where_the_call_cannot_read_them(tmp_path: Path) -> None:
    agrees(Shifted().eval(), [torch.randn(2, 11, 7, 6)], tmp_path)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_at_its_own_pixels_where_strides_are_folded(
    value: float, tmp_path: Path
) -> None:
    module, x = nn.Sequential(nn.Conv2d(3, 8, 11, stride=4, padding=2), nn.ReLU()), torch.randn(2, 3, 30, 35)
    module.eval()
    x[0, 1, 12, 17] = value
    text = emit_cuda(lowered(module, [x]))
    found = OnHost(text, tmp_path).run([x], {k: v.detach() for k, v in module.named_parameters()})[0]
    torch.testing.assert_close(found, module(x).detach(), equal_nan=True, rtol=1e-4, atol=1e-5)


def test_nan_stays_behind_a_relu_and_at_its_own_pixels(tmp_path: Path) -> None:
    module, x = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()).eval(), torch.randn(1, 4, 9, 9)
    x[0, 1, 2, 3] = torch.nan
    named = {name: value.detach() for name, value in module.named_parameters()}
    (found,) = OnHost(emit_cuda(lowered(module, [x])), tmp_path).run([x], named)
    torch.testing.assert_close(found, module(x).detach(), equal_nan=True)
    assert int(found.isnan().sum()) == 4 * 9


def test_tf32_is_used_only_where_the_contract_allows_it_for_convolutions() -> None:
    for precision, expected in (("fp32", "float32"), ("tf32", "TF32 allowed")):
        contract = Contract(mode="eval", conv_precision=precision)  # type: ignore[arg-type]
        (operation,) = convolutions(lowered(nn.Conv2d(4, 4, 3).eval(), [torch.randn(1, 4, 8, 8)], contract))
        assert operation.allow_tf32 == (precision == "tf32")
        assert expected in call_text(operation).chosen


def test_a_plan_for_a_gpu_names_the_library_of_a_convolution() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
    contract = Contract(mode="eval")
    graph = build_graph(capture(module, [torch.randn(1, 3, 8, 8)]), contract, None)
    task = Task(name="case", files=(), main="case.py", contract=contract, target="cuda:sm_90")
    (step,) = make_plan(graph, NO_FACTS, task, None).steps
    assert (step.library, step.family, len(step.nodes)) == ("cudnn", "conv", 2)


@pytest.mark.nvcc
@pytest.mark.slow
@each_arch
@pytest.mark.parametrize(
    ("module", "size"),
    [(Chain, (2, 3, 18, 14)), (Transposed, (2, 8, 5, 4)), (Branches, (2, 16, 20, 20))],
)
def test_programs_with_convolutions_build(
    module: type[nn.Module], size: tuple[int, ...], archs: tuple[str, ...], tmp_path: Path
) -> None:
    build = build_for_gpus(emit_cuda(lowered(module().eval(), [torch.randn(size)])), tmp_path, archs)
    assert build.ok, [row.message for row in build.diagnostics]
    assert build.diagnostics == ()
    assert {row.arch for row in build.resources} == set(archs)
