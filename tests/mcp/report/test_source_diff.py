"""Diffs between the sources of two programs."""

from stitch_mcp.report.source_diff import SourceDiff, program_diff
from stitch_tools.models.base import sha256_hex
from stitch_tools.models.program import Program
from stitch_tools.models.task import SourceFile

Files = dict[str, str]


def make_program(files: Files) -> Program:
    rows = tuple(
        SourceFile(path=path, sha256=sha256_hex(text.encode()), size=len(text.encode()))
        for path, text in sorted(files.items())
    )
    return Program(format="native", target="cpu", files=rows, main="main.cpp")


def diff(before: Files | None, after: Files, characters: int = 10_000) -> SourceDiff:
    texts = [*(before or {}).values(), *after.values()]
    sources = {sha256_hex(text.encode()): text for text in texts}
    parent = make_program(before) if before is not None else None
    return program_diff(make_program(after), parent, sources, characters)


def shown(result: SourceDiff) -> list[tuple[str, str]]:
    return [(line.kind, line.text) for line in result.lines]


def test_only_changed_files_are_shown_the_main_one_first() -> None:
    result = diff(
        {"a.h": "1\n", "main.cpp": "x\ny\n", "same.h": "s\n"},
        {"a.h": "2\n", "main.cpp": "x\nz\n", "same.h": "s\n"},
    )
    assert shown(result) == [
        ("file", "main.cpp"),
        ("place", "@@ -1,2 +1,2 @@"),
        ("same", " x"),
        ("removed", "-y"),
        ("added", "+z"),
        ("file", "a.h"),
        ("place", "@@ -1 +1 @@"),
        ("removed", "-1"),
        ("added", "+2"),
    ]
    assert (result.added, result.removed, result.left_out) == (2, 2, 0)


def test_new_and_removed_files_are_named_as_such() -> None:
    result = diff({"main.cpp": "x\n", "old.h": "o\n"}, {"main.cpp": "x\n", "new.h": "n\n"})
    assert [line for line in shown(result) if line[0] != "place"] == [
        ("file", "new.h (new)"),
        ("added", "+n"),
        ("file", "old.h (removed)"),
        ("removed", "-o"),
    ]


def test_lines_that_look_like_a_header_are_lines() -> None:
    result = diff({"main.cpp": "-- a\n++ b\n"}, {"main.cpp": "++ b\n"})
    assert ("removed", "--- a") in shown(result)
    assert ("same", " ++ b") in shown(result)


def test_other_ends_of_lines_are_a_remark() -> None:
    result = diff({"main.cpp": "x\r\n"}, {"main.cpp": "x\n"})
    assert shown(result) == [("file", "main.cpp"), ("place", "only ends of lines differ")]
    empty = diff({"main.cpp": "x\n"}, {"main.cpp": "x\n", "empty.h": ""})
    assert shown(empty) == [("file", "empty.h (new)")]


def test_without_a_parent_the_sources_are_shown_as_they_are() -> None:
    result = diff(None, {"main.cpp": "x\ny\n"})
    assert shown(result) == [("file", "main.cpp"), ("same", "x"), ("same", "y")]
    assert result.added == 2


def test_a_long_diff_is_cut_and_says_by_how_much() -> None:
    result = diff({"main.cpp": ""}, {"main.cpp": "line\n" * 100}, characters=100)
    assert sum(len(line.text) + 1 for line in result.lines) <= 100
    assert result.added == 100
    assert len(result.lines) + result.left_out == 102


def test_a_long_line_is_cut() -> None:
    assert max(len(line.text) for line in diff(None, {"main.cpp": "x" * 5000}).lines) < 300


def test_files_too_long_to_compare_are_only_counted() -> None:
    result = diff({"main.cpp": "a\n" * 4000}, {"main.cpp": "b\n" * 4001})
    assert shown(result)[1] == ("place", "changed: 4000 lines before, 4001 now; too long to compare")


def test_a_file_whose_text_is_missing_is_named() -> None:
    program = make_program({"main.cpp": "x\n"})
    result = program_diff(program, None, {}, 1000)
    assert shown(result)[1] == ("place", "its text is missing or too large: nothing can be shown")
