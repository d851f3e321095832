"""What the judge found out about a program, in the words of a prompt."""

from collections.abc import Sequence

from stitch_planner.agents.outline import outlined
from stitch_planner.agents.prompting import bullets, clipped, fenced
from stitch_planner.plan import Plan
from stitch_planner.runs.attempt_evidence import AttemptEvidence
from stitch_planner.runs.attempts import Attempt
from stitch_planner.techniques import SHIPPED
from stitch_tools.models.evidence import WorkEvidence
from stitch_tools.models.program import STITCHER, Build, Program
from stitch_tools.models.verdict import Bench, BorderResult, Check, DrawResult
from stitch_tools.storage.store import Store

_MOST_DIAGNOSTICS, _MOST_DRAWS, _MOST_FINDINGS = 12, 4, 8
_MOST_STITCHED_BYTES = 24_000
_MOST_WORK_ITEMS = 8
_MOST_FILE_CHARS, _MOST_PROGRAM_CHARS = 60_000, 120_000


def describe_program(program: Program, store: Store, plan: Plan) -> str:
    """The program's files, each in a fence that names its path; the main file first.

    A stitched program that is too long is shown in outline, with the kernels of the plan's costliest steps.
    """
    own = [file for file in program.files if not file.path.startswith(SHIPPED)]
    if program.author == STITCHER and sum(file.size for file in own) > _MOST_STITCHED_BYTES:
        return _describe_long(program, store, plan)
    rows: list[str] = []
    helpers = [file.path for file in program.files if file.path.startswith(SHIPPED)]
    room = _MOST_PROGRAM_CHARS
    for file in sorted(program.files, key=lambda row: row.path != program.main):
        if file.path in helpers:
            continue
        text = clipped(store.get(file.sha256).decode("utf-8", errors="replace"), _MOST_FILE_CHARS)
        room -= len(text)
        if room < 0:
            rows.append(f"{file.path}: {file.size:,} bytes, not shown")
            continue
        suffix = file.path.rpartition(".")[2]
        rows.append(fenced(text, f"{'cpp' if suffix != 'py' else 'python'} {file.path}"))
    if helpers:
        rows.append(f"Helpers of the stitcher that it includes, not shown: {', '.join(helpers)}")
    return "\n\n".join(rows)


def _describe_long(program: Program, store: Store, plan: Plan) -> str:
    main = next(file for file in program.files if file.path == program.main)
    steps = sorted(plan.steps, key=lambda step: -(step.predicted_us or 0.0))
    text = store.get(main.sha256).decode("utf-8", errors="replace")
    shown = outlined(text, [node for step in steps for node in step.nodes], _MOST_STITCHED_BYTES)
    listed = bullets([f"{file.path}: {file.size:,} bytes" for file in program.files])
    return (
        f"Its files:\n\n{listed}\n\n{main.path} in outline, with the kernels of the costliest steps. To"
        " change what is not shown, write a fresh main file.\n\n"
        + fenced(clipped(shown, _MOST_FILE_CHARS), "cpp data")
    )


def describe_attempts(attempts: Sequence[Attempt]) -> str:
    """All programs of a run in a line each; "" where there are none."""
    if not attempts:
        return ""
    rows = [f"{row.round}: by {row.author or 'unknown'}, {_fate(row)}{_said(row)}" for row in attempts]
    return "# Programs so far\n\n" + bullets(rows)


def _fate(attempt: Attempt) -> str:
    if not attempt.counts:
        return "right, but does not count" if attempt.accepted else attempt.status
    bench = attempt.bench
    if bench is None or bench.speedup is None:
        if bench is None:
            return "right, not timed"
        by_cpu = (
            "" if bench.cpu_speedup is None else f"; at least {bench.cpu_speedup:.2f} times eager by CPU time"
        )
        return f"right, its time was disturbed by other processes{by_cpu}"
    least = "" if bench.safe_speedup is None else f", at least {bench.safe_speedup:.2f}"
    return f"right, {bench.speedup:.2f} times eager{least} ({bench.outcome})"


def _said(attempt: Attempt) -> str:
    return f" ({attempt.program.notes[0]})" if attempt.program.notes else ""


def describe_evidence(evidence: AttemptEvidence) -> str:
    """Compiler messages, the first wrong draws, findings and times, as far as there are any."""
    parts = [evidence.sentence.capitalize() + "."]
    if evidence.build is not None:
        parts.append(_build(evidence.build))
    if evidence.check is not None:
        parts.append(_check(evidence.check))
    if evidence.verdict is not None and not evidence.verdict.counts:
        parts += [bullets([reason.message for reason in evidence.verdict.reasons])]
    if evidence.bench is not None:
        parts.append(_bench(evidence.bench))
    if evidence.check is not None and evidence.check.work is not None:
        parts.append(_work(evidence.check.work, evidence.bench))
    if (review := evidence.attempt.review) is not None:
        rated = [f"{name}: {score}, {text}" for name, score, text in review.result.lines if score != "-"]
        parts.append("The review, which decides nothing:\n\n" + bullets(rated) if rated else "")
    return "\n\n".join(part for part in parts if part)


def _build(build: Build) -> str:
    if not build.ok:
        errors = [row for row in build.diagnostics if row.severity in ("fatal", "error")] or build.diagnostics
        lines = [
            f"{row.file or 'compiler'}:{row.line or '?'}: {row.message}"
            + (f"\n    {row.source_line.strip()}" if row.source_line else "")
            for row in errors[:_MOST_DIAGNOSTICS]
        ]
        return "The compiler says:\n\n" + fenced("\n".join(lines), "data")
    kernels = [
        f"{row.kernel[:100]} ({row.arch}): {row.registers} registers, {row.shared_bytes} B shared,"
        f" {row.spill_store_bytes + row.spill_load_bytes} B spilled"
        for row in build.resources[:_MOST_DIAGNOSTICS]
    ]
    return "Kernels:\n\n" + bullets(kernels) if kernels else ""


def _check(check: Check) -> str:
    rows = [_draw(draw) for draw in check.draws if not draw.ok][:_MOST_DRAWS]
    rows += [f"{row.severity}: {row.message}" for row in check.findings[:_MOST_FINDINGS]]
    rows += [_border(row) for row in check.borders]
    text = bullets(rows)
    if check.status in ("crashed", "timed_out", "out_of_memory") and check.stderr_tail:
        text += "\n\nIt printed:\n\n" + fenced(clipped(check.stderr_tail, 3000), "data")
    return text.strip()


def _border(row: BorderResult) -> str:
    if row.ok:
        return f"border {row.name}: as the reference's"
    return f"border {row.name}: {'not compared: ' if row.ok is None else ''}{row.problem}"


def _draw(draw: DrawResult) -> str:
    wrong = [
        f"output {row.output}: {row.problem}"
        + (f" at {list(row.worst_index)}" if row.worst_index is not None else "")
        + (
            f", expected {row.expected:.9g}, got {row.actual:.9g}"
            if row.expected is not None and row.actual is not None
            else ""
        )
        for row in draw.outputs
        if row.problem
    ]
    return f"draw {draw.draw}: {'; '.join(wrong) or draw.problem}"


def _work(work: WorkEvidence, bench: Bench | None) -> str:
    """Who took the time, kernel by kernel where each is known."""
    timing = bench.timing("program") if bench else None
    whole_us = timing.latency_us if timing else None
    rows = [
        f"{row.name[:100]} ({row.owner}): {row.share:.0%}"
        + ("" if whole_us is None else f", about {row.share * whole_us:.3g} us")
        + ("" if row.calls is None else f", {row.calls:g} launches")
        for row in work.items[:_MOST_WORK_ITEMS]
    ]
    return "Where its time goes, traced in another process:\n\n" + bullets(rows) if rows else ""


def _bench(bench: Bench) -> str:
    rows = [
        f"{row.name}: {row.latency_us:.4g} us"
        + (f" (spread {row.latency_spread_us:.2g})" if row.latency_spread_us else "")
        for row in bench.timings
        if row.latency_us is not None
    ]
    rows += [
        f"{row.speedup:.2f} times {row.baseline}, 95% interval {row.low:.2f} to {row.high:.2f}"
        for row in bench.ratios
        if row.contestant == "program"
    ]
    rows += [
        f"{row.speedup:.2f} times {row.baseline} by CPU time on one thread, {row.low:.2f} to {row.high:.2f}"
        for row in bench.cpu_ratios
        if row.contestant == "program"
    ]
    return bullets(rows) or bench.message
