"""Notes of a run on float32 work that tensor cores compute in lower formats."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from stitch_planner.planning import make_plan
from stitch_planner.stitcher import stitch
from stitch_planner.stitcher.stitch import Stitched
from stitch_tools.graph import build_graph
from stitch_tools.models.task import Contract, Task
from stitch_tools.worker.capture.graph_capture import capture
from tests.planner.stitch_support import NO_FACTS

PRODUCTS, ATTENTION, ROUNDED = (
    "three tensor-core products of halves",
    "three TF32 products",
    "rounded to TF32",
)
REFERENCE = {"case.py": b"# where the weights of a partial program come from\n"}


class Attend(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(x, x, x)


class AttendAndSort(Attend):
    """No template sorts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).sort(descending=True).values


HEADS = torch.randn(2, 4, 32, 16)


def stitched(
    module: nn.Module, x: torch.Tensor, target: str = "cuda:sm_90", contract: Contract | None = None
) -> Stitched:
    contract = contract or Contract(mode="eval")
    task = Task(name="case", files=(), main="case.py", contract=contract, target=target)
    graph = build_graph(capture(module.eval(), [x]), contract, None)
    return stitch(task, NO_FACTS, graph, make_plan(graph, NO_FACTS, task, None), REFERENCE)


def named(program: Stitched) -> list[str]:
    """Which of the three notes the program has."""
    return [kind for kind in (PRODUCTS, ATTENTION, ROUNDED) if any(kind in note for note in program.notes)]


def test_large_products_are_named() -> None:
    assert named(stitched(nn.Linear(512, 512), torch.randn(256, 512))) == [PRODUCTS]


def test_attention_in_split_products_is_named() -> None:
    assert named(stitched(Attend(), HEADS)) == [ATTENTION]


def test_a_program_with_work_left_to_pytorch_names_what_its_segments_do() -> None:
    program = stitched(AttendAndSort(), HEADS)
    assert program.format == "kernelbench"
    assert named(program) == [ATTENTION]


def test_work_in_ordinary_float32_needs_no_note() -> None:
    assert named(stitched(Attend(), HEADS[:, :, :8])) == []
    assert named(stitched(nn.Linear(64, 64), torch.randn(4, 64))) == []
    assert named(stitched(Attend(), HEADS, "cpu")) == []


def test_a_contract_that_allows_tf32_is_named_with_what_uses_it() -> None:
    contract = Contract(mode="eval", matmul_precision="tf32")
    assert named(stitched(Attend(), HEADS, contract=contract)) == [ROUNDED]
    assert named(stitched(nn.Linear(512, 512), torch.randn(256, 512), contract=contract)) == [ROUNDED]
