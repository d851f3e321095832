"""`review_program`: lists the evidence about a program: source, run time, what is not covered."""

from typing import TYPE_CHECKING, ClassVar

from stitch_mcp.server.evidence_lines import (
    findings_as_lines,
    ratios_as_lines,
    reasons_as_lines,
    sanitizers_as_line,
    times_as_lines,
    work_as_line,
)
from stitch_mcp.server.job_context import JobContext
from stitch_mcp.server.requests import NamesProgram
from stitch_mcp.server.tool import Tool, ToolAnswer
from stitch_tools.models.acceptance import Verdict
from stitch_tools.models.program import Build
from stitch_tools.models.remedy import Remedy
from stitch_tools.models.verdict import Bench, Check, Finding

if TYPE_CHECKING:
    from stitch_planner.runs.attempt_evidence import AttemptEvidence


class ReviewProgram(NamesProgram):
    """Arguments of review_program."""


class ReviewAnswer(ToolAnswer):
    """Evidence by the rubric's dimensions."""

    QUOTED: ClassVar[tuple[str, ...]] = ("honest", "engineering", "times_us", "profile")
    NEVER_SET: ClassVar[tuple[str, ...]] = ("artifact",)

    program_id: str | None = None
    honest: tuple[str, ...] = ()
    """Signs of cheating in source and run, fatal first."""
    engineering: tuple[str, ...] = ()
    """Kernels with registers and spills, sanitizers."""
    times_us: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    coverage: tuple[str, ...] = ()
    """The program's own part of the work; flags of its check."""
    profile: tuple[str, ...] = ()
    """What its profile found, best change first."""
    open: tuple[str, ...] = ()
    """Without evidence yet."""


def review(request: ReviewProgram, work: JobContext) -> ReviewAnswer:
    """Scan a program's source, and collect what its run recorded."""
    evidence = _recorded(work)
    build, checked, bench = (
        (evidence.build, evidence.check, evidence.bench) if evidence else (None, None, None)
    )
    verdict = evidence.verdict if evidence else None
    static = _static(work)
    findings = static if checked is None else tuple(dict.fromkeys((*static, *checked.findings)))
    named = work.program.program_id[:16]
    fatal = sum(row.severity == "fatal" for row in findings)
    return ReviewAnswer(
        message=f"{work.named_program}{fatal} fatal, {len(findings) - fatal} other findings; "
        f"check: {_named(verdict)}",
        run_id=work.subject.run_id,
        program_id=named,
        honest=findings_as_lines(findings),
        engineering=_engineering(build, checked),
        times_us=times_as_lines(bench) if bench else (),
        against=ratios_as_lines(bench) if bench else (),
        coverage=_coverage(checked, verdict),
        profile=_profile(work),
        open=_open(checked, bench),
        next_steps=_next(work, named, verdict, timed=bench is not None),
    )


def _named(verdict: Verdict | None) -> str:
    if verdict is None:
        return "none yet"
    return (
        verdict.status if verdict.counts or not verdict.accepted else f"{verdict.status}, and does not count"
    )


def _recorded(work: JobContext) -> "AttemptEvidence | None":
    from stitch_planner.join import joined, known_of

    if not work.subject.run_id:
        return None
    with joined(work.workbench.workspace, work.subject.run_id) as run:
        return known_of(run, work.program.program_id)


def _static(work: JobContext) -> tuple[Finding, ...]:
    from stitch_tools.judge.source import scan_program

    store, program = work.workbench.workspace.store, work.program
    task = work.task if work.subject.task_id else None
    source = next((file for file in task.files if file.path == task.main), None) if task else None
    return scan_program(
        {file.path: store.get(file.sha256) for file in program.files},
        format=program.format,
        main=program.main,
        reference_source=store.get(source.sha256) if source else None,
    )


def _engineering(build: Build | None, checked: Check | None) -> tuple[str, ...]:
    lines = [f"compiler: {build.compiler}"] if build else []
    for row in build.resources[:8] if build else ():
        spills = row.spill_store_bytes + row.spill_load_bytes
        lines.append(f"{row.kernel[:100]} ({row.arch}): {row.registers} registers, {spills} B spilled")
    if checked is not None:
        lines.append(f"sanitizers: {sanitizers_as_line(checked)}")
    return tuple(lines)


def _coverage(checked: Check | None, verdict: Verdict | None) -> tuple[str, ...]:
    if checked is None or verdict is None:
        return ()
    shares = work_as_line(checked)
    flags = f"flags: {', '.join(checked.flags)}" if checked.flags else "no flags"
    against = tuple(f"does not count: {line}" for line in reasons_as_lines(verdict) if verdict.accepted)
    return (*(line for line in (shares, flags, f"oracle: {checked.oracle}") if line), *against)


def _profile(work: JobContext) -> tuple[str, ...]:
    from stitch_planner.profiles import newest_profile
    from stitch_tools.profile.profile_text import finding_lines

    profile = newest_profile(work.workbench.workspace, work.program.program_id)
    if profile is None:
        return ()
    return finding_lines(profile) or ("nothing was found that would win more than 2%",)


def _open(checked: Check | None, bench: Bench | None) -> tuple[str, ...]:
    lines = list(checked.not_checked) if checked else ["whether it is right: it was not checked in this run"]
    if bench is None:
        lines.append("whether it is faster: it was not timed in this run")
    return tuple(lines)


def _next(work: JobContext, named: str, verdict: Verdict | None, *, timed: bool) -> tuple[Remedy, ...]:
    place = work.place or {"reference": "PATH.py"}
    arguments = {**place, "program": named}
    if verdict is None:
        return (Remedy(tool="check_program", arguments=arguments, why="check whether it is correct"),)
    if verdict.counts and timed:
        why = "write the certificate of what was checked and timed"
        return (Remedy(tool="certify_program", arguments=arguments, why=why),)
    faster = Remedy(tool="benchmark_program", arguments=arguments, why="see whether it is faster")
    if verdict.counts:
        return (faster,)
    repair = Remedy(
        tool="compile_program",
        arguments={**place, "files": {work.program.main: "FIXED SOURCE"}},
        why="fix what `honest` and the check list",
    )
    return (repair, faster) if verdict.accepted and not timed else (repair,)


TOOL = Tool(
    name="review_program",
    title="Review a program's evidence",
    description=(
        "Lists signs of cheating and risk in a program's source, and what its check and timing recorded, "
        "the most severe first. Runs nothing. For when check_program rejects, or before certify_program. "
        "About 2 s."
    ),
    request=ReviewProgram,
    answer=ReviewAnswer,
    work=review,
    read_only=True,
    reuse=False,
)
