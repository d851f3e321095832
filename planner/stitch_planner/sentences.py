"""What check and timing of a program amount to, in words."""

from stitch_tools.models import Bench, Check


def explain(checked: Check, timed: Bench) -> str:
    """Status and outcome as one sentence."""
    if checked.status != "accepted":
        return f"{checked.status}: {checked.message}" if checked.message else checked.status
    if timed.rejected:
        return f"rejected_cheat: {timed.message}"
    against = timed.ratio("eager")
    flags = f" ({', '.join(checked.flags)})" if checked.flags else ""
    if against is None:
        untimed = "not timed" if timed.outcome == "unmeasured" else timed.outcome
        return f"correct, {untimed}{flags}: {timed.message}"
    interval = f"{against.speedup:.2f}x eager, 95% interval {against.low:.2f} to {against.high:.2f}"
    words = {"faster": "faster", "slower": "correct but slower", "inconclusive": "correct, inconclusive"}
    doubt = f"; {timed.doubt}" if timed.doubt else ""
    return f"{words.get(timed.outcome, timed.outcome)}{flags}: {interval}{doubt}"
