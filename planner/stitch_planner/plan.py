"""The plan: which operations are computed together, by what, and how long each step must take at least.

Whoever makes a plan leaves None where it knows nothing; plans of older runs lack the newer fields.
"""

from typing import Literal

from pydantic import Field

from stitch_tools.models.base import Fact

Bound = Literal["memory", "compute", "launch"]
Layout = Literal["row-major", "channels-last"]
StepKind = Literal["pointwise", "rows", "library", "view", "eager", "kernel"]
"""`kernel`: one of the program's own, in a plan that a model refined."""
LibraryChoice = Literal[
    "custom", "onednn", "blas", "cublas", "cublaslt", "cublaslt_epilogue", "cudnn", "cufft", "pytorch"
]
"""What computes a step; `custom`: a kernel or loop of the program's own."""


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
    copied_bytes: int = 0
    """Read and written by copies that bring operands or results into another layout, beside `bytes`."""
    predicted_us: float | None = None
    """Expected time of the step, launch and copies included; None without ceilings."""
    bound: Bound | None = None
    """What sets the predicted time."""
    lower_bound_us: float | None = None
    """What no program can beat: traffic and matrix products without launch or copies, at the device's best
    rates. None without ceilings that are certain."""
    note: str = ""
    """For an eager step the reason."""
    goal: str = ""
    """What the step is to achieve, in a sentence."""
    library: LibraryChoice | None = None
    """What is to compute it."""
    risks: tuple[str, ...] = ()
    """What may make it wrong or slow."""
    acceptance: str = ""
    """How to test that the step is done; "": by the program's check alone."""


class HostPlan(Fact):
    """What the host does around the steps. None: not decided."""

    streams: int | None = Field(default=None, ge=1, le=64)
    """CUDA streams that steps are launched on."""
    cuda_graph: bool | None = None
    """Whether the launches are captured once and replayed as a graph."""
    workspace_bytes: int | None = Field(default=None, ge=0)
    """Device memory beside inputs and outputs."""
    pinned_memory: bool | None = None
    """Whether host memory is page-locked for transfers."""
    overlap: tuple[str, ...] = ()
    """Which steps run at the same time, a sentence each."""

    @property
    def summary(self) -> str:
        """All that is decided, in a line; "" where nothing is."""
        fields = self.model_dump(exclude={"overlap"}, exclude_none=True)
        words = [f"{name.replace('_', ' ')} {value}" for name, value in fields.items()]
        return "; ".join((*words, *self.overlap))


class Plan(Fact):
    """Steps of one forward, in execution order."""

    target: str
    steps: tuple[PlanStep, ...]
    predicted_us: float | None = None
    """Sum of the steps' predictions: the time of a program that runs them one after the other."""
    notes: tuple[str, ...] = ()
    """What a reader should know: eager steps, a capture that fell back."""
    author: str = ""
    """The model that refined it; "": made without one."""
    strategy: str = ""
    """What the plan relies on, in the model's words."""
    risks: tuple[str, ...] = ()
    """What concerns no step alone."""
    host: HostPlan | None = None
    """None: nothing is decided."""
