"""Is the program faster than is possible? What follows from its bounds, once or twice looked at."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from stitch_tools.errors import TaskError, WorkerError
from stitch_tools.graph import capture_graph
from stitch_tools.judge.timing.bounds import (
    OUTPUTS_RULE,
    Limits,
    cache_bytes,
    findings_of,
    memory_nodes,
    product_operations,
)
from stitch_tools.judge.timing.seats import Field, Seat
from stitch_tools.machine.devices import Target
from stitch_tools.models import Ceilings, Finding, Graph, TimeBound
from stitch_tools.run.child_outcome import ChildDied
from stitch_tools.run.reference_server import ReferenceServer

NO_CEILINGS = "whether the times are possible: no ceilings of this device are kept (`stitch-mcp ceilings`)"
_NO_GRAPH = "whether there was time for the reference's matrix products: its graph could not be captured"


@dataclass(frozen=True)
class Speeding:
    """What the bounds say."""

    bounds: tuple[TimeBound, ...] = ()
    findings: tuple[Finding, ...] = ()
    not_checked: tuple[str, ...] = ()
    doubt: str | None = None
    """Why the times do not count; None where nothing is in doubt."""


@dataclass
class SpeedWatch:
    """Looks at a program's times; what it had to find out is kept for the times of a second timing."""

    graph: Graph | None
    """The reference's forward; None: it is captured where ceilings are known."""
    ceilings: Ceilings | None = None
    """Those that were measured again."""

    def look(
        self,
        program: Seat,
        place: Field,
        judge: ReferenceServer,
        target: Target,
        *,
        native: bool,
        say: Callable[[str], None],
    ) -> Speeding:
        """What the device's ceilings say about the program's times.

        Args:
            program: the seat, its rounds done.
            place: of the bench.
            judge: has the reference, to capture its graph.
            target: the device.
            native: whether each call has to write its outputs.
            say: takes sentences on the progress.

        Raises:
            ContestantFailedError: the program failed meanwhile.
        """
        # Ceilings are measured under this package's lock: their module imports it.
        from stitch_tools.run.ceilings import cached_ceilings, remeasured

        threads = place.session.threads if target.gpu is None else None
        known = self.ceilings or cached_ceilings(
            place.task.target, threads=threads, cache_dir=place.cache_dir
        )
        if known is None:
            return Speeding(not_checked=(NO_CEILINGS,))
        operations = self._operations(place, judge)
        look_at = partial(_look, program=program, operations=operations or 0, native=native)
        found = look_at(_limits(known, target, place))
        if any(row.beaten for row in found.bounds):
            say("the program is faster than this device's ceilings: measuring those again")
            self.ceilings = remeasured(known, place.session, cache_dir=place.cache_dir)
            found = look_at(_limits(self.ceilings, target, place))
        missing = (_NO_GRAPH,) if operations is None else ()
        return replace(found, not_checked=(*found.not_checked, *missing))

    def _operations(self, place: Field, judge: ReferenceServer) -> int | None:
        """Of the reference's matrix products; None where its graph cannot be had."""
        if self.graph is None:
            try:
                self.graph = capture_graph(judge.child, place.task, place.facts, None)
            except (TaskError, WorkerError, ChildDied):
                return None
        return product_operations(self.graph)


def _limits(ceilings: Ceilings, target: Target, place: Field) -> Limits:
    nodes = memory_nodes() if target.gpu is None else 1
    slots = place.shape.slots
    return Limits(ceilings, place.facts, slots=slots, caches=cache_bytes(target), nodes=nodes)


def _look(limits: Limits, program: Seat, *, operations: int, native: bool) -> Speeding:
    """The program's bounds, and what they say.

    Only a native program is in doubt: it writes into its caller's memory, while one in Python may hand out a
    view of its inputs.
    """
    bounds = limits.bounds(program.name, program.history, operations)
    findings = findings_of(bounds)
    too_fast = next((row.message for row in findings if row.rule == OUTPUTS_RULE), None)
    return Speeding(bounds, findings, doubt=too_fast if native else None)
