"""A verdict as command line and tools show it: fields for scripts, sentences for people."""

from typing import TYPE_CHECKING

from stitch_tools.models.acceptance import Verdict

if TYPE_CHECKING:
    from stitch_planner.loop import SolveResult


def verdict_fields(verdict: Verdict) -> dict[str, object]:
    """The fields with which a JSON result tells whether a program counts, and why not."""
    return {
        "status": verdict.status,
        "counts": verdict.counts,
        "reasons": verdict.reasons,
        "excused": verdict.excused,
        "policy": verdict.policy,
    }


def result_fields(result: "SolveResult") -> dict[str, object]:
    """The fields of a solved run for scripts; of its verdict the same ones as those of a check."""
    fields = dict(result)
    verdict = fields.pop("verdict")
    return fields if verdict is None else {**fields, **verdict_fields(verdict)}


def verdict_notes(verdict: Verdict) -> list[str]:
    """Sentences on an accepted program: why it does not count, and what the policy lets pass; else none."""
    against = [f"it does not count: {verdict.why_not}"] if verdict.accepted and not verdict.counts else []
    return against + policy_notes(verdict)


def policy_notes(verdict: Verdict) -> list[str]:
    """Sentences on what a policy would have to accept, and on what this one does."""
    if not verdict.accepted:
        return []
    notes: list[str] = []
    if verdict.accept:
        flags = " ".join(f"--accept {name}" for name in (*verdict.policy.names, *verdict.accept))
        notes.append(f"{flags} lets it count, which results and certificate then say")
    if verdict.excused:
        excused = "; ".join(f"{row.rule}: {row.message}" for row in verdict.excused)
        notes.append(f"accepted although: {excused}")
    return notes
