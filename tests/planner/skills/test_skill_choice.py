"""Skills are chosen by what a plan computes and what limits it, the same ones each time, with a reason."""

import runpy
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from stitch_planner.agents.describe_skills import MOST_BYTES, describe_skills
from stitch_planner.plan import Plan, PlanStep, PlanValue
from stitch_planner.planning import make_plan
from stitch_planner.skills.choose import choose_skills
from stitch_planner.skills.library import Skill, packaged_skills
from stitch_tools.graph import build_graph
from stitch_tools.models.task import Contract, ReferenceFacts, Task
from stitch_tools.models.verdict import Bench, Timing
from stitch_tools.storage.store import Store

SKILLS = Path(__file__).parents[3] / "planner" / "stitch_planner" / "skills"


def value(name: str, *shape: int) -> PlanValue:
    return PlanValue(name=name, shape=shape, dtype="float32")


def step(*ops: str, us: float = 10.0, **fields: object) -> PlanStep:
    given = {"inputs": (value("x", 64, 32),), "outputs": (value("y", 64, 32),), **fields}
    return PlanStep.model_validate(
        {"index": 0, "name": ops[-1], "kind": "rows", "family": "", "nodes": ops, "ops": ops}
        | {"predicted_us": us, **given}
    )


def plan(*steps: PlanStep, target: str = "cpu") -> Plan:
    total = sum(row.predicted_us or 0.0 for row in steps)
    return Plan(target=target, steps=steps, predicted_us=total)


def names(given: Plan, *, training: bool = False, bench: Bench | None = None) -> list[str]:
    return [row.skill.name for row in choose_skills(packaged_skills(), given, training=training, bench=bench)]


def test_the_costliest_part_of_the_plan_decides_and_two_skills_are_the_most() -> None:
    many = plan(step("softmax", us=70.0), step("gru", us=25.0), step("cumsum", us=15.0))
    assert names(many) == ["cpu-softmax-rows", "cpu-recurrent-cell"]
    assert names(plan(step("softmax", us=4.0), step("gru", us=96.0))) == ["cpu-recurrent-cell"]


def test_what_limits_a_step_counts_beside_its_share() -> None:
    limited = plan(step("softmax", us=45.0, bound="memory"), step("linear", us=55.0, bound="memory"))
    assert names(limited) == ["cpu-softmax-rows", "cpu-packed-gemm"]


def test_the_target_decides_which_skills_there_are() -> None:
    lstm = step("lstm", bound="launch")
    assert names(plan(lstm)) == ["cpu-recurrent-cell"]
    assert names(plan(lstm, target="cuda:sm_90")) == ["cuda-persistent-rnn"]


def test_a_plan_without_ceilings_counts_its_steps_alike() -> None:
    unknown = [row.model_copy(update={"predicted_us": None}) for row in (step("softmax"), step("hypot"))]
    (chosen,) = choose_skills(packaged_skills(), plan(*unknown), training=False)
    assert chosen.reason == snapshot("the plan has softmax (50% of its least time)")


def test_reasons_name_operations_and_symptoms() -> None:
    products = [
        step("linear", "sigmoid", bound="compute", inputs=(value("x", 64, 32), value("p_w", 32, 32))),
        step("linear", "add", bound="compute", inputs=(value("x", 64, 32), value("p_w", 32, 32))),
    ]
    first, _ = choose_skills(packaged_skills(), plan(*products), training=False)
    assert (first.skill.name, first.reason) == snapshot(
        (
            "cpu-horizontal-fusion",
            "the plan has linear, sigmoid (100% of its least time); arithmetic limits it; "
            "several products read one input",
        )
    )
    apart = [products[0], products[1].model_copy(update={"inputs": (value("z", 64, 32),)})]
    assert "cpu-horizontal-fusion" not in names(plan(*apart))


def test_batch_norm_is_folded_in_evaluation_mode_alone() -> None:
    folded = plan(step("conv2d", "batch_norm", "relu"), target="cuda:sm_90")
    assert names(folded, training=False) == ["cuda-folded-batchnorm"]
    assert names(folded, training=True) == []


def test_a_program_far_from_the_bounds_of_its_many_steps_is_taken_for_launch_bound() -> None:
    steps = plan(*(step("scatter") for _ in range(9)), step("softmax", us=500.0), target="cuda:sm_90")
    slow, quick = (
        Bench(
            program_id="p",
            task_id="t",
            outcome="inconclusive",
            timings=(Timing(name="program", latency_us=latency_us),),
        )
        for latency_us in (5000.0, 600.0)
    )
    assert names(steps)[0] == names(steps, bench=quick)[0]
    rated = choose_skills(packaged_skills(), steps, training=False, bench=slow)
    assert "launches limit it" in {row.skill.name: row.reason for row in rated}["cuda-graph-replay"]
    quick_choice = choose_skills(packaged_skills(), steps, training=False, bench=quick)
    assert not any("launches limit it" in row.reason for row in quick_choice)


def test_a_plan_that_nothing_fits_gets_no_skill(tmp_path: Path) -> None:
    assert names(plan(step("hypot"))) == []
    facts = ReferenceFacts.model_construct(training=False)
    assert describe_skills(plan(step("hypot")), facts, None, Store(tmp_path)) == ""


def test_the_prompt_shows_pages_first_and_programs_as_far_as_they_fit(tmp_path: Path) -> None:
    facts = ReferenceFacts.model_construct(training=False)
    two = plan(step("softmax", us=60.0, bound="memory"), step("gru", us=40.0), target="cpu")
    text = describe_skills(two, facts, None, Store(tmp_path))
    assert text == describe_skills(two, facts, None, Store(tmp_path))
    assert [line for line in text.splitlines() if line.startswith(("# ", "## ", "### "))] == snapshot(
        [
            "# Recipes",
            "## cpu-softmax-rows",
            "### When",
            "### How",
            "### Look out for",
            "### Measured effect",
            "## cpu-recurrent-cell",
            "### When",
            "### How",
            "### Look out for",
            "### Measured effect",
            "## Program of cpu-softmax-rows",
            "## Program of cpu-recurrent-cell",
        ]
    )
    assert text.partition("\n\n### When")[0] == snapshot("""\
# Recipes

Chosen by the plan. Each comes with a program for a task of its own:
take over the technique, and adapt sizes, names and checks to this task.

## cpu-softmax-rows

Because the plan has softmax (60% of its least time); memory limits it.\
""")
    assert len(text.encode()) <= MOST_BYTES


@pytest.mark.parametrize("skill", packaged_skills(), ids=lambda skill: skill.name)
def test_each_skill_is_chosen_for_its_own_reference(skill: Skill) -> None:
    pytest.importorskip("torch", reason="torch is in the target interpreter only")
    from stitch_tools.worker.capture.graph_capture import capture
    from tests.planner.stitch_support import NO_FACTS

    reference = runpy.run_path(str(SKILLS / skill.name / "reference.py"))
    module = reference["Model"](*reference["get_init_inputs"]()).eval()
    contract = Contract(mode="eval")
    graph = build_graph(capture(module, reference["get_inputs"]()), contract, None)
    target = "cpu" if skill.head.metadata.target == "cpu" else "cuda:sm_90"
    task = Task(name=skill.name, files=(), main="reference.py", contract=contract, target=target)
    assert skill.name in names(make_plan(graph, NO_FACTS, task, None), training=False)
