"""Facts as sections: what a person reads of a build, a check, a timing, a graph or a run."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stitch_mcp.printed_commands import program_name
from stitch_mcp.verdicts import policy_notes, verdict_notes
from stitch_mcp.views.table import ReportSection
from stitch_mcp.views.work_table import work_sections
from stitch_tools.models.acceptance import Verdict
from stitch_tools.models.conditions import GpuConditions
from stitch_tools.models.graph import Ceilings, Graph
from stitch_tools.models.program import Build
from stitch_tools.models.sanitizer import SanitizerRun
from stitch_tools.models.task import TensorSpec
from stitch_tools.models.verdict import (
    REFERENCE_VARIES,
    Bench,
    Check,
    DrawResult,
    ReferenceTolerance,
    Sensitivity,
    Timing,
)
from stitch_tools.run.last_words import own_words

if TYPE_CHECKING:
    from stitch_mcp.certificates import CertificateView
    from stitch_mcp.rerun_certificate import Rerun
    from stitch_planner.loop import SolveResult
    from stitch_planner.plan import Plan


_UNCHECKED = {
    "certified without ": ("memory and races ({})", "memory and races ({})"),
    "draw ": ("draw {}", "draws {}"),
}
"""How entries of `not_checked` begin, and how one or several of them with the same reason are named."""


def microseconds(value: float | None) -> str:
    """A time with three significant digits, "-" where it was not measured."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def build_sections(build: Build) -> list[ReportSection]:
    """A compiler run: diagnostics and kernels as tables, the command to repeat it."""
    problems = tuple(
        (
            row.severity,
            f"{row.file or '-'}:{row.line}" if row.line else row.file or "-",
            row.message if not row.source_line else f"{row.message}   | {row.source_line.strip()}",
        )
        for row in build.diagnostics
    )
    kernels = tuple(
        (
            row.kernel,
            row.arch,
            str(row.registers),
            str(row.shared_bytes),
            str(row.spill_store_bytes + row.spill_load_bytes),
        )
        for row in build.resources
    )
    sections: list[ReportSection] = []
    if problems:
        sections.append(ReportSection("diagnostics", ("severity", "where", "message"), problems))
    if kernels:
        columns = ("kernel", "arch", "registers", "shared bytes", "spilled bytes")
        sections.append(ReportSection("kernels", columns, kernels))
    return [*sections, ReportSection(notes=tuple(_build_notes(build)))]


def _build_notes(build: Build) -> list[str]:
    state = "built" if build.ok else "timed out" if build.timed_out else "not built"
    how = (
        "from the cache"
        if build.cache_hit
        else f"in {build.wall_s or 0:.2f} s ({build.cpu_s or 0:.2f} CPU s)"
    )
    notes = [f"{state} {how} with {build.compiler}"]
    if build.artifact:
        notes.append(f"library: {build.artifact}")
    if build.sandbox != "full":
        level = f"level {build.sandbox} of isolation" if build.sandbox else "no isolation"
        notes.append(f"the compiler ran under {level}")
    return [*notes, f"repeat in the program's folder: {' '.join(build.command)}"]


def check_sections(
    check: Check, verdict: Verdict | None = None, *, reference_tolerance: bool = False, run: str = ""
) -> list[ReportSection]:
    """A check: its draws with the worst error of each, its findings, its verdict.

    With `reference_tolerance` the verdict of KernelBench's own rule stands beside it. `run` is the id of the
    run that made the program, "" where the caller did.
    """
    draws = tuple(_draw_row(draw) for draw in check.draws)
    sections: list[ReportSection] = []
    if draws:
        columns = ("draw", "equal", "error", "allowed", "reference's own", "problem")
        sections.append(ReportSection("draws", columns, draws))
    if check.findings:
        rows = tuple(
            (row.severity, row.rule, f"{row.file}:{row.line}" if row.file else "-", row.message)
            for row in check.findings
        )
        sections.append(ReportSection("findings", ("severity", "rule", "where", "message"), rows))
    if any(run.status != "not_checked" for run in check.sanitizers):
        rows = tuple(_sanitizer_row(run) for run in check.sanitizers)
        columns = ("sanitizer", "result", "own findings", "in libraries", "inputs", "seconds")
        sections.append(ReportSection("memory and races", columns, rows))
    sections += work_sections(check.work)
    if check.sensitivity:
        rows = tuple(_sensitivity_row(row) for row in check.sensitivity)
        columns = ("probe", "other", "output moves by", "tolerance", "reacts")
        sections.append(ReportSection("does the task react?", columns, rows))
    notes = _check_notes(check, verdict or _default_verdict(check), run)
    if reference_tolerance:
        notes.insert(1, _rule_note(check.reference_tolerance))
    return [*sections, ReportSection(notes=tuple(notes))]


def _sensitivity_row(row: Sensitivity) -> tuple[str, ...]:
    figures = ("-" if value is None else f"{value:.1e}" for value in (row.change, row.tolerance))
    return (row.probe, row.subject, *figures, "yes" if row.reacts else "NO")


def _rule_note(rule: ReferenceTolerance | None) -> str:
    if rule is None:
        return "KernelBench's rule: no draw of the task's own inputs was compared"
    largest = "not finite" if rule.largest_difference is None else f"{rule.largest_difference:.1e}"
    verdict = "would accept" if rule.ok else "would reject"
    return (
        f"{rule.rule} (atol {rule.atol:g}, rtol {rule.rtol:g}) {verdict}: "
        f"{rule.draws} draws, largest difference {largest}"
    )


def _sanitizer_row(run: SanitizerRun) -> tuple[str, ...]:
    seconds = "-" if run.wall_s is None else f"{run.wall_s:.1f}"
    counts = (str(len(run.findings)), str(len(run.library_findings)))
    return (run.tool, run.status.replace("_", " "), *counts, run.inputs or "-", seconds)


def _draw_row(draw: DrawResult) -> tuple[str, ...]:
    measured = [row for row in draw.outputs if row.max_error is not None]
    worst = max(measured, key=lambda row: (row.max_error or 0.0) / (row.bound or 1.0), default=None)
    problem = draw.problem or next((row.problem for row in draw.outputs if row.problem), None)
    figures = (worst.max_error, worst.bound, worst.reference_error) if worst else (None, None, None)
    shown = ("-" if value is None else f"{value:.1e}" for value in figures)
    return (draw.draw, "yes" if draw.ok else "NO", *shown, problem or "")


def _default_verdict(check: Check) -> Verdict:
    from stitch_tools.judge.verdict import verdict_of

    return verdict_of(check)


def _check_notes(check: Check, verdict: Verdict, run: str) -> list[str]:
    flags = f" ({', '.join(check.flags)})" if check.flags else ""
    notes = [f"status: {check.status}{flags}"]
    if check.message:
        notes.append(check.message)
    notes += verdict_notes(verdict)
    if not verdict.accepted and (printed := own_words(check.stderr_tail)):
        notes.append(f"the program's last output:\n{printed}")
    notes += _next_step(check, run)
    plane = f"; tensors through memory of the {check.plane}" if check.plane else ""
    notes.append(f"oracle: {check.oracle}; isolation: {check.sandbox or 'nothing ran'}{plane}")
    if check.repeats_bitwise is not None:
        notes.append(f"a second call on the same inputs gives {_same_bits(check.repeats_bitwise)}")
    notes += not_checked_lines(check.not_checked)
    return notes


def _next_step(check: Check, run: str) -> list[str]:
    """What to do about a program that crashed or is wrong."""
    if check.status == "crashed" and not check.sanitizers:
        return [
            "next: the same check with --sanitize, which names file and line of a memory error (C++, CUDA)"
        ]
    if any(row.rule == REFERENCE_VARIES for row in check.findings):
        return [
            "next: seed or remove what makes the reference differ from call to call (time, addresses,"
            " generators of its own); where it is meant to be random, draw from torch's generator in forward"
        ]
    if check.status == "incorrect" and run:
        return [
            f"next: `{program_name()} check REFERENCE {run} --json` shows each draw's worst element; what"
            " `solve` writes should never be wrong: please report it with the reference"
        ]
    if check.status == "incorrect":
        return [
            "next: fix what the message names; the same check with --json shows each draw's worst element,"
            " --reference-tolerance KernelBench's own verdict"
        ]
    return []


def not_checked_lines(texts: Sequence[str]) -> list[str]:
    """One line a reason, which names all that it holds for."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for text in texts:
        kind = next((kind for kind in _UNCHECKED if text.startswith(kind)), "")
        name, _, reason = text.removeprefix(kind).partition(": ")
        by_reason.setdefault((kind, reason or text), []).append(name)
    lines: list[str] = []
    for (kind, reason), names in by_reason.items():
        one, several = _UNCHECKED.get(kind, ("{}", "{}"))
        what = (one if len(names) == 1 else several).format(", ".join(names))
        lines.append(f"not checked: {what}" if names == [reason] else f"not checked: {what}: {reason}")
    return lines


def _same_bits(same: bool) -> str:
    return "the same bits" if same else "other bits"


def bench_sections(bench: Bench) -> list[ReportSection]:
    """A timing: one row per contestant with its ratio to the program."""
    rows = tuple(_timing_row(bench, timing) for timing in bench.timings)
    columns = (
        "contestant",
        "latency us",
        "spread",
        "throughput us",
        "spread",
        "speedup",
        "95% interval",
        "",
    )
    notes = [f"{timing.name}: {timing.note}" for timing in bench.timings if timing.note]
    notes += [
        f"{row.contestant} against {row.baseline}: {row.speedup:.2f}x, {row.low:.2f} to {row.high:.2f}"
        for row in bench.ratios
        if row.contestant != "program"
    ]
    notes += [
        f"CPU time on one thread: {row.contestant} needs 1/{row.speedup:.2f} of that of {row.baseline}, "
        f"1/{row.low:.2f} to 1/{row.high:.2f}"
        for row in bench.cpu_ratios
    ]
    notes.append(f"outcome: {bench.outcome}")
    if bench.message:
        notes.append(bench.message)
    notes += [f"{row.severity}: {row.rule}: {row.message}" for row in bench.findings]
    notes += not_checked_lines(bench.not_checked)
    threads = f", {bench.threads} threads" if bench.threads else ""
    steal = "" if bench.steal_share is None else f", steal {bench.steal_share:.1%}"
    if any(row.latency_us is not None or row.throughput_us is not None for row in bench.timings):
        notes.append(f"on {bench.device or 'no device'}{threads}{steal}; ratios are of {bench.figure}")
    if bench.gpu is not None:
        notes.append(_gpu_note(bench.gpu))
    table = ReportSection("times, medians", columns, rows) if rows else ReportSection()
    return [ReportSection(table.title, table.columns, table.rows, tuple(notes))]


def _gpu_note(gpu: GpuConditions) -> str:
    """Clocks and power in one line; what the driver does not say is left out."""
    parts = [f"{gpu.readings} readings of the GPU"]
    if gpu.sm_clock_mhz is not None:
        parts.append(f"SM clock {gpu.sm_clock_mhz} MHz ({gpu.sm_clock_min_mhz} at least)")
    if gpu.power_w is not None:
        parts.append(f"power up to {gpu.power_w:.0f} W")
    if gpu.throttled is not None:
        parts.append(f"held down by {', '.join(gpu.throttled)}" if gpu.throttled else "never held down")
    return ", ".join(parts)


def _timing_row(bench: Bench, timing: Timing) -> tuple[str, ...]:
    ratio = bench.ratio(timing.name)
    times = (
        timing.latency_us,
        timing.latency_spread_us,
        timing.throughput_us,
        timing.throughput_spread_us,
    )
    shown = tuple(microseconds(value) for value in times)
    name = f"{timing.name} (disturbed)" if timing.disturbed else timing.name
    if ratio is None:
        return (name, *shown, "", "", "")
    interval = f"{ratio.low:.2f} to {ratio.high:.2f}"
    return (name, *shown, f"{ratio.speedup:.2f}x", interval, ratio.outcome)


def ceilings_sections(ceilings: Ceilings) -> list[ReportSection]:
    """A device's measured limits."""
    rows = [
        ("copy, memory", f"{ceilings.copy_bytes_per_s / 1e9:.1f}", "GB/s"),
        ("launch of nothing", microseconds(ceilings.launch_us), "us"),
        ("last-level cache", f"{ceilings.last_level_cache_bytes / 2**20:.1f}", "MiB"),
    ]
    if ceilings.cache_bytes_per_s is not None:
        rows.insert(1, ("copy, cache", f"{ceilings.cache_bytes_per_s / 1e9:.1f}", "GB/s"))
    if ceilings.write_bytes_per_s is not None:
        rows.insert(1, ("write, memory", f"{ceilings.write_bytes_per_s / 1e9:.1f}", "GB/s"))
    rows += [
        (f"matrix product, {name}", f"{rate / 1e9:.1f}", "GFLOP/s")
        for name, rate in ceilings.flops_per_s.items()
    ]
    for name, rate in ceilings.transfers or ():
        if rate is not None:
            rows.append((f"copy {name.replace('_', ' ')} memory", f"{rate / 1e9:.1f}", "GB/s"))
    threads = f", {ceilings.threads} threads" if ceilings.threads else ""
    columns = ("ceiling", "measured", "unit")
    return [ReportSection(f"{ceilings.device}{threads}", columns, tuple(rows), disturbance(ceilings))]


def disturbance(ceilings: Ceilings | None) -> tuple[str, ...]:
    """What to say where others kept the device busy while it was measured."""
    if ceilings is None or not ceilings.disturbed:
        return ()
    return (
        "the machine was busy when its limits were measured: rates may be too low, and no time made from them"
        " is a bound (`stitch-mcp ceilings --refresh` on a quiet machine)",
    )


def graph_sections(graph: Graph, ceilings: Ceilings | None = None) -> list[ReportSection]:
    """A captured graph: one row per operation with its work and its lower bound by `ceilings`."""
    rows = tuple(
        (
            node.name,
            node.op.removeprefix("aten."),
            _shapes(node.outputs),
            f"{node.flops / 1e6:.2f}",
            f"{(node.bytes_read + node.bytes_written) / 1e6:.2f}",
            microseconds(node.min_time_us),
            node.module_path,
        )
        for node in graph.nodes
    )
    bounds = [node.min_time_us for node in graph.nodes if node.min_time_us is not None]
    notes = [f"captured by {graph.source} in {graph.mode} mode: {len(graph.nodes)} operations"]
    notes += [graph.reason] if graph.reason else []
    notes.append(f"{graph.flops / 1e6:.2f} MFLOP in all")
    if bounds:
        what = "estimate" if disturbance(ceilings) else "lower bound"
        notes.append(f"{what}, one operation after the other: {microseconds(sum(bounds))} us")
    columns = ("name", "operation", "result", "MFLOP", "MB moved", _time_column(ceilings), "module")
    return [ReportSection("", columns, rows, tuple(notes))]


def _time_column(ceilings: Ceilings | None) -> str:
    """Over times made from `ceilings`: those of a busy device bound nothing."""
    return "estimate us" if disturbance(ceilings) else "at least us"


def _shapes(outputs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{row.dtype}[{', '.join(map(str, row.shape))}]" for row in outputs)


def certificate_sections(certificate: "CertificateView", *, rerun: bool = False) -> list[ReportSection]:
    """A verified certificate; with `rerun` what it left out is told from what the run after it leaves out."""
    speedup = "" if certificate.speedup is None else f", {certificate.speedup:.2f}x eager"
    rows = (
        ("certificate", certificate.certificate_id[:16]),
        ("made", certificate.created_at),
        ("program", certificate.program_id[:16]),
        ("target", f"{certificate.target} on {certificate.device}"),
        ("status", certificate.status + (f" ({', '.join(certificate.flags)})" if certificate.flags else "")),
        (
            "counts",
            "yes" if certificate.counts else f"no: {'; '.join(row.message for row in certificate.reasons)}",
        ),
        ("accepts", ", ".join(certificate.policy.names) or "no shortcoming"),
        ("outcome", f"{certificate.outcome}{speedup}"),
        ("files", f"{certificate.files}, every hash fits"),
    )
    signed = f"signed by the ed25519 key {certificate.signer}" if certificate.signer else "not signed"
    notes = (f"verified: nothing in this archive is damaged; {signed}", certificate.claim)
    unchecked = not_checked_lines(certificate.not_checked)
    if rerun:
        unchecked = [text.replace("not checked:", "not checked when certified:", 1) for text in unchecked]
    return [ReportSection("", ("what", "says"), rows, (*notes, *unchecked))]


def rerun_sections(rerun: "Rerun") -> list[ReportSection]:
    """What running a certificate's program again showed."""
    sections = bench_sections(rerun.bench) if rerun.bench and rerun.bench.timings else []
    if not rerun.correct:
        sections = check_sections(rerun.check, rerun.verdict)
    return [*sections, ReportSection(notes=(f"run again: {rerun.message}",))]


def solve_sections(result: "SolveResult", again: str = "") -> list[ReportSection]:
    """The end of a run: times, verdict, certificate and the command that re-checks it.

    `again` is the command that times its program once more, "" where it is not known.
    """
    sections = bench_sections(result.bench) if result.bench and result.bench.timings else []
    verdict = result.verdict
    # What is wrong with a program stands in its check, unless only its times show it.
    refused = verdict is not None and not verdict.accepted and not (result.bench and result.bench.rejected)
    if result.check and refused:
        sections = check_sections(result.check, verdict, run=result.run_id)
    # Why a check did not end well stands above already.
    summary = result.status if refused else result.message or result.status
    notes = [f"{result.task} on {result.target}: {summary}", *_built(result)]
    notes += policy_notes(verdict) if verdict else []
    notes += [f"warning: {text}" for text in result.warnings]
    notes += [f"note: {text}" for text in result.notes]
    if result.model_tokens:
        price = "price unknown" if result.model_usd is None else f"{result.model_usd:.2f} USD"
        notes.append(f"model: at most {result.model_tokens:,} tokens, {price}")
    notes.append(f"run: {result.run_folder}")
    if result.certificate:
        path = shlex.quote(result.certificate)
        notes.append(f"certificate: {result.certificate}")
        notes.append(f"re-check it: {program_name()} certify --verify {path}")
    if result.outcome == "inconclusive" and result.bench and result.bench.disturbed:
        again = again or f"{program_name()} bench --quick REFERENCE {result.run_id}"
        notes.append(f"others kept the machine busy; only time it again when it is quieter: {again}")
    return [*sections, ReportSection(notes=tuple(notes))]


def _built(result: "SolveResult") -> list[str]:
    """Where a program lies that could not be run here."""
    if result.status != "unmeasured" or result.library is None:
        return []
    return [f"it compiled, and was not run; sources: {result.sources or '-'}", f"library: {result.library}"]


def demo_sections(result: "SolveResult", again: str) -> list[ReportSection]:
    """The end of a demonstration, which is a quick run."""
    note = f"a quick run: fewest rounds, no sanitizers; `{program_name()} solve` does all"
    return [*solve_sections(result, again), ReportSection(notes=(note,))]


def plan_sections(plan: "Plan", ceilings: Ceilings | None = None) -> list[ReportSection]:
    """A plan: one row per step with its time predicted from `ceilings` and what bounds it."""
    rows = tuple(
        (
            str(step.index),
            step.kind,
            step.family or "-",
            " + ".join(step.ops),
            ", ".join(f"{row.dtype}[{', '.join(map(str, row.shape))}]" for row in step.outputs),
            f"{step.flops / 1e6:.2f}",
            f"{step.bytes / 1e6:.2f}",
            microseconds(step.predicted_us),
            step.bound or "-",
            step.note or step.module_path,
        )
        for step in plan.steps
    )
    columns = (
        "step",
        "kind",
        "by",
        "operations",
        "result",
        "MFLOP",
        "MB",
        _time_column(ceilings),
        "bound by",
        "where",
    )
    least = "about" if disturbance(ceilings) else "at least"
    total = "" if plan.predicted_us is None else f", {least} {microseconds(plan.predicted_us)} us in all"
    notes = (f"{len(plan.steps)} steps for {plan.target}{total}", *plan.notes)
    return [ReportSection("", columns, rows, notes)]
