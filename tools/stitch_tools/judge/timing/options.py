"""What a bench times, and how long."""

from dataclasses import dataclass, field
from pathlib import Path

from stitch_tools.judge.timing.program_runners import NamedProgram
from stitch_tools.judge.timing.ring import MAX_SLOTS
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
_COMPILED = "compile:"
CUDA_QUICK_BASELINES = ("eager", "compile:default", "cudagraph", "cudagraph-static")


@dataclass(frozen=True)
class BenchOptions:
    """What is timed, and how long."""

    quick: bool = False
    """The fewest rounds, and torch.compile's default mode alone."""
    baselines: tuple[str, ...] | None = None
    """None: those of the target."""
    compile_baselines: bool = True
    """Whether torch.compile's modes are among those of the target."""
    budget_s: float = 60.0
    """Time for rounds once all contestants are ready; half of it in quick runs."""
    lock_wait_s: float = DEVICE_WAIT_S
    """How long to wait for another process that times on the same device."""
    cache_dir: Path | None = None
    """Root of our caches; None: the user's cache folder."""
    max_slots: int = MAX_SLOTS
    """Longest ring of inputs. A shorter one starts sooner, and leaves small inputs in the cache."""
    rules: TimingRules = field(default_factory=TimingRules)
    other: NamedProgram | None = None
    """Another program that is timed beside the first one (`program_runners.beside`)."""


def baselines_of(target: str, options: BenchOptions) -> tuple[str, ...]:
    """What stands beside the program: as asked, else all that the target has."""
    if options.baselines is not None:
        return options.baselines
    names = CPU_BASELINES
    if target != "cpu":
        names = CUDA_QUICK_BASELINES if options.quick else CUDA_BASELINES
    # Compiling takes from seconds to minutes, whether or not anybody asks how fast the result is.
    return tuple(name for name in names if options.compile_baselines or not name.startswith(_COMPILED))


def not_timed(options: BenchOptions) -> str:
    """Which baselines were left out, "" where none was."""
    return "" if options.compile_baselines else "how fast torch.compile is (compile-baselines = false)"
