"""Put what a timing found into rows and sentences. Nothing here decides anything."""

from stitch_tools.judge.timing.output_check import OutputCheck
from stitch_tools.judge.timing.ring import RingShape
from stitch_tools.judge.timing.rounds import Rounds, Series
from stitch_tools.judge.timing.runners import Runner
from stitch_tools.judge.timing.statistics import MIN_ROUNDS
from stitch_tools.models.conditions import TimingDoubt
from stitch_tools.models.verdict import Ratio, Timing

_LEFT_OUT = "visits were left out since something waited for a CPU or lost it"


def timing_of(runner: Runner, series: Series) -> Timing:
    """One contestant's medians."""
    kept = sum(visit.disturbed for visit in series.visits)
    notes = [runner.note, f"{kept} blocks were disturbed in every repetition" if kept else ""]
    # Where others delay the empty batches, their cost can exceed that of a short call.
    latency_s, throughput_s = series.latency_s(), series.throughput_s()
    if latency_s <= 0.0:
        notes.append("one call takes less than a batch varies by: its latency is not measured")
    if throughput_s <= 0.0:
        notes.append("others took more time than the calls: the throughput is not measured")
    return Timing(
        name=runner.name,
        latency_us=_us(latency_s) if latency_s > 0.0 else None,
        latency_spread_us=_us(series.latency_spread_s()) if latency_s > 0.0 else None,
        throughput_us=_us(throughput_s) if throughput_s > 0.0 else None,
        throughput_spread_us=_us(series.throughput_spread_s()) if throughput_s > 0.0 else None,
        n=series.blocks,
        disturbed=2 * sum(visit.clean for visit in series.visits) < len(series.visits),
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
    interval = f"the interval of the speedup, {against.low:.3f} to {against.high:.3f},"
    if against.low > 1.0 + noise:
        return (
            f"{interval} is not that of whole visits, which take no less than eager's: work is put off"
            " from some calls to others, or calls after a switch are slow"
        )
    if against.low > 1.0 or against.high < 1.0:
        return f"{interval} does not clear the {noise:.0%} by which two runs of one program may differ"
    return f"{interval} does not exclude equality"


def describe_doubt(doubt: TimingDoubt) -> str:
    """One probe's figures, and what they suggest."""
    observed, expected = f"{doubt.observed:.2f} us", f"{doubt.expected:.2f} us"
    match doubt.rule:
        case "extra_cpus":
            allowed = f"{doubt.expected:.0f} threads are" if doubt.expected > 1 else "one thread is"
            return f"the program kept {doubt.observed:.1f} CPUs busy, where {allowed} allowed"
        case "skipped_work":
            return (
                f"calls into wiped outputs take {observed}, timed ones {expected}: either results are kept"
                " from call to call, or the machine was disturbed"
            )
        case "remembered_inputs":
            return (
                f"calls on new inputs take {observed}, on known ones {expected}: something is kept by the"
                " values of inputs"
            )
        case "deferred_work":
            return (
                f"a timed call is {_saved(doubt.expected)} than that of {doubt.baseline}, and"
                f" {_saved(doubt.observed)} where its outputs are read afterwards: work seems to be put off"
                " until outputs are read"
            )
        case "work_moved_between_batches":
            return (
                f"the slope of blocks is {expected} per call, their whole time {observed}: work is put off"
                " from one batch of calls to the next"
            )
        case "work_moved_out_of_blocks":
            return (
                f"the slope of blocks is {expected} per call, the time of all batches of a visit {observed}:"
                " work is done outside of the blocks"
            )
        case "slow_on_new_inputs":
            return f"calls on inputs that never came before take {_costs(observed, expected)}"
        case "slow_on_late_inputs":
            return f"calls on inputs that come with the clock running take {_costs(observed, expected)}"
        case "faster_than_memory":
            calls = f"{doubt.calls} calls" if doubt.calls > 1 else "one call"
            return f"{calls} took {observed}, writing their outputs takes {expected} at least"


def _saved(microseconds: float) -> str:
    return f"{abs(microseconds):.2f} us {'slower' if microseconds < 0 else 'faster'}"


def _costs(observed: str, expected: str) -> str:
    return f"{observed}, timed ones {expected}: what was timed is not what a call on new inputs costs"


def describe_not_compared(check: OutputCheck) -> str:
    """Why outputs of timed calls were not compared; "" where all were."""
    if not check.not_compared:
        return ""
    compared = "not all timed outputs were compared" if check.compared else "timed outputs were not compared"
    return f"{compared}: {check.not_compared}"


def describe_disturbance(rounds: Rounds) -> str:
    """How many visits were left out; "" where they were few."""
    found = rounds.disturbance()
    if not found.is_large:
        return ""
    return f"{found.left_out} of {found.visits} {_LEFT_OUT}: other processes, or more threads than cores"


def describe_ring(shape: RingShape) -> str:
    """What the calls rotate over."""
    return f"timing over a ring of {shape.slots} slots, {shape.nbytes / 1e6:.0f} MB"
