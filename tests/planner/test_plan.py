"""Partition into fusion groups, predicted times, and how a plan reads."""

from pathlib import Path

import torch
from inline_snapshot import snapshot
from torch import nn
from torch.nn import functional

from stitch_mcp.views.fact_tables import plan_sections
from stitch_mcp.views.table import render_text
from stitch_planner.plan import Plan
from stitch_planner.planning import make_plan
from stitch_tools.graph import build_graph
from stitch_tools.models.graph import Ceilings
from stitch_tools.models.task import Contract, Task
from stitch_tools.worker.capture.graph_capture import capture
from tests.planner.stitch_support import NO_FACTS

CEILINGS = Ceilings(
    device="test",
    target="cpu",
    copy_bytes_per_s=20e9,
    cache_bytes_per_s=60e9,
    last_level_cache_bytes=32 << 20,
    flops_per_s={"fp32": 120e9},
    launch_us=3.0,
)


def planned(module: nn.Module, *inputs: torch.Tensor, ceilings: Ceilings | None = CEILINGS) -> Plan:
    contract = Contract(mode="train" if module.training else "eval")
    graph = build_graph(capture(module, list(inputs)), contract, ceilings)
    task = Task(name="case", files=(), main="case.py", contract=contract)
    return make_plan(graph, NO_FACTS, task, ceilings)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def test_a_residual_block_is_a_norm_and_two_products_with_epilogues() -> None:
    plan = planned(Block(), torch.randn(32, 64))
    assert [step.ops for step in plan.steps] == [
        ("layer_norm",),
        ("linear", "gelu"),
        ("linear", "add"),
    ]
    assert [step.kind for step in plan.steps] == ["rows", "library", "library"]


def test_a_plan_reads_as_a_table() -> None:
    (section,) = plan_sections(planned(Block(), torch.randn(32, 64)))
    assert render_text(section) == snapshot("""\
step  kind     by    operations     result            MFLOP    MB  at least us  bound by  where
----  -------  ----  -------------  ----------------  -----  ----  -----------  --------  -----
   0  rows     rows  layer_norm     float32[32, 64]    0.00  0.02         3.28  launch    norm
   1  library  gemm  linear + gelu  float32[32, 128]   0.53  0.06         7.44  compute   up
   2  library  gemm  linear + add   float32[32, 64]    0.53  0.07         7.40  compute   down
3 steps for cpu, at least 18.1 us in all\
""")


def test_a_norm_written_out_is_one_step_with_what_surrounds_it() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(48))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            z = functional.silu(x) * y
            return torch.tanh(z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight)

    plan = planned(Norm(), torch.randn(4, 7, 48), torch.randn(4, 7, 48))
    assert len(plan.steps) == 1
    assert plan.steps[0].kind == "rows"


def test_a_value_that_would_be_read_along_another_dim_is_not_fused() -> None:
    class Misaligned(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x - x.sum(dim=1)  # [n] broadcasts along the last dim, not along the rows it came from

    assert len(planned(Misaligned(), torch.randn(16, 16)).steps) == 2


def test_views_are_no_steps() -> None:
    class Views(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x.transpose(1, 2).unsqueeze(0)[:, :, 1:])

    plan = planned(Views(), torch.randn(3, 5, 7))
    assert [step.ops for step in plan.steps] == [("relu",)]


def test_a_step_never_waits_for_what_comes_after_it() -> None:
    """Fusing both additions around the product would make a circle."""

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.exp(x)
            return (self.fc(y) * 2).sigmoid() * y + torch.cos(y)

    plan = planned(Around(), torch.randn(8, 16))
    made: set[str] = set()
    for step in plan.steps:
        inside = set(step.nodes)
        assert all(v.name.split(".")[0] in made | inside | {"x"} or "fc" in v.name for v in step.inputs)
        made |= inside


def test_predictions_follow_bytes_operations_and_launches() -> None:
    large = planned(Block(), torch.randn(65536, 64)).steps
    assert [step.bound for step in large] == ["memory", "compute", "compute"]
    assert all(step.predicted_us is not None and step.predicted_us > 3.0 for step in large)
    small = planned(Block(), torch.randn(1, 64)).steps
    assert {step.bound for step in small} == {"launch"}
    assert planned(Block(), torch.randn(1, 64), ceilings=None).predicted_us is None


def test_what_has_no_template_stays_with_pytorch_and_says_why() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.logcumsumexp(torch.exp(x), dim=1) + 1

    plan = planned(Odd(), torch.randn(4, 9))
    eager = [step for step in plan.steps if step.kind == "eager"]
    assert [step.ops for step in eager] == [("logcumsumexp",)]
    assert "no template for aten.logcumsumexp" in eager[0].note
    assert any("logcumsumexp" in note for note in plan.notes)


def test_equal_graphs_give_equal_plans(tmp_path: Path) -> None:
    x = torch.randn(8, 64)
    block = Block()
    assert planned(block, x).canonical_json() == planned(block, x).canonical_json()


def test_a_recurrent_layer_that_drops_values_is_told_of_the_eval_mode() -> None:
    layer = nn.GRU(8, 8, num_layers=2, dropout=0.5)
    (note,) = [note for note in planned(layer, torch.randn(3, 2, 8)).notes if "stays with PyTorch" in note]
    assert note.endswith('for inference write mode = "eval" under [contract] in the task file')
    assert not [row for row in planned(layer.eval(), torch.randn(3, 2, 8)).notes if "dropout" in row]
