"""The diagnosis: of all rules the three that pay most, and what was ruled out."""

from collections.abc import Sequence

from stitch_tools.diagnose.evidence import ProfileEvidence, amdahl
from stitch_tools.diagnose.graph_time import graph_time
from stitch_tools.diagnose.rule import DiagnosisRule, Seen
from stitch_tools.diagnose.rules import RULES
from stitch_tools.models.profile import (
    Bottleneck,
    BoundBy,
    GainPrediction,
    ProfileDiagnosis,
    RuledOut,
)

MOST_BOTTLENECKS = 3
_WORTH_SAYING = 1.02
"""Smallest expected speed-up that is worth a line."""


def diagnose(evidence: ProfileEvidence, rules: Sequence[DiagnosisRule] = RULES) -> ProfileDiagnosis:
    """What limits the subject of a profile, ranked by the expected speed-up of the whole."""
    found: list[tuple[Bottleneck, BoundBy]] = []
    ruled_out: list[RuledOut] = []
    for rule in rules:
        if not rule.applies(evidence):
            continue
        looked = rule.look(evidence)
        if isinstance(looked, str):
            ruled_out.append(RuledOut(rule=rule.name, reason=looked))
        elif looked is not None:
            found.append((_bottleneck(rule, looked, evidence), rule.bound_by))
    found.sort(key=lambda row: -row[0].gain.expected)
    chosen = [row for row in found if row[0].gain.expected >= _WORTH_SAYING]
    if not chosen:
        # Nothing pays: what says so ("stop") is the finding.
        chosen = [row for row in found if row[0].rule == "near_bound"]
    return ProfileDiagnosis(
        bottlenecks=tuple(row[0] for row in chosen[:MOST_BOTTLENECKS]),
        ruled_out=tuple(ruled_out),
        bound_by=chosen[0][1] if chosen else "unknown",
    )


def _bottleneck(rule: DiagnosisRule, seen: Seen, evidence: ProfileEvidence) -> Bottleneck:
    gain = amdahl(evidence.total_us, seen.low_us, seen.expected_us, seen.high_us)
    if evidence.system.untraced_us is None:
        # A traced iteration is longer than others: no latency can be predicted from it.
        gain = gain.model_copy(update={"predicted_us": None})
    return Bottleneck(
        rule=rule.name,
        cause=seen.cause,
        evidence=seen.evidence,
        gain=gain,
        action=seen.action or rule.action,
        kernel=seen.kernel,
        module=seen.module,
        file=seen.file,
        line=seen.line,
        doc_query=seen.doc_query or rule.doc_query,
        skill=rule.skill,
    )


def predictions_of(
    evidence: ProfileEvidence, diagnosis: ProfileDiagnosis, from_id: str
) -> tuple[GainPrediction, ...]:
    """What each bottleneck's remedy should bring, to be scored when the next program is timed.

    Empty without an untraced latency: nothing could be compared with it.
    """
    before = evidence.system.untraced_us
    if before is None:
        return ()
    naive = graph_time(evidence)
    return tuple(
        GainPrediction(
            rule=row.rule,
            from_id=from_id,
            before_us=before,
            predicted_us=before / row.gain.expected,
            low_us=before / row.gain.high,
            high_us=before / row.gain.low,
            naive_us=naive.naive_us if naive is not None and row.rule == "host_bound" else None,
        )
        for row in diagnosis.bottlenecks
        if row.gain.expected > 1.0
    )


def score(prediction: GainPrediction, to_id: str, actual_us: float) -> GainPrediction:
    """The prediction beside what the next program really took."""
    return prediction.model_copy(update={"to_id": to_id, "actual_us": actual_us})
