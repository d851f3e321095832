"""conv.h: convolutions of every kind over channels-last images as torch computes them."""

import ctypes

import pytest

from stitch_planner.stitcher.testing import build_header_test
from stitch_tools.compile.headers import find_onednn

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not find_onednn().found, reason="oneDNN is not installed: not measured")

SOURCE = """
#include "stitch/cpu/conv.h"
using namespace stitch::cpu;
EXPORT int conv(const int64_t* p, int relu, const float* x, const float* w, const float* bias,
                const float* residual, const float* norm, float* y) {
  Dnnl lib;
  Conv conv;
  ConvOptions o;
  o.in_channels = p[3];
  o.out_channels = p[4];
  o.groups = p[5];
  o.transposed = p[6];
  for (int axis = 0; axis < 2; ++axis) {
    o.kernel[axis] = p[7 + axis];
    o.stride[axis] = p[9 + axis];
    o.padding[axis] = p[11 + axis];
    o.dilation[axis] = p[13 + axis];
    o.output_padding[axis] = p[15 + axis];
  }
  o.has_bias = bias != nullptr;
  if (residual) o.post.push_back(PostOp::add());
  if (relu) o.post.push_back(PostOp::activation(Act::kRelu));
  FoldedNorm fold;
  if (norm) {  // gamma, beta, mean, variance
    fold = {norm, norm + p[4], norm + 2 * p[4], norm + 3 * p[4], 1e-3f};
  }
  if (int rc = conv.init(lib, o, w, bias, fold)) return rc;
  return conv.run(p[0], p[1], p[2], x, y, &residual);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_header_test(SOURCE, tmp_path_factory.mktemp("conv"))


# name: in, out, groups, transposed, kernel, stride, padding, dilation, output padding
KINDS = {
    "plain": (8, 12, 1, 0, (3, 3), (1, 1), (1, 1), (1, 1), (0, 0)),
    "few channels": (3, 5, 1, 0, (5, 3), (2, 1), (2, 0), (1, 1), (0, 0)),
    "dilated": (8, 8, 1, 0, (3, 3), (1, 1), (2, 2), (2, 2), (0, 0)),
    "left-over rows": (4, 4, 1, 0, (2, 2), (3, 3), (0, 0), (1, 1), (0, 0)),
    "grouped": (12, 6, 3, 0, (3, 3), (1, 1), (1, 1), (1, 1), (0, 0)),
    "depthwise": (20, 20, 20, 0, (3, 3), (2, 2), (1, 1), (1, 1), (0, 0)),
    "pointwise": (16, 24, 1, 0, (1, 1), (1, 1), (0, 0), (1, 1), (0, 0)),
    "one-dimensional": (6, 7, 1, 0, (1, 4), (1, 2), (0, 1), (1, 1), (0, 0)),
    "transposed": (8, 6, 1, 1, (2, 2), (2, 2), (0, 0), (1, 1), (0, 0)),
    "transposed with output padding": (8, 6, 1, 1, (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "transposed and grouped": (8, 4, 2, 1, (4, 4), (2, 2), (1, 1), (1, 1), (0, 0)),
}


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_matches(library: ctypes.CDLL, kind: str, norm: bool, residual: bool) -> None:
    into, out, groups, transposed, kernel, stride, padding, dilation, extra = KINDS[kind]
    height = 1 if kind == "one-dimensional" else 11
    x = torch.randn(2, into, height, 13).contiguous(memory_format=torch.channels_last)
    shape = (into, out // groups, *kernel) if transposed else (out, into // groups, *kernel)
    w, bias = torch.randn(shape) / 4, torch.randn(out)
    if transposed:
        want = torch.nn.functional.conv_transpose2d(x, w, bias, stride, padding, extra, groups, dilation)
    else:
        want = torch.nn.functional.conv2d(x, w, bias, stride, padding, dilation, groups)
    fold = torch.cat([torch.randn(out), torch.randn(out), torch.randn(out), torch.rand(out) + 0.5])
    if norm:
        gamma, beta, mean, variance = fold.view(4, out)
        want = torch.nn.functional.batch_norm(want, mean, variance, gamma, beta, False, 0.0, 1e-3)
    more = torch.randn_like(want).contiguous(memory_format=torch.channels_last)
    want = torch.relu(want + more) if residual else torch.relu(want)
    y = torch.empty_like(want, memory_format=torch.channels_last)
    numbers = [2, height, 13, into, out, groups, transposed, *kernel, *stride, *padding, *dilation, *extra]
    status = library.conv(
        (ctypes.c_int64 * len(numbers))(*numbers),
        1,
        ctypes.c_void_p(x.data_ptr()),
        ctypes.c_void_p(w.data_ptr()),
        ctypes.c_void_p(bias.data_ptr()),
        ctypes.c_void_p(more.data_ptr() if residual else None),
        ctypes.c_void_p(fold.data_ptr() if norm else None),
        ctypes.c_void_p(y.data_ptr()),
    )
    assert status == 0
    torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)
