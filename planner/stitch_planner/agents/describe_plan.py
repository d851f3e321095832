"""A plan, and the graph behind it, in the words of a prompt."""

from collections.abc import Iterable

from stitch_planner.agents.prompting import bullets, clipped
from stitch_planner.plan import Plan, PlanStep
from stitch_planner.step_work import StepWork, is_view, value_name
from stitch_tools.graph.families import base_name
from stitch_tools.models.base import canonical_json
from stitch_tools.models.graph import Argument, GraphNode, ValueRef

_MOST_STEPS = 60
_LONGEST_OPS, _LONGEST_CALL = 120, 400
_ANSWERED = ("goal", "nodes", "library", "predicted_us", "risks", "acceptance")
"""The fields of a step that an answer has too; borders are left out, since the operations show them."""


def describe_plan(plan: Plan) -> str:
    """A table of the costliest steps in the order of execution, and what a model adds to it."""
    costly = sorted(plan.steps, key=lambda step: -(step.predicted_us or step.lower_bound_us or 0.0))
    kept = [step for step in plan.steps if step in costly[:_MOST_STEPS]]
    rows = [
        "| step | operations | shape written | FLOP | bytes | at least | limited by |",
        "|---|---|---|---|---|---|---|",
    ]
    rows += [_row(step, refined=bool(plan.author)) for step in kept]
    if len(plan.steps) > len(kept):
        rows.append(f"\n{len(plan.steps) - len(kept)} cheaper steps are left out.")
    if plan.predicted_us is not None and not plan.author:
        rows.append(f"\nAll steps one after the other: at least {plan.predicted_us:.3g} us.")
    return "\n".join(rows) + (f"\n\n{_refined(plan, kept)}" if plan.author else "")


def _row(step: PlanStep, *, refined: bool) -> str:
    shape = ", ".join(f"{value.dtype}{list(value.shape)}" for value in step.outputs) or "-"
    bound = step.lower_bound_us if refined else step.predicted_us
    least = "?" if bound is None else f"{bound:.3g} us"
    ops = " + ".join(step.ops)
    return (
        f"| {step.index} | {clipped(ops, _LONGEST_OPS)} | {shape} | {step.flops:.3g} | {step.bytes:,} |"
        f" {least} | {step.bound or '?'} |"
    )


def _refined(plan: Plan, steps: Iterable[PlanStep]) -> str:
    """What the model says of the steps and around them."""
    lines = [f"A proposal of {plan.author}: its steps fit the graph, its times are guesses."]
    lines += [f"Strategy: {plan.strategy}"] if plan.strategy else []
    lines += [bullets([_said(step) for step in steps])]
    lines += [f"Host: {plan.host.summary}"] if plan.host and plan.host.summary else []
    lines += [f"Risks: {'; '.join(plan.risks)}"] if plan.risks else []
    return "\n\n".join(lines)


def _said(step: PlanStep) -> str:
    words = [f"step {step.index}: {step.goal}"]
    words += [f"by {step.library}"] if step.library else []
    words += [f"expected {step.predicted_us:.3g} us"] if step.predicted_us is not None else []
    words += [f"risk: {risk}" for risk in step.risks]
    words += [f"done when: {step.acceptance}"] if step.acceptance else []
    return "; ".join(words)


def describe_operations(work: StepWork) -> str:
    """The graph's inputs and operations, a line each."""
    inputs = [
        f"{item.name}: {item.kind} {item.target}, {item.spec.dtype}{list(item.spec.shape)}"
        for item in work.index.graph.inputs
    ]
    leaving = [out.value for out in work.index.graph.outputs if out.value is not None]
    outputs = ", ".join(value_name((value.ref, value.index)) for value in leaving)
    return "\n".join(
        (*inputs, "", *(_operation(node) for node in work.index.graph.nodes), "", f"outputs: {outputs}")
    )


def _operation(node: GraphNode) -> str:
    given = [_argument(value) for value in node.args]
    given += [f"{name}={_argument(value)}" for name, value in node.kwargs.items()]
    call = clipped(f"{base_name(node.op)}({', '.join(given)})", _LONGEST_CALL).replace("\n", " ")
    gives = ", ".join(f"{spec.dtype}{list(spec.shape)}" for spec in node.outputs)
    cost = "; a view" if is_view(node) else f"; {node.flops:.3g} FLOP" if node.flops else ""
    return f"{node.name} = {call} -> {gives}{cost}"


def _argument(value: Argument) -> str:
    if isinstance(value, ValueRef):
        return value_name((value.ref, value.index))
    if isinstance(value, tuple):
        return f"[{', '.join(map(_argument, value))}]"
    return repr(value)


def plan_as_answer(plan: Plan) -> str:
    """The plan in the form in which a model answers."""
    head: dict[str, object] = {"strategy": plan.strategy, "risks": plan.risks, "host": None}
    if plan.host is not None:
        head["host"] = plan.host.model_dump(mode="json", exclude_defaults=True)
    # A line for each step: readable, and far fewer tokens than an indented object.
    rows = ",\n".join(canonical_json(_answered(step)).decode() for step in plan.steps)
    return f'{canonical_json(head).decode()[:-1]},"steps":[\n{rows}\n]}}'


def _answered(step: PlanStep) -> dict[str, object]:
    fields = step.model_dump(mode="json", include=set(_ANSWERED))
    if step.predicted_us is not None:
        fields["predicted_us"] = float(f"{step.predicted_us:.4g}")
    return {name: fields[name] for name in _ANSWERED if fields[name] not in ([], "", None)}
