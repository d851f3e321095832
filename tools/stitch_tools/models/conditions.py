"""What surrounds a timing: the shortest times that are possible, and the state of the GPU meanwhile."""

from typing import Literal

from stitch_tools.models.base import Fact


class TimeBound(Fact):
    """The shortest time of a go that measured ceilings allow, beside the time that was measured."""

    kind: Literal["outputs", "inputs and outputs", "operations"]
    """What takes at least so long: writing the outputs; that and reading the inputs; matrix products."""
    contestant: str = "program"
    calls: int
    """Calls of the go."""
    amount: float
    """Bytes that no cache can hold back, or floating-point operations, in one go."""
    per_s: float
    """The measured ceiling that `amount` was divided by, with its margin."""
    bound_us: float
    measured_us: float
    """Median of such gos, without the cost of an empty one."""

    @property
    def beaten(self) -> bool:
        """Whether the program was faster than is possible."""
        return self.measured_us < self.bound_us


class GpuConditions(Fact):
    """The GPU while it was timed, as its driver says; None where the driver does not say."""

    sm_clock_mhz: int | None = None
    """Median of what was read after the program's visits."""
    sm_clock_min_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    """Highest clock that the device can be set to."""
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    """The most that was read."""
    power_limit_w: float | None = None
    temperature_c: int | None = None
    """The most that was read."""
    throttled: tuple[str, ...] | None = None
    """Why clocks were held down in any reading: power_cap, thermal, hardware_slowdown, ...; () never."""
    readings: int = 0
    other_processes: int | None = None
    """Processes of others that computed on the device before ours were timed."""
    busy_before: float | None = None
    """Share of time in which the device was busy just before we used it."""
