"""How a program chooses among the ways to compute a convolution, with a stand-in for cuDNN on the CPU."""

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.testing import OnHost, lowered
from stitch_tools.compile.toolchain import find_cpp_compiler
from tests.planner.test_cuda_conv_on_gpu import Ends, Every
from tests.planner.test_cuda_convolutions import SHAPES, Transposed
from tests.planner.test_cuda_volumes import VOLUMES, Volumes

RELU_DROPS_NAN, READS_RESULT, REFUSES_PLAIN, REFUSES_ALL, SLOW_PLAIN = 1, 2, 4, 8, 16
REFUSES_FIRST, REFUSES_LAST = 32, 64
PLAIN, FUSED, BACKWARD, WRONG = range(4)


class StandIn:
    """The library that programs find under cuDNN's name."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))

    def set(self, faults: int) -> None:
        self.library.stand_in_set(faults)

    def calls(self, which: int) -> int:
        return int(self.library.stand_in_calls(which))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    folder = tmp_path_factory.mktemp("cudnn")
    source = Path(__file__).with_name("stand_in_cudnn.cpp")
    path = folder / "libcudnn.so.9"
    command = [*find_cpp_compiler().command, "-std=c++17", "-O1", "-Wall", "-Werror", "-shared", "-fPIC"]
    # Programs look for the soname among what the process has loaded.
    command += ["-Wl,-soname,libcudnn.so.9", "-o", str(path), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return StandIn(path)


@pytest.fixture
def cudnn(library: StandIn) -> Iterator[StandIn]:
    library.set(0)
    yield library
    assert library.calls(WRONG) == 0, "the library was called in a way that it does not allow"


def host_program(module: nn.Module, inputs: list[torch.Tensor], folder: Path) -> OnHost:
    return OnHost("#define STITCH_CUDNN_ON_HOST 1\n" + emit_cuda(lowered(module, inputs)), folder)


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: value.detach() for name, value in named.items()}


def on_host(module: nn.Module, inputs: list[torch.Tensor], folder: Path) -> list[torch.Tensor]:
    return host_program(module, inputs, folder).run(inputs, state(module))


def test_convolutions_of_all_shapes_are_described_to_the_library(cudnn: StandIn, tmp_path: Path) -> None:
    module, images = Every().eval(), [torch.randn(shape) for _, shape in SHAPES.values()]
    for found, expected in zip(on_host(module, images, tmp_path), module(*images), strict=True):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-5)
    assert cudnn.calls(PLAIN) > 0
    assert cudnn.calls(BACKWARD) > 0


def test_volumes_are_described_to_the_library_in_either_order(cudnn: StandIn, tmp_path: Path) -> None:
    module, volumes = Volumes().eval(), [torch.randn(shape) for _, shape in VOLUMES.values()]
    program = host_program(module, volumes, tmp_path)
    for fault in (REFUSES_FIRST, REFUSES_LAST):
        cudnn.set(fault)
        for found, expected in zip(program.run(volumes, state(module)), module(*volumes), strict=True):
            torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-5)
        assert cudnn.calls(PLAIN) > 0
        assert cudnn.calls(BACKWARD) > 0
        assert cudnn.calls(WRONG) == 0


def forward_and_nan(cudnn: StandIn, folder: Path, faults: int) -> tuple[int, int]:
    """Plain and fused calls of one initialisation and one forward, whose NaN lie where torch has them."""
    cudnn.set(faults)
    module, x = Ends(3).eval(), torch.randn(1, 32, 6, 6)
    x[0, 3, 1, 1] = torch.nan
    (found,) = on_host(module, [x], folder)
    torch.testing.assert_close(found, module(x).detach(), rtol=1e-4, atol=1e-5, equal_nan=True)
    return cudnn.calls(PLAIN), cudnn.calls(FUSED)


def test_the_fused_call_is_kept_where_it_is_fastest(cudnn: StandIn, tmp_path: Path) -> None:
    _, fused = forward_and_nan(cudnn, tmp_path, SLOW_PLAIN)
    # Two layers of other ends: each measures and proves two algorithms at most, and is run once.
    assert fused >= 2 * (4 + 2) + 2


@pytest.mark.parametrize(("fault", "layers"), [(RELU_DROPS_NAN, 2), (READS_RESULT, 1)])
def test_a_fused_call_that_is_wrong_is_not_kept(
    fault: int, layers: int, cudnn: StandIn, tmp_path: Path
) -> None:
    plain, _ = forward_and_nan(cudnn, tmp_path, SLOW_PLAIN | fault)
    # Both algorithms of both layers are measured by four runs; the forward comes on top. The layer that adds
    # a residual reads that, not its result.
    assert plain == 2 * 2 * 4 + layers


def test_what_the_library_refuses_is_left_out(cudnn: StandIn, tmp_path: Path) -> None:
    plain, fused = forward_and_nan(cudnn, tmp_path, REFUSES_PLAIN)
    assert plain == 0
    assert fused > 0


def test_without_any_kernel_of_the_library_the_sum_is_our_own(cudnn: StandIn, tmp_path: Path) -> None:
    assert forward_and_nan(cudnn, tmp_path, REFUSES_ALL) == (0, 0)


def test_equal_layers_are_measured_once(cudnn: StandIn, tmp_path: Path) -> None:
    module = nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(5))).eval()
    x = torch.randn(1, 8, 6, 6)
    (found,) = on_host(module, [x], tmp_path)
    torch.testing.assert_close(found, module(x).detach(), rtol=1e-4, atol=1e-5)
    assert cudnn.calls(PLAIN) == 2 * 4 + 5


def test_a_norm_behind_a_transposed_convolution_is_folded_for_the_library(
    cudnn: StandIn, tmp_path: Path
) -> None:
    module, x = Transposed().eval(), torch.randn(2, 8, 5, 4)
    (found,) = on_host(module, [x], tmp_path)
    torch.testing.assert_close(found, module(x).detach(), rtol=1e-4, atol=1e-5)
    assert cudnn.calls(BACKWARD) == 4 + 1
