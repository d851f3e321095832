"""What surrounds a timing: doubts about it, and the state of the GPU."""

from typing import Literal

from stitch_tools.models.base import Fact, retired
from stitch_tools.models.sanitizer import Severity

DoubtRule = Literal[
    "extra_cpus",
    "skipped_work",
    "remembered_inputs",
    "deferred_work",
    "work_moved_between_batches",
    "work_moved_out_of_blocks",
    "slow_on_new_inputs",
    "slow_on_late_inputs",
    "faster_than_memory",
]


class TimingDoubt(Fact):
    """Why the times of a program do not count as a gain: one probe's figure beside the one it should match.

    Both figures are microseconds per call, but CPUs for `extra_cpus`, and microseconds of `calls` calls for
    `faster_than_memory`.
    """

    rule: DoubtRule
    severity: Severity = "suspicious"
    observed: float
    """What the probe measured. `deferred_work`: what a call saves beside `baseline` once outputs are read."""
    expected: float
    """What it should be: the time of the timed calls (`remembered_inputs`: of calls on inputs seen before;
    `work_moved_...`: the slope of blocks), the CPUs allowed, the saving by the clock, or the bound."""
    calls: int = 1
    """Calls that the figures are of."""
    baseline: str = ""
    """Which baseline stands beside the program; "" where none does."""


class GpuConditions(Fact):
    """The GPU while it was timed, as its driver says; None where the driver does not say."""

    sm_clock_mhz: int | None = None
    """Median of what was read after the program's visits."""
    sm_clock_min_mhz: int | None = None
    power_w: float | None = None
    """The most that was read."""
    throttled: tuple[str, ...] | None = None
    """Why clocks were held down in any reading: power_cap, thermal, hardware_slowdown, ...; () never."""
    readings: int = 0
    # Versions before 0.2.0 told more.
    _retired = retired(
        "sm_clock_max_mhz",
        "memory_clock_mhz",
        "power_limit_w",
        "temperature_c",
        "busy_before",
        "other_processes",
    )
