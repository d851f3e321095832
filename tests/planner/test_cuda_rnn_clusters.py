"""rnn_cluster.cuh with a CPU thread for each of the GPU's: exchange, flags, layers one behind another.

The shapes are small, since a warp shuffle is a meeting of 32 threads; test_cuda_rnn.py has real ones.
"""

import ctypes
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from stitch_planner.stitcher.testing import build_header_test

SOURCE = """
#define STITCH_ON_HOST 1
#include "stitch/cuda/rnn_persistent.cuh"
using namespace stitch::cuda;

template <class Plan>
int run(Plan& plan, const RnnTensors& tensors) {
  Errors errors;
  Call call;
  call.errors = &errors;
  std::vector<uint64_t> scratch(plan.workspace_bytes() / 8 + 32, ~uint64_t{0});
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(scratch.data()) + 255) / 256 * 256;
  call.scratch = reinterpret_cast<void*>(begin);
  return plan.run(call, tensors);
}

template <class Sizes>
RnnOptions options_of(int steps, int first, const float* const* addresses, std::vector<RnnWeights>& weights) {
  RnnOptions options;
  options.steps = steps;
  options.batch_first = first != 0;
  for (int i = 0; i < Sizes::kLayers * Sizes::kDirections; ++i, addresses += 4) {
    weights.push_back({addresses[0], addresses[1], addresses[2], addresses[3]});
  }
  return options;
}

template <class Sizes, class Shape>
int fused(int steps, int first, int active, const float* const* addresses, const RnnTensors& tensors) {
  using Plan = FusedPlan<Sizes, Shape>;
  static_assert(Plan::kPossible, "a test of it");
  std::vector<RnnWeights> weights;
  const RnnOptions options = options_of<Sizes>(steps, first, addresses, weights);
  Plan plan(options, weights, active);
  return run(plan, tensors);
}

template <class Sizes, class Shape>
int layered(int steps, int first, int, const float* const* addresses, const RnnTensors& tensors) {
  using Plan = LayeredPlan<Sizes, Shape>;
  static_assert(Plan::kPossible, "a test of it");
  std::vector<RnnWeights> weights;
  const RnnOptions options = options_of<Sizes>(steps, first, addresses, weights);
  Plan plan(options, weights);
  CublasLt lib;
  if (const int status = plan.init(lib)) return status;
  return run(plan, tensors);
}
"""


@dataclass(frozen=True)
class ClusterCase:
    """One instantiation: a plan, the sizes of the layers, and how a cluster holds them."""

    way: str
    cell: str
    features: int
    units: int
    layers: int
    directions: int
    batch: int
    part: int
    """Sequences of a cluster."""
    blocks: int
    steps: int = 6
    batch_first: bool = False
    states: bool = True
    together: int = 8
    """Clusters that are said to run at the same time."""

    @property
    def columns(self) -> int:
        """Input columns that a cluster multiplies."""
        return -(-max(self.features, self.units) // 4) * 4 if self.way == "fused" else 0

    def text(self, name: str) -> str:
        """The function that instantiates it."""
        cell = {"lstm": "kLstm", "gru": "kGru", "tanh": "kTanh", "relu": "kRelu"}[self.cell]
        sizes = f"{cell}, {self.features}, {self.units}, {self.layers}, {self.directions}, {self.batch}"
        held = f"{self.units}, {self.columns}, {self.part}, {self.blocks}"
        begin = f"EXPORT int {name}(int steps, int first, int active, const float* const* weights, "
        return (
            f"{begin}const float* x, const float* h0, const float* c0, float* y, float* hn, float* cn) {{\n"
            f"  using Sizes = RnnSizes<Cell::{sizes}>;\n"
            f"  using Shape = ClusterShape<Cell::{cell}, {held}>;\n"
            f"  return {self.way}<Sizes, Shape>(steps, first, active, weights, {{x, h0, c0, y, hn, cn}});\n"
            "}\n"
        )


CASES = {
    "three layers": ClusterCase("fused", "lstm", 5, 4, 3, 1, 2, 2, 4),
    "parts in turn": ClusterCase("fused", "gru", 3, 4, 2, 1, 5, 2, 4, batch_first=True, together=2),
    "parts at once": ClusterCase("fused", "lstm", 9, 3, 2, 1, 3, 2, 4, steps=9, states=False),
    "tiles": ClusterCase("fused", "tanh", 4, 13, 2, 1, 3, 3, 4),
    "one step": ClusterCase("fused", "relu", 4, 8, 2, 1, 1, 1, 4, steps=1),
    "one direction": ClusterCase("layered", "gru", 5, 6, 1, 1, 3, 2, 4),
    "two directions": ClusterCase("layered", "lstm", 5, 7, 2, 2, 3, 3, 4, batch_first=True),
    "spilled weights": ClusterCase("layered", "relu", 3, 300, 1, 1, 1, 1, 4, steps=3),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    cases = "".join(case.text(f"case_{place}") for place, case in enumerate(CASES.values()))
    source = SOURCE + cases
    flags = ("-O1", "-Wno-unknown-pragmas", "-pthread")
    return build_header_test(source, tmp_path_factory.mktemp("clusters"), flags=flags)


def module_of(case: ClusterCase) -> nn.RNNBase:
    sizes = (case.features, case.units, case.layers)
    options = {"batch_first": case.batch_first, "bidirectional": case.directions == 2}
    if case.cell == "lstm":
        return nn.LSTM(*sizes, **options)
    if case.cell == "gru":
        return nn.GRU(*sizes, **options)
    return nn.RNN(*sizes, nonlinearity=case.cell, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_clusters_compute_what_torch_does(library: ctypes.CDLL, name: str) -> None:
    case = CASES[name]
    module = module_of(case)
    lead = (case.batch, case.steps) if case.batch_first else (case.steps, case.batch)
    x = torch.randn(*lead, case.features)
    h0, c0 = torch.randn(2, case.layers * case.directions, case.batch, case.units)
    y = torch.full((*lead, case.directions * case.units), torch.nan)
    hn, cn = torch.full_like(h0, torch.nan), torch.full_like(h0, torch.nan)
    weights = [parameter.detach() for parameter in module.parameters()]
    address = lambda tensor: ctypes.c_void_p(tensor.data_ptr())  # noqa: E731
    is_lstm = case.cell == "lstm"
    status = library[f"case_{list(CASES).index(name)}"](
        case.steps,
        int(case.batch_first),
        case.together,
        (ctypes.c_void_p * len(weights))(*[weight.data_ptr() for weight in weights]),
        address(x),
        address(h0) if case.states else None,
        address(c0) if case.states else None,
        address(y),
        address(hn),
        address(cn) if is_lstm else None,
    )
    assert status == 0
    start = ((h0, c0) if is_lstm else h0) if case.states else None
    with torch.inference_mode():
        want, last = module(x, start)
    torch.testing.assert_close(y, want, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(hn, last[0] if is_lstm else last, rtol=1e-5, atol=2e-6)
    if is_lstm:
        torch.testing.assert_close(cn, last[1], rtol=1e-5, atol=2e-6)
