"""Vectors of each width that processors have: functions over all floats, tiles of every size, what builds."""

import ctypes
import math
import platform
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch

from stitch_planner.stitcher.testing import build_header_test
from tests.sampling import sampled

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="flags of x86-64")

SOURCE = """
#include "stitch/cpu/attention.h"
#include "stitch/cpu/channel_stats.h"
#include "stitch/cpu/layout.h"
using namespace stitch::cpu;
#define EACH(name) \\
  EXPORT void name##_all(const float* x, float* y, int64_t n) { \\
    for (int64_t i = 0; i < n; i += kLanes) { \\
      const int64_t count = std::min<int64_t>(kLanes, n - i); \\
      store_some(y + i, name(load_some(x + i, count)), count); \\
    } \\
  }
EACH(exp)
EACH(sigmoid)
EACH(tanh)
EXPORT int lanes() { return kLanes; }
EXPORT void gated(const float* gate, const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) store_some(y + i, gated_tanh(splat(gate[i]), splat(x[i])), 1);
}
EXPORT void sums(const float* x, int64_t n, float shift, double* to) { plane_sums(x, n, shift, to, to + 1); }
EXPORT int copy(const int64_t* d, const int64_t* f, const int64_t* t, const float* from, float* to) {
  StridedCopy copy;
  const int rc = copy.init({d[0], d[1], d[2]}, {f[0], f[1], f[2]}, {t[0], t[1], t[2]});
  return rc ? rc : copy.run(from, to, 2);
}
"""
EVERYTHING = """
#include "stitch/cpu/attention.h"
#include "stitch/cpu/batchnorm.h"
#include "stitch/cpu/groupnorm.h"
#include "stitch/cpu/layout.h"
#include "stitch/cpu/loss.h"
#include "stitch/cpu/pool.h"
using namespace stitch::cpu;
template class stitch::cpu::Attention<MaskKind::kNone>;
template class stitch::cpu::GroupNorm<true>;
template class stitch::cpu::GroupNorm<false>;
template class stitch::cpu::Pool<Pooling::kMax, true>;
template class stitch::cpu::Pool<Pooling::kAverage, false>;
int copy(const StridedCopy& copy, const float* from, float* to) { return copy.run(from, to, 2); }
"""
WIDTHS = {"x86-64": 4, "sandybridge": 8, "haswell": 8, "skylake-avx512": 16}
NEEDS = {"x86-64": "sse2", "sandybridge": "avx", "haswell": "fma", "skylake-avx512": "avx512vl"}


def processor_has(flag: str) -> bool:
    info = Path("/proc/cpuinfo")
    return info.is_file() and flag in info.read_text(encoding="utf-8").split()


@pytest.fixture(scope="module", params=sampled(WIDTHS, ("x86-64", "haswell", "skylake-avx512")))
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if not processor_has(NEEDS[request.param]):
        pytest.skip(f"this processor lacks {NEEDS[request.param]}")
    found = build_header_test(SOURCE, tmp_path_factory.mktemp("widths"), flags=(f"-march={request.param}",))
    assert found.lanes() == WIDTHS[request.param]
    return found


def address(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def numbers(values: tuple[int, ...]) -> "ctypes.Array[ctypes.c_int64]":
    return (ctypes.c_int64 * len(values))(*values)


def all_ranges() -> torch.Tensor:
    """Every 4099th bit pattern (all exponents, both signs, NaN and infinity), and dense ordinary values."""
    bits = torch.arange(-(2**31), 2**31, 4099, dtype=torch.int64).to(torch.int32)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 88.72, 88.73, -87.4, -103.9, -104.1])
    return torch.cat([bits.view(torch.float32), torch.linspace(-110, 110, 400_001), special])


def evaluate(library: ctypes.CDLL, name: str, x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    getattr(library, f"{name}_all")(address(x), address(y), ctypes.c_int64(x.numel()))
    return y


@pytest.mark.parametrize("flags", sampled(WIDTHS, ("x86-64", "skylake-avx512")))
def test_headers_compile_for_each_width_without_a_warning(flags: str, tmp_path: Path) -> None:
    build_header_test(EVERYTHING, tmp_path, flags=(f"-march={flags}",))


def units(actual: torch.Tensor, true: torch.Tensor) -> float:
    """Largest error in units of the last place, over results that float holds."""
    rounded = true.float().abs()
    spacing = torch.nextafter(rounded, torch.tensor(math.inf)).double() - rounded.double()
    return float(((actual.double() - true).abs() / spacing)[spacing.isfinite()].max())


@pytest.mark.parametrize(("name", "function", "bound"), [("exp", torch.exp, 2.0), ("tanh", torch.tanh, 3.0)])
def test_a_function_is_accurate_over_all_floats(
    library: ctypes.CDLL, name: str, function: Callable[[torch.Tensor], torch.Tensor], bound: float
) -> None:
    x = all_ranges()
    actual, true = evaluate(library, name, x), function(x.double())
    assert torch.equal(actual.isnan(), x.isnan())
    assert torch.equal(actual.isinf(), true.float().isinf())
    assert units(actual, true) <= bound


def test_a_sigmoid_is_within_2e_7(library: ctypes.CDLL) -> None:
    x = all_ranges()
    actual, true = evaluate(library, "sigmoid", x), torch.sigmoid(x.double())
    assert torch.equal(actual.isnan(), x.isnan())
    assert float((actual.double() - true)[~x.isnan()].abs().max()) <= 2e-7


def test_a_gate_is_finite_wherever_its_operands_are_numbers(library: ctypes.CDLL) -> None:
    values = [0.0, -0.0, 1e-40, 0.3, -2.0, 17.0, -17.0, 88.7, -88.8, 200.0, -200.0, 3e38, -3e38]
    values += [math.inf, -math.inf]
    gate, x = (row.contiguous() for row in torch.tensor(list(product(values, values))).T)
    y = torch.empty_like(x)
    library.gated(address(gate), address(x), address(y), ctypes.c_int64(x.numel()))
    assert float((y - torch.sigmoid(gate) * torch.tanh(x)).abs().max()) <= 4e-7


def test_tiles_of_every_size_and_start_touch_nothing_else(library: ctypes.CDLL) -> None:
    for rows, columns, start in product((1, 3, 4, 5, 8, 15, 16, 17, 33), (1, 2, 7, 8, 9, 16, 31), (0, 1, 3)):
        source = torch.randn(2 * rows * (columns + 1) + start)[start:].view(2, rows, columns + 1)[
            ..., :columns
        ]
        memory = torch.full((2 * columns * (rows + 2) + start,), 9.0)
        target = memory[start:].view(2, columns, rows + 2)[..., :rows].mT
        want = memory.clone()
        want[start:].view(2, columns, rows + 2)[..., :rows].mT.copy_(source)
        shape = numbers(tuple(source.shape))
        strides = numbers(source.stride()), numbers(target.stride())
        assert library.copy(shape, *strides, address(source), address(target)) == 0
        assert torch.equal(memory, want)


def test_sums_over_a_plane_drift_no_further_where_vectors_are_narrow(library: ctypes.CDLL) -> None:
    """Equal values round alike: the error is that of the longest chain of additions, not of luck."""
    for value in (0.1, 0.3, 0.7, 1.1, 3.3):
        x, to = torch.full((65_536,), value), torch.zeros(2, dtype=torch.float64)
        library.sums(address(x), ctypes.c_int64(x.numel()), ctypes.c_float(0.0), address(to))
        true = torch.stack([x.double().sum(), x.double().square().sum()])
        assert float((to / true - 1).abs().max()) <= 4e-6
