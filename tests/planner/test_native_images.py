"""Normalisation, pooling, resizing and layout headers, in both orders of memory, as torch computes them."""

import ctypes
from typing import Any

import pytest

from stitch_planner.stitcher.testing import build_header_test

torch = pytest.importorskip("torch")
functional = torch.nn.functional

SOURCE = """
#include "stitch/cpu/batchnorm.h"
#include "stitch/cpu/groupnorm.h"
#include "stitch/cpu/layout.h"
#include "stitch/cpu/pool.h"
#include "stitch/cpu/upsample.h"
using namespace stitch::cpu;
template <bool kLast>
int batch(const int64_t* p, const float* x, const float* gamma, const float* beta, const float* more,
          const float* running, float* updated, float* y) {
  BatchNorm<kLast, Epilogue::kSilu, true> norm;
  BatchNormOptions o;
  o.images = p[0];
  o.channels = p[1];
  o.area = p[2] * p[3];
  if (int rc = norm.init(o)) return rc;
  return norm.run(x, gamma, beta, more, running, running + p[1], updated, updated + p[1], y, 2);
}
EXPORT int batch_norm(int last, const int64_t* p, const float* x, const float* gamma, const float* beta,
                      const float* more, const float* running, float* updated, float* y) {
  return last ? batch<true>(p, x, gamma, beta, more, running, updated, y)
              : batch<false>(p, x, gamma, beta, more, running, updated, y);
}
template <bool kLast>
int group(const int64_t* p, int64_t groups, const float* x, const float* gamma, const float* beta, float* y) {
  GroupNorm<kLast, Epilogue::kRelu> norm;
  GroupNormOptions o;
  o.images = p[0];
  o.channels = p[1];
  o.area = p[2] * p[3];
  o.groups = groups;
  norm.init(o);
  return norm.run(x, gamma, beta, nullptr, y, 3);
}
EXPORT int group_norm(int last, const int64_t* p, int64_t groups, const float* x, const float* gamma,
                      const float* beta, float* y) {
  return last ? group<true>(p, groups, x, gamma, beta, y) : group<false>(p, groups, x, gamma, beta, y);
}
template <Pooling kPooling, bool kLast>
int pooled(const PoolOptions& o, const float* x, float* y) {
  Pool<kPooling, kLast> pool;
  pool.init(o);
  return pool.run(x, y, 2);
}
EXPORT int pool(int largest, int last, const int64_t* p, const int64_t* w, const float* x, float* y) {
  PoolOptions o;
  o.images = p[0];
  o.channels = p[1];
  for (int axis = 0; axis < 2; ++axis) {
    o.input[axis] = p[2 + axis];
    o.output[axis] = w[axis];
    o.kernel[axis] = w[2];
    o.stride[axis] = w[3];
    o.padding[axis] = w[4];
    o.dilation[axis] = w[5];
  }
  o.adaptive = w[6];
  o.count_padding = w[7];
  if (largest) return last ? pooled<Pooling::kMax, true>(o, x, y) : pooled<Pooling::kMax, false>(o, x, y);
  return last ? pooled<Pooling::kAverage, true>(o, x, y) : pooled<Pooling::kAverage, false>(o, x, y);
}
template <Resize kResize, bool kLast>
int resized(const UpsampleOptions& o, const float* x, float* y) {
  Upsample<kResize, kLast> resize;
  resize.init(o);
  return resize.run(x, y, 2);
}
EXPORT int upsample(int smooth, int last, const int64_t* p, int64_t h, int64_t w, double scale, int corners,
                    const float* x, float* y) {
  UpsampleOptions o;
  o.images = p[0];
  o.channels = p[1];
  for (int axis = 0; axis < 2; ++axis) o.input[axis] = p[2 + axis], o.scale[axis] = scale;
  o.output[0] = h;
  o.output[1] = w;
  o.align_corners = corners;
  if (smooth) {
    return last ? resized<Resize::kBilinear, true>(o, x, y) : resized<Resize::kBilinear, false>(o, x, y);
  }
  return last ? resized<Resize::kNearest, true>(o, x, y) : resized<Resize::kNearest, false>(o, x, y);
}
EXPORT int copy(const int64_t* d, const int64_t* f, const int64_t* t, const float* from, float* to) {
  StridedCopy copy;
  int rc = copy.init({d[0], d[1], d[2], d[3]}, {f[0], f[1], f[2], f[3]}, {t[0], t[1], t[2], t[3]});
  if (rc) return rc;
  return copy.run(from, to, 2);
}
"""
SHAPES = [(4, 32, 8, 8), (2, 3, 5, 7), (1, 100, 9, 9), (3, 40, 16, 3), (2, 17, 1, 1)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_header_test(SOURCE, tmp_path_factory.mktemp("images"))


def address(tensor: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def numbers(*values: int) -> "ctypes.Array[ctypes.c_int64]":
    return (ctypes.c_int64 * len(values))(*values)


def ordered(tensor: Any, last: int) -> Any:
    return tensor.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_statistics_survive_a_large_mean(
    library: ctypes.CDLL, shape: tuple[int, ...], last: int
) -> None:
    x, more = (torch.randn(shape) * 2 + 300).to(torch.float32), torch.randn(shape)
    gamma, beta, running = torch.randn(shape[1]), torch.randn(shape[1]), torch.rand(2, shape[1])
    updated, want_updated = torch.empty_like(running), running.clone().double()
    want = functional.batch_norm(
        x.double(), want_updated[0], want_updated[1], gamma.double(), beta.double(), True
    )
    want = functional.silu(want + more.double()).float()
    x, more = ordered(x, last), ordered(more, last)
    y = torch.empty_like(x)
    status = library.batch_norm(
        last, numbers(*shape), *map(address, (x, gamma, beta, more, running, updated, y))
    )
    assert status == 0
    torch.testing.assert_close(y, want, rtol=1e-3, atol=1e-3)  # 300 / 2 eps of float
    torch.testing.assert_close(updated, want_updated.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_group_statistics_match(library: ctypes.CDLL, shape: tuple[int, ...], last: int) -> None:
    x, gamma, beta = torch.randn(shape) * 2 + 5, torch.randn(shape[1]), torch.randn(shape[1])
    for groups in {1, shape[1], 4 if shape[1] % 4 == 0 else 1}:
        want = torch.nn.GroupNorm(groups, shape[1], dtype=torch.float64)
        want.weight.data, want.bias.data = gamma.double(), beta.double()
        given = ordered(x, last)
        y = torch.empty_like(given)
        assert (
            library.group_norm(
                last, numbers(*shape), ctypes.c_int64(groups), *map(address, (given, gamma, beta, y))
            )
            == 0
        )
        torch.testing.assert_close(y, torch.relu(want(x.double())).float(), rtol=1e-3, atol=1e-3)


# kernel, stride, padding, dilation, adaptive, count padding; torch's call
WINDOWS = [
    (1, (2, 2, 0, 1, 0, 1), lambda x: functional.max_pool2d(x, 2, 2)),
    (1, (3, 2, 1, 1, 0, 1), lambda x: functional.max_pool2d(x, 3, 2, 1, ceil_mode=True)),
    (1, (2, 1, 1, 2, 0, 1), lambda x: functional.max_pool2d(x, 2, 1, 1, 2)),
    (0, (3, 2, 1, 1, 0, 0), lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
    (0, (3, 2, 1, 1, 0, 1), lambda x: functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True)),
    (0, (3, 3, 1, 1, 0, 1), lambda x: functional.avg_pool2d(x, 3, 3, 1)),
    (0, (1, 1, 0, 1, 1, 1), lambda x: functional.adaptive_avg_pool2d(x, 1)),
    (0, (1, 1, 0, 1, 1, 1), lambda x: functional.adaptive_avg_pool2d(x, (3, 2))),
    (1, (1, 1, 0, 1, 1, 1), lambda x: functional.adaptive_max_pool2d(x, 2)),
]


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("case", range(len(WINDOWS)))
def test_each_kind_of_window_matches(library: ctypes.CDLL, case: int, last: int) -> None:
    largest, window, call = WINDOWS[case]
    for shape in [(2, 20, 9, 11), (1, 70, 8, 8), (2, 3, 40, 70)]:
        x = torch.randn(shape)
        x[0, 0, 3, 3] = float("nan")
        want = call(x)
        x = ordered(x, last)
        y = torch.empty_like(want, memory_format=torch.channels_last if last else torch.contiguous_format)
        sizes = numbers(*want.shape[2:], *window)
        assert library.pool(largest, last, numbers(*shape), sizes, address(x), address(y)) == 0
        torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize(
    ("smooth", "corners", "options"),
    [
        (0, 0, {"scale_factor": 2.0, "mode": "nearest"}),
        (0, 0, {"size": (7, 5), "mode": "nearest"}),
        (1, 0, {"scale_factor": 2.0, "mode": "bilinear"}),
        (1, 1, {"size": (13, 9), "mode": "bilinear", "align_corners": True}),
    ],
)
def test_resizing_matches(
    library: ctypes.CDLL, smooth: int, corners: int, options: dict[str, Any], last: int
) -> None:
    x = torch.randn(2, 19, 6, 8)
    want = functional.interpolate(x, **options)
    x = ordered(x, last)
    y = torch.empty_like(want, memory_format=torch.channels_last if last else torch.contiguous_format)
    h, w = map(ctypes.c_int64, want.shape[2:])
    scale = ctypes.c_double(options.get("scale_factor", 0.0))
    status = library.upsample(
        smooth, last, numbers(2, 19, 6, 8), h, w, scale, corners, address(x), address(y)
    )
    assert status == 0
    torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0), (1, 0, 3, 2), (0, 1, 2, 3)])
@pytest.mark.parametrize("shape", [(2, 3, 17, 5), (1, 33, 20, 16), (4, 1, 1, 3), (2, 0, 3, 3)])
def test_copies_between_orders_move_every_element(
    library: ctypes.CDLL, shape: tuple[int, ...], order: tuple[int, ...]
) -> None:
    x = torch.randn(shape)
    y = torch.full_like(x, 9.0).permute(order).contiguous()
    target = y.permute([order.index(dim) for dim in range(4)])
    status = library.copy(
        numbers(*shape), numbers(*x.stride()), numbers(*target.stride()), address(x), address(y)
    )
    assert status == 0
    assert torch.equal(target, x)


def test_a_slice_is_copied_into_a_wider_tensor_and_nothing_else_is_touched(library: ctypes.CDLL) -> None:
    part, whole = torch.randn(2, 5, 3, 4), torch.zeros(2, 9, 3, 4)
    target = whole[:, 2:7]
    status = library.copy(
        numbers(*part.shape),
        numbers(*part.stride()),
        numbers(*target.stride()),
        address(part),
        address(target),
    )
    assert status == 0
    assert torch.equal(target, part)
    assert whole[:, :2].abs().max() == 0
    assert whole[:, 7:].abs().max() == 0
