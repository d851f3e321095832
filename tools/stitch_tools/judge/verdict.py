"""The verdict: what the evidence on a program amounts to. Nothing else decides.

Pure functions over stored facts, so that a run, a certificate and a suite read the same verdict from the same
evidence, today's or an old one's.
"""

from collections.abc import Iterable

from stitch_tools.models.acceptance import (
    AcceptableFlag,
    AcceptPolicy,
    Verdict,
    VerdictReason,
    weighing_kind,
)
from stitch_tools.models.finding_kinds import finding_kind
from stitch_tools.models.sanitizer import SanitizerFinding, SanitizerRun
from stitch_tools.models.verdict import Bench, Check, CheckStatus, Finding

BEYOND_ALLOWANCE = "pytorch_share"
"""The rule of the finding that PyTorch does more of the work than the contract allows."""


def verdict_of(check: Check, bench: Bench | None = None, policy: AcceptPolicy | None = None) -> Verdict:
    """The verdict on a program.

    Args:
        check: correctness and static evidence, who did the work and what the sanitizers saw, where they ran.
        bench: the timing; None where the program was not timed.
        policy: which shortcomings of a correct program are accepted; None: the default policy.
    """
    policy = policy or AcceptPolicy()
    findings = (*check.findings, *(bench.findings if bench else ()))
    status, reasons = settle_status(check.status, check.message, findings, check.sanitizers)
    if status != "accepted":
        return Verdict(status=status, flags=check.flags, counts=False, reasons=reasons, policy=policy)
    shortcomings = (*_flags(check), *_findings(findings, check), *_timing(bench))
    accepted = policy.names
    refused = tuple(row for row in shortcomings if row.accept not in accepted)
    return Verdict(
        status=status,
        flags=check.flags,
        counts=not refused,
        reasons=refused,
        excused=tuple(row for row in shortcomings if row.accept in accepted),
        policy=policy,
    )


def settle_status(
    ended: CheckStatus, message: str, findings: Iterable[Finding], memory: Iterable[SanitizerRun] = ()
) -> tuple[CheckStatus, tuple[VerdictReason, ...]]:
    """The status that the evidence amounts to, and why it is not `accepted`.

    A fatal finding comes first: it shows intent, whatever else went wrong. A fatal finding of a sanitizer is
    a mistake, not a cheat: the outputs agreed by luck.

    Args:
        ended: how the draws ended.
        message: the sentence on that.
        findings: of check and timing.
        memory: what the sanitizers saw.
    """
    fatal = tuple(
        VerdictReason(source="finding", rule=row.rule, message=row.message)
        for row in findings
        if row.severity == "fatal"
    )
    if fatal:
        return "rejected_cheat", fatal
    if ended != "accepted":
        return ended, (VerdictReason(source="check", rule=ended, message=message or ended),)
    mistakes = tuple(
        VerdictReason(
            source="memory", rule=f"{run.tool}.{row.rule}", message=f"{run.tool}: {_place(row)}{row.message}"
        )
        for run in memory
        for row in run.findings
        if row.severity == "fatal"
    )
    return ("incorrect", mistakes) if mistakes else ("accepted", ())


def _place(row: SanitizerFinding) -> str:
    return f"{row.file}:{row.line}: " if row.file and row.line else ""


def _flags(check: Check) -> Iterable[VerdictReason]:
    shortcomings: list[tuple[AcceptableFlag, str | None]] = [
        ("partial", _beyond_allowance(check)),
        ("weak", "the check rests on draws that hardly depend on inputs or weights, or too few"),
    ]
    # Nobody saw who did the work (the time was over), and the text leaves some to PyTorch: no claim is made.
    unseen = check.work is None and _pytorch_works(check)
    for flag, message in shortcomings:
        if message and (flag in check.flags or (flag == "partial" and unseen)):
            yield VerdictReason(source="flag", rule=flag, accept=flag, message=message)


def _beyond_allowance(check: Check) -> str | None:
    """Why PyTorch's part in a partial program is beyond the contract's allowance; None where it is within."""
    if _has(check.findings, BEYOND_ALLOWANCE):
        share = f"{check.work.pytorch_of_work:.0%} of the work is" if check.work else "more of the work is"
        return f"{share} PyTorch's, beyond the contract's allowance"
    if check.work is None:
        return "operations are left to PyTorch, and their share of the work was not measured"
    return None


def _findings(findings: Iterable[Finding], check: Check) -> Iterable[VerdictReason]:
    for row in findings:
        kind = weighing_kind(row.rule)
        if kind is None or row.severity != "suspicious":
            continue
        # An idle kernel feigns work only where PyTorch does it: a spare one is harmless.
        if kind == "kernel_never_launched" and not _pytorch_works(check):
            continue
        yield VerdictReason(source="finding", rule=row.rule, accept=kind, message=row.message)


def _pytorch_works(check: Check) -> bool:
    """Whether PyTorch does the work, as far as it was traced; else whether the text says that it computes."""
    work = check.work
    if work is not None:
        return _has(check.findings, BEYOND_ALLOWANCE) or work.pytorch > work.own + work.library
    return any(
        finding_kind(row.rule) == "pytorch_used" and row.severity == "suspicious" for row in check.findings
    )


def _timing(bench: Bench | None) -> Iterable[VerdictReason]:
    if bench is not None and bench.program_failed:
        message = bench.message or "the program failed when it was timed"
        yield VerdictReason(source="timing", rule="failed_when_timed", message=message)


def _has(findings: Iterable[Finding], rule: str) -> bool:
    return any(row.rule == rule for row in findings)
