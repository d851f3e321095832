"""What the sanitizers' runs mean for a check: findings, a status, and what was not checked."""

from collections.abc import Sequence

from stitch_tools.judge.memory.conclude import not_checked
from stitch_tools.judge.memory.run import tools_of
from stitch_tools.models import Check, Finding
from stitch_tools.models.sanitizer import SanitizerFinding, SanitizerRun


def skipped_sanitizers(target: str, reason: str) -> tuple[SanitizerRun, ...]:
    """A run of each of the target's tools that says why it was left out."""
    return tuple(not_checked(tool, reason) for tool in tools_of(target))


def apply_sanitizers(check: Check, runs: Sequence[SanitizerRun]) -> Check:
    """The check with the runs' evidence: an accepted program with a fatal finding becomes `incorrect`.

    A fatal finding is an access outside of memory, a race, or a result that depends on memory that nobody
    wrote: the outputs agreed by luck. Findings in libraries and suspicious ones change no status.
    """
    findings = tuple(_finding(run, row) for run in runs for row in run.findings)
    fatal = [(run, row) for run in runs for row in run.findings if row.severity == "fatal"]
    without = tuple(
        f"certified without {run.tool}: {run.reason}" for run in runs if run.status == "not_checked"
    )
    status, message = check.status, check.message
    if fatal and status == "accepted":
        run, row = fatal[0]
        status, message = "incorrect", f"{run.tool}: {_place(row)}{row.message}"
    return check.model_copy(
        update={
            "status": status,
            "message": message,
            "findings": (*check.findings, *findings),
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


def _place(row: SanitizerFinding) -> str:
    return f"{row.file}:{row.line}: " if row.file and row.line else ""
