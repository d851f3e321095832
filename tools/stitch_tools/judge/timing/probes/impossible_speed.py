"""Is the program faster than this device's measured ceilings allow?"""

from dataclasses import dataclass

from stitch_tools.judge.timing.bounds import cache_bytes, finding_of, memory_nodes, writing_bound
from stitch_tools.judge.timing.probes.probe import ProbeContext, ProbeReport, Stage
from stitch_tools.models import Ceilings, TimeBound, TimingDoubt

NO_CEILINGS = "whether the times are possible: no ceilings of this device are kept (`stitch-mcp ceilings`)"


@dataclass(frozen=True)
class ImpossibleSpeed:
    """Compares the program's times with the shortest possible ones; beaten ceilings are measured anew."""

    stage: Stage = "finished"

    def look(self, context: ProbeContext) -> ProbeReport:
        """The bound, with a finding where it is beaten; a doubt where outputs cannot all be written."""
        # Ceilings are measured under this package's lock: their module imports it.
        from stitch_tools.run.ceilings import cached_ceilings, remeasured

        setup = context.setup
        known = cached_ceilings(setup.task.target, threads=setup.session.threads, cache_dir=setup.cache_dir)
        if known is None:
            return ProbeReport(not_checked=(NO_CEILINGS,))
        bound = _bound(known, context)
        if bound is not None and bound.beaten:
            # A neighbour may have taken bandwidth while they were measured.
            context.say("the program is faster than this device's ceilings: measuring those again")
            bound = _bound(remeasured(known, setup.session, cache_dir=setup.cache_dir), context)
        if bound is None or not bound.beaten:
            return ProbeReport(bounds=(bound,) if bound else ())
        doubt = TimingDoubt(
            rule="faster_than_memory",
            observed=bound.measured_us,
            expected=bound.bound_us,
            calls=bound.calls,
        )
        # A native program writes into its caller's memory; one in Python may return a view of its inputs.
        doubts = (doubt,) if context.loaded.native else ()
        return ProbeReport(doubts, bounds=(bound,), findings=(finding_of(bound),))


def _bound(ceilings: Ceilings, context: ProbeContext) -> TimeBound | None:
    return writing_bound(
        ceilings,
        context.program.history,
        output_bytes=sum(spec.nbytes for spec in context.setup.facts.outputs),
        slots=context.setup.shape.slots,
        caches=cache_bytes(context.target),
        nodes=memory_nodes() if context.target.gpu is None else 1,
    )
