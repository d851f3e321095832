"""`benchmark_program`: times a program against eager PyTorch and torch.compile."""

from typing import ClassVar

from stitch_mcp.server.evidence_lines import interval_of, ratios_as_lines, times_as_lines
from stitch_mcp.server.job_context import JobContext
from stitch_mcp.server.requests import Detailed, JudgesProgram
from stitch_mcp.server.tool import Tool, ToolAnswer
from stitch_tools.models.acceptance import Verdict
from stitch_tools.models.program import Program
from stitch_tools.models.remedy import Remedy
from stitch_tools.models.verdict import Bench


class BenchmarkProgram(JudgesProgram, Detailed):
    """Arguments of benchmark_program."""

    quick: bool = True
    """Fewest rounds, only torch.compile's default mode; false takes minutes."""
    against: str = ""
    """program_id of another accepted program, timed in the same rounds."""


class BenchAnswer(ToolAnswer):
    """Times side by side."""

    DETAILS: ClassVar[tuple[str, ...]] = ("device", "threads")
    QUOTED: ClassVar[tuple[str, ...]] = ("times_us",)

    program_id: str | None = None
    counts: bool | None = None
    """Whether it may be claimed, in its run."""
    outcome: str | None = None
    """Against eager: faster, slower, inconclusive (within noise), unmeasured."""
    speedup: float | None = None
    """Median of eager time / program time."""
    interval: tuple[float, ...] = ()
    """95% interval of the speedup: low, high."""
    times_us: tuple[str, ...] = ()
    """Each contestant: median of one call, spread; if inconclusive also CPU time on one thread."""
    against: tuple[str, ...] = ()
    """Speedup over each baseline, interval."""
    device: str | None = None
    threads: int | None = None


def benchmark(request: BenchmarkProgram, work: JobContext) -> BenchAnswer:
    """Time a program and record the result in its run."""
    from stitch_mcp.server.steps import known_facts
    from stitch_planner.join import joined, require_correct
    from stitch_planner.runs.recorder import record_bench

    workbench, program = work.workbench, work.program
    run_id = work.subject.run_id
    store = workbench.workspace.store
    other = store.get_fact(request.against, Program) if request.against else None
    if run_id:
        with joined(workbench.workspace, run_id) as run:
            # Refused before the device is locked: a wrong program's time is of no use.
            require_correct(run, program)
            if other is not None:
                require_correct(run, other)
    # Outside of the run's lock: timing takes minutes, in which others may record into the run.
    with workbench.trial(work.task, program, known=known_facts(work)) as trial:
        bench = workbench.benchmark(trial, quick=request.quick, other=other)
    verdict = None
    if run_id:
        with joined(workbench.workspace, run_id) as run:
            verdict = record_bench(run, program, bench)
    eager = bench.ratio("eager")
    named = program.program_id[:16]
    return BenchAnswer(
        message=f"{work.named_program}{_message(bench, verdict)}",
        run_id=run_id,
        artifact=workbench.workspace.store.put_fact(bench),
        program_id=named,
        counts=verdict.counts if verdict else None,
        outcome=bench.outcome,
        speedup=round(eager.speedup, 3) if eager else None,
        interval=interval_of(bench),
        times_us=times_as_lines(bench),
        against=ratios_as_lines(bench),
        device=bench.device,
        threads=bench.threads,
        next_steps=_next(work, named, bench, verdict),
    )


def _message(bench: Bench, verdict: Verdict | None) -> str:
    eager = bench.ratio("eager")
    if bench.rejected:
        return f"rejected_cheat: {bench.message}"
    against = (
        f"; it does not count: {verdict.why_not}"
        if verdict and verdict.accepted and not verdict.counts
        else ""
    )
    if eager is None:
        return f"{bench.outcome}: {bench.message}{against}"
    doubt = f"; {bench.doubt}" if bench.doubt else ""
    interval = f"95% interval {eager.low:.2f} to {eager.high:.2f}"
    return f"{bench.outcome}: {eager.speedup:.2f}x eager, {interval}{doubt}{against}"


def _next(work: JobContext, named: str, bench: Bench, verdict: Verdict | None) -> tuple[Remedy, ...]:
    certify = Remedy(
        tool="certify_program",
        arguments={**work.place, "program": named},
        why="write the certificate of this result",
    )
    kept = "; the accepted one stays in the run"
    if not work.subject.run_id:
        kept, why = "", "open a run: what is checked and timed in it can be certified"
        certify = Remedy(tool="analyze_reference", arguments=work.place, why=why)
    faster = Remedy(
        tool="compile_program",
        arguments={**work.place, "files": {work.program.main: "A FASTER SOURCE"}},
        why=f"try another program{kept}",
    )
    # Only what counts is certified.
    if bench.rejected or (verdict is not None and not verdict.counts):
        return (faster,)
    if bench.outcome == "inconclusive":
        why = "time it again, best when nothing else runs; `quick`: false times longer"
        arguments = {**work.place, "program": named, "rerun": True}
        return (Remedy(tool="benchmark_program", arguments=arguments, why=why), faster, certify)
    # Best first, see docs/mcp.md: a gain is ready to be certified, anything else to be improved.
    return (certify, faster) if bench.outcome == "faster" else (faster, certify)


TOOL = Tool(
    name="benchmark_program",
    title="Time a program",
    description=(
        "Times an accepted program beside eager PyTorch, torch.compile and, with `against`, "
        "another program. Nothing else should run meanwhile. Quick: 10 to 40 s on a CPU. Next: "
        "certify_program."
    ),
    request=BenchmarkProgram,
    answer=BenchAnswer,
    work=benchmark,
    runs_code=True,
    warm=True,
    timed=True,
)
