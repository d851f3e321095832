"""Whether a plan can be carried out: it covers the graph, order and borders fit, times are possible."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from stitch_planner.plan import Plan, PlanStep, PlanValue
from stitch_planner.step_work import StepWork, is_view, step_of_node, value_name
from stitch_planner.stitcher.lower.graph_index import ValueKey
from stitch_tools.models.graph import Ceilings, Graph
from stitch_tools.models.task import Contract, TensorSpec

_SLACK = 0.9
"""A prediction may be so far below the bound: ceilings are measured, and measurements scatter."""
_FOR_GPUS = frozenset(["cublas", "cublaslt", "cublaslt_epilogue", "cudnn", "cufft"])
_FOR_CPUS = frozenset(["onednn", "blas"])


@dataclass(frozen=True)
class PlanProblem:
    """Why a plan is rejected."""

    step: int | None
    """Place of the step; None: the plan as a whole."""
    what: str
    remedy: str

    def __str__(self) -> str:
        where = "" if self.step is None else f"step {self.step}: "
        return f"{where}{self.what}; {self.remedy}"


def plan_problems(
    plan: Plan, graph: Graph, contract: Contract, ceilings: Ceilings | None
) -> tuple[PlanProblem, ...]:
    """All reasons to reject a plan for a graph; none where it can be carried out.

    Args:
        plan: steps in the order in which they are executed. Views may be in any step, or in none.
        graph: what the program has to compute, as `simple_graph` gives it.
        contract: which formats matrix products may use.
        ceilings: what bounds the predictions; None, or disturbed ones: nothing does.
    """
    work = StepWork(graph)
    return (
        *_coverage(plan, work),
        *_order(plan, work),
        *(problem for place, step in enumerate(plan.steps) for problem in _borders(place, step, work)),
        *_predictions(plan, work, contract, ceilings),
        *_means(plan),
    )


def _coverage(plan: Plan, work: StepWork) -> Iterator[PlanProblem]:
    required = frozenset(work.required)
    first = step_of_node(plan.steps)
    for place, step in enumerate(plan.steps):
        unknown = [name for name in step.nodes if name not in work.index.nodes]
        if unknown:
            yield PlanProblem(
                place,
                f"the graph has no {_listed(unknown)}",
                "name operations as the graph does, in its first column",
            )
        repeated = [name for name, count in Counter(step.nodes).items() if count > 1]
        if repeated:
            yield PlanProblem(place, f"{_listed(repeated)} is named twice", "name each operation once")
        taken = [name for name in dict.fromkeys(step.nodes) if name in required and first[name] != place]
        if taken:
            others = sorted({first[name] for name in taken})
            yield PlanProblem(
                place,
                f"{_listed(taken)} is computed by step {_numbers(others)} already",
                "remove it from one of them",
            )
        if not step.nodes:
            yield PlanProblem(place, "it computes nothing", "remove it")
    missing = [name for name in work.required if name not in first]
    if missing:
        yield PlanProblem(None, f"no step computes {_listed(missing)}", "add each to a step")


def _order(plan: Plan, work: StepWork) -> Iterator[PlanProblem]:
    first = step_of_node(plan.steps)
    needs: list[dict[int, str]] = []
    for place, step in enumerate(plan.steps):
        found: dict[int, str] = {}
        for read in work.reads(step.nodes):
            maker = first.get(read.base[0])
            if maker is not None and maker != place:
                found.setdefault(maker, value_name(read.base))
        needs.append(found)
    for place, found in enumerate(needs):
        for maker, name in found.items():
            if maker < place:
                continue
            what = f"it reads {name}, which step {maker} computes later"
            if _depends(needs, maker, place):
                yield PlanProblem(
                    place, f"{what}, and that step waits for this one", "split one of them in two"
                )
            else:
                yield PlanProblem(place, what, f"put step {maker} before it")


def _depends(needs: list[dict[int, str]], step: int, on: int) -> bool:
    """Whether a step needs what another one computes, directly or by way of others."""
    waiting, seen = [step], {step}
    while waiting:
        for maker in needs[waiting.pop()]:
            if maker == on:
                return True
            if maker not in seen:
                seen.add(maker)
                waiting.append(maker)
    return False


def _borders(place: int, step: PlanStep, work: StepWork) -> Iterator[PlanProblem]:
    if not any(map(work.node_reads, step.nodes)):
        return  # Views alone, which somebody wants to have in memory; or constants, which read nothing.
    reads = work.reads(step.nodes)
    by_name = {value_name(key): key for read in reads for key in read.chain}
    for value in step.inputs:
        if value.name not in by_name:
            yield PlanProblem(place, f"its input {value.name} is not read by its operations", "remove it")
        else:
            yield from _wrong_spec(place, "input", value, work.index.spec(by_name[value.name]))
    given = {value.name for value in step.inputs}
    unread = [
        value_name(read.base)
        for read in reads
        if not given.intersection(map(value_name, read.chain)) and not _is_lifted(read.base, work)
    ]
    if unread:
        yield PlanProblem(
            place, f"its operations read {_listed(unread)}, which is no input of it", "add it to the inputs"
        )
    yield from _outputs(place, step, work)


def _outputs(place: int, step: PlanStep, work: StepWork) -> Iterator[PlanProblem]:
    given: set[ValueKey] = set()
    for value in step.outputs:
        key = work.made.get(value.name)
        base = work.traced(key).base if key is not None else None
        if key is None or base is None or base[0] not in step.nodes:
            yield PlanProblem(place, f"its output {value.name} is not made by its operations", "remove it")
            continue
        given.add(base)
        yield from _wrong_spec(place, "output", value, work.index.spec(key))
    unwritten = [value_name(key) for key in work.writes(step.nodes) if key not in given]
    if unwritten:
        yield PlanProblem(
            place,
            f"others read {_listed(unwritten)}, which is no output of it",
            "add it to the outputs, or put its readers into this step",
        )


def _wrong_spec(place: int, role: str, value: PlanValue, spec: TensorSpec) -> Iterator[PlanProblem]:
    if value.shape != spec.shape or value.dtype != spec.dtype:
        yield PlanProblem(
            place,
            f"its {role} {value.name} is {spec.dtype}{list(spec.shape)} in the graph, not"
            f" {value.dtype}{list(value.shape)}",
            "give it as the graph has it",
        )


def _is_lifted(key: ValueKey, work: StepWork) -> bool:
    """Whether the value is a constant of the forward, which a program writes into its code."""
    item = work.index.inputs.get(key[0])
    return item is not None and item.kind == "constant"


def _predictions(
    plan: Plan, work: StepWork, contract: Contract, ceilings: Ceilings | None
) -> Iterator[PlanProblem]:
    for place, step in enumerate(plan.steps):
        known = [name for name in step.nodes if name in work.index.nodes]
        least = work.lower_bound_us(known, contract, ceilings)
        if step.predicted_us is None or least is None or step.predicted_us >= _SLACK * least:
            continue
        read, written = work.bytes(known)
        flops = sum(work.index.nodes[name].flops for name in known)
        yield PlanProblem(
            place,
            f"it is predicted to take {step.predicted_us:.4g} us, but reads {read:,} and writes {written:,}"
            f" bytes with {flops:.3g} FLOP, which takes {least:.4g} us at this device's best rates",
            f"predict at least {least:.4g} us, or null",
        )


def _means(plan: Plan) -> Iterator[PlanProblem]:
    """Libraries and host features that the target lacks."""
    on_gpu = plan.target.startswith("cuda")
    lacking = _FOR_CPUS if on_gpu else _FOR_GPUS
    for place, step in enumerate(plan.steps):
        if step.library in lacking:
            yield PlanProblem(
                place, f"{step.library} does not run on {plan.target}", "choose another library, or custom"
            )
    host = plan.host
    if host is not None and not on_gpu and (host.cuda_graph or (host.streams or 1) > 1 or host.pinned_memory):
        yield PlanProblem(
            None,
            f"the host plan asks for streams, a CUDA graph or pinned memory on {plan.target}",
            "leave them null",
        )


def is_plannable(graph: Graph) -> bool:
    """Whether there is something to plan: an operation that is no view."""
    return any(not is_view(node) for node in graph.nodes)


def _listed(names: list[str]) -> str:
    shown, rest = names[:6], len(names) - 6
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")


def _numbers(places: list[int]) -> str:
    return ", ".join(map(str, places))
