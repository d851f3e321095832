"""The facts of a run as tables."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from stitch_mcp.report.run_facts import CallFacts, ProgramFacts, RunFacts
from stitch_mcp.views.fact_tables import bench_sections, check_sections, not_checked_lines
from stitch_mcp.views.table import ReportSection
from stitch_planner.runs.model_calls import spent_tokens, spent_usd
from stitch_tools.models.program import Build
from stitch_tools.models.verdict import Bench, Check, DrawResult, OutputError, Ratio

UNKNOWN = "unknown"
NOT_MEASURED = "not measured"
_MOST_OUTPUTS = 8
"""Columns of the correctness matrix."""
_UNCHECKED = "not checked: "


def eager_ratio(row: ProgramFacts) -> Ratio | None:
    """The program's measured speed-up over eager, None where there is none."""
    return row.bench.ratio("eager") if row.bench else None


def timing_remark(row: ProgramFacts) -> str:
    """Why a program's figures are to be doubted, in a word or two; "" where they are not."""
    if row.bench is None:
        return ""
    return "in doubt" if row.bench.is_doubtful else "disturbed" if row.bench.disturbed else ""


def programs_section(run: RunFacts, rows: Sequence[ProgramFacts]) -> ReportSection:
    """One line a program: who wrote it from which, what it is, how fast, and why it cannot be claimed."""
    numbers = {row.attempt.program_id: row.name for row in run.programs}
    best, certificate = run.state.best, run.state.certificate
    table: list[tuple[str, ...]] = []
    for row in rows:
        program_id = row.attempt.program_id
        parent = row.program.parent_id if row.program else None
        marks = [
            name
            for name, marked in (("best", best), ("certified", certificate))
            if marked is not None and marked.program_id == program_id
        ]
        flags = row.verdict.flags if row.verdict else row.attempt.check.flags if row.attempt.check else ()
        status = row.verdict.status if row.verdict else row.attempt.status
        table.append(
            (
                " ".join((row.name, *marks)),
                program_id[:12],
                row.attempt.author or UNKNOWN,
                numbers.get(parent, parent[:12]) if parent else "-",
                f"{status} ({', '.join(flags)})" if flags else status,
                "yes" if row.attempt.counts else "no",
                *_speedup_cells(row),
                why_not(row),
            )
        )
    columns = (
        "round",
        "program",
        "author",
        "parent",
        "status (flags)",
        "counts",
        "speed-up over eager",
        "95% interval",
        "why it does not count, or was not measured",
    )
    return ReportSection("", columns, tuple(table))


def _speedup_cells(row: ProgramFacts) -> tuple[str, str]:
    ratio, timed, remark = eager_ratio(row), row.attempt.bench, timing_remark(row)
    if ratio is not None:
        speedup = f"{ratio.speedup:.2f}x"
        return f"{speedup} ({remark})" if remark else speedup, f"{ratio.low:.2f} to {ratio.high:.2f}"
    # The log keeps the median, and the lower end alone, of times that the store has lost.
    if row.bench is None and timed is not None and timed.speedup is not None:
        low = UNKNOWN if timed.safe_speedup is None else f"from {timed.safe_speedup:.2f}"
        return f"{timed.speedup:.2f}x (as the log says)", low
    return NOT_MEASURED, "-"


def why_not(row: ProgramFacts) -> str:
    """Why a program cannot be claimed or was not measured; "" where neither holds."""
    if row.attempt.lost:
        return "its files are lost"
    if row.verdict is not None and row.check is not None:
        if not row.verdict.counts:
            return row.verdict.why_not or row.check.message
        if row.bench is None:
            return "it was not timed yet"
        return row.bench.message if eager_ratio(row) is None else row.bench.doubt
    if row.attempt.check is not None:
        return "its evidence is missing or damaged; status and figures are those of the log"
    if row.build is not None and not row.build.ok:
        return next((text for _, _, text in _build_problems(row.build)), "it was not built")
    return "it was not checked yet"


def draw_matrix(check: Check) -> ReportSection:
    """Draw by output: whether they are equal, with the largest error and what it had to stay under."""
    names = list(dict.fromkeys(output.output for draw in check.draws for output in draw.outputs))
    shown = names
    if len(names) > _MOST_OUTPUTS:
        worst = {name: _worst_share(check.draws, name) for name in names}
        shown = sorted(names, key=lambda name: -worst[name])[:_MOST_OUTPUTS]
    # Wrong draws first: they are what a reader looks for, and a long table is cut at its end.
    draws = sorted(check.draws, key=lambda draw: draw.ok)
    table = tuple(_draw_cells(draw, shown) for draw in draws)
    columns = ("draw", "equal", *(f"output {name or '(the only one)'}" for name in shown), "problem")
    notes = ["each cell: largest error / what it had to stay under, both relative (docs/decisions/0003)"]
    if len(names) > len(shown):
        notes.append(f"of {len(names)} outputs those that came nearest to their bound, or went beyond it")
    return ReportSection("", columns if table else (), table, tuple(notes) if table else ())


def _worst_share(draws: Sequence[DrawResult], name: str) -> float:
    rows = [row for draw in draws for row in draw.outputs if row.output == name]
    return max(float("inf") if row.problem else (row.max_error or 0.0) / (row.bound or 1.0) for row in rows)


def _draw_cells(draw: DrawResult, names: Sequence[str]) -> tuple[str, ...]:
    outputs = {row.output: row for row in draw.outputs}
    cells = (_output_cell(outputs.get(name)) for name in names)
    problem = draw.problem or next((row.problem for row in draw.outputs if row.problem), None)
    return (draw.draw, "yes" if draw.ok else "NO", *cells, problem or "")


def _output_cell(row: OutputError | None) -> str:
    if row is None:
        return "-"
    word = "WRONG" if row.problem else "equal"
    if row.max_error is None:
        return word if row.problem else "equal, exactly"
    bound = UNKNOWN if row.bound is None else f"{row.bound:.1e}"
    undecided = "; partly undecided" if row.undecided else ""
    return f"{word}, {row.max_error:.1e} / {bound}{undecided}"


def evidence_sections(row: ProgramFacts) -> list[ReportSection]:
    """What else the check found: memory and races, who did the work, whether the task reacts."""
    if row.check is None:
        return []
    sections: list[ReportSection] = []
    for section in check_sections(row.check, row.verdict):
        if section.title not in ("draws", "findings"):
            notes = [text for text in section.notes if not text.startswith((_UNCHECKED, "status: "))]
            sections.append(replace(section, notes=tuple(notes)))
    return sections


def findings_section(rows: Sequence[ProgramFacts]) -> ReportSection:
    """Everything that was found in the programs' sources and builds, under sanitizers, or by their times."""
    table = tuple((row.name, *finding) for row in rows for finding in _findings(row))
    columns = ("round", "severity", "rule", "where", "what") if table else ()
    return ReportSection("", columns, table, () if table else ("nothing was found",))


def _findings(row: ProgramFacts) -> Iterator[tuple[str, str, str, str]]:
    if row.build is not None and not row.build.ok:
        for severity, where, message in _build_problems(row.build):
            yield severity, "compiler", where, message
    for finding in (*(row.check.findings if row.check else ()), *(row.bench.findings if row.bench else ())):
        quote = f"   | {finding.quote.strip()}" if finding.quote else ""
        yield finding.severity, finding.rule, _where(finding.file, finding.line), f"{finding.message}{quote}"
    for tool in row.check.sanitizers if row.check else ():
        for defect in tool.findings:
            kernel = f" (in {defect.kernel})" if defect.kernel else ""
            message = f"{defect.message}{kernel}"
            yield defect.severity, f"{tool.tool}: {defect.rule}", _where(defect.file, defect.line), message


def _build_problems(build: Build) -> Iterator[tuple[str, str, str]]:
    if build.timed_out:
        yield "error", "-", "the compiler did not finish in its time"
    for message in build.diagnostics:
        if message.severity in ("fatal", "error"):
            yield message.severity, _where(message.file, message.line), message.message


def _where(file: str | None, line: int | None) -> str:
    if not file:
        return "-"
    return file if line is None else f"{file}:{line}"


def times_section(bench: Bench) -> ReportSection:
    """All contestants with their spread, and the conditions of the timing."""
    (section,) = bench_sections(bench)
    notes = [text for text in section.notes if not text.startswith(_UNCHECKED)]
    return replace(section, title="", notes=tuple(notes))


def unchecked(check: Check | None, bench: Bench | None) -> tuple[str, ...]:
    """What neither check nor timing covers, one line a reason."""
    texts = (*(check.not_checked if check else ()), *(bench.not_checked if bench else ()))
    return tuple(line.removeprefix(_UNCHECKED) for line in not_checked_lines(tuple(dict.fromkeys(texts))))


def review_section(row: ProgramFacts) -> ReportSection | None:
    """How the program is rated, None where nobody did."""
    if row.attempt.review is None:
        return None
    review = row.attempt.review.result
    notes = (review.note,) if review.note else ()
    return ReportSection("", ("dimension", "score", "evidence"), review.lines, notes)


def calls_section(calls: Sequence[CallFacts]) -> ReportSection:
    """One line a question to a model: what it took and cost. What nobody said is unknown."""
    table = tuple(_call_cells(row) for row in calls)
    questions = [row.call for row in calls]
    usd = spent_usd(questions)
    price = "an unknown price" if usd is None else f"${usd:.4f}"
    exact = all(_is_exact(row) for row in calls)
    total = f"together {'' if exact else 'at most '}{spent_tokens(questions)} tokens, {price}"
    columns = (
        "call",
        "model",
        "sent",
        "input tokens",
        "cached",
        "output tokens",
        "tokens",
        "USD",
        "seconds",
        "answer",
    )
    return ReportSection("", columns, table, (total,))


def _is_exact(row: CallFacts) -> bool:
    answer = row.answer
    known = answer is not None and answer.input_tokens is not None and answer.output_tokens is not None
    return known and row.call.sent == 1


def _call_cells(row: CallFacts) -> tuple[str, ...]:
    call, answer, answered = row.call, row.answer, row.call.answered
    tokens = str(call.tokens) if _is_exact(row) else f"at most {call.tokens}"
    usd = UNKNOWN if answered is None or answered.usd is None else f"{answered.usd:.4f}"
    if answered is None and call.usd is not None:
        usd = f"{UNKNOWN}, at most {call.usd:.4f}"
    ending = "none recorded" if answered is None else "missing"
    if answer is not None:
        ending = f"{answer.finish}, by a {answer.answered_by}" if answer.answered_by else answer.finish
    counts = (answer.input_tokens, answer.cached_tokens, answer.output_tokens) if answer else (None,) * 3
    seconds = answer.latency_s if answer else None
    return (
        f"{call.asked.call:03d}",
        answer.model if answer else call.asked.model,
        f"{call.sent}x",
        *(UNKNOWN if count is None else str(count) for count in counts),
        tokens,
        usd,
        UNKNOWN if seconds is None else f"{seconds:.1f}",
        ending,
    )
