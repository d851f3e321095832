"""What a forward writes to its inputs is written by the program, too, and only at the end."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from stitch_planner.planning import make_plan
from stitch_planner.stitcher import Stitched, stitch
from stitch_tools.graph import build_graph
from stitch_tools.models.task import Contract, Task
from stitch_tools.worker.capture.graph_capture import capture
from tests.planner.stitch_support import NO_FACTS, Built, leaves, shared


class Of(nn.Module):
    """A forward that is one function."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> object:
        return self.function(*given)


def written(module: nn.Module, inputs: Sequence[torch.Tensor], *, compared: bool = True) -> Stitched:
    contract = Contract(input_writes="compared" if compared else "ignored")
    graph = build_graph(capture(module, [x.clone() for x in inputs]), contract, None)
    task = Task(name="case", files=(), main="case.py", contract=contract)
    return stitch(task, NO_FACTS, graph, make_plan(graph, NO_FACTS, task, None))


def fresh(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies with the same strides."""
    return [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x) for x in inputs]


def assert_same(module: nn.Module, built: Built, inputs: Sequence[torch.Tensor]) -> None:
    ours, theirs = fresh(inputs), fresh(inputs)
    with torch.no_grad():
        expected = leaves(module(*theirs))
    for mine, true in zip([*built(ours), *ours], [*expected, *theirs], strict=True):
        torch.testing.assert_close(mine, true)


def everything(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, count: torch.Tensor) -> list[torch.Tensor]:
    old = x.clone()
    x.relu_()
    product = x @ y
    y.mul_(2).add_(product.mean())
    x.copy_(z)
    z.copy_(old)
    count.add_(1)
    return [old, product, x, z, x.sum(1), count * 2]


def test_inputs_hold_afterwards_what_the_reference_leaves_there(tmp_path: Path) -> None:
    module = Of(everything)
    inputs = [torch.randn(6, 8), torch.randn(8, 8), torch.randn(6, 8), torch.arange(5)]
    built = Built(written(module, inputs), module, tmp_path)
    assert_same(module, built, inputs)
    turned = [torch.randn(8, 6).t(), torch.randn(8, 16)[:, ::2], torch.randn(6, 8), torch.arange(5)]
    assert_same(module, built, turned)


def test_an_activation_in_place_before_a_layer_is_written(tmp_path: Path) -> None:
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(16, 4))
    inputs = [torch.randn(8, 16)]
    assert_same(module, Built(written(module, inputs), module, tmp_path), inputs)


def test_nothing_is_written_where_the_contract_ignores_it(tmp_path: Path) -> None:
    module, x = Of(lambda x: x.add_(1) * 2), torch.randn(4, 6)
    given = x.clone()
    built = Built(written(module, [x], compared=False), module, tmp_path)
    torch.testing.assert_close(built([given])[0], (x + 1) * 2)
    assert torch.equal(given, x)


PARTIAL = """
import torch
from torch.nn import functional as F


class Model(torch.nn.Module):
    def forward(self, x, mean, var):
        old = x.clone()
        x[:, 1:3] = torch.logcumsumexp(x, 1)[:, :2]
        normal = F.batch_norm(x, mean, var, training=True)
        return torch.exp(normal), old, x


def get_inputs():
    return [torch.randn(6, 8), torch.zeros(8), torch.ones(8)]
"""


def test_a_program_with_eager_nodes_writes_them_too(tmp_path: Path) -> None:
    made = shared(PARTIAL, ["tuple", "leaf", "leaf", "leaf"], tmp_path)
    ours, theirs = fresh(made.inputs), fresh(made.inputs)
    expected, actual = made.module(*theirs), made.computed(*ours)
    for mine, true in zip([*actual, *ours], [*expected, *theirs], strict=True):
        torch.testing.assert_close(mine, true)


@pytest.mark.parametrize("target", ["cuda:sm_90"])
def test_a_program_for_a_gpu_writes_to_the_inputs_memory(target: str) -> None:
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(16, 4))
    graph = build_graph(capture(module, [torch.randn(8, 16)]), Contract(), None)
    task = Task(name="case", files=(), main="case.py", target=target)
    text = stitch(task, NO_FACTS, graph, make_plan(graph, NO_FACTS, task, None)).files["program.cu"].decode()
    assert "written<float>(0)" in text


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
def test_a_library_call_on_an_empty_tensor_stays_with_pytorch(tmp_path: Path) -> None:
    text = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(0, 4, 3, padding=1), nn.Linear(8, 0)

    def forward(self, x):
        y = torch.relu(self.conv(x))
        return y, self.linear(y)


def get_inputs():
    return [torch.randn(2, 0, 8, 8)]
"""
    case = shared(text, ["tuple", "leaf", "leaf"], tmp_path)
    for actual, expected in zip(case.computed(*case.inputs), case.module(*case.inputs), strict=True):
        torch.testing.assert_close(actual, expected)
