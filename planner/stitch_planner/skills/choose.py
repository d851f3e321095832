"""Chooses the skills that fit a plan and what was measured: a pure function, and its reasons in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from stitch_planner.plan import Plan, PlanStep, PlanValue
from stitch_planner.skills.library import Skill, Symptom
from stitch_tools.models.verdict import Bench

MOST_SKILLS = 2
_MANY_STEPS = 8
_MOST_RESULTS = 4096
_LEAST_REDUCED = 256
"""Elements behind each result from which on one thread or block a result is too few."""
_SLOW = 3.0
"""A program of many steps that takes so many times the sum of their bounds most likely waits for launches."""
_LEAST_SHARE = 0.05
"""Of the plan's least time: what is cheaper is not worth a recipe."""
_PRODUCTS = frozenset({"linear", "addmm", "matmul", "mm"})
_REDUCTIONS = frozenset(
    {"sum", "mean", "var", "std", "var_mean", "amax", "amin", "linalg_vector_norm", "norm", "mse_loss"}
)
_SAID: dict[Symptom, str] = {
    "memory-bound": "memory limits it",
    "compute-bound": "arithmetic limits it",
    "launch-bound": "launches limit it",
    "many-steps": f"the plan has {_MANY_STEPS} steps or more",
    "elementwise": "its operations are elementwise",
    "few-results": "many elements go into few results",
    "shared-input": "several products read one input",
    "layout-copies": "a step reads in one layout and writes in another",
    "eval-mode": "the model is in evaluation mode",
}


@dataclass(frozen=True)
class ChosenSkill:
    """A skill with the reason why it was chosen."""

    skill: Skill
    reason: str
    """Follows "because"."""


def choose_skills(
    skills: Sequence[Skill], plan: Plan, *, training: bool, bench: Bench | None = None
) -> tuple[ChosenSkill, ...]:
    """At most two skills for a plan, the likeliest first. Equal arguments give the same choice.

    A skill counts with the share of the plan's least time that its operations take, once more for each
    symptom of its diagnosis that is there.

    Args:
        skills: to choose from.
        plan: of the reference.
        training: whether the model is in training mode.
        bench: of the program that is to become faster; None before there is one.
    """
    shares = _shares(plan)
    everywhere = _symptoms_of_plan(plan, training=training, bench=bench)
    rated = [
        rating
        for skill in skills
        if skill.head.metadata.target == ("cuda" if plan.target.startswith("cuda") else "cpu")
        if (rating := _rate(skill, plan, shares, everywhere)) is not None
    ]
    rated.sort(key=lambda row: (-row[0], row[1].skill.name))
    return tuple(chosen for _, chosen in rated[:MOST_SKILLS])


def _rate(
    skill: Skill, plan: Plan, shares: Sequence[float], everywhere: frozenset[Symptom]
) -> tuple[float, ChosenSkill] | None:
    score, share = 0.0, 0.0
    ops: dict[str, None] = {}
    symptoms: set[str] = set()
    for step, part in zip(plan.steps, shares, strict=True):
        here = everywhere | _symptoms_of_step(step)
        hits = [op for op in (*step.ops, step.family) if op in skill.operators]
        if not skill.requires <= here or (skill.operators and not hits):
            continue
        ops.update(dict.fromkeys(hits))
        symptoms |= (skill.diagnosis | skill.requires) & here
        share += part
        score += part * (1 + len(skill.diagnosis & here))
    if share < _LEAST_SHARE:
        return None
    what = f"the plan has {', '.join(list(ops)[:3])}" if ops else "of the whole plan"
    reasons = [_SAID[symptom] for symptom in _SAID if symptom in symptoms]
    text = f"{what} ({share:.0%} of its least time)" if ops else ""
    return score, ChosenSkill(skill, "; ".join([*([text] if text else []), *reasons]) or what)


def _shares(plan: Plan) -> list[float]:
    """Of each step in the plan's least time; equal shares where that is unknown."""
    times = [step.predicted_us for step in plan.steps]
    known = [time for time in times if time is not None]
    if len(known) < len(times) or sum(known) <= 0.0:
        return [1.0 / len(times)] * len(times)
    return [time / sum(known) for time in known]


def _symptoms_of_plan(plan: Plan, *, training: bool, bench: Bench | None) -> frozenset[Symptom]:
    symptoms: set[Symptom] = set()
    if not training:
        symptoms.add("eval-mode")
    if len(plan.steps) >= _MANY_STEPS:
        symptoms.add("many-steps")
        timing = bench.timing("program") if bench else None
        latency_us = timing.latency_us if timing else None
        if plan.predicted_us and latency_us is not None and latency_us > _SLOW * plan.predicted_us:
            symptoms.add("launch-bound")
    readers = [
        value.name
        for step in plan.steps
        if _PRODUCTS & set(step.ops)
        for value in step.inputs
        if not _is_weight(value)
    ]
    if len(readers) > len(set(readers)):
        symptoms.add("shared-input")
    return frozenset(symptoms)


def _symptoms_of_step(step: PlanStep) -> frozenset[Symptom]:
    symptoms: set[Symptom] = set()
    if step.kind == "pointwise":
        symptoms.add("elementwise")
    if step.bound is not None:
        by_bound: dict[str, Symptom] = {
            "memory": "memory-bound",
            "compute": "compute-bound",
            "launch": "launch-bound",
        }
        symptoms.add(by_bound[step.bound])
    if _REDUCTIONS & set(step.ops) and _has_few_results(step):
        symptoms.add("few-results")
    if step.copied_bytes or any(_is_permuted(a, b) for a in step.inputs for b in step.outputs):
        symptoms.add("layout-copies")
    return frozenset(symptoms)


def _is_weight(value: PlanValue) -> bool:
    # torch.export names parameters p_..., buffers b_... and constants c_...
    return value.name.startswith(("p_", "b_", "c_"))


def _has_few_results(step: PlanStep) -> bool:
    """Whether a step gives few results. One that uses them at once hides them, and counts as having many."""
    most = max((prod(value.shape) for value in step.inputs), default=0)
    least = min((prod(value.shape) for value in step.outputs), default=most)
    return least <= _MOST_RESULTS and most >= _LEAST_REDUCED * max(least, 1)


def _is_permuted(read: PlanValue, written: PlanValue) -> bool:
    """Whether a tensor is written with its dims in another order."""
    return read.shape != written.shape and sorted(read.shape) == sorted(written.shape)
