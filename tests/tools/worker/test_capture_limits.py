"""What a captured graph leaves out, and what nothing captures, with the reason."""

import dataclasses
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stitch_tools.errors import TaskError
from stitch_tools.graph import capture_graph
from stitch_tools.models.graph import Graph
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from stitch_tools.task.references import load_task
from stitch_tools.worker.capture.exporting import MAX_CONSTANT_BYTES
from stitch_tools.worker.capture.graph_capture import MAX_CONSTANTS_CHARS
from tests.graph_runner import constant_of
from tests.tools.capture_support import Body, X, captured


def test_large_constants_are_named_but_not_sent() -> None:
    values = torch.zeros(MAX_CONSTANT_BYTES // 4 + 1)

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.values = values

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum() + self.values

    constant = next(row for row in captured(Holder(), [X]).inputs if row.kind == "constant")
    assert constant.data_base64 is None
    assert constant.spec.shape == (MAX_CONSTANT_BYTES // 4 + 1,)


def test_all_constants_together_fit_one_message() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.values = [torch.full((MAX_CONSTANT_BYTES // 4,), float(i)) for i in range(9)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum() + sum(self.values)

    rows = [row for row in captured(Holder(), [X]).inputs if row.kind == "constant"]
    sent = [len(row.data_base64) for row in rows if row.data_base64]
    assert len(rows) == 9
    assert 0 < sum(sent) <= MAX_CONSTANTS_CHARS


@dataclasses.dataclass
class TensorBatch:
    """An input that hides a tensor."""

    values: torch.Tensor


def branch_on_data(self: Body, x: torch.Tensor) -> Any:
    return x * 2 if x.sum() > 0 else x * 3


def read_a_number(self: Body, x: torch.Tensor) -> Any:
    return x * x.mean().item()


def shape_from_data(self: Body, x: torch.Tensor) -> Any:
    return x[x > 0]


def through_numpy(self: Body, x: torch.Tensor) -> Any:
    return torch.from_numpy(x.numpy() * 2)


@pytest.mark.parametrize("body", [branch_on_data, read_a_number, shape_from_data, through_numpy])
def test_what_depends_on_data_is_opaque_with_the_reason(body: Callable[..., Any]) -> None:
    if body is through_numpy:
        pytest.importorskip("numpy")
    graph = captured(Body(body), [X])
    assert graph.source == "opaque"
    assert "export: " in graph.reason
    assert [node.op for node in graph.nodes] == ["stitch.opaque.default"]
    assert graph.nodes[0].bytes_read > X.nbytes
    assert len(graph.outputs) == 1


def test_a_tensor_hidden_in_an_object_is_never_baked_in() -> None:
    def body(self: Body, x: torch.Tensor, batch: TensorBatch) -> Any:
        return x + batch.values

    assert captured(Body(body), [X, TensorBatch(X)]).source == "opaque"


ATTRIBUTES = """\
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fixed = torch.tensor([1.0, 2.0])
        self.drawn = torch.randn(2)

    def forward(self, x):
        return x * self.fixed + self.drawn

def get_inputs():
    return [torch.randn(3, 2)]
"""
FAULT = ATTRIBUTES.replace("return x * self.fixed", "return [][1]")


@pytest.fixture(scope="module")
def session() -> Generator[TargetSession]:
    interpreter = find_interpreter(sys.executable, Path.cwd())
    with TargetSession(interpreter) as session:
        yield session


def served_graph(session: TargetSession, folder: Path, text: str, *, observes: bool) -> Graph:
    (folder / "net.py").write_text(text, encoding="utf-8")
    store = Store(folder / "store")
    task = load_task("net.py", workspace=folder, store=store)
    with ReferenceServer(session, task, store) as server:
        facts = server.observe() if observes else None
        return capture_graph(server.child, task, facts, None)


@pytest.mark.parametrize("observes", [True, False])
def test_a_constant_that_depends_on_the_weights_seed_is_not_sent(
    session: TargetSession, tmp_path: Path, observes: bool
) -> None:
    graph = served_graph(session, tmp_path, ATTRIBUTES, observes=observes)
    constants = {row.target: row for row in graph.inputs if row.kind == "constant"}
    assert graph.source == "export"
    assert constants["drawn"].data_base64 is None
    values = constant_of(constants["fixed"].data_base64 or "", "float32", (2,))
    assert values.tolist() == [1.0, 2.0]


def test_a_forward_that_fails_is_told_with_its_line(session: TargetSession, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"net\.py:10: .*list index out of range"):
        served_graph(session, tmp_path, FAULT, observes=False)


def test_a_graph_that_is_not_the_forward_is_not_kept() -> None:
    calls = [0]

    def body(self: Body, x: Any) -> Any:
        calls[0] += 1
        return x * calls[0]

    graph = captured(Body(body), [X])
    assert graph.source == "opaque"
    assert graph.reason.startswith(
        "export: UnsupportedGraphError: the exported graph is not the forward: output 0"
    )


def test_a_graph_that_cannot_be_run_here_is_kept_and_says_so() -> None:
    def body(self: Body, x: Any) -> Any:
        if not torch.compiler.is_exporting():
            raise MemoryError("full")
        return x + 1

    graph = captured(Body(body), [X])
    assert graph.source == "export"
    assert graph.reason.startswith("not compared with eager: MemoryError: full (at test_capture_limits.py:")
