"""Launches per forward, compared between draws by the profiler's records.

The program's own kernels must be launched equally often, by name. A library chooses its kernels by addresses,
sizes and what it has measured, so theirs may change honestly; that it launches at all may not. Where records
are missing nothing is concluded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stitch_tools.protocol.messages_candidate import TraceReport

_OWN = "own: "
_OTHERS = ("library", "pytorch")


@dataclass(frozen=True)
class LaunchComparison:
    """What the comparison says."""

    differing: Sequence[str] = ()
    """What no honest program does, in words."""
    missing: str = ""
    """Why nothing was compared; "" where all was."""

    @property
    def match(self) -> bool | None:
        """Whether all that had to be equal was; None where nothing was compared."""
        return None if self.missing else not self.differing


def compare_launches(report: TraceReport, *, blocks: int) -> LaunchComparison:
    """The comparison of a watched worker's blocks, of which so many were asked for."""
    if len(report.blocks) < blocks:
        return LaunchComparison(
            missing=f"the profiler has records of {len(report.blocks)} of {blocks} blocks"
        )
    if report.lost:
        return LaunchComparison(missing=f"{report.lost} launches left no record of the device")
    first = _to_compare(report.blocks[0])
    differing: list[str] = []
    for block in map(_to_compare, report.blocks[1:]):
        for name in sorted({*first, *block}):
            one, other = first.get(name, 0.0), block.get(name, 0.0)
            # No heuristic chooses between a library and none: such a program computes some draws otherwise.
            if (bool(one) != bool(other)) if name in _OTHERS else one != other:
                differing.append(f"{name.removeprefix(_OWN)}: {one:g} on one draw, {other:g} on another")
    return LaunchComparison(differing)


def _to_compare(block: Mapping[str, float]) -> dict[str, float]:
    """Launches of own kernels by name, and those of each other owner together."""
    own = {name: number for name, number in block.items() if name.startswith(_OWN)}
    return own | {
        owner: sum(number for name, number in block.items() if name.startswith(f"{owner}: "))
        for owner in _OTHERS
    }
