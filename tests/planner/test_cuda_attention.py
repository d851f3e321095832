"""Attention of CUDA programs: how people write it, what is computed, and the order of numbers in tiles."""

import ctypes
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.library_calls import call_text
from stitch_planner.stitcher.emit.cuda.testing import OnHost, build_for_gpus, lowered
from stitch_planner.stitcher.lower.kernel_ir import KernelProgram, LibraryCall, LibraryOp
from stitch_planner.stitcher.lower.lowering import UnloweredError
from stitch_planner.stitcher.lower.operations import AttentionOp, MatmulOp
from stitch_planner.stitcher.testing import build_header_test
from stitch_tools.models.task import Contract

INF = math.inf
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.transpose(-2, -1) * 0.25


WAYS: dict[str, Attend] = {
    "plain": lambda q, k, v, m: torch.softmax(scores(q, k), -1) @ v,
    "divided": lambda q, k, v, m: torch.softmax(q @ k.transpose(-2, -1) / 4, -1) @ v,
    "scaled queries": lambda q, k, v, m: torch.softmax((q * 0.25) @ k.transpose(-2, -1), -1) @ v,
    "dropout of nothing": lambda q, k, v, m: functional.dropout(torch.softmax(scores(q, k), -1), 0.0) @ v,
    "filled": lambda q, k, v, m: torch.softmax(scores(q, k).masked_fill(m == 0, -INF), -1) @ v,
    "filled with a number": lambda q, k, v, m: torch.softmax(scores(q, k).masked_fill(m == 0, -1e9), -1) @ v,
    "where": lambda q, k, v, m: torch.softmax(torch.where(m > 0, scores(q, k), -INF), -1) @ v,
    "added": lambda q, k, v, m: torch.softmax(scores(q, k) + m, -1) @ v,
    "relu": lambda q, k, v, m: torch.relu(scores(q, k).masked_fill(m == 0, -INF)) @ v,
    "library": lambda q, k, v, m: functional.scaled_dot_product_attention(q, k, v, m, scale=0.25),
    "library, bools": lambda q, k, v, m: functional.scaled_dot_product_attention(q, k, v, m > 0),
    "library, causal": lambda q, k, v, m: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
}


class Written(nn.Module):
    """Heads out of one joint projection, a triangle as a buffer, and heads joined again."""

    def __init__(self, *ways: str) -> None:
        super().__init__()
        self.ways = ways
        self.register_buffer("triangle", torch.tril(torch.ones(24, 24)))
        self.join = nn.Linear(48, 48)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, 3, 16).transpose(1, 2) for part in x.split(48, 2))
        mask = self.triangle[:length, :length]  # pyright: ignore[reportIndexIssue]
        mixed = [WAYS[way](q, k, v, mask) for way in self.ways]
        return tuple(self.join(one.transpose(1, 2).reshape(batch, length, 48)) for one in mixed)


def calls(program: KernelProgram) -> list[LibraryOp]:
    return [kernel.operation for kernel in program.kernels if isinstance(kernel, LibraryCall)]


def attentions(program: KernelProgram) -> list[AttentionOp]:
    return [operation for operation in calls(program) if isinstance(operation, AttentionOp)]


@pytest.mark.parametrize("way", WAYS)
def test_attention_is_found_however_it_is_written(way: str) -> None:
    program = lowered(Written(way), [torch.randn(2, 20, 144)])
    (operation,) = attentions(program)
    assert sum(isinstance(one, MatmulOp) for one in calls(program)) == 1, "the projection behind it"
    assert operation.scale == 0.25
    assert operation.weights == ("relu" if way == "relu" else "softmax")
    assert operation.hidden == (-1e9 if way == "filled with a number" else -INF)
    # Windows on the projection itself, and results with a position's heads side by side: nothing is copied.
    assert operation.q.buffer.role == "input"
    assert operation.k.strides[3] == operation.v.strides[3] == 1
    assert not any("copies" in kernel.comment for kernel in program.kernels)


class Multihead(nn.Module):
    """The library's module, which gives its weights back as well; nobody wants them."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(32, 4, batch_first=batch_first)
        self.register_buffer("hidden", torch.ones(18, 18).triu(1) * -1e4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attend(x, x, x)[0] + self.attend(x, x, x, attn_mask=self.hidden)[0]


@pytest.mark.parametrize("batch_first", [False, True])
def test_multihead_attention_is_one_call_between_two_products(batch_first: bool) -> None:
    x = torch.randn(2, 18, 32) if batch_first else torch.randn(18, 2, 32)
    program = lowered(Multihead(batch_first=batch_first), [x])
    plain, masked = attentions(program)
    assert (plain.mask_kind, masked.mask_kind) == ("none", "add")
    assert len(calls(program)) == 6


class Encoder(nn.Module):
    """The module without weights, as layers of a transformer call it."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(32, 4, batch_first=batch_first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attend(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("batch_first", [False, True])
def test_heads_of_a_joint_projection_are_read_where_they_lie(batch_first: bool, tmp_path: Path) -> None:
    module, x = Encoder(batch_first=batch_first), torch.randn(5, 7, 32)
    program = lowered(module, [x])
    (operation,) = attentions(program)
    buffers = {view.buffer for view in (operation.q, operation.k, operation.v)}
    assert buffers == {calls(program)[0].out.buffer}  # pyright: ignore[reportAttributeAccessIssue]
    (found,) = OnHost(emit_cuda(program), tmp_path).run([x], module.state_dict())
    torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-5)


def test_all_ways_compute_what_torch_computes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = Written(*WAYS), torch.randn(2, 20, 144)
    outputs = OnHost(emit_cuda(lowered(module, [x])), tmp_path).run([x], module.state_dict())
    for way, found, expected in zip(WAYS, outputs, module.double()(x.double()), strict=True):
        torch.testing.assert_close(
            found.double(), expected, rtol=1e-4, atol=1e-5, msg=lambda text, w=way: w + text
        )


class Cross(nn.Module):
    """Few keys, other lengths and widths, a query that sees nothing, and poison."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        weights = torch.softmax((q @ k.transpose(-2, -1)).masked_fill(~keep, -INF), -1)
        library = functional.scaled_dot_product_attention(q, k, v, keep)
        return weights @ v, library, torch.relu(q @ k.transpose(-2, -1)) @ v


@pytest.mark.parametrize("keys", [5, 37])
def test_nothing_visible_and_poison_give_what_torch_gives(keys: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 19, 12), torch.randn(2, 3, keys, 12), torch.randn(2, 3, keys, 20)
    keep = torch.rand(2, 1, 19, keys) < 0.7
    keep[0, 0, 3] = False
    q[1, 0, 4, 2], k[1, 1, 3, 0], v[1, 2, 2, 5] = math.nan, INF, -INF
    module = Cross()
    outputs = OnHost(emit_cuda(lowered(module, [q, k, v, keep])), tmp_path).run([q, k, v, keep])
    for found, expected in zip(outputs, module(q, k, v, keep), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


class Causal(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("value", [math.nan, INF, -INF])
def test_poison_of_a_later_key_does_not_reach_causal_queries(value: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 60, 8) for _ in range(3))
    k[0, 1, 40, 3] = value
    (found,) = OnHost(emit_cuda(lowered(Causal(), [q, k, v])), tmp_path).run([q, k, v])
    assert found[0, 1, :40].isfinite().all()
    torch.testing.assert_close(found, Causal()(q, k, v), rtol=1e-4, atol=1e-5, equal_nan=True)


def test_tf32_is_used_only_where_the_contract_allows_it() -> None:
    for precision, expected in (("fp32", "three TF32 products"), ("tf32", ", TF32")):
        contract = Contract(mode="eval", matmul_precision=precision)  # type: ignore[arg-type]
        (operation,) = attentions(lowered(Written("plain").eval(), [torch.randn(2, 20, 144)], contract))
        assert expected in call_text(operation).chosen


class Wide(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x)


def test_wide_heads_keep_their_scores_in_memory(tmp_path: Path) -> None:
    x = torch.randn(1, 2, 20, 272)
    program = lowered(Wide(), [x])
    assert not attentions(program)
    (found,) = OnHost(emit_cuda(program), tmp_path).run([x])
    torch.testing.assert_close(found, Wide()(x), rtol=1e-4, atol=1e-5)


def test_attention_without_keys_is_left_to_pytorch() -> None:
    with pytest.raises(UnloweredError, match="of nothing"):
        lowered(Causal(), [torch.randn(1, 2, 3, 16), torch.randn(1, 2, 0, 16), torch.randn(1, 2, 0, 16)])


@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "archs"),
    [
        ("filled", ("sm_80",)),
        *(
            pytest.param(way, ("sm_80", "sm_90", "sm_100", "sm_120"), marks=pytest.mark.exhaustive)
            for way in ("plain", "added", "relu", "library, bools")
        ),
    ],
)
def test_the_kernel_builds(way: str, archs: tuple[str, ...], tmp_path: Path) -> None:
    build = build_for_gpus(emit_cuda(lowered(Written(way), [torch.randn(2, 20, 144)])), tmp_path, archs)
    assert build.ok, [row.message for row in build.diagnostics]
    assert build.diagnostics == ()


WARP = """
#define STITCH_ON_HOST 1
#include "stitch/cuda/attention_shape.cuh"
using namespace stitch::cuda;
constexpr int kWidth = 64, kKeys = 32;

// What load_matrices gives a lane: one float of each matrix, whose rows the lanes 8 i to 8 i + 7 name.
static float loaded(const float* shared, const int (&place)[32], int lane, int matrix) {
  return shared[place[8 * matrix + lane / 4] + lane % 4];
}

// sums[lane][element] += a b, operands as mma_tf32 takes them.
static void multiply(float (&sums)[32][4], const float (&a)[32][4], const float (&b)[32][2]) {
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      float sum = 0;
      for (int i = 0; i < 8; ++i) {
        sum += a[row % 8 * 4 + i % 4][row / 8 + 2 * (i / 4)] * b[column * 4 + i % 4][i / 4];
      }
      sums[row % 8 * 4 + column / 2][column % 2 + 2 * (row / 8)] += sum;
    }
  }
}

// q [16, 64], k and v [32, 64] -> scores [16, 32] and scores v [16, 64], as a warp computes them.
EXPORT void warp(const float* q, const float* k, const float* v, float* scores, float* results) {
  float shared[3][kKeys * kWidth] = {};
  for (int i = 0; i < kKeys * kWidth; ++i) {
    const int place = tile_place<kWidth>(i / kWidth, i % kWidth / 4) + i % 4;
    if (i < 16 * kWidth) shared[0][place] = q[i];
    shared[1][place] = k[i], shared[2][place] = v[i];
  }
  float sums[kKeys / 8][32][4] = {};
  for (int part = 0; part < kWidth / 32; ++part) {
    for (int step = 0; step < 4; ++step) {
      int place[32];
      float a[32][4], b[2][32][2];
      for (int l = 0; l < 32; ++l) {
        place[l] = 32 * part + step_place<kWidth>(query_row(l), query_chunk(l), step);
      }
      for (int i = 0; i < 128; ++i) a[i / 4][i % 4] = loaded(shared[0], place, i / 4, i % 4);
      for (int n = 0; n < kKeys / 8; n += 2) {
        for (int l = 0; l < 32; ++l) {
          place[l] = 8 * n * kWidth + 32 * part + step_place<kWidth>(key_row(l), key_chunk(l), step);
        }
        for (int i = 0; i < 128; ++i) b[i % 4 / 2][i / 4][i % 2] = loaded(shared[1], place, i / 4, i % 4);
        multiply(sums[n], a, b[0]);
        multiply(sums[n + 1], a, b[1]);
      }
    }
  }
  for (int i = 0; i < kKeys / 8 * 128; ++i) {
    const int n = i / 128, lane = i / 4 % 32, e = i % 4;
    scores[score_row(lane, e) * kKeys + 8 * n + score_key(lane, e)] = sums[n][lane][e];
  }
  for (int group = 0; group < kWidth / 32; ++group) {
    float out[4][32][4] = {};
    for (int step = 0; step < kKeys / 8; ++step) {
      float a[32][4];
      for (int i = 0; i < 128; ++i) a[i / 4][i % 4] = sums[step][i / 4][weight_element(i % 4)];
      for (int tile = 0; tile < 4; ++tile) {
        float b[32][2];
        for (int i = 0; i < 64; ++i) {
          const int lane = i / 2;
          const int place = tile_place<kWidth>(value_key(lane, i % 2), lane / 4);
          b[lane][i % 2] = shared[2][place + 8 * step * kWidth + 32 * group + tile];
        }
        multiply(out[tile], a, b);
      }
    }
    for (int i = 0; i < 512; ++i) {
      const int tile = i / 128, lane = i / 4 % 32, e = i % 4;
      results[score_row(lane, e) * kWidth + 32 * group + result_column(lane, tile, e)] = out[tile][lane][e];
    }
  }
}
"""


MASKED = """
#define STITCH_ON_HOST 1
#include "stitch/cuda/attention_shape.cuh"
using namespace stitch::cuda;

EXPORT float masked(float score, float mask) {
  return masked_score<AttentionMask::kAdd>(score, mask, 1.4426950408889634f, -INFINITY, false);
}
"""


def test_a_key_with_the_least_mask_stays_visible(tmp_path: Path) -> None:
    library = build_header_test(MASKED, tmp_path)
    library.masked.restype, library.masked.argtypes = ctypes.c_float, [ctypes.c_float] * 2
    least = torch.finfo(torch.float32).min
    assert library.masked(3.0, least) == library.masked(-3.0, least) == least
    assert library.masked(3.0, -INF) == -INF
    assert math.isnan(library.masked(3.0, math.nan))


def test_lanes_hold_the_numbers_that_both_products_need(tmp_path: Path) -> None:
    library = build_header_test(WARP, tmp_path)
    q, k, v = (torch.randint(-4, 5, (rows, 64)).float() for rows in (16, 32, 32))
    found, results = torch.full((16, 32), 77.0), torch.full((16, 64), 77.0)
    library.warp(*(ctypes.c_void_p(tensor.data_ptr()) for tensor in (q, k, v, found, results)))
    assert torch.equal(found, q @ k.T)
    assert torch.equal(results, q @ k.T @ v)
