"""rnn.h: recurrent layers of every cell, stacked and bidirectional, as torch computes them."""

import ctypes

import pytest

from stitch_planner.stitcher.testing import build_header_test
from stitch_tools.compile.headers import find_onednn

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not find_onednn().found, reason="oneDNN is not installed: not measured")

SOURCE = """
#include "stitch/cpu/rnn.h"
using namespace stitch::cpu;
template <Cell kCell>
int go(const int64_t* p, const float* const* w, const float* x, const float* h0, const float* c0, float* y,
       float* hn, float* cn) {
  Dnnl lib;
  Rnn<kCell> rnn;
  RnnOptions o;
  o.features = p[2];
  o.hidden = p[3];
  o.layers = static_cast<int>(p[4]);
  o.directions = static_cast<int>(p[5]);
  o.batch_first = p[6];
  o.has_bias = p[7];
  if (int rc = rnn.init(lib, o, w)) return rc;
  return rnn.run(p[0], p[1], x, h0, c0, y, hn, cn, static_cast<int>(p[8]));
}
#define CELL(name, cell)                                                                               \\
  EXPORT int name(const int64_t* p, const float* const* w, const float* x, const float* h0,            \\
                  const float* c0, float* y, float* hn, float* cn) {                                   \\
    return go<Cell::cell>(p, w, x, h0, c0, y, hn, cn);                                                 \\
  }
CELL(lstm, kLstm)
CELL(gru, kGru)
CELL(tanh_rnn, kTanh)
CELL(relu_rnn, kRelu)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_header_test(SOURCE, tmp_path_factory.mktemp("rnn"))


CELLS = {
    "lstm": torch.nn.LSTM,
    "gru": torch.nn.GRU,
    "tanh_rnn": torch.nn.RNN,
    "relu_rnn": lambda *args, **kwargs: torch.nn.RNN(*args, nonlinearity="relu", **kwargs),
}
# time, batch, features, hidden, layers, directions, batch first, bias, threads
SHAPES = [
    (7, 19, 12, 32, 1, 1, 1, 1, 2),
    (5, 3, 9, 37, 2, 2, 0, 1, 2),
    (6, 1, 20, 50, 1, 1, 0, 0, 2),
    (4, 2, 8, 16, 2, 1, 1, 1, 3),
    (3, 9, 8, 40, 1, 2, 1, 1, 1),
]


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cell", CELLS)
def test_each_cell_and_shape_matches(
    library: ctypes.CDLL, cell: str, shape: tuple[int, ...], states: bool
) -> None:
    time, batch, features, hidden, layers, directions, batch_first, bias, _ = shape
    module = CELLS[cell](
        features,
        hidden,
        layers,
        bias=bool(bias),
        batch_first=bool(batch_first),
        bidirectional=directions == 2,
    )
    weights = [parameter.detach() for parameter in module.parameters()]
    x = torch.randn((batch, time, features) if batch_first else (time, batch, features))
    h0, c0 = torch.randn(2, layers * directions, batch, hidden)
    y, hn, cn = torch.empty(*x.shape[:2], directions * hidden), torch.empty_like(h0), torch.empty_like(c0)
    start = ((h0, c0) if cell == "lstm" else h0) if states else None
    with torch.inference_mode():
        want, last = module(x, start)
    address = lambda tensor: ctypes.c_void_p(tensor.data_ptr())  # noqa: E731
    status = library[cell](
        (ctypes.c_int64 * 9)(*shape),
        (ctypes.c_void_p * len(weights))(*[weight.data_ptr() for weight in weights]),
        address(x),
        address(h0) if states else None,
        address(c0) if states else None,
        address(y),
        address(hn),
        address(cn) if cell == "lstm" else None,
    )
    assert status == 0
    torch.testing.assert_close(y, want, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(hn, last[0] if cell == "lstm" else last, rtol=1e-5, atol=2e-6)
    if cell == "lstm":
        torch.testing.assert_close(cn, last[1], rtol=1e-5, atol=2e-6)
