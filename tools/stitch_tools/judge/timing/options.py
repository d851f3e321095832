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
_DECIDING_S = 0.25
"""The fewest rounds of a program and eager take 1.4 s, and four budgets at most: below this, none settles."""
_TRIAL_SLOTS = 1024
_COMPILED = "compile:"
CUDA_QUICK_BASELINES = ("eager", "compile:default", "cudagraph")


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
    """Time for rounds once all contestants are ready; half of it in quick runs. See `can_decide`."""
    lock_wait_s: float = DEVICE_WAIT_S
    """How long to wait for another process that times on the same device."""
    cache_dir: Path | None = None
    """Root of our caches; None: the user's cache folder."""
    max_slots: int = MAX_SLOTS
    """Longest ring of inputs. A shorter one starts sooner, and leaves small inputs in the cache."""
    rules: TimingRules = field(default_factory=TimingRules)
    other: NamedProgram | None = None
    """Another program that is timed beside the first one (`program_runners.beside`)."""

    @property
    def rounds_s(self) -> float:
        """Seconds for rounds."""
        return self.budget_s / 2.0 if self.quick else self.budget_s

    @property
    def can_decide(self) -> bool:
        """Whether the budget has room for an outcome.

        A bench without it shows that the program runs under the clock, and its doubts. What takes longer than
        its rounds and serves figures alone is left out: CPU times, and a ring that is larger than caches.
        """
        return self.rounds_s >= _DECIDING_S

    @property
    def slots(self) -> int:
        """Longest ring of inputs for this budget."""
        return self.max_slots if self.can_decide else min(self.max_slots, _TRIAL_SLOTS)


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
    """What the options left out, "" where nothing was."""
    left_out: list[str] = []
    if not options.compile_baselines:
        left_out.append("how fast torch.compile is (compile-baselines = false)")
    if not options.can_decide:
        left_out.append("an outcome, and calls whose inputs lie in no cache (bench-budget-s is too short)")
    return "; ".join(left_out)
