"""Does every timed call write its outputs, or does it leave those of an earlier call in place?"""

from dataclasses import dataclass

from stitch_tools.judge.timing.call_overhead import work_s
from stitch_tools.judge.timing.probes.probe import ProbeContext, ProbeReport, Stage
from stitch_tools.models.conditions import TimingDoubt

_ATTEMPTS = 3
_BATCH_S = 0.05
# Calls into wiped outputs may take so many times what timed calls take; no honest program comes near.
_LONGER = 1.5


@dataclass(frozen=True)
class SkippedWork:
    """Times calls over a ring whose outputs were all wiped.

    A ring comes round again with the same inputs: a program that finds its old outputs in place can leave
    them there. Only where each call writes straight into our memory can they be wiped.
    """

    stage: Stage = "running"

    def look(self, context: ProbeContext) -> ProbeReport:
        """A doubt where calls take much longer once their outputs are wiped."""
        program, per_call_s = context.program, context.throughput_s
        sampler = program.sampler
        if sampler is None or not sampler.live or per_call_s <= 0.0:
            return ProbeReport()
        calls = max(1, min(program.slots, int(_BATCH_S / per_call_s)))
        shortest_s = float("inf")
        # The best of three: a busy moment of the machine is no work.
        for _ in range(_ATTEMPTS):
            sampler.ring.poison(program.slot, calls)
            program.resume()
            empty_s = program.run_calls(0)
            full_s = program.run_calls(calls)
            shortest_s = min(shortest_s, work_s(empty_s, full_s, context.overhead_limit_s) / calls)
            program.pause()
            program.take_one(calls)
        if shortest_s <= _LONGER * per_call_s + sampler.ring.settle_s / calls:
            return ProbeReport()
        doubt = TimingDoubt(rule="skipped_work", observed=shortest_s * 1e6, expected=per_call_s * 1e6)
        return ProbeReport((doubt,))
