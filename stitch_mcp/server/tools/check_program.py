"""`check_program`: compares a program with its reference on hidden inputs, and looks for cheats."""

from typing import ClassVar

from stitch_mcp.server.evidence_lines import (
    findings_as_lines,
    reasons_as_lines,
    sanitizers_as_line,
    work_as_line,
)
from stitch_mcp.server.job_context import JobContext
from stitch_mcp.server.requests import Detailed, JudgesProgram
from stitch_mcp.server.tool import Tool, ToolAnswer
from stitch_tools.models.acceptance import Verdict
from stitch_tools.models.remedy import Remedy
from stitch_tools.models.verdict import Check, DrawResult
from stitch_tools.run.last_words import own_words

_MOST = 8
_OUTPUT_CHARS = 1200


class CheckProgram(JudgesProgram, Detailed):
    """Arguments of check_program."""

    sanitize: bool = False
    """Look for memory errors and races: 20 to 60 s more; once before certify_program."""


class CheckAnswer(ToolAnswer):
    """The verdict with its evidence."""

    DETAILS: ClassVar[tuple[str, ...]] = ("not_checked", "work")
    QUOTED: ClassVar[tuple[str, ...]] = ("message", "reasons", "wrong", "findings", "docs", "program_output")

    program_id: str | None = None
    verdict: str | None = None
    """accepted, incorrect, build_failed, crashed, timed_out, out_of_memory, rejected_cheat, unmeasured."""
    counts: bool | None = None
    """Whether it may be claimed; else see `reasons`."""
    reasons: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    """weak, relaxed, library_only, partial, specialized, unguarded, unsupported_rng, incomplete."""
    draws: str | None = None
    """How many draws agreed."""
    wrong: tuple[str, ...] = ()
    """Draw, output, error and bound, index, expected and actual value."""
    findings: tuple[str, ...] = ()
    """Signs of cheating or risk: severity, rule, place, sentence."""
    docs: tuple[str, ...] = ()
    program_output: str | None = None
    """Last lines that the program printed."""
    work: str | None = None
    """Who did the work, by share of time."""
    sanitizers: str | None = None
    """Which ran, and what each says."""
    not_checked: tuple[str, ...] = ()
    sandbox: str | None = None


def check(request: CheckProgram, work: JobContext) -> CheckAnswer:
    """Check a program and record the result in its run."""
    from stitch_mcp.server.docs import advice
    from stitch_mcp.server.steps import known_facts
    from stitch_planner.join import joined
    from stitch_planner.runs.recorder import record_build, record_check
    from stitch_tools.judge.verdict import verdict_of

    workbench, program = work.workbench, work.program
    with workbench.trial(work.task, program, known=known_facts(work)) as trial:
        checked = workbench.check(trial, sanitize=request.sanitize)
    verdict = verdict_of(checked, policy=workbench.policy)
    if run_id := work.subject.run_id:
        with joined(workbench.workspace, run_id) as run:
            # The build is recorded with the check: an agent may have called check_program without
            # compile_program.
            record_build(run, program, trial.build)
            # A run keeps the policy that it began with.
            verdict = record_check(run, program, checked)
    agreed = sum(draw.ok for draw in checked.draws)
    return CheckAnswer(
        message=f"{work.named_program}{_message(checked, verdict)}",
        run_id=run_id,
        artifact=workbench.workspace.store.put_fact(checked),
        program_id=program.program_id[:16],
        verdict=verdict.status,
        counts=verdict.counts,
        reasons=reasons_as_lines(verdict),
        flags=verdict.flags,
        draws=f"{agreed} of {len(checked.draws)} agreed" if checked.draws else None,
        wrong=tuple(_wrong(draw) for draw in checked.draws if not draw.ok)[:_MOST],
        findings=findings_as_lines(checked.findings),
        docs=advice(
            work.config,
            (row.doc_query for run in checked.sanitizers for row in run.findings),
            cpu=program.target == "cpu",
        ),
        program_output=own_words(checked.stderr_tail)[-_OUTPUT_CHARS:],
        work=work_as_line(checked),
        sanitizers=sanitizers_as_line(checked),
        not_checked=checked.not_checked,
        sandbox=checked.sandbox,
        next_steps=_next(work, checked, verdict),
    )


def _message(checked: Check, verdict: Verdict) -> str:
    """Verdict and cause; of an accepted program that does not count, what keeps it from that."""
    if verdict.accepted and not verdict.counts:
        return f"{verdict.status}, and does not count: {verdict.why_not}"
    return f"{verdict.status}: {checked.message}" if checked.message else verdict.status


def _wrong(draw: DrawResult) -> str:
    bad = next((output for output in draw.outputs if output.problem), None)
    if bad is None:
        return f"{draw.draw}: {draw.problem}"[:400]
    parts = [f"{draw.draw}, output {bad.output}: {bad.problem}"]
    if bad.max_error is not None and bad.bound is not None:
        parts.append(f"error {bad.max_error:.3g}, allowed {bad.bound:.3g}")
    if bad.worst_index is not None:
        parts.append(f"at {list(bad.worst_index)} expected {bad.expected}, got {bad.actual}")
    return "; ".join(parts)[:400]


def _next(work: JobContext, checked: Check, verdict: Verdict) -> tuple[Remedy, ...]:
    where = work.place
    same = {**where, "program": work.program.program_id[:16]}
    faster = Remedy(tool="benchmark_program", arguments=same, why="see whether it is faster")
    if verdict.counts:
        return (faster,)
    named = "`reasons` name" if verdict.accepted else "`wrong` and `message` name"
    repair = Remedy(
        tool="compile_program",
        arguments={**where, "files": {work.program.main: "FIXED SOURCE"}},
        why=f"fix what {named}, build it, and check it again",
    )
    # Correct, but it does not count: its speed can still be of interest, so timing is offered second.
    if verdict.accepted:
        return (repair, faster)
    # Only native programs are built again with sanitizers.
    if checked.status == "crashed" and work.program.format == "native" and not checked.sanitizers:
        why = "find the memory error by file and line"
        return (repair, Remedy(tool="check_program", arguments={**same, "sanitize": True}, why=why))
    if checked.status in ("rejected_cheat", "unmeasured"):
        return (Remedy(tool="review_program", arguments=same, why="see the evidence in full"), repair)
    return (repair,)


TOOL = Tool(
    name="check_program",
    title="Check a program",
    description=(
        "Judges a program against its reference in a sandbox: hidden inputs and weights, an fp64 oracle, "
        "cheat detection. A wrong program is a verdict, not an error. Builds if needed. 5 to 30 s. "
        "Next, if accepted: benchmark_program."
    ),
    request=CheckProgram,
    answer=CheckAnswer,
    work=check,
    runs_code=True,
    warm=True,
)
