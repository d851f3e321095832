"""What a check does, and how long it waits."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CheckOptions:
    """Defaults are the full first version of the judge."""

    own_draws: int = 3
    """Draws of the task's own maker with the first weights: one in memory that shows writes to inputs, one in
    the memory of the draw before, the others fresh."""
    structured: bool = True
    """Whether signed, scaled and structured draws are made where the contract allows them."""
    batch_probe: bool = True
    """Whether another leading size is tried where the contract's shape policy says so."""
    second_weights: bool = True
    """Whether everything is repeated with a second set of weights (own maker and scaled draw)."""
    trace: bool = True
    """Whether a right program is run once more, in a worker of its own, to see who does its work."""
    ablation: bool = False
    """Whether the program's own launches are taken out, to see that the outputs need them (cuda)."""
    max_failures: int = 3
    """Wrong draws after which no further ones are made."""
    init_timeout_s: float = 300.0
    """Loading and initialising the program."""
    call_timeout_s: float = 60.0
    """One forward of the program; at least 50 times what the reference took is always granted."""
    reference_timeout_s: float = 600.0
    """One request to the reference server."""
    memory_bytes: int | None = None
    """Memory that the program may use; None: nine tenths of what is free."""
