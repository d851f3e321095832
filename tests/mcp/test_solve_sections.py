"""What the end of a run says, once."""

from stitch_mcp.views.fact_tables import bench_sections, check_sections, solve_sections
from stitch_mcp.views.table import render_text
from stitch_planner.loop import SolveResult
from stitch_tools.judge.verdict import verdict_of
from stitch_tools.models.acceptance import AcceptPolicy
from stitch_tools.models.verdict import REFERENCE_VARIES, Bench, Check, Finding, Timing


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
        verdict=verdict_of(check),
    )
    shown = "\n".join(render_text(section) for section in solve_sections(result))
    assert shown.count(reason) == 1
    assert "it compiled, and was not run; sources: runs/r/rounds/000/program" in shown
    assert "library: cache/program.so" in shown


def incorrect(*findings: Finding) -> Check:
    return Check(
        program_id="a" * 64,
        task_id="b" * 64,
        status="incorrect",
        message="draw own-1: wrong",
        findings=findings,
    )


def shown(check: Check) -> str:
    """What `solve` prints of a run that ended with this check."""
    result = SolveResult(
        run_id="run-7",
        run_folder="runs/run-7",
        task="mlp",
        target="cpu",
        status=check.status,
        outcome="unmeasured",
        program_id="a" * 64,
        certificate=None,
        speedup=None,
        min_speedup=None,
        message=check.message,
        check=check,
        verdict=verdict_of(check),
    )
    return "\n".join(render_text(section) for section in solve_sections(result))


def test_a_wrong_program_of_the_stitcher_is_not_the_reader_s_to_mend() -> None:
    text = shown(incorrect())
    assert "check REFERENCE run-7 --json" in text
    assert "please report it" in text
    assert "--reference-tolerance" not in text
    own = "\n".join(render_text(section) for section in check_sections(incorrect()))
    assert "next: fix what the message names" in own


def test_a_reference_that_does_not_repeat_itself_is_what_is_to_be_mended() -> None:
    check = incorrect(Finding(rule=REFERENCE_VARIES, severity="note", message="two calls differ"))
    for text in (shown(check), "\n".join(render_text(section) for section in check_sections(check))):
        assert "next: seed or remove what makes the reference differ from call to call" in text
        assert "fix what the message names" not in text
        assert "--reference-tolerance" not in text


def test_what_was_not_timed_names_no_device_and_no_figure() -> None:
    bench = Bench(program_id="a" * 64, task_id="b" * 64, outcome="unmeasured", message="not accepted")
    text = "\n".join(render_text(section) for section in bench_sections(bench))
    assert "outcome: unmeasured" in text
    assert "no device" not in text
    assert "ratios" not in text


def test_medians_of_a_busy_machine_are_marked() -> None:
    rows = (Timing(name="program", latency_us=1.0), Timing(name="eager", latency_us=2.0, disturbed=True))
    bench = Bench(program_id="a" * 64, task_id="b" * 64, outcome="inconclusive", timings=rows)
    assert [row[0] for row in bench_sections(bench)[0].rows] == ["program", "eager (disturbed)"]


def test_what_keeps_an_accepted_program_from_counting_is_said_with_the_way_to_accept_it() -> None:
    check = Check(program_id="a" * 64, task_id="b" * 64, status="accepted", flags=("weak",), message="agreed")
    strict = "\n".join(render_text(section) for section in check_sections(check))
    assert "it does not count: weak: " in strict
    assert "--accept weak lets it count" in strict
    seen = verdict_of(check, policy=AcceptPolicy.of(["weak"]))
    loose = "\n".join(render_text(section) for section in check_sections(check, seen))
    assert "accepted although: weak: " in loose
    assert "does not count" not in loose
