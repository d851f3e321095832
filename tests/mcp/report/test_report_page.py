"""The report of a run as its reader gets it: the parsed HTML of runs made by hand, and of an old one."""

import json
import re
import shutil
from pathlib import Path

import pytest
from selectolax.lexbor import LexborHTMLParser

import stitch_mcp
from stitch_mcp.cli import main
from stitch_mcp.report.limits import LARGEST_BYTES
from stitch_tools.models.verdict import DrawResult, OutputError
from tests.mcp.report.conftest import ATTACK
from tests.mcp.report.run_support import add_check, add_program, open_run

OLD = Path(__file__).parents[2] / "data/run-0.1"


def report(workspace: Path, run: str = "last") -> LexborHTMLParser:
    written = stitch_mcp.write_report(run, workspace=workspace)
    return LexborHTMLParser(Path(written.path).read_text(encoding="utf-8"))


def text_of(page: LexborHTMLParser) -> str:
    assert page.body is not None
    return " ".join(page.body.text(separator=" ").split())


def table_after(page: LexborHTMLParser, heading: str) -> list[list[str]]:
    """The first table behind a heading, its header included."""
    reached = False
    for node in page.css("h2, table"):
        if reached and node.tag == "table":
            return [[cell.text().strip() for cell in row.css("th, td")] for row in node.css("tr")]
        reached = reached or (node.tag == "h2" and node.text().startswith(heading))
    raise AssertionError(f"no table behind {heading!r}")


def test_an_old_run_has_a_report_in_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(OLD, tmp_path / ".stitch")
    assert main(["report", "--workspace", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (path,) = tmp_path.glob(".stitch/runs/*/report.html")
    assert (answer["path"], answer["size"], answer["missing"]) == (str(path), path.stat().st_size, [])
    page = LexborHTMLParser(path.read_text(encoding="utf-8"))
    (_, row) = table_after(page, "Programs")
    assert row[0] == "000 best certified"
    assert re.fullmatch(r"\d+\.\d\dx", row[6])
    shown = text_of(page)
    assert "stitch-mcp solve model.py --target cpu --quick" in shown
    assert "stitch-mcp certify --verify model-5976d144.stitch.zip --rerun" in shown
    assert len(table_after(page, "Times of program 000")) == 4


def test_every_program_is_a_row_with_its_figures_or_the_reason_why_not(four_programs: Path) -> None:
    header, *rows = table_after(report(four_programs), "Programs")
    assert header[3:8] == ["parent", "status (flags)", "counts", "speed-up over eager", "95% interval"]
    assert [row[0] for row in rows] == ["000 best", "001", "002", "003"]
    assert [row[3] for row in rows] == ["-", "000", "001", "000"]
    assert [row[5] for row in rows] == ["yes", "yes", "no", "no"]
    assert [row[6] for row in rows] == ["2.00x", "3.00x (disturbed)", "not measured", "not measured"]
    assert [row[7] for row in rows] == ["1.90 to 2.10", "1.50 to 4.00", "-", "-"]
    assert "off by half" in rows[2][8]
    assert rows[3][8] == "it was not built"


def test_the_chart_has_a_mark_for_each_measured_ratio_and_none_beside(four_programs: Path) -> None:
    page = report(four_programs)
    titles = [node.text() for node in page.css("figure g title")]
    assert titles == [
        "program 000 over eager: 2.00x, 95% interval 1.90 to 2.10",
        "program 000 over compile:default: 1.20x, 95% interval 1.10 to 1.30",
        "program 001 over eager: 3.00x, 95% interval 1.50 to 4.00 (disturbed)",
    ]
    remarks = [node.text() for node in page.css("figure .remark")]
    assert remarks == ["disturbed", "incorrect", "not measured"]
    assert len(page.css("figure .doubtful")) == 1


def test_a_diff_is_against_the_parent_and_the_first_program_is_shown_whole(four_programs: Path) -> None:
    first, second, *_ = [node for node in report(four_programs).css("details") if "by " in node.text()]
    assert "its sources as they are" in first.text()
    assert "(3 lines)" in first.text()
    assert first.css("ins, del") == []
    assert "// helps" in first.text()
    assert [node.text() for node in second.css("del")] == ["-int first;"]
    (added,) = second.css("ins")
    assert added.text() == f"+int second; // {ATTACK}"
    # A file that did not change is no part of a diff.
    assert "// helps" not in second.text()


def test_texts_of_programs_notes_and_findings_stay_texts(four_programs: Path) -> None:
    page = report(four_programs)
    assert page.css("script, img, link, iframe, object, embed, base, form") == []
    shown = text_of(page)
    # The program's line where it comes and where it goes, its note, and the finding.
    assert shown.count(ATTACK) == 4
    assert 'alert("reference")' in shown
    assert len(page.css("style")) == 1


def test_nothing_is_loaded_and_no_script_may_run(four_programs: Path) -> None:
    page = report(four_programs)
    for node in page.css("*"):
        for name, value in node.attributes.items():
            assert not name.startswith("on")
            assert name not in ("src", "href", "srcset", "data", "action", "xlink:href"), (name, value)
            assert "url(" not in (value or "")
    (style,) = page.css("style")
    assert not re.search(r"url\(|@import|https?:", style.text())
    policy = page.css_first('meta[http-equiv="Content-Security-Policy"]')
    assert policy is not None
    assert policy.attributes["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_what_a_model_did_not_say_is_unknown(four_programs: Path) -> None:
    _, answered, open_one = table_after(report(four_programs), "Questions")
    assert answered == ["000", "m-2026", "1x", "1200", "unknown", "345", "1545", "0.0123", "2.5", "complete"]
    assert open_one[3:] == [*["unknown"] * 3, "at most 7000", "unknown", "unknown", "none recorded"]


def test_findings_name_file_and_line(four_programs: Path) -> None:
    _, row = table_after(report(four_programs), "Findings")
    assert row[:4] == ["001", "note", "library_patched", "main.cpp:7"]


def test_the_command_that_repeats_a_run_has_its_options(four_programs: Path) -> None:
    command = "stitch-mcp solve model.py --target cpu --quick --coder llm --set rtol=0.0001"
    assert command in text_of(report(four_programs))


def test_a_run_without_programs_says_so(tmp_path: Path) -> None:
    open_run(tmp_path, coder="outside").close()
    shown = text_of(report(tmp_path))
    assert "not finished: no program was written yet" in shown
    assert "This run has no program yet." in shown
    assert "No single command repeats it" in shown
    assert "solve model.py" not in shown


def test_a_wrong_draw_comes_first_and_says_why(tmp_path: Path) -> None:
    run = open_run(tmp_path)
    program = add_program(run, "int x;\n")

    def output(name: str, problem: str | None) -> OutputError:
        return OutputError(
            output=name, max_error=1e-3, rms_error=1e-3, reference_error=0.0, bound=2e-5, problem=problem
        )

    draws = (
        DrawResult(draw="own-1", ok=True, outputs=(output("a", None), output("b", None))),
        DrawResult(draw="zeros", ok=False, outputs=(output("a", "too far off"),)),
    )
    add_check(run, program, status="incorrect", draws=draws)
    run.close()
    header, wrong, right = table_after(report(tmp_path), "Correctness of program 000, none counts")
    assert header == ["draw", "equal", "output a", "output b", "problem"]
    assert wrong == ["zeros", "NO", "WRONG, 1.0e-03 / 2.0e-05", "-", "too far off"]
    assert right[:4] == ["own-1", "yes", *["equal, 1.0e-03 / 2.0e-05"] * 2]


def test_a_report_is_written_to_a_file_or_folder_of_choice(four_programs: Path, tmp_path: Path) -> None:
    written = stitch_mcp.write_report(workspace=four_programs, output=tmp_path)
    assert written.path == str(tmp_path / "report.html")
    assert main(["report", "--workspace", str(four_programs), "--out", str(tmp_path / "a/b.html")]) == 0
    assert (tmp_path / "a/b.html").stat().st_size == written.size < LARGEST_BYTES


def test_without_a_run_there_is_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--workspace", str(tmp_path)]) == 2
    assert "start one with" in capsys.readouterr().err
