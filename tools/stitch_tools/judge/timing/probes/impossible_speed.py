"""Is the program faster than this device's measured ceilings allow?"""

from dataclasses import dataclass

from stitch_tools.judge.timing.bounds import (
    TimeBounds,
    cache_bytes,
    findings_of,
    memory_nodes,
    product_operations,
)
from stitch_tools.judge.timing.probes.probe import ProbeContext, ProbeReport, Stage
from stitch_tools.models import Ceilings, TimeBound, TimingDoubt

NO_CEILINGS = "whether the times are possible: no ceilings of this device are kept (`stitch-mcp ceilings`)"
_NO_GRAPH = "whether there was time for the reference's matrix products: its graph could not be captured"


@dataclass(frozen=True)
class ImpossibleSpeed:
    """Compares the program's times with the shortest possible ones; beaten ceilings are measured anew."""

    stage: Stage = "finished"

    def look(self, context: ProbeContext) -> ProbeReport:
        """The bounds, with findings where they are beaten; a doubt where outputs cannot all be written."""
        # Ceilings are measured under this package's lock: their module imports it.
        from stitch_tools.run.ceilings import cached_ceilings, remeasured

        setup = context.setup
        threads = setup.session.threads if context.target.gpu is None else None
        known = cached_ceilings(setup.task.target, threads=threads, cache_dir=setup.cache_dir)
        if known is None:
            return ProbeReport(not_checked=(NO_CEILINGS,))
        graph = context.graph()
        operations = product_operations(graph) if graph is not None else 0
        bounds = _bounds(known, context, operations)
        if any(row.beaten for row in bounds):
            context.say("the program is faster than this device's ceilings: measuring those again")
            bounds = _bounds(remeasured(known, setup.session, cache_dir=setup.cache_dir), context, operations)
        doubts = tuple(
            TimingDoubt(
                rule="faster_than_memory",
                observed=row.measured_us,
                expected=row.bound_us,
                calls=row.calls,
            )
            for row in bounds
            # A native program writes into its caller's memory; one in Python may return a view of its inputs.
            if row.kind == "outputs" and row.beaten and context.loaded.native
        )
        missing = () if graph is not None else (_NO_GRAPH,)
        return ProbeReport(doubts, bounds=bounds, findings=findings_of(bounds), not_checked=missing)


def _bounds(ceilings: Ceilings, context: ProbeContext, operations: int) -> tuple[TimeBound, ...]:
    bounds = TimeBounds(
        ceilings,
        context.setup.facts,
        slots=context.setup.shape.slots,
        caches=cache_bytes(context.target),
        nodes=memory_nodes() if context.target.gpu is None else 1,
    )
    return bounds.of(context.program.name, context.program.history, operations)
