"""Splits of float32 matrices on the CPU: their arithmetic, where parts lie, and who computes which tile."""

import ctypes
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stitch_planner.stitcher.testing import build_header_test

SOURCE = """
#define STITCH_ON_HOST 1
#include "stitch/cuda/split_product.cuh"
#include <vector>
using namespace stitch::cuda;

// One element's parts, as a kernel finds them.
static double part(const SplitShape& shape, const SplitTarget& target, int64_t row, int64_t k,
                   int first_cell) {
  const int64_t tile = row / kTileRows * shape.chunks() + k / kTileDepth;
  const int cell = first_cell + static_cast<int>(k % kTileDepth) / kCell;
  const char* place = target.tiles + tile * kTileBytes + cell_place(static_cast<int>(row % kTileRows), cell);
  _Float16 halves[kCell];
  memcpy(halves, place, sizeof halves);
  return static_cast<double>(halves[k % kCell]);
}

// The rows of a matrix from its parts: big, small and exponent.
EXPORT void parts(int64_t batch, int64_t rows, int64_t depth, int64_t batch_stride, int64_t row_stride,
                  int64_t depth_stride, const float* data, double* big, double* small, int32_t* exponents) {
  const SplitSource source{data, batch, rows, depth, batch_stride, row_stride, depth_stride};
  const SplitShape shape{batch, rows, depth};
  std::vector<double> memory(shape.bytes() / sizeof(double) + 2, 1e300);
  const SplitTarget target = shape.target(memory.data());
  split_operand(source, target, Call());
  for (int64_t image = 0; image < batch; ++image) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t stored = image * shape.row_tiles() * kTileRows + row;
      *exponents++ = target.exponents[stored];
      for (int64_t k = 0; k < depth; ++k) {
        *big++ = part(shape, target, stored, k, 0);
        *small++ = part(shape, target, stored, k, 4);
      }
    }
  }
}

// How often each chunk of each tile is computed: [image, row tile, column tile, chunk].
EXPORT void places(int64_t batch, int64_t m, int64_t n, int64_t k, int splits, int32_t* counts) {
  SplitProductArgs args;
  args.plain_a = {nullptr, batch, m, k, 0, 0, 0};
  args.plain_b = {nullptr, batch, n, k, 0, 0, 0};
  args.splits = splits;
  const int64_t down = ceil_div(m, kTileRows), across = ceil_div(n, kTileRows);
  const int64_t chunks = ceil_div(k, kTileDepth);
  args.tiles = batch * down * across;
  for (int64_t item = 0; item < args.tiles * splits; ++item) {
    const SplitPlace place = SplitPlace::of(args, item);
    for (int64_t chunk = place.first_chunk; chunk < place.end_chunk; ++chunk) {
      ++counts[((place.image * down + place.row_tile) * across + place.column_tile) * chunks + chunk];
    }
  }
}

EXPORT int splits_of(int64_t tiles, int64_t chunks, int multiprocessors) {
  return choose_splits(tiles, chunks, multiprocessors);
}

EXPORT void tf32(float x, float* big, float* small) {
  const Tf32Parts parts = split_tf32(x);
  memcpy(big, &parts.big, sizeof *big);
  memcpy(small, &parts.small, sizeof *small);
}
"""

INFINITY_MARK, NAN_MARK = 1 << 16, 1 << 18


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_header_test(SOURCE, tmp_path_factory.mktemp("split"), flags=("-Wno-unknown-pragmas",))


Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def split(library: ctypes.CDLL, matrix: torch.Tensor) -> Parts:
    """Big and small parts of [batch, rows, depth], scaled, and the exponents of rows."""
    batch, rows, depth = matrix.shape
    big, small = torch.zeros(matrix.shape).double(), torch.zeros(matrix.shape).double()
    exponents = torch.zeros(batch, rows, dtype=torch.int32)
    sizes = (ctypes.c_int64 * 6)(batch, rows, depth, *matrix.stride())
    pointers = (ctypes.c_void_p(t.data_ptr()) for t in (matrix, big, small, exponents))
    library.parts(*map(ctypes.c_int64, sizes), *pointers)
    return big, small, exponents


def whole(parts: Parts) -> torch.Tensor:
    big, small, exponents = parts
    return (big + small) * 2.0 ** exponents.double()[..., None]


def spread(*shape: int) -> torch.Tensor:
    """Signed numbers of sizes between 1e-6 and 1e6."""
    return torch.randn(shape) * 10 ** (torch.rand(shape) * 12 - 6)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 130, 33), (1, 5, 32), (3, 128, 7), (1, 257, 96)])
@pytest.mark.parametrize("layout", ["dense", "turned", "strided"])
def test_two_halves_and_an_exponent_are_the_number(
    library: ctypes.CDLL, shape: tuple[int, int, int], layout: str
) -> None:
    torch.manual_seed(0)
    batch, rows, depth = shape
    matrix = {
        "dense": spread(*shape),
        "turned": spread(batch, depth, rows).mT,
        "strided": spread(batch, rows + 1, depth * 2)[:, :rows, ::2],
    }[layout]
    off = (whole(split(library, matrix)) - matrix.double()).abs()
    largest = matrix.abs().amax(-1, keepdim=True).double()
    bound = torch.maximum(2.0**-23 * matrix.abs().double(), 2.0**-39 * largest)
    assert bool((off <= bound).all())


def test_products_of_parts_are_products_of_the_numbers(library: ctypes.CDLL) -> None:
    torch.manual_seed(0)
    a, b = spread(2, 140, 200), spread(2, 131, 200)
    (a_big, a_small, a_exponents), (b_big, b_small, b_exponents) = split(library, a), split(library, b)
    sums = a_small @ b_big.mT + a_big @ b_small.mT + a_big @ b_big.mT
    found = sums * 2.0 ** (a_exponents[:, :, None] + b_exponents[:, None, :]).double()
    exact = a.double() @ b.double().mT
    size = a.abs().double() @ b.abs().double().mT
    assert float(((found - exact).abs() / size).max()) < 2.0**-21


def test_subnormal_and_huge_rows_keep_their_bits(library: ctypes.CDLL) -> None:
    torch.manual_seed(0)
    matrix = torch.rand(1, 4, 40) * torch.tensor([1e-42, 1e-38, 1e-30, 3e38])[None, :, None]
    off = (whole(split(library, matrix)) - matrix.double()).abs()
    assert bool((off <= (2.0**-23 * matrix.double()).clamp_min(2.0**-151)).all())


def test_rows_with_an_infinity_or_a_nan_are_marked_and_are_zeros(library: ctypes.CDLL) -> None:
    matrix = torch.ones(1, 5, 40)
    matrix[0, 1, 39] = -float("inf")
    matrix[0, 2, 0] = float("nan")
    matrix[0, 3, 3:5] = torch.tensor([float("inf"), float("nan")])
    matrix[0, 4] = 0
    big, small, exponents = split(library, matrix)
    assert exponents[0].tolist() == [-14, INFINITY_MARK, NAN_MARK, NAN_MARK, 0]
    assert big[0].sum(1).tolist() == [40 * 2.0**14, 0, 0, 0, 0]
    assert float(small.abs().max()) == 0


@pytest.mark.parametrize(
    ("batch", "m", "n", "k", "splits"),
    [(1, 1, 1, 1, 1), (1, 128, 600, 320, 3), (2, 2500, 300, 96, 1), (3, 1025, 129, 999, 16)],
)
def test_every_chunk_of_every_tile_is_computed_once(
    library: ctypes.CDLL, batch: int, m: int, n: int, k: int, splits: int
) -> None:
    counts = torch.zeros(batch, -(-m // 128), -(-n // 128), -(-k // 32), dtype=torch.int32)
    sizes = (ctypes.c_int64(size) for size in (batch, m, n, k))
    library.places(*sizes, splits, ctypes.c_void_p(counts.data_ptr()))
    assert bool((counts == 1).all())


@given(st.integers(1, 5000), st.integers(1, 2000), st.integers(1, 200))
@settings(max_examples=200, deadline=None)
def test_a_split_never_takes_more_rounds_of_chunks(
    library: ctypes.CDLL, tiles: int, chunks: int, multiprocessors: int
) -> None:
    splits = int(library.splits_of(ctypes.c_int64(tiles), ctypes.c_int64(chunks), multiprocessors))

    def rounds(parts: int) -> int:
        return -(-tiles * parts // multiprocessors) * -(-chunks // parts)

    assert 1 <= splits <= 16
    assert splits == 1 or chunks // splits >= 8
    assert rounds(splits) <= rounds(1)


def test_few_tiles_of_a_long_depth_are_shared_out(library: ctypes.CDLL) -> None:
    assert library.splits_of(ctypes.c_int64(64), ctypes.c_int64(512), 132) == 2
    assert library.splits_of(ctypes.c_int64(128), ctypes.c_int64(512), 132) == 1


@pytest.mark.parametrize("x", [1.0, -3.14159274, 1e-38, 3.4e38, 0.0])
def test_tf32_parts_are_short_and_add_up(library: ctypes.CDLL, x: float) -> None:
    big, small = tf32(library, x)
    exact = float(torch.tensor(x))
    assert big + small == exact
    assert abs(small) <= max(2.0**-11 * abs(exact), 2.0**-137)
    assert int(torch.tensor(big).view(torch.int32)) & 0x1FFF == 0


@pytest.mark.parametrize("x", [float("inf"), -float("inf"), float("nan"), torch.finfo(torch.float32).max])
def test_what_is_not_finite_has_no_finite_rest(library: ctypes.CDLL, x: float) -> None:
    _, small = tf32(library, x)
    assert not math.isfinite(small)


def tf32(library: ctypes.CDLL, x: float) -> tuple[float, float]:
    big, small = ctypes.c_float(), ctypes.c_float()
    library.tf32(ctypes.c_float(x), ctypes.byref(big), ctypes.byref(small))
    return big.value, small.value
