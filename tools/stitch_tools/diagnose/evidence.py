"""What the rules of a diagnosis look at, and the few figures that several of them share."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from stitch_tools.models.graph import Ceilings, Graph
from stitch_tools.models.profile import (
    GainRange,
    KernelProfile,
    KernelTime,
    LowerBounds,
    ProfileSubjectKind,
    Quantity,
    SystemProfile,
)
from stitch_tools.models.task import Contract

_RECURRENT = re.compile(r"_cudnn_rnn|mkldnn_rnn|\b(?:LSTM|GRU|RNN)_|elemWiseRNN|RNN_bl", re.IGNORECASE)


@dataclass(frozen=True)
class ProfileEvidence:
    """One profile with what is known of its task and device."""

    subject: ProfileSubjectKind
    target: str
    system: SystemProfile
    contract: Contract
    kernels: tuple[KernelProfile, ...] = ()
    graph: Graph | None = None
    ceilings: Ceilings | None = None
    bounds: LowerBounds | None = None
    calibration_us: float | None = None
    """Mean recorded time of the short kernels that each recording holds."""

    @property
    def on_gpu(self) -> bool:
        """Whether it ran on a GPU."""
        return self.target.startswith("cuda")

    @property
    def total_us(self) -> float:
        """Where gains start from: the untraced latency, else the traced one."""
        return self.system.untraced_us or self.system.wall_us

    @property
    def launch_us(self) -> float | None:
        """Time from one kernel to the next where the host does not limit."""
        return self.ceilings.launch_us if self.ceilings is not None else None

    def rows(self, pattern: re.Pattern[str]) -> list[KernelTime]:
        """Kernels or operators whose name or operator matches."""
        return [row for row in self.system.kernels if pattern.search(row.name) or pattern.search(row.op)]

    @property
    def is_recurrent(self) -> bool:
        """Whether a library's recurrent network takes most of the kernels."""
        rows = self.rows(_RECURRENT)
        return sum(row.share for row in rows) > 0.3 or any(
            use.type in ("LSTM", "GRU", "RNN") for use in self.system.modules
        )


def amdahl(total_us: float, low_us: float, expected_us: float, high_us: float) -> GainRange:
    """The speed-up of the whole where so much of its time is saved: at least, probably, at most."""
    # Nothing saves everything: what stays is at least a fiftieth.
    most = 0.98 * total_us
    low, expected, high = (min(max(0.0, saved), most) for saved in (low_us, expected_us, high_us))
    return GainRange(
        low=total_us / (total_us - low),
        expected=total_us / (total_us - expected),
        high=total_us / (total_us - high),
        predicted_us=total_us - expected,
    )


def time_of(rows: Iterable[KernelTime]) -> float:
    """Microseconds of these rows per iteration."""
    return sum(row.total_us for row in rows)


def quantity(name: str, value: float, unit: str, evidence: ProfileEvidence) -> Quantity:
    """A figure that comes from the profile's own tool."""
    return Quantity(name=name, value=value, unit=unit, origin=evidence.system.origin)


def total_quantity(evidence: ProfileEvidence) -> Quantity:
    """The latency that gains start from."""
    if evidence.system.untraced_us is not None:
        return Quantity(
            name="latency without a profiler",
            value=evidence.system.untraced_us,
            unit="us",
            origin="benchmark",
        )
    return quantity("traced time of an iteration", evidence.system.wall_us, "us", evidence)
