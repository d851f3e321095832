"""Is work put off from one batch of calls to another, where the slope of blocks does not see it?"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from stitch_tools.judge.timing.probes.probe import ProbeContext, ProbeReport, Stage
from stitch_tools.judge.timing.program_runners import programs_among
from stitch_tools.judge.timing.visits import Visit
from stitch_tools.models.conditions import TimingDoubt

# The slope of a block may be this share of its whole time per call at least.
_SHORTER = 0.8
# And this share of the time per call of all batches of a visit, whose first calls are slower.
_SHORTER_THAN_ALL = 0.6
_FEWEST_BLOCKS = 5
# Above this share of the baselines' visits others make blocks be repeated.
_REPEATED = 0.10


@dataclass(frozen=True)
class MovedWork:
    """Compares the slope of blocks with the whole time of blocks and of visits."""

    stage: Stage = "finished"

    def look(self, context: ProbeContext) -> ProbeReport:
        """A doubt where the slope is far below one of the others."""
        series = context.rounds.series
        programs = programs_among(series)
        others = [visit for name, row in series.items() if name not in programs for visit in row.visits]
        doubt = moved_work(series[context.program.name].visits, others)
        return ProbeReport((doubt,) if doubt else ())


def moved_work(visits: Sequence[Visit], others: Sequence[Visit] = ()) -> TimingDoubt | None:
    """The doubt where the slope between k and 2k calls is far below the time of both.

    Work that is put off from each long batch to the next short one leaves the slope, and not the sum. Only
    visits that nobody disturbed are looked at, as for the figures: a program could disturb the others itself.
    What is done in other batches of a visit, empty ones too, leaves both, and not the time of all of them.
    That holds blocks, too, which were repeated: where this happens to `others`, visits of the baselines, it
    is no doing of the program's, and only visits without a repetition tell.
    """
    slopes = [slope for visit in visits if visit.clean for slope in visit.slopes_s]
    wholes = [whole for visit in visits if visit.clean for whole in visit.wholes_s]
    if len(slopes) < _FEWEST_BLOCKS:
        return None
    forced = sum(map(_was_repeated, others)) > _REPEATED * len(others)
    totals = [v.total_s for v in visits if v.clean and not (forced and _was_repeated(v))]
    slope_us, whole_us = median(slopes) * 1e6, median(wholes) * 1e6
    if slope_us < _SHORTER * whole_us:
        return TimingDoubt(rule="work_moved_between_batches", observed=whole_us, expected=slope_us)
    if totals and slope_us < _SHORTER_THAN_ALL * median(totals) * 1e6:
        return TimingDoubt(rule="work_moved_out_of_blocks", observed=median(totals) * 1e6, expected=slope_us)
    return None


def _was_repeated(visit: Visit) -> bool:
    return not visit.clean or visit.repeats > 0 or visit.disturbed > 0
