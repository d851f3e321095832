"""Launches per forward, compared: between draws by the tracer's records, and with and without the tracer.

The program's own kernels must be launched equally often, by name. A library chooses its kernels by addresses,
sizes and what it has measured, so theirs may change honestly; that it launches at all may not. Where records
are missing nothing is concluded.
"""

from dataclasses import dataclass, field

from stitch_tools.judge.work.traced_worker import LaunchCounts, Report

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


def compare_launches(
    report: Report, traced: LaunchCounts | None, untraced: LaunchCounts | None, *, blocks: int
) -> LaunchComparison:
    """The comparison of a traced worker's blocks, and of what the gates counted with and without a tracer.

    Args:
        report: what the tracer saw.
        traced: what the gates counted under the tracer; None where they could not.
        untraced: what they counted in the worker that no tracer touched.
        blocks: how many blocks were asked for.
    """
    found = LaunchComparison()
    if len(report.blocks) < blocks:
        found.missing.append(f"the tracer has records of {len(report.blocks)} of {blocks} blocks")
    elif report.lost:
        found.missing.append(f"{report.lost} launches left no record of the device")
    else:
        _compare_blocks(report.blocks, found)
    if traced is None or untraced is None:
        found.missing.append("launches without the tracer were not counted")
    elif traced.trouble or untraced.trouble:
        found.missing.append(untraced.trouble or traced.trouble)
    else:
        rows = _differences(untraced.launches, traced.launches)
        found.differing += [
            f"{name}: {one:g} without the tracer, {other:g} with it" for name, one, other in rows
        ]
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
