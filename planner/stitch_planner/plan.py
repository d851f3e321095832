"""The plan: which operations are computed together, by what, and how long each step must take at least."""

from typing import Literal

from stitch_tools.models.base import Fact

Bound = Literal["memory", "compute", "launch"]
Layout = Literal["row-major", "channels-last"]
StepKind = Literal["pointwise", "rows", "library", "view", "eager"]


class PlanValue(Fact):
    """A tensor that crosses the boundary of a step."""

    name: str
    """Value in the graph."""
    shape: tuple[int, ...]
    dtype: str
    layout: Layout = "row-major"
    """Memory order that the step expects or gives."""


class PlanStep(Fact):
    """Operations that one kernel or library call computes."""

    index: int
    """Place in the order of execution."""
    name: str
    """The last operation's name."""
    kind: StepKind
    family: str
    """Template that writes the step; "" for eager steps."""
    nodes: tuple[str, ...]
    """Operations in execution order."""
    ops: tuple[str, ...] = ()
    """Their kinds, short."""
    module_path: str = ""
    """Innermost module that the first operation belongs to."""
    inputs: tuple[PlanValue, ...] = ()
    outputs: tuple[PlanValue, ...] = ()
    flops: int = 0
    bytes: int = 0
    """Inputs and outputs of the step, each once; what stays inside a fused step counts nothing."""
    predicted_us: float | None = None
    """Lower bound from the device's ceilings; None without ceilings."""
    bound: Bound | None = None
    """What sets the predicted time."""
    note: str = ""
    """For an eager step the reason."""


class Plan(Fact):
    """Steps of one forward, in execution order."""

    target: str
    steps: tuple[PlanStep, ...]
    predicted_us: float | None = None
    """Sum of the steps' predictions: a bound for a program that runs them one after the other."""
    notes: tuple[str, ...] = ()
    """What a reader should know: eager steps, a capture that fell back."""
