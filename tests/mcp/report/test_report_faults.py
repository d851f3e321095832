"""Reports of runs whose evidence is damaged, hostile or huge."""

import shutil
from pathlib import Path

import pytest

import stitch_mcp
from stitch_mcp.report.limits import LARGEST_BYTES
from stitch_planner.runs.run import Workspace, read_state
from stitch_tools.models.verdict import DrawResult, Finding, OutputError
from tests.mcp.report.run_support import add_bench, add_build, add_check, add_program, open_run

OLD = Path(__file__).parents[2] / "data/run-0.1"


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    shutil.copytree(OLD, tmp_path / ".stitch")
    return tmp_path


def blobs(root: Path) -> dict[str, str]:
    """The hashes of an old run's blobs by what they are."""
    workspace = Workspace(root)
    state = read_state(workspace.run_folder("last"))
    (attempt,) = state.attempts
    assert state.started is not None
    assert attempt.build is not None
    assert attempt.build.build is not None
    assert attempt.check is not None
    assert attempt.bench is not None
    return {
        "the task": state.started.task,
        "the environment": state.started.environment,
        "program 000": attempt.program.program,
        "program 000, build": attempt.build.build,
        "program 000, check": attempt.check.check,
        "program 000, times": attempt.bench.bench,
    }


@pytest.mark.parametrize("name", ["task", "environment", "program 000", "build", "check", "times"])
@pytest.mark.parametrize("fault", ["damaged", "missing"])
def test_a_fact_that_is_lost_is_named_and_the_rest_is_shown(old_run: Path, name: str, fault: str) -> None:
    (what,) = [known for known in blobs(old_run) if known.endswith(name)]
    path = Workspace(old_run).store.path(blobs(old_run)[what])
    if fault == "damaged":
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    else:
        path.unlink()
    written = stitch_mcp.write_report(workspace=old_run)
    (problem,) = written.missing
    assert problem.startswith(f"{what}: ")
    page = Path(written.path).read_text(encoding="utf-8")
    assert "missing or damaged" in page
    assert problem.partition(":")[0] in page
    assert "000 best certified" in page


def test_a_run_that_lost_its_whole_store_is_still_told_from_its_log(old_run: Path) -> None:
    shutil.rmtree(old_run / ".stitch/store")
    written = stitch_mcp.write_report(workspace=old_run)
    assert len(written.missing) == len(blobs(old_run))
    assert "certify --verify" in Path(written.path).read_text(encoding="utf-8")


def test_a_source_file_that_is_lost_is_named_in_the_diff(tmp_path: Path) -> None:
    run = open_run(tmp_path)
    program = add_program(run, "int x;\n")
    run.store.path(program.files[0].sha256).unlink()
    run.close()
    written = stitch_mcp.write_report(workspace=tmp_path)
    (problem,) = written.missing
    assert problem.startswith("program 000, file main.cpp: ")
    assert "its text is missing or too large" in Path(written.path).read_text(encoding="utf-8")


def test_a_certificate_that_was_changed_is_named(old_run: Path) -> None:
    (archive,) = old_run.glob(".stitch/runs/*/*.stitch.zip")
    archive.write_bytes(b"no archive")
    (problem,) = stitch_mcp.write_report(workspace=old_run).missing
    assert problem == f"the certificate {archive.name}: it is missing, or not what was written"


def test_times_that_are_lost_leave_no_mark_but_the_figure_of_the_log(tmp_path: Path) -> None:
    run = open_run(tmp_path)
    program = add_program(run, "int x;\n")
    add_check(run, program)
    add_bench(run, program, {"eager": (2.0, 1.9, 2.1)})
    assert run.state.best is not None
    assert run.state.best.bench is not None
    run.store.path(run.state.best.bench.bench).unlink()
    run.close()
    page = Path(stitch_mcp.write_report(workspace=tmp_path).path).read_text(encoding="utf-8")
    assert "2.00x (as the log says)" in page
    assert "from 1.90" in page
    assert "times missing" in page
    assert '<g class="s0' not in page


def test_control_characters_and_text_that_runs_backwards_become_visible(tmp_path: Path) -> None:
    run = open_run(tmp_path)
    hidden = "int a; /* \u202e } \u2066 */\x00\x1b[2J\n"
    program = add_program(run, hidden, notes=("\x07 note",))
    add_check(run, program)
    run.close()
    page = Path(stitch_mcp.write_report(workspace=tmp_path).path).read_text(encoding="utf-8")
    assert not set("\u202e\u2066\x00\x1b\x07") & set(page)
    assert "int a; /* \N{REPLACEMENT CHARACTER} }" in page


def test_a_report_stays_small_whatever_a_run_holds(tmp_path: Path) -> None:
    """The worst texts to escape, everywhere, many times."""
    run = open_run(tmp_path)
    worst = "\"'<&>" * 400
    outputs = tuple(
        OutputError(
            output=f"{number}{worst}",
            max_error=1.0,
            rms_error=1.0,
            reference_error=None,
            bound=1.0,
            problem=worst,
        )
        for number in range(20)
    )
    draws = tuple(DrawResult(draw=worst, ok=False, outputs=outputs) for _ in range(50))
    findings = tuple(
        Finding(rule=worst, severity="note", message=worst, file=worst, quote=worst) for _ in range(40)
    )
    parent = None
    for number in range(70):
        parent = add_program(
            run,
            f"{number}\n" + f"{worst}\n" * 30,
            author=worst,
            parent=parent,
            notes=(worst,) * 20,
        )
        add_build(run, parent)
        last = number == 69
        add_check(
            run,
            parent,
            status="incorrect" if last else "accepted",
            draws=draws if last else (),
            findings=findings if last else findings[:2],
            message=worst,
        )
    run.close()
    written = stitch_mcp.write_report(workspace=tmp_path)
    assert written.size <= LARGEST_BYTES
    page = Path(written.path).read_text(encoding="utf-8")
    assert "more programs of this run are left out of this page" in page
    assert "<h2>Certificate</h2>" in page
