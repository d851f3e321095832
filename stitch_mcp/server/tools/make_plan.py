"""`make_plan`: which operations one kernel should compute together, and how long each should take."""

from typing import TYPE_CHECKING

from stitch_mcp.server.job_context import JobContext
from stitch_mcp.server.requests import InRun
from stitch_mcp.server.tool import Tool, ToolAnswer
from stitch_tools.models.remedy import Remedy

if TYPE_CHECKING:
    from stitch_planner.plan import Plan, PlanStep


class MakePlan(InRun):
    """Arguments of make_plan."""


class PlanAnswer(ToolAnswer):
    """The fusion plan."""

    predicted_us: float | None = None
    """Sum of the steps' times at measured limits."""
    steps: tuple[str, ...] = ()
    """Number, kind, operations (module) -> outputs; estimated us, its limit."""
    eager: int | None = None
    """Steps that the stitcher would leave to PyTorch."""
    notes: tuple[str, ...] = ()
    bottlenecks: tuple[str, ...] = ()
    """What the reference's profile found, if profile_program was called."""


def plan(request: MakePlan, work: JobContext) -> PlanAnswer:
    """Plan the fusion and record the plan in the run."""
    from stitch_mcp.server.steps import captured_facts, stored_plan
    from stitch_mcp.views.fact_tables import disturbance
    from stitch_planner.join import joined
    from stitch_planner.profiles import newest_profile
    from stitch_tools.profile.profile_text import finding_lines

    with joined(work.workbench.workspace, work.run_id) as run:
        captured = captured_facts(run)
        made, hashed = stored_plan(run, work.task, captured)
    profile = newest_profile(work.workbench.workspace, work.task.task_id)
    run_id = work.run_id
    eager = sum(step.kind == "eager" for step in made.steps)
    return PlanAnswer(
        message=_message(len(made.steps), eager),
        run_id=run_id,
        artifact=hashed,
        predicted_us=round(made.predicted_us, 2) if made.predicted_us is not None else None,
        steps=tuple(_line(step) for step in made.steps),
        eager=eager,
        notes=(*made.notes, *disturbance(captured.ceilings)),
        bottlenecks=finding_lines(profile) if profile is not None else (),
        next_steps=_next(run_id, made, is_profiled=profile is not None),
    )


def _message(steps: int, eager: int) -> str:
    counted = "1 step" if steps == 1 else f"{steps} steps"
    return f"{counted}, {eager} of them with PyTorch" if eager else counted


def _line(step: "PlanStep") -> str:
    where = f" ({step.module_path})" if step.module_path else ""
    gives = ", ".join(f"{value.dtype}{list(value.shape)}" for value in step.outputs)
    bound = f"; {step.predicted_us:.2f} us by {step.bound}" if step.predicted_us is not None else ""
    return f"{step.index} {step.kind}: {' + '.join(step.ops)}{where} -> {gives}{bound}"


def _next(run_id: str, made: "Plan", *, is_profiled: bool) -> tuple[Remedy, ...]:
    name = "program.cu" if made.target.startswith("cuda") else "program.cpp"
    own = Remedy(
        tool="compile_program",
        arguments={"run_id": run_id, "files": {name: "YOUR SOURCE"}},
        why="build your own program, from the skeleton",
    )
    skeleton = Remedy(
        tool="get_artifact",
        arguments={"id": f"stitch://skeleton/{run_id}"},
        why="a program for this task that compiles: fill in its forward",
    )
    solve = Remedy(
        tool="solve", arguments={"run_id": run_id}, why="let the stitcher write, check and time one"
    )
    if is_profiled:
        return (solve, own, skeleton)
    measure = Remedy(
        tool="profile_program",
        arguments={"run_id": run_id, "program": "reference"},
        why="see where the reference's time really goes",
    )
    return (solve, own, skeleton, measure)


TOOL = Tool(
    name="make_plan",
    title="Plan the fusion",
    description=(
        "Groups a run's operations into steps that one kernel or library call should compute, with predicted "
        "times. After analyze_reference, before you write a program. Under 2 s."
    ),
    request=MakePlan,
    answer=PlanAnswer,
    work=plan,
)
