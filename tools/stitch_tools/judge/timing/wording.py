"""What rounds amount to, as rows and sentences."""

from collections.abc import Iterable

from stitch_tools.judge.timing.blocks import Rounds, Series
from stitch_tools.judge.timing.ring import RingShape
from stitch_tools.judge.timing.seats import Seat
from stitch_tools.judge.timing.statistics import MIN_ROUNDS
from stitch_tools.models import Ratio, Timing

_LEFT_OUT = "visits were left out since something waited for a CPU or lost it"
_DISTURBED = 0.10
"""Above this share of disturbed visits the timing counts as disturbed."""


def timing_of(seat: Seat, series: Series) -> Timing:
    """One contestant's medians."""
    kept = sum(visit.disturbed for visit in series.visits)
    latency_s = series.latency_s()
    notes = [seat.note, f"{kept} blocks were disturbed in every repetition" if kept else ""]
    is_hidden = latency_s <= 0.0
    if is_hidden:
        notes.append("one call takes less than a go varies by: its latency is not measured")
    throughput_s = series.throughput_s()
    is_drowned = throughput_s <= 0.0
    if is_drowned:
        notes.append("others took more time than the calls: the throughput is not measured")
    return Timing(
        name=seat.name,
        latency_us=None if is_hidden else _us(latency_s),
        latency_spread_us=None if is_hidden else _us(series.latency_spread_s()),
        throughput_us=None if is_drowned else _us(throughput_s),
        throughput_spread_us=None if is_drowned else _us(series.throughput_spread_s()),
        n=series.blocks,
        note="; ".join(note for note in notes if note),
    )


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


def explain(against: Ratio | None, *, rounds: int, noise: float, quick: bool) -> str:
    """Why a ratio to eager is no gain and no loss; "" where it is one.

    Args:
        against: the ratio, None where there are too few rounds for an interval.
        rounds: the undisturbed ones.
        noise: share by which two runs of one program may differ.
        quick: whether a whole run may give more rounds.
    """
    if not rounds:
        return "no undisturbed round of eager was measured"
    if against is None or rounds < MIN_ROUNDS:
        count = "1 undisturbed round" if rounds == 1 else f"{rounds} undisturbed rounds"
        longer = ", without --quick" if quick else ""
        return f"only {count} of the {MIN_ROUNDS} that a verdict takes: time it on a quiet machine{longer}"
    if against.outcome != "inconclusive":
        return ""
    interval = f"the interval of the speed-up, {against.low:.3f} to {against.high:.3f},"
    if against.low > 1.0 + noise:
        return (
            f"{interval} is not that of whole visits, which take no less than eager's: work is put off"
            " from some calls to others, or calls after a switch are slow"
        )
    if against.low > 1.0 or against.high < 1.0:
        return f"{interval} does not clear the {noise:.0%} by which two runs of one program may differ"
    return f"{interval} does not exclude equality"


def is_disturbed(rounds: Rounds) -> bool:
    """Whether many visits were left out."""
    dirty, count = _disturbed(rounds.series.values())
    return dirty > _DISTURBED * count


def describe_disturbance(rounds: Rounds) -> str:
    """How many visits were left out; "" where they were few."""
    if not is_disturbed(rounds):
        return ""
    dirty, count = _disturbed(rounds.series.values())
    return f"{dirty} of {count} {_LEFT_OUT}: other processes, or more threads than cores"


def others_disturb(rounds: Rounds, program: str) -> bool:
    """Whether others than the program disturbed: it stands still while the baselines are visited."""
    # The program's graph is the program, too.
    baselines = (series for name, series in rounds.series.items() if not name.startswith(program))
    dirty, count = _disturbed(baselines)
    return dirty > _DISTURBED * count


def _disturbed(contestants: Iterable[Series]) -> tuple[int, int]:
    visits = [visit for series in contestants for visit in series.visits]
    return sum(not visit.clean for visit in visits), len(visits)


def describe_ring(shape: RingShape) -> str:
    """What the calls rotate over."""
    return f"timing over a ring of {shape.slots} slots, {shape.nbytes / 1e6:.0f} MB"
