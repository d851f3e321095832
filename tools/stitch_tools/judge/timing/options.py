"""What a bench times, and how long."""

from dataclasses import dataclass, field
from pathlib import Path

from stitch_tools.judge.timing.visits import TimingRules
from stitch_tools.machine.device_lock import DEVICE_WAIT_S

CPU_BASELINES = ("eager", "compile:default")
CUDA_BASELINES = (
    "eager",
    "compile:default",
    "compile:reduce-overhead",
    "compile:max-autotune-no-cudagraphs",
    "compile:max-autotune",
    "cudagraph",
    "cudagraph-static",
)
CUDA_QUICK_BASELINES = ("eager", "compile:default", "cudagraph", "cudagraph-static")


@dataclass(frozen=True)
class BenchOptions:
    """What is timed, and how long."""

    quick: bool = False
    """The fewest rounds, and torch.compile's default mode alone."""
    baselines: tuple[str, ...] | None = None
    """None: those of the target."""
    budget_s: float = 60.0
    """Time for rounds once all contestants are ready; half of it in quick runs."""
    lock_wait_s: float = DEVICE_WAIT_S
    """How long to wait for another process that times on the same device."""
    cache_dir: Path | None = None
    """Root of our caches; None: the user's cache folder."""
    rules: TimingRules = field(default_factory=TimingRules)


def baselines_of(target: str, options: BenchOptions) -> tuple[str, ...]:
    """What stands beside the program: as asked, else all that the target has."""
    if options.baselines is not None:
        return options.baselines
    if target == "cpu":
        return CPU_BASELINES
    return CUDA_QUICK_BASELINES if options.quick else CUDA_BASELINES
