"""Which plans are rejected: each reason once, on plans as models and people write them."""

import runpy
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional

from stitch_planner.agents.describe_plan import plan_as_answer
from stitch_planner.agents.plan_answer import read_plan, refined_plan
from stitch_planner.plan import HostPlan, LibraryChoice, Plan, PlanStep, PlanValue
from stitch_planner.plan_checks import plan_problems
from stitch_planner.planning import make_plan
from stitch_planner.step_work import StepWork
from stitch_planner.stitcher.targets import simple_graph
from stitch_tools.graph import build_graph
from stitch_tools.models.graph import Ceilings, Graph
from stitch_tools.models.task import Contract, Task
from stitch_tools.worker.capture.graph_capture import capture
from tests.compose import compose
from tests.planner.stitch_support import NO_FACTS

CEILINGS = Ceilings(
    device="test",
    target="cpu",
    copy_bytes_per_s=20e9,
    last_level_cache_bytes=0,
    flops_per_s={"fp32": 120e9},
    launch_us=3.0,
)
EXAMPLES = Path(__file__).parents[2] / "examples"
CONTRACT = Contract(mode="eval")


class GatedBlock(nn.Module):
    """A gated MLP with a residual, between views: linear, chunk, silu * gate, linear, add."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.up(x).chunk(2, dim=-1)
        return x + self.down(functional.silu(left) * right)


def captured(module: nn.Module, *inputs: torch.Tensor, target: str = "cpu") -> tuple[Graph, Plan]:
    graph = build_graph(capture(module.eval(), list(inputs)), CONTRACT, CEILINGS)
    task = Task(name="case", files=(), main="case.py", contract=CONTRACT, target=target)
    return simple_graph(task, NO_FACTS, graph), make_plan(graph, NO_FACTS, task, CEILINGS)


GRAPH, _ = captured(GatedBlock(), torch.randn(32, 64))


class StepRow(NamedTuple):
    """A step as a table of bad plans has it."""

    nodes: tuple[str, ...]
    predicted_us: float | None = None
    library: LibraryChoice = "custom"
    inputs: tuple[PlanValue, ...] | None = None
    outputs: tuple[PlanValue, ...] | None = None


def plan_of(*steps: StepRow, target: str = "cpu", host: HostPlan | None = None) -> Plan:
    """A plan whose borders follow from the graph where a step does not give them."""
    work = StepWork(GRAPH)
    planned: list[PlanStep] = []
    for place, step in enumerate(steps):
        known = [name for name in step.nodes if name in work.index.nodes]
        reads = [read.chain[0] for read in work.reads(known)]
        borders = [
            tuple(value(name if number == 0 else f"{name}.{number}") for name, number in keys)
            for keys in (reads, work.writes(known))
        ]
        planned.append(
            PlanStep(
                index=place,
                name=f"step{place}",
                kind="kernel",
                family="",
                nodes=step.nodes,
                library=step.library,
                predicted_us=step.predicted_us,
                inputs=borders[0] if step.inputs is None else step.inputs,
                outputs=borders[1] if step.outputs is None else step.outputs,
            )
        )
    return Plan(target=target, steps=tuple(planned), host=host)


def value(name: str, shape: tuple[int, ...] | None = None, dtype: str = "float32") -> PlanValue:
    """A value of the graph under its name, with another shape or type where one is given."""
    index = StepWork(GRAPH).index
    node, _, number = name.partition(".")
    spec = index.spec((node, int(number or 0)))
    return PlanValue(name=name, shape=spec.shape if shape is None else shape, dtype=dtype)


FIRST = StepRow(("linear",))
GATE = StepRow(("silu", "mul"))
LAST = StepRow(("linear_1", "add"))
X = value("x")
WEIGHTS = (value("p_up_weight"), value("p_up_bias"))

BAD: dict[str, tuple[Plan, tuple[str, ...]]] = {
    "an operation is missing": (
        plan_of(FIRST, StepRow(("silu",)), LAST),
        ("no step computes mul; add each to a step",),
    ),
    "a whole step is missing": (
        plan_of(FIRST, LAST),
        ("no step computes silu, mul; add each to a step",),
    ),
    "an operation is in two steps": (
        plan_of(StepRow(("linear", "silu")), GATE, LAST),
        ("step 1: silu is computed by step 0 already; remove it from one of them",),
    ),
    "an operation is named twice": (
        plan_of(FIRST, StepRow(("silu", "mul", "mul")), LAST),
        ("step 1: mul is named twice; name each operation once",),
    ),
    "an operation is made up": (
        plan_of(FIRST, StepRow(("silu", "mul", "dropout_9")), LAST),
        ("step 1: the graph has no dropout_9; name operations as the graph does",),
    ),
    "the order is wrong": (
        plan_of(GATE, FIRST, LAST),
        ("step 0: it reads linear, which step 1 computes later; put step 1 before it",),
    ),
    "two steps wait for each other": (
        plan_of(StepRow(("linear", "linear_1", "add")), GATE),
        ("step 0: it reads mul, which step 1 computes later, and that step waits for this one; split one",),
    ),
    "a shape at a border is wrong": (
        plan_of(FIRST._replace(outputs=(value("linear", (32, 128)),)), GATE, LAST),
        ("step 0: its output linear is float32[32, 256] in the graph, not float32[32, 128]; give it as",),
    ),
    "a type at a border is wrong": (
        plan_of(FIRST, GATE._replace(outputs=(value("mul", dtype="bfloat16"),)), LAST),
        ("step 1: its output mul is float32[32, 128] in the graph, not bfloat16[32, 128]; give it as",),
    ),
    "an input is left out": (
        plan_of(FIRST._replace(inputs=WEIGHTS), GATE, LAST),
        ("step 0: its operations read x, which is no input of it; add it to the inputs",),
    ),
    "an input is not read": (
        plan_of(FIRST._replace(inputs=(X, *WEIGHTS, value("p_down_bias"))), GATE, LAST),
        ("step 0: its input p_down_bias is not read by its operations; remove it",),
    ),
    "an output is kept back": (
        plan_of(FIRST._replace(outputs=()), GATE, LAST),
        ("step 0: others read linear, which is no output of it; add it to the outputs",),
    ),
    "an output belongs to another step": (
        plan_of(FIRST, GATE._replace(outputs=(value("mul"), value("linear"))), LAST),
        ("step 1: its output linear is not made by its operations; remove it",),
    ),
    "a product is predicted to be faster than the device": (
        plan_of(FIRST._replace(predicted_us=1.0), GATE, LAST),
        ("step 0: it is predicted to take 1 us, but reads 74,752 and writes 32,768 bytes",),
    ),
    "a fused step is predicted below its external traffic": (
        plan_of(FIRST, GATE._replace(predicted_us=2.0), LAST),
        ("predict at least 2.458 us, or null",),
    ),
    "a library does not run on the target": (
        plan_of(FIRST._replace(library="cublaslt_epilogue"), GATE, LAST),
        ("step 0: cublaslt_epilogue does not run on cpu; choose another library, or custom",),
    ),
    "a CPU has no CUDA graph": (
        plan_of(FIRST, GATE, LAST, host=HostPlan(cuda_graph=True)),
        ("the host plan asks for streams, a CUDA graph or pinned memory on cpu; leave them null",),
    ),
    "a step is empty": (plan_of(FIRST, StepRow(()), GATE, LAST), ("step 1: it computes nothing; remove it",)),
}


@pytest.mark.parametrize("name", BAD)
def test_a_plan_that_cannot_be_carried_out_is_rejected_with_step_and_remedy(name: str) -> None:
    plan, expected = BAD[name]
    problems = [str(problem) for problem in plan_problems(plan, GRAPH, CONTRACT, CEILINGS)]
    assert len(problems) == len(expected), problems
    for text, said in zip(problems, expected, strict=True):
        assert said in text


@pytest.mark.parametrize(
    "steps",
    [
        (FIRST, GATE, LAST),
        (StepRow(("linear", "silu", "mul", "linear_1", "add")),),
        (StepRow(("linear", "chunk", "silu", "mul")), LAST),
        # Views may be named where the tensor behind them is meant, and in several steps.
        (FIRST, StepRow(("chunk", "silu", "mul"), inputs=(value("chunk"), value("chunk.1"))), LAST),
        (FIRST, StepRow(("silu", "mul"), inputs=(value("linear"),)), LAST),
        # Just at its bound: what the step reads and writes at the best rate.
        (FIRST, GATE._replace(predicted_us=2.458), LAST),
    ],
)
def test_a_plan_that_can_be_carried_out_is_accepted(steps: tuple[StepRow, ...]) -> None:
    assert not plan_problems(plan_of(*steps), GRAPH, CONTRACT, CEILINGS)


def test_rates_of_a_busy_device_bound_nothing() -> None:
    fast = plan_of(FIRST._replace(predicted_us=1e-6), GATE, LAST)
    busy = CEILINGS.model_copy(update={"disturbed": True})
    assert plan_problems(fast, GRAPH, CONTRACT, CEILINGS)
    assert not plan_problems(fast, GRAPH, CONTRACT, busy)
    assert not plan_problems(fast, GRAPH, CONTRACT, None)


def test_a_lookup_is_bound_by_the_rows_that_it_picks() -> None:
    graph, plan = captured(nn.Embedding(50_000, 64), torch.zeros(4, dtype=torch.int64))
    work = StepWork(graph)
    assert work.bytes(plan.steps[0].nodes) == (4 * 64 * 4 + 4 * 8, 4 * 64 * 4)


def test_a_slice_is_bound_by_what_is_left_of_it() -> None:
    class Narrow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x[:, :2].expand(3, -1, -1))

    graph, _ = captured(Narrow(), torch.randn(8, 1000))
    assert StepWork(graph).bytes(("relu",)) == (8 * 2 * 4, 3 * 8 * 2 * 4)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_the_plans_of_the_rules_are_accepted_also_as_an_answer(path: Path) -> None:
    check_own_plans(path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(30))
def test_plans_of_composed_references_are_accepted_also_as_an_answer(seed: int, tmp_path: Path) -> None:
    check_own_plans(compose(seed).write(tmp_path))


def check_own_plans(path: Path) -> None:
    names = runpy.run_path(str(path))
    module = names["Model"](*names.get("get_init_inputs", list)())
    for target in ("cpu", "cuda:sm_90"):
        graph, plan = captured(module, *names["get_inputs"](), target=target)
        assert not plan_problems(plan, graph, CONTRACT, CEILINGS)
        assert all(step.lower_bound_us is not None for step in plan.steps)
        assert all((step.predicted_us or 0) >= (step.lower_bound_us or 0) for step in plan.steps)
        answer = f"Kept.\n\n```json\n{plan_as_answer(plan)}\n```\n"
        again = refined_plan(read_plan(answer), target, StepWork(graph), CONTRACT, CEILINGS, "m")
        assert not plan_problems(again, graph, CONTRACT, CEILINGS)
        assert [step.nodes for step in again.steps] == [step.nodes for step in plan.steps]
        assert [step.flops for step in again.steps] == [step.flops for step in plan.steps]
