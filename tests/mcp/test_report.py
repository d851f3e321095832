"""What a person sees of a table whose texts come from compilers and programs."""

from stitch_mcp.report import Section, one_line, render_text
from stitch_mcp.tables import check_sections, demo_sections
from stitch_planner.loop import SolveResult
from stitch_tools.models import Check
from stitch_tools.sanitize import apply_sanitizers, skipped_sanitizers


def test_a_message_of_several_lines_is_one_row_of_a_table() -> None:
    message = "model.py:5: no such name\n    self.fc = nn.Liner(4)\nTraceback"
    table = Section("", ("run", "how it ended"), (("one", one_line(message)), ("two", "accepted")))
    lines = render_text(table).splitlines()
    assert lines[2:] == ["one  model.py:5: no such name", "two  accepted"]


def test_a_long_message_ends_in_dots_and_a_short_one_stays() -> None:
    assert one_line("ab " * 40) == "ab " * 25 + "ab..."
    assert one_line("x" * 80) == "x" * 80


def test_what_was_not_checked_has_one_label() -> None:
    check = Check(program_id="a" * 64, task_id="b" * 64, status="accepted")
    check = apply_sanitizers(check, skipped_sanitizers("cpu", "a quick run"))
    assert "not checked: asan: a quick run" in check_sections(check)[-1].notes


def test_a_demonstration_says_that_it_was_a_quick_run() -> None:
    result = SolveResult(
        run_id="r",
        run_folder="runs/r",
        task="mlp",
        target="cpu",
        status="accepted",
        outcome="faster",
        program_id=None,
        certificate=None,
        speedup=2.0,
        min_speedup=None,
        message="",
    )
    (note,) = demo_sections(result)[-1].notes
    assert note.startswith("a quick run: fewest rounds, no sanitizers")
