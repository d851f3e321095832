"""`solve`: does all steps with a coder, the stitcher at first, or finishes a run that other tools began."""

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from stitch_mcp.server.coders import CoderRequest, allowed_coder
from stitch_mcp.server.evidence_lines import interval_of, ratios_as_lines, times_as_lines
from stitch_mcp.server.job_context import JobContext
from stitch_mcp.server.requests import NamesContract
from stitch_mcp.server.tool import Tool, ToolAnswer
from stitch_planner.agents.manual_questions import MANUAL
from stitch_planner.runs.run import OUTSIDE, read_state, started
from stitch_tools.errors import UsageError
from stitch_tools.models.program import STITCHER
from stitch_tools.models.remedy import Remedy


class Solve(NamesContract):
    """Arguments of solve."""

    run_id: str = ""
    """Instead of reference."""
    quick: bool = False
    """No sanitizers, fewest timing rounds; new runs only."""
    min_speedup: float | None = Field(default=None, gt=0)
    """Goal over eager."""
    coder: str = ""
    """After the stitcher: manual (you), replay:FOLDER, llm, acp:AGENT."""
    model: str = ""
    """Of llm."""
    rounds: int | None = Field(default=None, ge=1)
    """Most programs of it."""
    max_model_tokens: int | None = None
    """At most the user's own limit."""
    max_model_usd: float | None = None
    """The same."""

    @property
    def job_wait_s(self) -> float:
        """Not at all where the job asks its caller: the call would wait for itself."""
        return 0.0 if self.coder == MANUAL else self.wait_s

    @property
    def needs_tool(self) -> str | None:
        """With the coder `manual` the run waits for its caller's answers."""
        return "next_prompt" if self.coder == MANUAL else None


class SolveAnswer(ToolAnswer):
    """The end of the run."""

    QUOTED: ClassVar[tuple[str, ...]] = ("notes", "warnings", "times_us")
    NEVER_SET: ClassVar[tuple[str, ...]] = ("artifact",)

    program_id: str | None = None
    verdict: str | None = None
    counts: bool | None = None
    """Whether it may be claimed; `message` says why not."""
    outcome: str | None = None
    speedup: float | None = None
    interval: tuple[float, ...] = ()
    times_us: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    certificate: str | None = None
    """Path of the archive."""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def solve(request: Solve, work: JobContext) -> SolveAnswer:
    """Do the run's remaining steps and return its result."""
    from stitch_mcp.server.steps import hand_over
    from stitch_planner.loop import solve as run_to_end
    from stitch_planner.opening import SolveRequest

    config = work.config
    coder = allowed_coder(config, _asked(request, work))
    # The run exists before the loop starts, so that an interrupted job can be resumed by its id.
    run_id = hand_over(work, quick=request.quick, min_speedup=request.min_speedup, coder=coder)
    solved = run_to_end(
        SolveRequest(
            workspace=config.workspace,
            resume=run_id,
            python=config.python,
            cache_dir=config.cache_dir,
            time_limit_s=config.time_limit_s,
            build_time_limit_s=config.build_time_limit_s,
            bench_budget_s=config.bench_budget_s,
            compile_baselines=config.compile_baselines,
            models=config.models,
            limits=coder.limits,
        ),
        emit=work.say,
    )
    named = solved.program_id[:16] if solved.program_id else None
    return SolveAnswer(
        message=solved.message,
        run_id=run_id,
        program_id=named,
        verdict=solved.status,
        counts=solved.verdict.counts if solved.verdict else None,
        outcome=solved.outcome,
        speedup=round(solved.speedup, 3) if solved.speedup is not None else None,
        interval=interval_of(solved.bench),
        times_us=times_as_lines(solved.bench) if solved.bench else (),
        against=ratios_as_lines(solved.bench) if solved.bench else (),
        certificate=solved.certificate,
        notes=solved.notes,
        warnings=solved.warnings,
        next_steps=_next(run_id, named, timed=solved.bench is None or solved.outcome != "inconclusive"),
    )


def _asked(request: Solve, work: JobContext) -> CoderRequest:
    """The coder that the request names; that of an existing run, which needs the user's leave as well.

    Raises:
        UsageError: the request names another one.
    """
    given = CoderRequest(
        request.coder, request.model, request.rounds, request.max_model_tokens, request.max_model_usd
    )
    if not work.subject.run_id:
        return given
    first = started(read_state(work.workbench.workspace.run_folder(work.run_id)))
    asked = (request.coder or first.coder, request.model or first.model, request.rounds or first.rounds)
    if asked != (first.coder, first.model, first.rounds):
        raise UsageError("a run keeps its `coder`, `model` and `rounds`", hint="leave them out")
    return replace(given, coder=STITCHER if first.coder == OUTSIDE else first.coder, model=first.model)


def _next(run_id: str, named: str | None, *, timed: bool) -> tuple[Remedy, ...]:
    if named is None:
        return ()
    sources = Remedy(tool="get_artifact", arguments={"id": named}, why="read the program's sources")
    own = Remedy(
        tool="compile_program",
        arguments={"run_id": run_id, "files": {"program.cpp": "YOUR SOURCE"}},
        why="write a faster one; the run records it",
    )
    if timed:
        return (sources, own)
    again = Remedy(
        tool="benchmark_program",
        arguments={"run_id": run_id, "program": named, "rerun": True},
        why="time it again, best when nothing else runs",
    )
    return (again, sources, own)


TOOL = Tool(
    name="solve",
    title="Solve a reference",
    description=(
        "Does all steps: captures, plans, writes, builds, checks, times and certifies; the deterministic "
        "stitcher writes, then `coder` if one is named. Also finishes a run that other tools began. A job of "
        "20 s to minutes."
    ),
    request=Solve,
    answer=SolveAnswer,
    work=solve,
    runs_code=True,
    timed=True,
    reuse_in_run=False,
    toolset="solve",
)
