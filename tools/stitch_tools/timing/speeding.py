"""Is the program faster than is possible? What follows from its bounds, once or twice looked at."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stitch_tools.models import Finding, TimeBound
from stitch_tools.timing.bounds import Limits, findings_of
from stitch_tools.timing.seats import Seat

NO_CEILINGS = "whether the times are possible: no ceilings of this device are kept (`stitch-mcp ceilings`)"
NO_GRAPH = "whether there was time for the reference's matrix products: its graph could not be captured"
_NO_WRITER = "a program that only writes the outputs could not be timed beside this one"
_LOW_CEILINGS = "bounds by this device's ceilings: a program that only writes the outputs beats them, too"


@dataclass(frozen=True)
class Speeding:
    """What the bounds say."""

    bounds: tuple[TimeBound, ...] = ()
    findings: tuple[Finding, ...] = ()
    not_checked: tuple[str, ...] = ()
    doubt: str | None = None
    """Why the program has to be timed again; None where nothing is in doubt."""

    @property
    def conviction(self) -> str | None:
        """What the fatal finding says; None where there is none."""
        return next((row.message for row in self.findings if row.severity == "fatal"), None)


def look(
    limits: Limits,
    program: Seat,
    *,
    operations: int,
    native: bool,
    prove: Callable[[int], bool | None] | None,
) -> Speeding:
    """The program's bounds, and what they prove.

    Only a native program is convicted: it writes into its caller's memory, while one in Python may hand out a
    view of its inputs. And only at a second look, with fresh ceilings and a program of ours beside it.

    Args:
        limits: what the ceilings allow.
        program: the seat, its rounds done.
        operations: of the reference's matrix products in one call.
        native: whether each call has to write its outputs.
        prove: says whether it outruns programs that only write, in gos of so many calls; None: a first look.

    Raises:
        ContestantFailedError: the program failed meanwhile.
    """
    bounds = limits.bounds(program.name, program.history, operations)
    outputs = next((row for row in bounds if row.kind == "outputs" and row.beaten), None)
    if outputs is None or not native:
        return Speeding(bounds, findings_of(bounds, proven=False))
    if prove is None:
        return Speeding(bounds, findings_of(bounds, proven=False), doubt=_too_fast(bounds))
    proven = prove(outputs.calls)
    if proven is None:
        return Speeding(bounds, findings_of(bounds, proven=False), (_NO_WRITER,))
    if not proven:
        return Speeding(bounds, (), (_LOW_CEILINGS,))
    return Speeding(bounds, findings_of(bounds, proven=True))


def _too_fast(bounds: Sequence[TimeBound]) -> str:
    return findings_of(bounds, proven=False)[0].message
