"""A captured graph computes what the module computes, in its mode, and leaves the module alone."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from stitch_tools.graph.families import family_of
from tests.graph_runner import run_graph
from tests.sampling import sampled
from tests.tools.capture_support import Body, X, assert_computes_the_same, captured, ops

FOLDER = Path(__file__).resolve().parents[3] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


def load_example(path: Path) -> tuple[nn.Module, list[Any]]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    mode = (
        "train" if 'mode = "train"' in path.with_suffix(".task.toml").read_text(encoding="utf-8") else "eval"
    )
    return module.Model(*module.get_init_inputs()).train(mode == "train"), module.get_inputs()


@pytest.mark.parametrize(
    "name", sampled((path.stem for path in EXAMPLES), ("attention", "conv_bn_relu", "embedding_pool", "gru"))
)
def test_every_example_is_exported_and_its_graph_computes_the_same(name: str) -> None:
    module, inputs = load_example(FOLDER / f"{name}.py")
    graph = captured(module, inputs)
    assert (graph.source, graph.reason) == ("export", "")
    assert graph.flops > 0
    assert_computes_the_same(graph, module, inputs)


def inplace_chain(self: Body, x: torch.Tensor) -> Any:
    y = self.lin(x)
    y.relu_()
    z = y.mul_(2)
    return y + z


def inplace_under_a_view(self: Body, x: torch.Tensor) -> Any:
    y = x * 2
    column = y[:, 0]
    y.add_(1)
    return column + y.sum(1)


def write_through_a_view(self: Body, x: torch.Tensor) -> Any:
    y = x.clone()
    y[:, 0] = 1.0
    y[y < 0] = 0.5
    return y


def mixed_types_in_place(self: Body, x: torch.Tensor) -> Any:
    y = x.to(torch.bfloat16)
    y.add_(x)
    return y


def no_grad_region(self: Body, x: torch.Tensor) -> Any:
    with torch.no_grad():
        y = self.lin(x)
    return y * 2 + x


def autocast_region(self: Body, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = self.lin(x)
    return y.float()


def constants(self: Body, x: torch.Tensor) -> Any:
    return torch.where(x > 0, x + torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor(0.5)) / float("inf")


def several_outputs(self: Body, x: torch.Tensor) -> Any:
    top = torch.topk(x, 2)
    a, b = x.chunk(2, -1)
    return {"top": top, "rest": [b, a * torch.sigmoid(b)]}


def loop(self: Body, x: torch.Tensor) -> Any:
    for i in range(3):
        x = x + i
    return x


def random_numbers(self: Body, x: torch.Tensor) -> Any:
    torch.rand(2)
    return nn.functional.dropout(x, 0.5, self.training) + torch.randn_like(x)


def contraction(self: Body, x: torch.Tensor) -> Any:
    return torch.einsum("ij,kj->ik", x, self.lin.weight)


@pytest.mark.parametrize(
    "body",
    [
        inplace_chain,
        inplace_under_a_view,
        write_through_a_view,
        mixed_types_in_place,
        no_grad_region,
        autocast_region,
        constants,
        several_outputs,
        loop,
        random_numbers,
        contraction,
    ],
)
def test_what_models_do_is_exported_and_computes_the_same(body: Callable[..., Any]) -> None:
    module = Body(body)
    graph = captured(module, [X])
    assert (graph.source, graph.reason) == ("export", "")
    assert_computes_the_same(graph, module, [X])


def test_whole_operations_are_kept() -> None:
    def body(self: Body, x: torch.Tensor) -> Any:
        return nn.functional.gelu(nn.functional.layer_norm(self.lin(x), (4,)), approximate="tanh")

    assert ops(captured(Body(body), [X])) == ["linear.default", "layer_norm.default", "gelu.default"]


def test_in_place_operations_become_their_functional_twins() -> None:
    assert ops(captured(Body(inplace_chain), [X])) == [
        "linear.default",
        "relu.default",
        "mul.Tensor",
        "add.Tensor",
    ]


def test_the_mode_decides_what_batch_norm_and_dropout_are() -> None:
    def body(self: Body, x: torch.Tensor) -> Any:
        return nn.functional.dropout(self.norm(x), 0.5, self.training)

    module = Body(body)
    training = captured(module.train(), [X])
    assert training.mode == "train"
    assert ops(training) == ["add.Tensor", "batch_norm.default", "dropout.default"]
    assert training.nodes[1].args[5] is True
    evaluating = captured(module.eval(), [X])
    assert evaluating.mode == "eval"
    assert ops(evaluating) == ["batch_norm.default"]
    assert evaluating.nodes[0].args[5] is False


def test_updated_buffers_are_outputs() -> None:
    def body(self: Body, x: torch.Tensor) -> Any:
        self.total.add_(x.sum(0))
        return self.norm(x) + self.total

    graph = captured(Body(body), [X])
    updates = {row.target: row.value for row in graph.outputs if row.kind == "buffer_mutation"}
    assert set(updates) == {"total", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert updates["total"] is not None
    assert updates["norm.running_mean"] is None


def test_a_written_input_is_an_output_and_stays_as_it_was() -> None:
    def body(self: Body, x: torch.Tensor) -> Any:
        x.add_(1)
        return x * 2

    mine = X.clone()
    graph = captured(Body(body), [mine])
    assert [(row.kind, row.target) for row in graph.outputs] == [("user", ""), ("input_mutation", "0")]
    assert torch.equal(mine, X)


def test_inputs_keep_their_path_and_numbers_become_arguments() -> None:
    def body(self: Body, tree: Any, scale: float) -> Any:
        return tree["b"][1] * scale

    graph = captured(Body(body), [{"a": X, "b": [X + 1, X + 2]}, 0.5])
    assert [row.target for row in graph.inputs if row.kind == "user"] == ["0.a", "0.b.0", "0.b.1"]
    assert graph.nodes[0].args[1] == 0.5


def test_inputs_may_be_named() -> None:
    class Named(nn.Module):
        def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> Any:
            return x - y, None

    graph = captured(Named(), {"y": X[0], "x": X})
    assert [row.target for row in graph.inputs] == ["y", "x"]
    assert len(graph.outputs) == 1, "None is no output"


def test_numbers_among_the_outputs_are_constants() -> None:
    class Numbers(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.shape[0], {"half": 0.5, "y": x * 2}, x.dim() > 5, None

    graph = captured(Numbers(), [X])
    found = run_graph(graph, Numbers(), [X])
    kinds = [torch.int64, torch.float64, torch.float32, torch.bool]
    assert [value.dtype for value in found if value is not None] == kinds
    for value, expected in zip(found, [torch.tensor(X.shape[0]), 0.5, X * 2, False], strict=True):
        assert value is not None
        assert torch.equal(value, torch.as_tensor(expected, dtype=value.dtype))


class TensorPair(NamedTuple):
    """Inputs under names that do not matter."""

    left: torch.Tensor
    right: torch.Tensor


def test_a_named_tuple_counts_by_position() -> None:
    def body(self: Body, pair: TensorPair) -> Any:
        return pair.left - pair.right

    graph = captured(Body(body), [TensorPair(X, X + 1)])
    assert [row.target for row in graph.inputs if row.kind == "user"] == ["0.0", "0.1"]


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")  # torch's remark about its own speed
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("shape", [(5, 3, 4), (5, 4)])
def test_recurrent_layers_of_every_shape_are_one_operation(
    kind: Any, batch_first: bool, shape: tuple[int, ...]
) -> None:
    extra = {"proj_size": 2} if kind is nn.LSTM else {}
    module = kind(4, 6, num_layers=2, bidirectional=True, batch_first=batch_first, **extra)
    x = torch.randn(shape)
    graph = captured(module, [x])
    node = next(node for node in graph.nodes if family_of(node.op) == "rnn")
    assert len(graph.nodes) < 12
    if len(shape) == 3:
        theirs = module(x)[0]
        assert node.outputs[0].stride == (None if theirs.is_contiguous() else tuple(theirs.stride()))
    assert_computes_the_same(graph, module, [x])


def test_a_long_recurrence_is_captured_without_running_its_steps() -> None:
    module = nn.LSTM(4, 6, num_layers=3)
    with torch.profiler.profile() as short:
        captured(module, [torch.randn(4, 2, 4)])
    with torch.profiler.profile() as long:
        captured(module, [torch.randn(400, 2, 4)])
    counts = [sum(row.count for row in run.key_averages()) for run in (short, long)]
    assert counts[1] < 1.2 * counts[0]


def test_one_tensor_given_twice_stays_two_inputs() -> None:
    def body(self: Body, x: torch.Tensor, y: torch.Tensor) -> Any:
        return x @ y.t()

    graph = captured(Body(body), [X, X])
    left, right = X, X + 1
    (result,) = run_graph(graph, Body(body), [left, right])
    assert result is not None
    assert torch.equal(result, left @ right.t())


def test_strides_are_told_where_they_are_not_dense() -> None:
    def body(self: Body, x: torch.Tensor) -> Any:
        return x.t() + 1

    graph = captured(Body(body), [X.t().contiguous().t()])
    assert graph.inputs[-1].spec.stride == (1, 3)
    assert graph.nodes[0].outputs[0].stride is None


def test_modules_are_named_by_their_path() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
    assert [node.module_path for node in captured(module, [X]).nodes] == ["0", "1.0", "1.1"]


def test_the_module_is_as_before() -> None:
    def body(self: Body, x: torch.Tensor) -> Any:
        self.count += 1
        self.last = x
        self.total.add_(1)
        return self.norm(x) * torch.rand(())

    module = Body(body)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    generator = torch.get_rng_state()
    captured(module, [X])
    assert (module.count, hasattr(module, "last")) == (0, False)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)


def test_zero_rows_are_captured() -> None:
    graph = captured(Body(inplace_chain), [torch.empty(0, 4)])
    assert graph.outputs[0].value is not None
    assert graph.nodes[0].flops == 0
