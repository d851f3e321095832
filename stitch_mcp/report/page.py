"""What the template shows: the facts of a run as texts, tables, diffs and a chart, within limits."""

from dataclasses import dataclass

from stitch_mcp.report.limits import Limits, clip, limited
from stitch_mcp.report.run_commands import certificate_commands, contract_value, solve_command
from stitch_mcp.report.run_facts import ProgramFacts, RunFacts
from stitch_mcp.report.run_tables import (
    NOT_MEASURED,
    UNKNOWN,
    calls_section,
    draw_matrix,
    eager_ratio,
    evidence_sections,
    findings_section,
    programs_section,
    review_section,
    times_section,
    timing_remark,
    unchecked,
)
from stitch_mcp.report.source_diff import SourceDiff, program_diff
from stitch_mcp.report.speedup_chart import ChartColumn, ChartPoint, baselines, draw_chart, legend_mark
from stitch_mcp.verdicts import verdict_notes
from stitch_mcp.views.plan_tables import refinement_section
from stitch_mcp.views.table import ReportSection, one_line
from stitch_planner.sentences import explain
from stitch_tools.models.task import Contract

_TITLE_CHARACTERS = 120


@dataclass(frozen=True)
class ProgramPart:
    """One program with its diff, folded away until it is asked for."""

    title: str
    against: str
    """What the diff is taken against, in words."""
    notes: tuple[str, ...]
    """What its author says about it."""
    diff: SourceDiff | None
    """None where its list of files is missing."""


@dataclass(frozen=True)
class Chart:
    """The chart and its legend: SVG made here, in which all text is escaped."""

    svg: str
    legend: tuple[tuple[str, str], ...]
    """Mark and name of each baseline."""


@dataclass(frozen=True)
class ReportPage:
    """The fields of the template. Texts are plain: the template escapes them."""

    title: str
    head: tuple[tuple[str, str], ...]
    contract: ReportSection
    reference: str
    """The reference's main file, "" where it is missing."""
    again: str
    """Command that repeats the run, "" where there is none."""
    missing: tuple[str, ...]
    result: str
    verdict: tuple[tuple[str, str], ...]
    verdict_notes: tuple[str, ...]
    chart: Chart | None
    programs: ReportSection
    left_out: int
    """Programs of which nothing is shown."""
    subject: str
    """Whose evidence is shown in full, "" where there is no program."""
    matrix: ReportSection | None
    evidence: tuple[ReportSection, ...]
    findings: ReportSection
    times: ReportSection | None
    unchecked: tuple[str, ...]
    review: ReportSection | None
    plan: ReportSection | None
    """The plan that a model refined, or why there is none; None where none was asked."""
    calls: ReportSection | None
    parts: tuple[ProgramPart, ...]
    certificate: tuple[tuple[str, str], ...]
    commands: tuple[tuple[str, str], ...]


def make_page(run: RunFacts, limits: Limits) -> ReportPage:
    """The page of a run; what `limits` leave out is counted."""
    rows = shown_programs(run, limits.programs)
    subject, task = run.subject, run.task
    check, bench = (subject.check, subject.bench) if subject else (None, None)
    reference = next((row for row in (task.files if task else ()) if task and row.path == task.main), None)
    review = review_section(subject) if subject else None
    source = run.sources.get(reference.sha256, "") if reference else ""
    return ReportPage(
        title=clip(task.name if task else run.run_id, _TITLE_CHARACTERS),
        head=tuple((name, clip(text, limits.characters)) for name, text in _head(run)),
        contract=limited(_contract_section(task.contract) if task else ReportSection(), limits),
        reference=clip("\n".join(source.splitlines()), limits.diff_characters),
        again=clip(solve_command(task, run.begun), limits.characters) if task else "",
        missing=limited(ReportSection(notes=run.missing), limits).notes,
        result=clip(_result(run), limits.characters),
        verdict=tuple((name, clip(text, limits.characters)) for name, text in _verdict(subject)),
        verdict_notes=limited(ReportSection(notes=_notes(subject)), limits).notes,
        chart=_chart(run, rows),
        programs=limited(programs_section(run, rows), limits),
        left_out=len(run.programs) - len(rows),
        subject=_subject_name(run, subject),
        matrix=limited(draw_matrix(check), limits) if check else None,
        evidence=tuple(limited(section, limits) for section in evidence_sections(subject)) if subject else (),
        findings=limited(findings_section(rows), limits),
        times=limited(times_section(bench), limits) if bench else None,
        unchecked=limited(ReportSection(notes=unchecked(check, bench)), limits).notes,
        review=limited(review, limits) if review else None,
        plan=_refined_plan(run, limits),
        calls=limited(calls_section(run.calls), limits) if run.calls else None,
        parts=_program_parts(run, rows, limits),
        certificate=_certificate(run),
        commands=certificate_commands(run),
    )


def _refined_plan(run: RunFacts, limits: Limits) -> ReportSection | None:
    refined = run.state.refinement
    return limited(refinement_section(refined, run.plan), limits) if refined else None


def shown_programs(run: RunFacts, most: int) -> tuple[ProgramFacts, ...]:
    """All programs of a run or, where they are too many, the subject, the first and the newest ones."""
    if len(run.programs) <= most:
        return run.programs
    subject = run.subject
    kept = {run.programs[0].name, *([subject.name] if subject else [])}
    for row in reversed(run.programs):
        if len(kept) >= most:
            break
        kept.add(row.name)
    return tuple(row for row in run.programs if row.name in kept)


def _head(run: RunFacts) -> list[tuple[str, str]]:
    task, begun, environment = run.task, run.begun, run.environment
    machine = [environment.gpu, environment.cpu, environment.platform] if environment else []
    if environment and environment.cpu_count:
        machine.append(f"{environment.cpu_count} CPUs")
    versions = [("torch", environment.torch), ("Python", environment.python)] if environment else []
    tools = [f"{name} {version}" for name, version in versions if version]
    tools += [f"stitch-mcp {environment.stitch_version}"] if environment else []
    coder = begun.coder if not begun.model else f"{begun.coder} ({begun.model})"
    wanted = "" if begun.min_speedup is None else f"; at least {begun.min_speedup:g}x was asked for"
    return [
        ("task", f"{task.name} ({task.main}, {task.entry})" if task else UNKNOWN),
        ("target", task.target if task else UNKNOWN),
        ("machine", ", ".join(filter(None, machine)) or UNKNOWN),
        ("tools", ", ".join(tools) or UNKNOWN),
        ("mode", task.contract.mode if task else UNKNOWN),
        ("coder", f"{coder}; {'a quick run' if begun.quick else 'a full run'}{wanted}"),
        ("date", f"{_time(run.first_at)} to {_time(run.last_at)}, UTC"),
        ("run", run.run_id),
    ]


def _time(at: str) -> str:
    return at[:19].replace("T", " ")


def _contract_section(contract: Contract) -> ReportSection:
    fields = [name for name in Contract.model_fields if name not in ("tolerance", "sources")]
    names = ["rtol", "atol", *fields]
    rows = tuple(
        (name, contract_value(contract, name) or "-", contract.sources.get(name, "default")) for name in names
    )
    return ReportSection("", ("field", "value", "set by"), rows)


def _result(run: RunFacts) -> str:
    """How the run ended; of one that did not, what is known of its best program."""
    state, subject = run.state, run.subject
    if state.finished is not None:
        return state.finished.message
    known = "no program was written yet"
    if subject is not None and subject.check is not None and subject.verdict is not None:
        known = explain(subject.check, subject.bench, subject.verdict)
    elif subject is not None:
        known = f"program {subject.name} is {subject.attempt.status}"
    if state.stopped is not None:
        return f"stopped at the step {state.stopped.step}: {state.stopped.message} ({known})"
    return f"not finished: {known}"


def _verdict(subject: ProgramFacts | None) -> list[tuple[str, str]]:
    if subject is None:
        return []
    attempt, ratio = subject.attempt, eager_ratio(subject)
    flags = subject.verdict.flags if subject.verdict else attempt.check.flags if attempt.check else ()
    speedup = NOT_MEASURED
    if ratio is not None:
        remark = f", {remark}" if (remark := timing_remark(subject)) else ""
        speedup = f"{ratio.speedup:.2f}x eager (95% interval {ratio.low:.2f} to {ratio.high:.2f}){remark}"
    return [
        ("status", subject.verdict.status if subject.verdict else attempt.status),
        ("counts", "yes" if attempt.counts else "no"),
        ("flags", ", ".join(flags) or "none"),
        ("outcome", attempt.bench.outcome if attempt.bench else "unmeasured"),
        ("speed-up", speedup),
    ]


def _notes(subject: ProgramFacts | None) -> tuple[str, ...]:
    return tuple(verdict_notes(subject.verdict)) if subject and subject.verdict else ()


def _subject_name(run: RunFacts, subject: ProgramFacts | None) -> str:
    if subject is None:
        return ""
    best = run.state.best
    if best is None:
        return f"program {subject.name}, none counts"
    # A program that came after the run's end may be better than the one that it ended with.
    is_best = best.program_id == subject.attempt.program_id
    return f"program {subject.name}, {'the best one' if is_best else 'with which the run ended'}"


def _chart(run: RunFacts, rows: tuple[ProgramFacts, ...]) -> Chart | None:
    if not rows:
        return None
    columns = [_column(row, run) for row in rows]
    legend = tuple((legend_mark(number), f"over {name}") for number, name in enumerate(baselines(columns)))
    return Chart(svg=draw_chart(columns), legend=legend)


def _column(row: ProgramFacts, run: RunFacts) -> ChartColumn:
    ratios = [ratio for ratio in (row.bench.ratios if row.bench else ()) if ratio.contestant == "program"]
    # Eager first: it is the baseline that decides.
    ratios.sort(key=lambda ratio: ratio.baseline != "eager")
    points = tuple(ChartPoint(ratio.baseline, ratio.speedup, ratio.low, ratio.high) for ratio in ratios)
    remark = timing_remark(row) if points else _no_mark(row)
    best = run.state.best
    return ChartColumn(
        label=row.name,
        points=points,
        remark=remark,
        doubtful=bool(remark),
        best=best is not None and best.program_id == row.attempt.program_id,
    )


def _no_mark(row: ProgramFacts) -> str:
    """Why a program has no mark, in as few words as a column can hold."""
    if row.bench is None and row.attempt.bench is not None:
        return "times missing"
    if not row.attempt.accepted and row.attempt.status != "open":
        return row.attempt.status.replace("_", " ")
    return "disturbed" if row.bench and row.bench.disturbed else NOT_MEASURED


def _program_parts(run: RunFacts, rows: tuple[ProgramFacts, ...], limits: Limits) -> tuple[ProgramPart, ...]:
    # The subject's diff takes what it needs first, then the newest ones: the oldest are shortened first.
    subject = run.subject
    order = sorted(rows, key=lambda row: (row is not subject, -row.attempt.round))
    left = limits.all_diff_characters
    parts: dict[str, ProgramPart] = {}
    for row in order:
        part = _program_part(run, row, limits, min(left, limits.diff_characters))
        left -= sum(len(line.text) + 1 for line in part.diff.lines) if part.diff else 0
        parts[row.name] = part
    return tuple(parts[row.name] for row in rows)


def _program_part(run: RunFacts, row: ProgramFacts, limits: Limits, characters: int) -> ProgramPart:
    attempt, program = row.attempt, row.program
    author = one_line(attempt.author or UNKNOWN)
    title = f"{row.name}: {attempt.program_id[:12]} by {author}, {attempt.status}"
    notes = limited(ReportSection(notes=attempt.program.notes), limits).notes
    if program is None:
        return ProgramPart(title, "the list of its files is missing", notes, None)
    parent = run.program(program.parent_id)
    if program.parent_id is None:
        against = "derived from no other program: its sources as they are"
    elif parent is None or parent.program is None:
        against = f"its parent {program.parent_id[:12]} is not there: its sources as they are"
    else:
        against = f"difference from program {parent.name}"
    before = parent.program if parent else None
    diff = program_diff(program, before, run.sources, characters)
    size = f"+{diff.added} -{diff.removed}" if before else f"{diff.added} lines"
    return ProgramPart(f"{title} ({size})", against, notes, diff)


def _certificate(run: RunFacts) -> tuple[tuple[str, str], ...]:
    written = run.state.certificate
    if written is None:
        return ()
    program = run.program(written.program_id)
    return (
        ("file", f"{written.file}, in the run's folder"),
        ("program", f"{program.name if program else UNKNOWN} ({written.program_id})"),
        ("certificate id", written.certificate_id),
        ("SHA-256", written.sha256),
    )
