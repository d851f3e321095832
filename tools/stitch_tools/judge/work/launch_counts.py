"""Launches per forward, compared between draws by the profiler's records.

The program's own kernels must be launched equally often, by name. A library chooses its kernels by addresses,
sizes and what it has measured, so theirs may change honestly; that it launches at all may not. Where records
are missing nothing is concluded.
"""

from dataclasses import dataclass, field

from stitch_tools.judge.work.traced_worker import Report

_OWN = "own: "
_OTHERS = ("library", "pytorch")


@dataclass
class LaunchComparison:
    """What the comparison says."""

    differing: list[str] = field(default_factory=list[str])
    """What no honest program does, in words."""
    varying: list[str] = field(default_factory=list[str])
    """Launches of libraries that changed."""
    missing: list[str] = field(default_factory=list[str])
    """Why something was not compared."""

    @property
    def match(self) -> bool | None:
        """Whether all that had to be equal was; None where a part was not compared and the rest was equal."""
        if self.differing:
            return False
        return None if self.missing else True


def compare_launches(report: Report, *, blocks: int) -> LaunchComparison:
    """The comparison of a watched worker's blocks, of which so many were asked for."""
    found = LaunchComparison()
    if len(report.blocks) < blocks:
        found.missing.append(f"the profiler has records of {len(report.blocks)} of {blocks} blocks")
    elif report.lost:
        found.missing.append(f"{report.lost} launches left no record of the device")
    else:
        _compare_blocks(report.blocks, found)
    return found


def _compare_blocks(blocks: tuple[dict[str, float], ...], found: LaunchComparison) -> None:
    first = blocks[0]
    for block in blocks[1:]:
        for name, one, other in _differences(first, block):
            text = f"{name.removeprefix(_OWN)}: {one:g} on one draw, {other:g} on another"
            (found.differing if name.startswith(_OWN) else found.varying).append(text)
        for owner in _OTHERS:
            one, other = _of(owner, first), _of(owner, block)
            if bool(one) != bool(other):
                found.differing.append(f"{owner}: {one:g} launches on one draw, {other:g} on another")


def _of(owner: str, block: dict[str, float]) -> float:
    return sum(number for name, number in block.items() if name.startswith(f"{owner}: "))


def _differences(one: dict[str, float], other: dict[str, float]) -> list[tuple[str, float, float]]:
    names = sorted({*one, *other})
    return [
        (name, one.get(name, 0.0), other.get(name, 0.0)) for name in names if one.get(name) != other.get(name)
    ]
