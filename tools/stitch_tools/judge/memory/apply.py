"""What the sanitizers' runs mean for a check: findings, a status, and what was not checked."""

from collections.abc import Sequence

from stitch_tools.judge.verdict import settle_status
from stitch_tools.models import Check, Finding
from stitch_tools.models.sanitizer import SanitizerFinding, SanitizerRun


def apply_sanitizers(check: Check, runs: Sequence[SanitizerRun]) -> Check:
    """The check with the runs' evidence, and the status that both amount to.

    A fatal finding is an access outside of memory, a race, or a result that depends on memory that nobody
    wrote. Findings in libraries and suspicious ones change no status.
    """
    without = tuple(
        f"certified without {run.tool}: {run.reason}" for run in runs if run.status == "not_checked"
    )
    status, reasons = settle_status(check.status, check.message, check.findings, runs)
    return check.model_copy(
        update={
            "status": status,
            "message": check.message if status == check.status else reasons[0].message,
            "findings": (*check.findings, *(_finding(run, row) for run in runs for row in run.findings)),
            "sanitizers": tuple(runs),
            "not_checked": (*check.not_checked, *without),
        }
    )


def _finding(run: SanitizerRun, row: SanitizerFinding) -> Finding:
    times = f" ({row.count} times)" if row.count > 1 else ""
    where = f" in {row.kernel}" if row.kernel else ""
    # A fatal Finding says "cheat"; a memory error is a mistake, and the check's status says so.
    severity = "suspicious" if row.severity == "fatal" else row.severity
    return Finding(
        rule=f"{run.tool}.{row.rule}",
        severity=severity,
        message=f"{row.message}{where}{times}",
        file=row.file,
        line=row.line,
    )
