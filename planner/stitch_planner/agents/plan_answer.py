"""Takes a plan out of a model's answer: one JSON object in a fence, filled up with what the graph says."""

from typing import Annotated

from markdown_it import MarkdownIt
from pydantic import Field, ValidationError

from stitch_planner.agents.answers import UnusableAnswerError
from stitch_planner.plan import HostPlan, LibraryChoice, Plan, PlanStep, PlanValue, StepKind
from stitch_planner.step_work import StepWork, value_name
from stitch_planner.stitcher.lower.graph_index import ValueKey
from stitch_planner.stitcher.lower.reductions import REDUCTIONS
from stitch_tools.graph.families import base_name
from stitch_tools.models.base import Fact
from stitch_tools.models.graph import Ceilings
from stitch_tools.models.task import Contract

_MOST_STEPS, _MOST_NODES, _MOST_TEXTS = 2000, 5000, 12
_LONGEST_TEXT = 400
_MOST_PROBLEMS = 6

_Name = Annotated[str, Field(min_length=1, max_length=200)]
_Texts = Annotated[tuple[str, ...], Field(max_length=_MOST_TEXTS)]


class PlanStepDraft(Fact):
    """A step as a model gives it; what is left out follows from the graph, or stays unknown."""

    goal: str = Field(min_length=1)
    nodes: tuple[_Name, ...] = Field(min_length=1, max_length=_MOST_NODES)
    library: LibraryChoice | None = None
    predicted_us: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    inputs: tuple[PlanValue, ...] | None = None
    outputs: tuple[PlanValue, ...] | None = None
    risks: _Texts = ()
    acceptance: str = ""


class PlanDraft(Fact):
    """A whole plan as a model gives it."""

    strategy: str = ""
    steps: tuple[PlanStepDraft, ...] = Field(min_length=1, max_length=_MOST_STEPS)
    host: HostPlan | None = None
    risks: _Texts = ()


def read_plan(text: str) -> PlanDraft:
    """The plan of an answer.

    Raises:
        UnusableAnswerError: there is none, or it does not have the form; the text says where.
    """
    source = _json_text(text)
    try:
        return PlanDraft.model_validate_json(source)
    except ValidationError as error:
        raise UnusableAnswerError(_explained(error)) from error


def _json_text(text: str) -> str:
    fences = [token for token in MarkdownIt("commonmark").parse(text) if token.type == "fence"]
    named = [token for token in fences if token.info.strip().lower().startswith("json")]
    # A single fence without a language can only be the plan; so can an answer that is nothing else.
    blocks = [token.content for token in named or [token for token in fences if not token.info.strip()]]
    if not fences and text.strip().startswith("{"):
        blocks = [text]
    if len(blocks) != 1:
        what = f"It holds {len(blocks)} JSON fences" if blocks else "It holds no JSON fence"
        raise UnusableAnswerError(f"{what}: the plan is one object in one fence that begins with ```json")
    return blocks[0]


def _explained(error: ValidationError) -> str:
    rows = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{'.'.join(map(str, row['loc'])) or 'the object'}: {row['msg']}" for row in rows]
    rest = len(lines) - _MOST_PROBLEMS
    more = f"; and {rest} more" if rest > 0 else ""
    return f"The plan does not have the form: {'; '.join(lines[:_MOST_PROBLEMS])}{more}"


def refined_plan(
    draft: PlanDraft, target: str, work: StepWork, contract: Contract, ceilings: Ceilings | None, author: str
) -> Plan:
    """The plan of a draft, with the work and the bounds that follow from the graph.

    Operations that the graph does not have are kept: `plan_problems` names them.
    """
    steps = tuple(
        _step(place, row, work, work.lower_bound_us(row.nodes, contract, ceilings))
        for place, row in enumerate(draft.steps)
    )
    times = [step.predicted_us for step in steps]
    known = [time for time in times if time is not None]
    host = draft.host
    if host is not None:
        host = host.model_copy(update={"overlap": _texts(host.overlap)})
    return Plan(
        target=target,
        steps=steps,
        predicted_us=sum(known) if len(known) == len(times) else None,
        author=author,
        strategy=_short(draft.strategy),
        risks=_texts(draft.risks),
        host=host,
    )


def _step(place: int, draft: PlanStepDraft, work: StepWork, least: float | None) -> PlanStep:
    index = work.index
    # The order of a graph is one in which everything is computed before it is read.
    names = tuple(sorted(draft.nodes, key=lambda name: index.order.get(name, len(index.order))))
    nodes = [index.nodes[name] for name in names if name in index.nodes]
    inputs, outputs = draft.inputs, draft.outputs
    if inputs is None:
        inputs = tuple(_value(read.chain[0], work) for read in work.reads(names))
    if outputs is None:
        outputs = tuple(_value(key, work) for key in work.writes(names))
    return PlanStep(
        index=place,
        name=names[-1],
        kind=_kind(draft.library, tuple(node.op for node in nodes)),
        family="",
        nodes=names,
        ops=tuple(base_name(node.op) for node in nodes),
        module_path=nodes[0].module_path if nodes else "",
        inputs=inputs,
        outputs=outputs,
        flops=sum(node.flops for node in nodes),
        bytes=sum(work.bytes(names)),
        predicted_us=draft.predicted_us,
        lower_bound_us=least,
        goal=_short(draft.goal),
        library=draft.library,
        risks=_texts(draft.risks),
        acceptance=_short(draft.acceptance),
    )


def _kind(library: LibraryChoice | None, ops: tuple[str, ...]) -> StepKind:
    if library == "pytorch":
        return "eager"
    if library not in (None, "custom"):
        return "library"
    return "rows" if any(op in REDUCTIONS for op in ops) else "kernel"


def _value(key: ValueKey, work: StepWork) -> PlanValue:
    spec = work.index.spec(key)
    return PlanValue(name=value_name(key), shape=spec.shape, dtype=spec.dtype)


def _texts(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_short(text) for text in texts)


def _short(text: str) -> str:
    """One line of bounded length: a model's text is shown in tables, and again in each of its prompts."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TEXT else f"{line[: _LONGEST_TEXT - 3]}..."
