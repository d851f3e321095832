"""attention.h: every mask, ragged sizes and strided heads as torch computes them."""

import ctypes

import pytest

from stitch_planner.stitcher.testing import build_header_test

torch = pytest.importorskip("torch")

SOURCE = """
#include "stitch/cpu/attention.h"
using namespace stitch::cpu;
template <MaskKind kMask>
int go(const AttentionShape& shape, const float* q, const float* k, const float* v, const void* mask,
       float* out) {
  Attention<kMask> attention;
  attention.init(shape);
  return attention.run(q, k, v, static_cast<const typename Attention<kMask>::MaskType*>(mask), out, 2);
}
// q, k, v and out are [batch][position][head][width]: the heads were not moved forward.
EXPORT int attend(int kind, int causal, const int64_t* p, const float* q, const float* k, const float* v,
                  const void* mask, float* out) {
  AttentionShape s;
  s.batch = p[0];
  s.heads = p[1];
  s.queries = p[2];
  s.keys = p[3];
  s.width = p[4];
  s.value_width = p[5];
  s.scale = 0.25f;
  s.causal = causal;
  const auto strides = [&](int64_t* to, int64_t positions, int64_t width) {
    to[0] = positions * s.heads * width;
    to[1] = width;
    to[2] = s.heads * width;
  };
  strides(s.q, s.queries, s.width);
  strides(s.k, s.keys, s.width);
  strides(s.v, s.keys, s.value_width);
  strides(s.out, s.queries, s.value_width);
  s.mask[0] = s.queries * s.keys;  // one mask for each batch, the same for all heads
  s.mask[2] = s.keys;
  s.mask[3] = 1;
  switch (kind) {
    case 0: return go<MaskKind::kNone>(s, q, k, v, nullptr, out);
    case 1: return go<MaskKind::kAdd>(s, q, k, v, mask, out);
    case 2: return go<MaskKind::kKeep>(s, q, k, v, mask, out);
    default: return go<MaskKind::kHide>(s, q, k, v, mask, out);
  }
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_header_test(SOURCE, tmp_path_factory.mktemp("attention"))


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize(
    "shape", [(2, 3, 37, 37, 16, 16), (1, 2, 5, 70, 20, 33), (2, 1, 1, 1, 8, 80), (1, 4, 64, 64, 64, 64)]
)
def test_each_mask_and_shape_matches(
    library: ctypes.CDLL, shape: tuple[int, ...], kind: int, causal: int
) -> None:
    batch, heads, queries, keys, width, value_width = shape
    q, k = torch.randn(batch, queries, heads, width), torch.randn(batch, keys, heads, width)
    v, out = torch.randn(batch, keys, heads, value_width), torch.empty(batch, queries, heads, value_width)
    mask = torch.randn(batch, queries, keys) if kind == 1 else torch.rand(batch, queries, keys) > 0.3
    scores = (q.transpose(1, 2) @ k.permute(0, 2, 3, 1)) * 0.25
    hidden = torch.zeros(batch, 1, queries, keys, dtype=torch.bool)
    if kind == 1:
        scores = scores + mask[:, None]
    elif kind:
        hidden = hidden | (mask if kind == 3 else ~mask)[:, None]
    if causal:
        hidden = hidden | torch.ones(queries, keys, dtype=torch.bool).triu(1)
    # A row that sees nothing is zero, as scaled_dot_product_attention has it.
    chances = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1).nan_to_num(0.0)
    want = (chances @ v.transpose(1, 2)).transpose(1, 2)
    address = lambda tensor: ctypes.c_void_p(tensor.data_ptr())  # noqa: E731
    numbers = (ctypes.c_int64 * 6)(*shape)
    assert library.attend(kind, causal, numbers, *map(address, (q, k, v, mask, out))) == 0
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)
