"""What check and timing of a program amount to, in words."""

from stitch_tools.models.acceptance import Verdict
from stitch_tools.models.verdict import Bench, Check

_HEADS = {"faster": "faster", "slower": "correct but slower", "inconclusive": "correct, inconclusive"}


def explain(checked: Check, timed: Bench | None, decided: Verdict) -> str:
    """Verdict, outcome and reason as one sentence."""
    reason = explain_reason(checked, timed, decided)
    if not decided.accepted:
        return f"{decided.status}: {reason}" if reason else decided.status
    flags = f" ({', '.join(checked.flags)})" if checked.flags else ""
    if not decided.counts:
        return f"correct, does not count{flags}: {reason}"
    if timed is None or timed.ratio("eager") is None:
        untimed = "not timed" if timed is None or timed.outcome == "unmeasured" else timed.outcome
        return f"correct, {untimed}{flags}: {reason}"
    return f"{_HEADS.get(timed.outcome, timed.outcome)}{flags}: {reason}"


def explain_reason(checked: Check, timed: Bench | None, decided: Verdict) -> str:
    """The sentence without what status, outcome and flags say."""
    if not decided.accepted:
        # Evidence beside the draws (a finding, a memory error, the timing) may say more than the check.
        return checked.message if checked.status == decided.status else decided.why_not
    figures = _figures(timed)
    return figures if decided.counts else f"{decided.why_not}; {figures}"


def _figures(timed: Bench | None) -> str:
    if timed is None:
        return "it was not timed"
    against = timed.ratio("eager")
    if against is None:
        return timed.message
    doubt = f"; {timed.doubt}" if timed.doubt else ""
    return f"{against.speedup:.2f}x eager, 95% interval {against.low:.2f} to {against.high:.2f}{doubt}"
