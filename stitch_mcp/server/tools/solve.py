"""`solve`: does all steps with the built-in stitcher, or finishes a run that other tools began."""

from typing import ClassVar

from pydantic import Field

from stitch_mcp.server.job_context import JobContext
from stitch_mcp.server.requests import NamesContract
from stitch_mcp.server.tool import Tool, ToolAnswer
from stitch_tools.models.remedy import Remedy


class Solve(NamesContract):
    """Arguments of solve."""

    run_id: str = ""
    """Run that other tools began, in place of reference."""
    quick: bool = False
    """No sanitizers, fewest rounds. Not for an existing run."""
    min_speedup: float | None = Field(default=None, gt=0)
    """Required speedup over eager."""


class SolveAnswer(ToolAnswer):
    """The end of the run."""

    QUOTED: ClassVar[tuple[str, ...]] = ("notes", "warnings")

    program_id: str | None = None
    verdict: str | None = None
    """CheckStatus, as check_program gives it."""
    counts: bool | None = None
    """Whether the program may be claimed; `message` says why not."""
    outcome: str | None = None
    """faster, slower, inconclusive, unmeasured."""
    speedup: float | None = None
    certificate: str | None = None
    """Path of the archive, where the program counts."""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def solve(request: Solve, work: JobContext) -> SolveAnswer:
    """Do the run's remaining steps and return its result."""
    from stitch_mcp.server.steps import hand_over
    from stitch_planner.loop import solve as run_to_end
    from stitch_planner.opening import SolveRequest

    config = work.config
    # The run exists before the loop starts, so that an interrupted job can be resumed by its id.
    run_id = hand_over(work, quick=request.quick, min_speedup=request.min_speedup)
    solved = run_to_end(
        SolveRequest(
            workspace=config.workspace,
            resume=run_id,
            python=config.python,
            cache_dir=config.cache_dir,
            time_limit_s=config.time_limit_s,
            build_time_limit_s=config.build_time_limit_s,
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
        certificate=solved.certificate,
        notes=solved.notes,
        warnings=solved.warnings,
        next_steps=_next(run_id, named),
    )


def _next(run_id: str, named: str | None) -> tuple[Remedy, ...]:
    if named is None:
        return ()
    sources = Remedy(tool="get_artifact", arguments={"id": named}, why="read the program's sources")
    own = Remedy(
        tool="compile_program",
        arguments={"run_id": run_id, "files": {"program.cpp": "YOUR SOURCE"}},
        why="write a faster one; the run records it",
    )
    return (sources, own)


TOOL = Tool(
    name="solve",
    title="Solve a reference",
    description=(
        "Does all steps with the deterministic stitcher, without a model: captures, plans, writes, builds, "
        "checks, times and certifies. Also finishes a run that other tools began. A job of 20 s to several "
        "minutes."
    ),
    request=Solve,
    answer=SolveAnswer,
    work=solve,
    runs_code=True,
    timed=True,
    toolset="solve",
)
