"""The speed-up of one contestant over one baseline, by two accounts where work could be moved."""

from stitch_tools.judge.timing.rounds import Figure, Rounds
from stitch_tools.judge.timing.statistics import outcome_of
from stitch_tools.models import Ratio


def ratio_of(rounds: Rounds, baseline: str, contestant: str, *, figure: Figure, noise: float) -> Ratio | None:
    """The speed-up with its interval and outcome; None where too few rounds were undisturbed.

    The slope between two batches is free of what a batch costs, and blind to work that is put off from one
    batch to another. The time of all batches of a visit is not: a gain by slopes that this one does not show
    is none.
    """
    interval = rounds.ratio(baseline, contestant, figure)
    if interval is None or interval.low is None or interval.high is None:
        return None
    outcome = outcome_of(interval, noise=noise)
    if outcome == "faster" and figure == "throughput_us":
        whole = rounds.whole_ratio(baseline, contestant)
        if whole is None or whole.low is None or whole.low <= 1.0:
            outcome = "inconclusive"
    return Ratio(
        baseline=baseline,
        contestant=contestant,
        speedup=interval.middle,
        low=interval.low,
        high=interval.high,
        outcome=outcome,
    )
