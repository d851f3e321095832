"""What the end of a run says, once."""

from stitch_mcp.report import render_text
from stitch_mcp.tables import solve_sections
from stitch_planner.loop import SolveResult
from stitch_tools.models import Check


def test_a_program_that_cannot_run_here_says_so_once_and_where_it_lies() -> None:
    reason = "torch sees no CUDA device here"
    check = Check(program_id="a" * 64, task_id="b" * 64, status="unmeasured", message=reason)
    result = SolveResult(
        run_id="r",
        run_folder="runs/r",
        task="mlp",
        target="cuda:sm_90",
        status="unmeasured",
        outcome="unmeasured",
        program_id="a" * 64,
        certificate=None,
        sources="runs/r/rounds/000/program",
        library="cache/program.so",
        speedup=None,
        min_speedup=None,
        message=f"unmeasured: {reason}",
        check=check,
    )
    shown = "\n".join(render_text(section) for section in solve_sections(result))
    assert shown.count(reason) == 1
    assert "it compiled, and was not run; sources: runs/r/rounds/000/program" in shown
    assert "library: cache/program.so" in shown
