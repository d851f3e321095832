"""embedding.h and loss.h: rows chosen by index, and losses of rows, as torch computes them."""

import ctypes
from typing import Any

import pytest

from stitch_planner.stitcher.testing import build_header_test

torch = pytest.importorskip("torch")
functional = torch.nn.functional

SOURCE = """
#include "stitch/cpu/embedding.h"
#include "stitch/cpu/loss.h"
using namespace stitch::cpu;
EXPORT int gather(int64_t rows, int64_t width, int64_t count, const int64_t* index, const float* table,
                  float* y) {
  Embedding<int64_t> embedding;
  embedding.init(rows, width);
  return embedding.run(count, index, table, y, 2);
}
EXPORT int bag(int64_t rows, int64_t width, int64_t padding, int64_t bags, int64_t count,
               const int64_t* index, const int64_t* offset, const float* table, float* y) {
  EmbeddingBag<int64_t, true> embedding;
  embedding.init(rows, width, padding);
  return embedding.run(bags, count, index, offset, table, y, 2);
}
template <bool kFromLogits, Reduction kReduction>
int go(int64_t rows, int64_t classes, float smoothing, const float* x, const int64_t* target,
       const float* weight, float* y) {
  ClassLoss<kFromLogits, kReduction> loss;
  LossOptions o;
  o.rows = rows;
  o.classes = classes;
  o.smoothing = smoothing;
  if (int rc = loss.init(o)) return rc;
  return loss.run(x, target, weight, y, 2);
}
EXPORT int cross_entropy(int64_t rows, int64_t classes, float smoothing, const float* x,
                         const int64_t* target, const float* weight, float* y) {
  return go<true, Reduction::kMean>(rows, classes, smoothing, x, target, weight, y);
}
EXPORT int nll(int64_t rows, int64_t classes, const float* x, const int64_t* target, const float* weight,
               float* y) {
  return go<false, Reduction::kNone>(rows, classes, 0.0f, x, target, weight, y);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_header_test(SOURCE, tmp_path_factory.mktemp("rows"))


def address(tensor: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def sizes(*values: int) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(value) for value in values]


def test_rows_are_gathered_and_an_index_outside_is_refused(library: ctypes.CDLL) -> None:
    table, index, y = torch.randn(50, 12), torch.randint(0, 50, (40,)), torch.empty(40, 12)
    assert library.gather(*sizes(50, 12, 40), address(index), address(table), address(y)) == 0
    assert torch.equal(y, table[index])
    index[7] = 50
    assert library.gather(*sizes(50, 12, 40), address(index), address(table), address(y)) == 2


@pytest.mark.parametrize("ragged", [False, True])
def test_bags_are_averaged_without_their_padding(library: ctypes.CDLL, ragged: bool) -> None:
    table, index = torch.randn(30, 20), torch.randint(0, 30, (24,))
    index[4:8] = 0
    offsets = torch.tensor([0, 4, 4, 8, 20, 23]) if ragged else torch.arange(0, 24, 4)
    y = torch.empty(6, 20)
    status = library.bag(
        *sizes(30, 20, 0, 6, 24),
        address(index),
        address(offsets) if ragged else None,
        address(table),
        address(y),
    )
    assert status == 0
    torch.testing.assert_close(y, functional.embedding_bag(index, table, offsets, mode="mean", padding_idx=0))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("classes", [3, 16, 47, 1000])
def test_cross_entropy_matches(library: ctypes.CDLL, classes: int, smoothing: float, weighted: bool) -> None:
    x, target = torch.randn(33, classes) * 20, torch.randint(0, classes, (33,))
    target[5] = -100
    weight, y = torch.rand(classes) if weighted else None, torch.empty(1)
    status = library.cross_entropy(
        *sizes(33, classes), ctypes.c_float(smoothing), *map(address, (x, target, weight, y))
    )
    assert status == 0
    want = functional.cross_entropy(x, target, weight, label_smoothing=smoothing)
    torch.testing.assert_close(y[0], want, rtol=1e-5, atol=1e-5)


def test_a_row_of_minus_infinities_and_one_of_nan_behave_as_in_torch(library: ctypes.CDLL) -> None:
    x, target, y = torch.randn(4, 20), torch.zeros(4, dtype=torch.int64), torch.empty(1)
    x[0, 1:] = float("-inf")
    for poison in (None, float("nan")):
        if poison is not None:
            x[1, 3] = poison
        assert (
            library.cross_entropy(*sizes(4, 20), ctypes.c_float(0.0), *map(address, (x, target, None, y)))
            == 0
        )
        torch.testing.assert_close(y[0], functional.cross_entropy(x, target), equal_nan=True)


def test_negative_log_likelihood_by_row_matches(library: ctypes.CDLL) -> None:
    x, target = torch.log_softmax(torch.randn(9, 5), dim=-1), torch.randint(0, 5, (9,))
    weight, y = torch.rand(5), torch.empty(9)
    assert library.nll(*sizes(9, 5), *map(address, (x, target, weight, y))) == 0
    torch.testing.assert_close(y, functional.nll_loss(x, target, weight, reduction="none"))
    target[2] = 5
    assert library.nll(*sizes(9, 5), *map(address, (x, target, weight, y))) == 2
