"""What a check does, and how long it waits."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CheckOptions:
    """One switch for each probe; the defaults judge."""

    static: bool = True
    """Whether the program's sources are read for what no honest program does."""
    own_draws: int = 3
    """Draws of the task's own maker with the first weights."""
    mutate_storage: bool = True
    """Whether the second draw comes in the memory of the first, and one that differs in a few values in that
    of the last: a program may have cached results by address, or by some of the values."""
    repeat: bool = True
    """Whether the third draw is called again: in fresh memory, compared bitwise, then at the
    same addresses with outputs poisoned anew."""
    late_repeat: bool = True
    """Whether the first draw's inputs come once more after all others, at another call count."""
    structured: bool = True
    """Whether signed, scaled and structured draws are made where the contract allows them."""
    batch_probe: bool = True
    """Whether other leading sizes are tried where the contract's shape policy says so."""
    variants: bool = True
    """Whether the contract's listed variants are tried."""
    second_weights: bool = True
    """Whether the program is initialised with a second set of weights (own maker and scaled draw)."""
    order_one_weights: bool = True
    """Whether the program is initialised with weights of order 1, whatever the task's initialisers give."""
    sensitivity: bool = True
    """Whether it is measured how the reference reacts to inputs and weights; draws are added where needed."""
    trace: bool = True
    """Whether a right program is run once more, in a worker of its own, to see who does its work."""
    reference_tolerance: bool = False
    """Whether five own draws are made, as many as KernelBench's rule asks for."""
    borders: bool = True
    """Whether a wrong program that shows its steps (STITCH_BORDER) is told the first that differs."""
    max_failures: int = 3
    """Wrong draws after which no further ones are made."""
    init_timeout_s: float = 300.0
    """Loading and initialising the program."""
    call_timeout_s: float = 60.0
    """One forward of the program; at least 50 times what the reference took is always granted."""
    memory_bytes: int | None = None
    """Memory that the program may use; None: nine tenths of what is free."""
    cpus: int | None = None
    """CPUs that the processes of the check share; None: all that this process may use."""
    cache_dir: Path | None = None
    """Root of our caches, for native parts of a program in Python; None is the user's cache folder."""
