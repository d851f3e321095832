"""Causes on a CPU: the interpreter, elementwise passes, copies, one operator or function that takes most."""

import re

from stitch_tools.diagnose.evidence import ProfileEvidence, quantity, time_of
from stitch_tools.diagnose.rule import Looked, Seen

_MATTERS = 0.05
_MATH_LIBRARY = re.compile(r"^libm: ")
_COPY = re.compile(r"aten::(copy_|clone|cat|contiguous|_to_copy|fill_|zero_)$")


def interpreter_overhead(evidence: ProfileEvidence) -> Looked:
    """Time outside of any operator: Python, and PyTorch's dispatch."""
    if evidence.subject != "reference":
        return None
    outside = max(0.0, 1.0 - evidence.system.busy_share)
    calls = sum(row.count for row in evidence.system.kernels)
    # An operator's own time holds its dispatch, about a microsecond each; recording doubles it.
    saved = outside * evidence.total_us + min(calls * 0.5, 0.2 * evidence.total_us)
    if saved < _MATTERS * evidence.total_us:
        return f"{outside:.0%} of the time is outside of operators"
    return Seen(
        f"{outside:.0%} of the time is outside of operators, and {calls:.0f} operators are dispatched singly",
        0.3 * saved,
        0.7 * saved,
        saved,
        (
            quantity("time inside of operators", evidence.system.busy_us, "us", evidence),
            quantity("operators called", calls, "", evidence),
        ),
    )


def memory_passes(evidence: ProfileEvidence) -> Looked:
    """Copies and fills that a fused program would not make."""
    rows = evidence.rows(_COPY)
    spent = time_of(rows)
    whole = max(1e-9, time_of(evidence.system.kernels) + evidence.system.other_kernels_us)
    if not spent or spent < _MATTERS * whole:
        return f"copies and fills take {spent / whole:.0%} of the operators' time"
    share = spent / whole * evidence.total_us
    largest = max(rows, key=lambda row: row.total_us)
    return Seen(
        f"copies, concatenations and fills take {spent / whole:.0%} of the operators' time "
        f"({largest.short_name or largest.name})",
        0.4 * share,
        0.8 * share,
        share,
        (quantity("time of copies and fills", spent, "us", evidence),),
        module=largest.module,
    )


def math_calls(evidence: ProfileEvidence) -> Looked:
    """Functions of the math library, called for one element after the other."""
    rows = evidence.rows(_MATH_LIBRARY)
    share = sum(row.share for row in rows)
    if share < 0.2:
        return f"functions of the math library take {share:.0%} of the time"
    spent = share * evidence.total_us
    names = ", ".join(row.name.partition(": ")[2] for row in rows[:3])
    return Seen(
        f"functions of the math library take {share:.0%} of the time ({names}), an element a call",
        0.2 * spent,
        0.6 * spent,
        0.9 * spent,
        (quantity("time in the math library", time_of(rows), "us", evidence),),
        kernel=rows[0].name,
    )


def hot_function(evidence: ProfileEvidence) -> Looked:
    """One function or operator takes most of the time."""
    # Waiting is no function's work: another rule says what it costs.
    rows = [row for row in evidence.system.kernels if row.owner != "other"]
    row = max(rows, key=lambda row: row.total_us, default=None)
    if row is None:
        return None
    if row.share < 0.4:
        return f"no function takes more than {row.share:.0%}"
    spent = row.share * evidence.total_us
    # Nobody knows from the outside how much faster it can be; the bound of the whole says what is left.
    most = spent
    bound = evidence.bounds.fused_us if evidence.bounds is not None else None
    if bound is not None:
        most = min(spent, max(0.0, evidence.total_us - bound))
    return Seen(
        f"{row.short_name or row.name} takes {row.share:.0%} of the time",
        0.0,
        0.4 * most,
        0.9 * most,
        (quantity(f"time of {row.short_name or row.name}", row.total_us, "us", evidence),),
        kernel=row.name,
        module=row.module,
        file=row.file,
        line=row.line,
    )
