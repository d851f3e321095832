"""Recurrent layers as CUDA programs: on the CPU, as built for GPUs, and on a GPU against torch."""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.testing import OnHost, build_for_gpus, lowered
from stitch_planner.stitcher.graph.simplify import simplify
from stitch_planner.stitcher.lower.cuda.unrolled import CudaUnrolled
from stitch_planner.stitcher.lower.graph_index import GraphIndex
from stitch_planner.stitcher.lower.kernel_ir import KernelProgram, LibraryCall
from stitch_planner.stitcher.lower.lowering import UnloweredError
from stitch_planner.stitcher.lower.operations import MatmulOp, RnnOp
from stitch_planner.stitcher.testing import build_header_test
from stitch_tools.graph.build import build_graph
from stitch_tools.models.task import Contract
from stitch_tools.worker.capture.graph_capture import capture
from stitch_tools.worker.runtime.native import NativeProgram, make_workspace
from tests.gpu_archs import each_arch

GPU = Path("/dev/nvidiactl").exists()


class Layers(nn.Module):
    """A recurrent module with first states, which gives the output and the last states."""

    def __init__(self, kind: str, *sizes: int, **options: bool) -> None:
        super().__init__()
        kinds = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN, "relu": nn.RNN}
        more = {"nonlinearity": kind} if kinds[kind] is nn.RNN else {}
        self.layers = kinds[kind](*sizes, **options, **more)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = None if not states else states if isinstance(self.layers, nn.LSTM) else states[0]
        out, last = self.layers(x, first)
        return (out, *last) if isinstance(last, tuple) else (out, last)


def inputs_of(module: Layers, steps: int, batch: int, *, states: bool) -> list[torch.Tensor]:
    layers = module.layers
    shape = (batch, steps) if layers.batch_first else (steps, batch)
    sides = layers.num_layers * (2 if layers.bidirectional else 1)
    count = (2 if isinstance(layers, nn.LSTM) else 1) if states else 0
    return [
        torch.randn(*shape, layers.input_size),
        *(torch.randn(sides, batch, layers.hidden_size) for _ in range(count)),
    ]


def weights_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def compare(found: Sequence[torch.Tensor], module: nn.Module, inputs: Sequence[torch.Tensor]) -> None:
    with torch.inference_mode():
        exact = module.double()(*(x.double() for x in inputs))
    for one, expected in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double().cpu(), expected.cpu(), rtol=2e-5, atol=5e-6)


def lowered_layers(module: Layers, inputs: Sequence[torch.Tensor]) -> KernelProgram:
    program = lowered(module.eval(), inputs)
    calls = [kernel for kernel in program.kernels if isinstance(kernel, LibraryCall)]
    assert [type(call.operation) for call in calls] == [RnnOp]
    return program


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh", "relu"])
@pytest.mark.parametrize(
    ("sizes", "options", "states"),
    [
        ((5, 7, 1), {"batch_first": True}, True),
        ((6, 9, 3), {"bias": False}, True),
        ((4, 5, 2), {"batch_first": True, "bidirectional": True}, False),
    ],
)
def test_a_program_computes_what_torch_does(
    kind: str, sizes: tuple[int, ...], options: dict[str, bool], states: bool, tmp_path: Path
) -> None:
    module = Layers(kind, *sizes, **options)
    inputs = inputs_of(module, 6, 3, states=states)
    program = OnHost(emit_cuda(lowered_layers(module, inputs)), tmp_path)
    compare(program.run(inputs, weights_of(module)), module, inputs)


def test_states_that_nobody_wants_are_not_stored() -> None:
    class Last(Layers):
        def forward(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return super().forward(x, *states)[2:]

    module = Last("lstm", 4, 6)
    program = lowered_layers(module, inputs_of(module, 3, 2, states=True))
    (call,) = program.kernels
    assert isinstance(call, LibraryCall)
    assert isinstance(call.operation, RnnOp)
    assert call.operation.last_hidden is None
    assert call.operation.last_cell is not None


def test_sequences_of_no_steps_are_refused() -> None:
    module = Layers("gru", 4, 6)
    with pytest.raises(UnloweredError, match="over nothing"):
        lowered(module.eval(), inputs_of(module, 0, 2, states=True))


class Written(nn.Module):
    """A recurrence in Python: what a step gives is a product of the state, or the state."""

    def __init__(self, *, dim: int = 0, state_first: bool = False, product: bool = False) -> None:
        super().__init__()
        self.dim, self.state_first = dim, state_first
        self.step, self.other = nn.Linear(8 + 12, 12), nn.Linear(8 + 12, 12)
        self.result = nn.Linear(12, 4, bias=False) if product else nn.Identity()

    def after(self, here: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        parts = (hidden, here) if self.state_first else (here, hidden)
        return torch.tanh(self.step(torch.cat(parts, dim=1)))

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results: list[torch.Tensor] = []
        for t in range(x.shape[self.dim]):
            hidden = self.after(x.select(self.dim, t), hidden)
            results.append(self.result(hidden))
        return (torch.stack(results, dim=self.dim),)


class Unbound(Written):
    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results: list[torch.Tensor] = []
        for here in x:
            hidden = self.after(here, hidden)
            results.append(hidden)
        return (torch.stack(results),)


@pytest.mark.parametrize(
    "module",
    [
        Written(product=True),
        Written(dim=1, state_first=True, product=True),
        Written(dim=1),
        Unbound(),
    ],
    ids=["product", "batch first, state first", "states", "unbound"],
)
def test_a_recurrence_in_python_becomes_one_call(module: Written, tmp_path: Path) -> None:
    inputs = [torch.randn((3, 6, 8) if module.dim else (6, 3, 8)), torch.randn(3, 12)]
    program = lowered(module.eval(), inputs)
    calls = [kernel.operation for kernel in program.kernels if isinstance(kernel, LibraryCall)]
    has_product = isinstance(module.result, nn.Linear)
    assert [type(call) for call in calls] == ([RnnOp, MatmulOp] if has_product else [RnnOp])
    assert len(program.kernels) == len(calls)
    compare(OnHost(emit_cuda(program), tmp_path).run(inputs, weights_of(module)), module, inputs)


class LastStateLeaves(Written):
    """The last state leaves beside the results."""

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results: list[torch.Tensor] = []
        for t in range(len(x)):
            hidden = self.after(x[t], hidden)
            results.append(hidden)
        return (torch.stack(results), hidden)


class ResultsReversed(Written):
    """Results in another order than steps."""

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results: list[torch.Tensor] = []
        for t in range(len(x)):
            hidden = self.after(x[t], hidden)
            results.insert(0, hidden)
        return (torch.stack(results),)


class WeightsAlternate(Written):
    """Two sets of weights in turn."""

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results: list[torch.Tensor] = []
        for t in range(len(x)):
            joined = torch.cat((x[t], hidden), dim=1)
            hidden = torch.tanh((self.step, self.other)[t % 2](joined))
            results.append(hidden)
        return (torch.stack(results),)


class StepLeftOut(Written):
    """Not all steps of the input."""

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results: list[torch.Tensor] = []
        for t in range(len(x) - 1):
            hidden = self.after(x[t], hidden)
            results.append(hidden)
        return (torch.stack(results),)


def taken(module: nn.Module) -> bool:
    """Whether some node of the module's graph begins a recurrence."""
    inputs = [torch.randn(6, 3, 8), torch.randn(3, 12)]
    graph = simplify(build_graph(capture(module.eval(), inputs), Contract(mode="eval"), None))
    index = GraphIndex(graph)
    return any(CudaUnrolled().refuses(node, index) is None for node in graph.nodes)


@pytest.mark.parametrize("kind", [LastStateLeaves, ResultsReversed, WeightsAlternate, StepLeftOut])
def test_other_chains_are_not_taken_for_a_recurrence(kind: type[Written]) -> None:
    assert taken(Written())
    assert not taken(kind())


SHARES = """
#include "stitch/cuda/rnn_shape.cuh"
using namespace stitch::cuda;
// Folds as the kernel does, for all lanes of a group; sums[lane] is where the lane's items end up.
template <int kItems, int kLanes>
int fold(const double* values, double* sums, int* begins, int* ends) {
  static double held[kLanes][kItems];
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < kItems; ++i) held[lane][i] = values[lane * kItems + i];
    const LaneShare<kItems, kLanes> share(lane);
    begins[lane] = share.begin;
    ends[lane] = share.end;
  }
  int count = kItems;
  for (int mask = kLanes / 2; mask > 0; mask /= 2) {
    const int half = (count + 1) / 2;
    static double next[kLanes][kItems];
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int i = 0; i < half; ++i) {
        const int place = lane & mask ? half + i : i;
        next[lane][i] = place < count ? held[lane][place] + held[lane ^ mask][place] : 0.0;
      }
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int i = 0; i < half; ++i) held[lane][i] = next[lane][i];
    }
    count = half;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < count; ++i) sums[lane * kItems + i] = held[lane][i];
  }
  return LaneShare<kItems, kLanes>::kOwn;
}
#define FOLD(items, lanes)                                                                        \\
  EXPORT int fold_##items##_##lanes(const double* v, double* s, int* b, int* e) {             \\
    return fold<items, lanes>(v, s, b, e);                                                        \\
  }
FOLD(10, 16)
FOLD(1, 32)
FOLD(40, 32)
FOLD(12, 8)
FOLD(7, 1)
FOLD(3, 4)
// Banks that eight lanes at neighbouring columns read from in one vector access.
EXPORT int widest_conflict(int batch) {
  const int vector = detail::column_vector(batch), stride = detail::column_stride(batch);
  if (stride < batch || stride % vector) return 99;
  int used[32] = {}, most = 0;
  for (int lane = 0; lane < 32 / vector; ++lane) {
    for (int i = 0; i < vector; ++i) {
      int& uses = used[(lane * stride + i) % 32];
      most = ++uses > most ? uses : most;
    }
  }
  return most;
}
template <class S>
constexpr bool covers() {
  return S::kPadded >= S::kUnits && S::kStateColumns * S::kLanes >= S::kPadded &&
         S::kInputColumns * S::kLanes >= S::kInputs && S::kThreads <= S::kMostThreads &&
         S::kGroups * S::kLanes == S::kThreads && S::kWarpFloats % S::kSend == 0;
}
template <class S>
constexpr bool works() {
  return covers<S>() && S::kFits;
}
static_assert(works<ClusterShape<Cell::kLstm, 256, 256, 10, 16>>(), "all weights of a layer in 16 blocks");
static_assert(works<ClusterShape<Cell::kGru, 100, 0, 3, 8>>(), "units that no tile divides");
static_assert(works<ClusterShape<Cell::kTanh, 50, 64, 7, 16>>(), "");
static_assert(works<ClusterShape<Cell::kLstm, 512, 0, 2, 16>>(), "registers and shared memory");
static_assert(!ClusterShape<Cell::kLstm, 1024, 0, 2, 16>::kFits, "more weights than 16 blocks hold");
static_assert(!ClusterShape<Cell::kLstm, 256, 0, 13, 16>::kFits, "13 sequences need too many registers");
"""


@pytest.fixture(scope="module")
def shares(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return build_header_test(SHARES, tmp_path_factory.mktemp("shares"))


@pytest.mark.parametrize(("items", "lanes"), [(10, 16), (1, 32), (40, 32), (12, 8), (7, 1), (3, 4)])
def test_lanes_share_their_sums_without_a_gap_and_without_overlap(
    shares: ctypes.CDLL, items: int, lanes: int
) -> None:
    values = torch.randn(lanes, items, dtype=torch.float64)
    sums = torch.zeros(lanes, items, dtype=torch.float64)
    begins, ends = torch.zeros(2, lanes, dtype=torch.int32)
    address = lambda tensor: ctypes.c_void_p(tensor.data_ptr())  # noqa: E731
    own = shares[f"fold_{items}_{lanes}"](address(values), address(sums), address(begins), address(ends))
    owners = [range(int(b), int(e)) for b, e in zip(begins, ends, strict=True)]
    assert sorted(item for owner in owners for item in owner) == list(range(items))
    assert max(len(owner) for owner in owners) == own
    for lane, owner in enumerate(owners):
        for place, item in enumerate(owner):
            assert sums[lane, place] == pytest.approx(float(values[:, item].sum()))


def test_neighbouring_columns_lie_in_different_banks(shares: ctypes.CDLL) -> None:
    assert [shares.widest_conflict(batch) for batch in range(1, 13)] == [1] * 12


@pytest.mark.nvcc
@pytest.mark.slow
@each_arch
def test_kernels_build_with_few_spills(archs: tuple[str, ...], tmp_path: Path) -> None:
    module = Layers("lstm", 128, 256, 6, batch_first=True)
    text = emit_cuda(lowered_layers(module, inputs_of(module, 32, 10, states=True)))
    build = build_for_gpus(text, tmp_path, archs)
    assert build.ok, [row.message for row in build.diagnostics]
    assert build.diagnostics == ()
    assert build.archs == archs
    # Weights fill the registers up to a margin that is measured on sm_90; elsewhere a few may go to memory.
    most = {"sm_80": 0, "sm_90": 0, "sm_100": 64}
    assert all(row.spill_store_bytes <= most[row.arch] for row in build.resources)


CASES = [
    ("lstm", (20, 64, 1), {}, 7, 10),
    ("lstm", (33, 100, 2), {"batch_first": True}, 7, 33),
    ("lstm", (128, 256, 6), {"batch_first": True}, 512, 10),
    ("lstm", (128, 256, 3), {"bias": False}, 50, 1),
    ("lstm", (64, 512, 2), {"bidirectional": True}, 30, 10),
    ("lstm", (64, 128, 2), {}, 1, 4),
    ("gru", (128, 256, 6), {}, 512, 10),
    ("gru", (17, 100, 2), {"bidirectional": True, "batch_first": True}, 33, 5),
    ("gru", (64, 512, 3), {}, 30, 10),
    ("tanh", (40, 256, 3), {}, 64, 10),
    ("tanh", (1024, 256, 1), {}, 256, 8),
    ("relu", (40, 50, 2), {"bidirectional": True, "bias": False}, 20, 6),
]


@pytest.mark.gpu
@pytest.mark.nvcc
@pytest.mark.slow
@pytest.mark.skipif(not GPU, reason="no NVIDIA GPU here: not measured")
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize(("kind", "sizes", "options", "steps", "batch"), CASES)
def test_a_gpu_computes_what_torch_does(
    kind: str,
    sizes: tuple[int, ...],
    options: dict[str, bool],
    steps: int,
    batch: int,
    states: bool,
    tmp_path: Path,
) -> None:
    module = Layers(kind, *sizes, **options)
    inputs = inputs_of(module, steps, batch, states=states)
    major, minor = torch.cuda.get_device_capability()
    build = build_for_gpus(emit_cuda(lowered_layers(module, inputs)), tmp_path, archs=(f"sm_{major}{minor}",))
    assert build.artifact is not None, [row.message for row in build.diagnostics]
    program = NativeProgram(build.artifact)
    module, inputs = module.cuda(), [x.cuda() for x in inputs]
    program.init(list(weights_of(module).items()), device="cuda")
    planned = program.plan(inputs)
    outputs = [torch.full(shape, torch.nan, dtype=dtype).cuda() for shape, dtype in planned.outputs]
    workspace = make_workspace(planned.workspace_bytes, "cuda")
    prepared = program.prepare(inputs, outputs, workspace=workspace)
    program.call(prepared)
    torch.cuda.synchronize()
    first = [output.clone() for output in outputs]
    if workspace is not None:
        workspace.fill_(255)
    program.call(prepared)
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(first, outputs, strict=True)), "equal bits in each call"
    compare(outputs, module, inputs)
