"""gemm.h: products, post-ops and batches as torch computes them."""

import ctypes
from pathlib import Path

import pytest

from stitch_planner.stitcher.testing import build_header_test
from stitch_tools.compile.headers import find_onednn

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not find_onednn().found, reason="oneDNN is not installed: not measured")

SOURCE = """
#include "stitch/cpu/gemm.h"
using namespace stitch::cpu;
EXPORT int linear(int64_t m, int64_t n, int64_t k, int kn, int pack, int act, int extra, const float* a,
                  const float* w, const float* bias, const float* operand, float* c) {
  Dnnl lib;
  Gemm gemm;
  GemmOptions options;
  options.n = n;
  options.k = k;
  options.weight_kn = kn;
  options.pack = pack;
  options.has_bias = bias != nullptr;
  if (act >= 0) options.post.push_back(PostOp::activation(static_cast<Act>(act)));
  if (extra == 1) options.post.push_back(PostOp::add());
  if (extra == 2) options.post.push_back(PostOp::mul(Spread::kChannel));
  if (int rc = gemm.init(lib, options, w, bias)) return rc;
  for (int64_t rows : {int64_t{1}, m}) {  // a second M must not disturb the first
    if (int rc = gemm.run(rows, a, 0, c, 0, &operand)) return rc;
  }
  return 0;
}
EXPORT int clipped(int64_t m, int64_t n, int64_t k, float low, float high, const float* a, const float* w,
                   float* c) {
  Dnnl lib;
  Gemm gemm;
  GemmOptions options;
  options.n = n;
  options.k = k;
  options.post = {PostOp::activation(Act::kClip, low, high)};
  if (int rc = gemm.init(lib, options, w, nullptr)) return rc;
  return gemm.run(m, a, 0, c, 0, nullptr);
}
EXPORT int fuses_clip(float low, float high, float a) {
  NanGuard guard;
  guard.init({PostOp::activation(Act::kClip, low, high)}, 64, 1.0f, 0.0f);
  return guard.fuses(&a, {1, 1, 1}, {1, 64, 64}, 0, nullptr);
}
EXPORT int batched(int64_t b, int64_t h, int64_t m, int64_t n, int64_t k, const float* x, const float* y,
                   float* out) {
  Dnnl lib;
  BatchMatmul product;
  if (int rc = product.init(lib)) return rc;
  // x is [b][m][h][k] (heads not yet moved), y one [k][n] for every head and batch, stored [n][k].
  const Batched xs{{m * h * k, k, h * k, 1}}, ys{{0, 0, 1, k}}, os{{h * m * n, m * n, n, 1}};
  return product.run({b, h, m, n, k}, x, xs, y, ys, out, os);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("gemm")
    return build_header_test(SOURCE, folder)


def pointer(tensor: object) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())  # type: ignore[attr-defined]


def sizes(*values: int) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(value) for value in values]


ACTIVATIONS = [
    torch.relu,
    torch.nn.functional.gelu,
    lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    torch.nn.functional.silu,
    torch.sigmoid,
    torch.tanh,
]


@pytest.mark.parametrize("pack", [0, 1])
@pytest.mark.parametrize("kn", [0, 1])
def test_products_with_weights_in_either_order_match(library: ctypes.CDLL, kn: int, pack: int) -> None:
    a, w, bias = torch.randn(37, 50), torch.randn(29, 50), torch.randn(29)
    c = torch.empty(37, 29)
    weight = w.t().contiguous() if kn else w
    status = library.linear(
        *sizes(37, 29, 50), kn, pack, -1, 0, pointer(a), pointer(weight), pointer(bias), None, pointer(c)
    )
    assert status == 0
    torch.testing.assert_close(c, torch.nn.functional.linear(a, w, bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("act", range(len(ACTIVATIONS)))
@pytest.mark.parametrize("extra", [0, 1, 2])
def test_activation_then_operand_are_applied_in_order(library: ctypes.CDLL, act: int, extra: int) -> None:
    a, w = torch.randn(20, 64), torch.randn(48, 64) / 8
    operand = torch.randn(20, 48) if extra == 1 else torch.randn(48)
    c = torch.empty(20, 48)
    status = library.linear(
        *sizes(20, 48, 64), 0, 1, act, extra, pointer(a), pointer(w), None, pointer(operand), pointer(c)
    )
    assert status == 0
    want = ACTIVATIONS[act](a @ w.t())
    want = want + operand if extra == 1 else want * operand if extra == 2 else want
    torch.testing.assert_close(c, want, rtol=1e-5, atol=1e-5)


def test_batches_read_strided_and_repeated_operands(library: ctypes.CDLL) -> None:
    x, y, out = torch.randn(3, 9, 4, 24), torch.randn(17, 24), torch.empty(3, 4, 9, 17)
    assert library.batched(*sizes(3, 4, 9, 17, 24), pointer(x), pointer(y), pointer(out)) == 0
    torch.testing.assert_close(out, x.transpose(1, 2) @ y.t(), rtol=1e-5, atol=1e-5)


INF = float("inf")


@pytest.mark.parametrize(("low", "high"), [(0.0, INF), (-INF, 0.5), (-INF, INF), (-1.0, 1.0)])
def test_a_clip_with_an_infinite_limit_is_part_of_the_library_s_call(
    library: ctypes.CDLL, low: float, high: float
) -> None:
    limits = ctypes.c_float(low), ctypes.c_float(high)
    assert library.fuses_clip(*limits, ctypes.c_float(3.0))
    for huge in (1e38, INF, float("nan")):
        assert not library.fuses_clip(*limits, ctypes.c_float(huge)), "the library might lose a NaN"
    a, w, c = torch.randn(20, 64), torch.randn(48, 64) / 8, torch.empty(20, 48)
    for worst in (0.0, INF, float("nan")):
        a[3, 5] = worst
        assert library.clipped(*sizes(20, 48, 64), *limits, pointer(a), pointer(w), pointer(c)) == 0
        wanted = torch.nn.functional.hardtanh(a @ w.t(), low, high)
        torch.testing.assert_close(c, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(("low", "high"), [(INF, INF), (-INF, -INF), (float("nan"), 1.0)])
def test_a_clip_to_infinity_or_nan_is_left_to_a_pass_that_keeps_nan(
    library: ctypes.CDLL, low: float, high: float
) -> None:
    assert not library.fuses_clip(ctypes.c_float(low), ctypes.c_float(high), ctypes.c_float(3.0))
