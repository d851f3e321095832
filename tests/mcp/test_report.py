"""What a person sees of a table whose texts come from compilers and programs."""

from stitch_mcp.report import Section, one_line, render_text


def test_a_message_of_several_lines_is_one_row_of_a_table() -> None:
    message = "model.py:5: no such name\n    self.fc = nn.Liner(4)\nTraceback"
    table = Section("", ("run", "how it ended"), (("one", one_line(message)), ("two", "accepted")))
    lines = render_text(table).splitlines()
    assert lines[2:] == ["one  model.py:5: no such name", "two  accepted"]


def test_a_long_message_ends_in_dots_and_a_short_one_stays() -> None:
    assert one_line("ab " * 40) == "ab " * 25 + "ab..."
    assert one_line("x" * 80) == "x" * 80
