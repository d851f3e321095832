"""Who did a program's work, as seen while it ran."""

from typing import Literal

from stitch_tools.models.base import Fact, retired

WorkOwner = Literal["own", "library", "pytorch", "copy", "other"]


class WorkItem(Fact):
    """A kernel, function, operator or library that took time."""

    name: str
    owner: WorkOwner
    """By caller. `cuda`: `own` kernels are the program's, `library` others outside of any ATen operator,
    `pytorch` those inside of one, `copy` moves or fills memory. `cpu`: `pytorch` is time inside of ATen
    operators, `own` the rest with the libraries that the program calls, `library` that rest where the
    program brought no compiled code, `other` an interpreter beside operators."""
    calls: float | None
    """Launches per forward (cuda); None on a cpu."""
    share: float
    """Share of the traced time, 0 to 1."""


class WorkEvidence(Fact):
    """Shares of the traced time by who did the work, from a worker that was traced and never timed."""

    method: Literal["operators", "kernels", "samples"]
    """`operators`: the profiler's records of ATen operators (cpu); `kernels`: the device's activity (cuda);
    `samples`: stacks of running threads (cpu, in checks before 0.2)."""
    own: float
    """Share of the program's own code, 0 to 1. The five shares sum to 1."""
    library: float
    pytorch: float
    copies: float
    other: float
    """No work."""
    observations: int
    """Forwards (cpu) or device activities (cuda) that this rests on."""
    items: tuple[WorkItem, ...] = ()
    """Largest share first."""
    never_launched: tuple[str, ...] = ()
    """Kernels that the program's binaries define and that never ran (cuda)."""
    outputs_right: bool
    """Whether outputs of the traced process were right."""
    launches: float | None = None
    """Device activities per forward (cuda)."""
    counts_match: bool | None = None
    """Whether launches of own kernels per forward were the same on two draws, for another number of calls;
    None on a cpu, and where records are missing."""
    # Checks before 0.2 say what the outputs did without the program's own launches.
    _retired = retired("ablation")

    @property
    def work(self) -> float:
        """Share of the traced time that was anybody's work."""
        return self.own + self.library + self.pytorch + self.copies

    @property
    def pytorch_of_work(self) -> float:
        """PyTorch's part of the work, 0 to 1: what the contract's allowance is compared with."""
        return self.pytorch / self.work if self.work > 0 else 0.0
