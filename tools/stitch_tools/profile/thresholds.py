"""The figures at which a question about a kernel is answered with "this is a problem", in one table."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelThresholds:
    """All shares are 0 to 1. Below these, what would be won lies in the noise of other causes."""

    busy_pipe: float = 0.60
    """Share of a unit's peak from which a kernel counts as bound by it."""
    near_peak: float = 0.80
    """Share of a unit's peak from which there is hardly anything to win by hiding latency."""
    issue_slots: float = 0.60
    """Share of cycles with an instruction issued, from which latency counts as hidden."""
    leading_stall: float = 0.30
    """Share of the warps' time that a cause of waiting needs to be named."""
    sectors_per_request: float = 8.0
    """32-byte sectors a warp's access touches: 4 for neighbouring floats, 16 for neighbouring float4."""
    sector_use: float = 0.65
    """Share of the bytes of the sectors that the threads asked for, below which access is uncoalesced."""
    conflict_share: float = 0.20
    """Share of the passes through shared memory that exist for bank conflicts alone."""
    local_share: float = 0.10
    """Share of the sectors of global and local memory that are local: spilled registers and stacks."""
    threads_per_instruction: float = 24.0
    """Active threads of 32, below which warps are divergent."""
    low_occupancy: float = 0.50
    """Theoretical occupancy up to which it may be what hides too little latency."""
    tail_loss: float = 0.15
    """Share of the slots of all waves that stay empty in the last one."""
    product_share: float = 0.40
    """Multiply-adds among all instructions, from which arithmetic looks like a matrix product."""
    idle_multiprocessors: float = 0.25
    """Share of multiprocessors that get no block at all."""
    saves: float = 0.05
    """What could be won of the kernel's time, below which it is no problem."""


THRESHOLDS = KernelThresholds()
