"""The work of an operation, against hand-counted figures, torch's own counter, and its lower-bound time."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from stitch_tools.errors import WorkerError
from stitch_tools.graph import build_graph
from stitch_tools.graph.bounds import min_time_us
from stitch_tools.graph.cost import OperationWork, distinct_bytes, node_work
from stitch_tools.graph.families import family_of
from stitch_tools.models.graph import Argument, Ceilings, Graph, GraphNode, ValueRef
from stitch_tools.models.task import Contract, TensorSpec
from stitch_tools.worker.capture.graph_capture import capture

CEILINGS = Ceilings(
    device="a device",
    target="cpu",
    copy_bytes_per_s=10e9,
    cache_bytes_per_s=100e9,
    last_level_cache_bytes=1_000_000,
    flops_per_s={"fp32": 1e12, "tf32": 4e12, "bf16": 8e12},
    launch_us=2.0,
)


def spec(*shape: int, dtype: str = "float32", stride: tuple[int, ...] | None = None) -> TensorSpec:
    return TensorSpec(name="t", shape=shape, dtype=dtype, stride=stride)


def work_of(
    op: str, inputs: list[TensorSpec], out: TensorSpec, *rest: Argument, **named: Argument
) -> OperationWork:
    """Work of `op` on `inputs`, all positional, followed by `rest`."""
    specs = {(f"v{i}", 0): value for i, value in enumerate(inputs)}
    args = (*(ValueRef(ref=name) for name, _ in specs), *rest)
    return node_work(GraphNode(name="n", op=op, args=args, kwargs=named, outputs=(out,)), specs)


@pytest.mark.parametrize(
    ("op", "inputs", "out", "rest", "flops"),
    [
        (
            "aten.linear.default",
            [spec(8, 16), spec(32, 16), spec(32)],
            spec(8, 32),
            (),
            2 * 8 * 16 * 32 + 256,
        ),
        ("aten.matmul.default", [spec(2, 8, 16), spec(16, 4)], spec(2, 8, 4), (), 2 * 2 * 8 * 16 * 4),
        ("aten.addmm.default", [spec(4), spec(8, 16), spec(16, 4)], spec(8, 4), (), 2 * 8 * 16 * 4 + 32),
        ("aten.conv2d.default", [spec(2, 3, 8, 8), spec(4, 3, 3, 3)], spec(2, 4, 6, 6), (), 2 * 288 * 27),
        ("aten.conv2d.default", [spec(1, 8, 4, 4), spec(8, 1, 3, 3)], spec(1, 8, 2, 2), (), 2 * 32 * 9),
        (
            "aten.conv_transpose2d.input",
            [spec(1, 6, 4, 4), spec(6, 5, 2, 2)],
            spec(1, 5, 8, 8),
            (None, (2, 2)),
            2 * 96 * 20,
        ),
        ("aten.add.Tensor", [spec(4, 4), spec(4)], spec(4, 4), (), 16),
        ("aten.where.self", [spec(4, dtype="bool"), spec(4), spec(4)], spec(4), (), 4),
        ("aten.sum.dim_IntList", [spec(4, 8)], spec(4), ((1,),), 32),
        ("aten.softmax.int", [spec(4, 8)], spec(4, 8), (-1,), 32),
        ("aten.layer_norm.default", [spec(4, 8), spec(8), spec(8)], spec(4, 8), (), 32),
        ("aten.max_pool2d.default", [spec(1, 2, 4, 4)], spec(1, 2, 2, 2), ((2, 2),), 32),
        ("aten.adaptive_avg_pool2d.default", [spec(1, 2, 4, 4)], spec(1, 2, 1, 1), ((1, 1),), 32),
        ("aten.mse_loss.default", [spec(4, 8), spec(4, 8)], spec(), (), 32),
        ("aten.cat.default", [spec(16)], spec(16), (), 0),
    ],
)
def test_work_is_what_one_counts_by_hand(
    op: str,
    inputs: list[TensorSpec],
    out: TensorSpec,
    rest: tuple[Argument, ...],
    flops: int,
) -> None:
    if op == "aten.layer_norm.default":
        ref = [ValueRef(ref=f"v{i}") for i in range(3)]
        node = GraphNode(name="n", op=op, args=(ref[0], (8,), ref[1], ref[2]), outputs=(out,))
        work = node_work(node, {(f"v{i}", 0): value for i, value in enumerate(inputs)})
    else:
        work = work_of(op, inputs, out, *rest)
    assert work.flops == flops
    assert work.bytes_read == sum(value.nbytes for value in inputs)
    assert work.bytes_written == out.nbytes


def costed(module: nn.Module, *inputs: Any) -> Any:
    return build_graph(capture(module, inputs), Contract(), CEILINGS)


MATRIX_MODULES: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.Linear(16, 32, bias=False), (8, 16)),
    (nn.Conv1d(4, 6, 3, bias=False), (2, 4, 20)),
    (nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), (2, 4, 9, 9)),
    (nn.Conv2d(8, 8, 3, groups=8, bias=False), (2, 8, 9, 9)),
    (nn.Conv3d(2, 3, 2, bias=False), (1, 2, 5, 5, 5)),
    (nn.ConvTranspose2d(6, 5, 2, stride=2, bias=False), (2, 6, 7, 7)),
    (nn.ConvTranspose2d(6, 4, 3, groups=2, bias=False), (2, 6, 7, 7)),
]


@pytest.mark.parametrize(("module", "shape"), MATRIX_MODULES, ids=lambda value: str(value)[:30])
def test_matrix_work_agrees_with_torchs_own_counter(module: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    with FlopCounterMode(display=False) as counter:
        module(x)
    assert costed(module, x).flops == counter.get_total_flops()


def test_attention_counts_both_products_and_half_when_causal() -> None:
    class Attention(nn.Module):
        def __init__(self, causal: bool) -> None:
            super().__init__()
            self.causal = causal

        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)

    q, k, v = torch.randn(2, 4, 10, 8), torch.randn(2, 4, 12, 8), torch.randn(2, 4, 12, 6)
    node = costed(Attention(False), q, k, v).nodes[0]
    assert node.flops == 2 * 4 * 10 * 12 * (2 * 8 + 2 * 6 + 10)
    assert costed(Attention(True), q, k, v).nodes[0].flops == node.flops // 2


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_work_is_its_matrix_products_in_every_step(kind: Any, gates: int) -> None:
    graph = costed(kind(5, 7, num_layers=2, bidirectional=True), torch.randn(11, 3, 5))
    node = next(node for node in graph.nodes if family_of(node.op) == "rnn")
    weights = 2 * gates * 7 * (5 + 7) + 2 * gates * 7 * (14 + 7)
    assert node.flops == 2 * 11 * 3 * weights + 10 * 11 * 3 * 4 * gates * 7
    assert len(node.outputs) == (3 if kind is nn.LSTM else 2)


def test_a_graph_of_an_older_version_is_read() -> None:
    graph = costed(nn.ReLU(), torch.randn(4))
    data = graph.model_dump(mode="json")
    data["nodes"][0]["reduction_length"] = 1
    assert Graph.model_validate(data) == graph


def test_an_embedding_reads_the_rows_that_it_looks_up() -> None:
    node = costed(nn.Embedding(1000, 8), torch.zeros(4, dtype=torch.int64)).nodes[0]
    assert node.bytes_read == 4 * 8 * 4 + 4 * 8
    assert node.flops == 0


class Chain(nn.Module):
    """Views, then an operation that must copy."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, _ = x.transpose(1, 2).unsqueeze(0).split(2, -1)
        return a.reshape(-1)


def test_views_move_nothing_and_a_reshape_that_must_copy_does() -> None:
    graph = costed(Chain(), torch.randn(3, 4, 5))
    *views, reshape = graph.nodes
    assert [(node.bytes_read, node.bytes_written, node.min_time_us) for node in views] == [(0, 0, 0.0)] * len(
        views
    )
    assert (reshape.bytes_read, reshape.bytes_written) == (120, 120)


@given(
    st.permutations(range(3)),
    st.lists(st.integers(1, 4), min_size=3, max_size=3),
    st.sampled_from([(-1,), (2, -1), (-1, 2), (3, -1), (-1, 1, 4)]),
)
def test_a_reshape_copies_exactly_where_torch_says_so(
    order: list[int], sizes: list[int], shape: tuple[int, ...]
) -> None:
    x = torch.empty(sizes).permute(order)
    known = math.prod(size for size in shape if size > 0)
    if x.numel() % known:
        return
    result = x.reshape(shape)
    copies = result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    strided = None if x.is_contiguous() else tuple(x.stride())
    out = spec(*result.shape, stride=None if result.is_contiguous() else tuple(result.stride()))
    work = work_of("aten.reshape.default", [spec(*x.shape, stride=strided)], out, shape)
    assert (work.bytes_read > 0) == copies


def test_repeated_elements_of_an_expanded_tensor_count_once() -> None:
    assert distinct_bytes(spec(8, 16, stride=(1, 0))) == 32
    assert distinct_bytes(spec(8, 16)) == 512
    work = work_of("aten.mul.Tensor", [spec(8, 16), spec(8, 16, stride=(1, 0))], spec(8, 16))
    assert work.bytes_read == 512 + 32


def test_a_value_that_is_used_twice_is_read_once() -> None:
    ref = ValueRef(ref="v")
    node = GraphNode(name="n", op="aten.mul.Tensor", args=(ref, ref), outputs=(spec(8),))
    assert node_work(node, {("v", 0): spec(8)}).bytes_read == 32


@pytest.mark.parametrize(
    ("equation", "inputs", "out", "flops"),
    [
        ("bij,bjk->bik", [spec(2, 3, 4), spec(2, 4, 5)], spec(2, 3, 5), 2 * 2 * 3 * 4 * 5),
        ("i,j->ij", [spec(3), spec(4)], spec(3, 4), 24),
        ("...i,...i", [spec(3, 4), spec(3, 4)], spec(3), 6),
    ],
)
def test_einsum_counts_the_whole_contraction(
    equation: str, inputs: list[TensorSpec], out: TensorSpec, flops: int
) -> None:
    specs = {(f"v{i}", 0): value for i, value in enumerate(inputs)}
    operands = tuple(ValueRef(ref=name) for name, _ in specs)
    work = node_work(
        GraphNode(name="n", op="aten.einsum.default", args=(equation, operands), outputs=(out,)), specs
    )
    assert work.flops == flops


def test_operations_without_elements_cost_nothing_and_divide_by_nothing() -> None:
    work = work_of("aten.linear.default", [spec(0, 16), spec(32, 16)], spec(0, 32))
    assert (work.flops, work.bytes_written) == (0, 0)
    work_of("aten.mean.dim", [spec(0, 4)], spec(0), (1,))
    work_of("aten.conv2d.default", [spec(0, 3, 4, 4), spec(0, 3, 3, 3)], spec(0, 0, 2, 2))


class TestBounds:
    """The shortest time: bytes or operations, whichever takes longer, and one launch."""

    def test_a_large_tensor_moves_at_memory_bandwidth(self) -> None:
        work = OperationWork(flops=0, bytes_read=5_000_000, bytes_written=5_000_000)
        assert min_time_us(work, "arithmetic", CEILINGS, Contract(), "float32") == pytest.approx(1002.0)

    def test_a_small_tensor_moves_at_cache_bandwidth(self) -> None:
        work = OperationWork(flops=0, bytes_read=400_000, bytes_written=100_000)
        assert min_time_us(work, "arithmetic", CEILINGS, Contract(), "float32") == pytest.approx(7.0)

    @pytest.mark.parametrize(("precision", "expected"), [("fp32", 752.0), ("tf32", 252.0), ("bf16", 127.0)])
    def test_a_matrix_product_runs_at_the_fastest_rate_that_the_contract_allows(
        self, precision: str, expected: float
    ) -> None:
        contract = Contract.model_validate({"matmul_precision": precision})
        work = OperationWork(flops=10**9, bytes_read=0, bytes_written=0)
        assert min_time_us(work, "gemm", CEILINGS, contract, "float32") == pytest.approx(expected)
        assert min_time_us(work, "conv", CEILINGS, contract, "float32") == pytest.approx(752.0)

    def test_a_float32_product_is_bound_by_three_of_a_shorter_format_or_by_its_own_rate(self) -> None:
        work = OperationWork(flops=10**9, bytes_read=0, bytes_written=0)
        slow_tf32 = CEILINGS.model_copy(update={"flops_per_s": {"fp32": 1e12, "tf32": 2e12}})
        fast_half = CEILINGS.model_copy(update={"flops_per_s": {"fp32": 1e12, "fp16": 12e12}})
        assert min_time_us(work, "gemm", slow_tf32, Contract(), "float32") == pytest.approx(1002.0)
        assert min_time_us(work, "gemm", fast_half, Contract(), "float32") == pytest.approx(252.0)

    def test_half_precision_tensors_run_at_their_own_rate(self) -> None:
        work = OperationWork(flops=8 * 10**9, bytes_read=0, bytes_written=0)
        assert min_time_us(work, "gemm", CEILINGS, Contract(), "bfloat16") == pytest.approx(1002.0)

    def test_without_ceilings_there_is_no_time(self) -> None:
        graph = build_graph(capture(nn.Linear(4, 4), [torch.ones(2, 4)]), Contract(), None)
        assert [node.min_time_us for node in graph.nodes] == [None]

    def test_a_malformed_graph_is_our_error(self) -> None:
        with pytest.raises(WorkerError, match="malformed"):
            build_graph({"source": "magic"}, Contract(), None)
        output = {"name": "n", "shape": [2], "dtype": "float32"}
        for refs, outputs in (("gone", [output]), ("n", []), ("gone", [])):
            node = {"name": "n", "op": "aten.relu.default", "args": [{"ref": refs}], "outputs": outputs}
            with pytest.raises(WorkerError, match="cannot be costed"):
                build_graph({"source": "export", "nodes": [node]}, Contract(), None)
