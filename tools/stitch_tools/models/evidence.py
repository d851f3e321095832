"""Who did a program's work, as seen while it ran."""

from typing import Literal

from stitch_tools.models.base import Fact

WorkOwner = Literal["own", "library", "pytorch", "copy", "other"]


class WorkItem(Fact):
    """A kernel, function, operator or library that took time."""

    name: str
    owner: WorkOwner
    """By caller: `own` is code of the program's own binary, `library` what that calls, `pytorch` what runs
    under an ATen operator or in PyTorch's libraries, `copy` moves or fills memory, `other` is no work."""
    calls: float | None
    """Launches per forward (cuda); None for sampled code (cpu)."""
    share: float
    """Share of the traced time, 0 to 1."""


class WorkEvidence(Fact):
    """Shares of the traced time by who did the work, from a worker that was traced and never timed."""

    method: Literal["samples", "kernels"]
    """`samples`: stacks of running threads (cpu); `kernels`: the device's activity (cuda)."""
    own: float
    """Share of the program's own code, 0 to 1. The five shares sum to 1."""
    library: float
    pytorch: float
    copies: float
    other: float
    """Interpreter, waiting threads, tensors that are only made or viewed: no work."""
    observations: int
    """Samples or device activities that this rests on."""
    items: tuple[WorkItem, ...] = ()
    """Largest share first."""
    never_launched: tuple[str, ...] = ()
    """Kernels that the program's binaries define and that never ran (cuda)."""
    outputs_right: bool
    """Whether outputs of the traced process were right."""
    launches: float | None = None
    """Device activities per forward (cuda)."""
    counts_match: bool | None = None
    """Whether launches of own kernels per forward were the same on two draws, for another number of calls,
    and in the worker without a tracer; None on a cpu, and where records are missing."""
    ablation: Literal["broke", "survived", "not_applicable"] | None = None
    """What happened to the outputs when the program's own launches did nothing; None: not asked for,
    or they could not be stopped."""

    @property
    def work(self) -> float:
        """Share of the traced time that was anybody's work."""
        return self.own + self.library + self.pytorch + self.copies

    @property
    def pytorch_of_work(self) -> float:
        """PyTorch's part of the work, 0 to 1: what the contract's allowance is compared with."""
        return self.pytorch / self.work if self.work > 0 else 0.0
