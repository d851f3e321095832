"""What of a model's answer becomes a program."""

import random

import pytest

from stitch_planner.agents.answers import UnusableAnswerError, read_answer

PARENT = {"program.cpp": b"old\n", "kernels/a.h": b"a\n"}


def fence(info: str, text: str) -> str:
    return f"```{info}\n{text}\n```\n"


def test_files_replace_those_of_the_parent_and_the_rest_stays() -> None:
    text = "The loop is\nslow.\n\n" + fence("cpp program.cpp", "new") + "Done."
    answered = read_answer(text, PARENT, "program.cpp")
    assert answered.files == {"program.cpp": b"new\n", "kernels/a.h": b"a\n"}
    assert answered.main == "program.cpp"
    assert answered.summary == "The loop is slow. Done."


def test_a_helper_alone_changes_the_parent() -> None:
    answered = read_answer(fence("cpp kernels/a.h", "b"), PARENT, "program.cpp")
    assert answered.files == {"program.cpp": b"old\n", "kernels/a.h": b"b\n"}


def test_another_main_file_begins_anew() -> None:
    answered = read_answer(fence("cuda fast.cu", "x"), PARENT, "program.cpp")
    assert answered.files == {"fast.cu": b"x\n"}
    assert answered.main == "fast.cu"


@pytest.mark.parametrize(
    "info",
    [
        "cpp file=program.cpp",
        "cpp:program.cpp",
        'cpp title="program.cpp"',
        "program.cpp",
        "cpp ./program.cpp",
    ],
)
def test_the_path_may_be_spelled_as_models_do(info: str) -> None:
    assert read_answer(fence(info, "x"), {}).main == "program.cpp"


@pytest.mark.parametrize(
    ("info", "main"), [("cpp", "program.cpp"), ("cuda", "program.cu"), ("c++", "program.cpp")]
)
def test_one_nameless_fence_is_the_main_file(info: str, main: str) -> None:
    assert read_answer(fence(info, "x"), {}).files == {main: b"x\n"}


def test_a_nameless_fence_takes_the_name_of_the_parent() -> None:
    assert read_answer(fence("cpp", "x"), {"mine.cpp": b"y\n"}, "mine.cpp").files == {"mine.cpp": b"x\n"}


def test_fences_of_other_languages_are_no_files() -> None:
    text = fence("console", "$ make") + fence("cpp program.cpp", "x")
    assert read_answer(text, {}).files == {"program.cpp": b"x\n"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("I would fuse the two loops.", "holds no files"),
        (fence("cpp", "a") + fence("cpp", "b"), "names a path"),
        (fence("cpp ../../etc/cron.cpp", "x"), "no path inside"),
        (fence("cpp /etc/cron.cpp", "x"), "no path inside"),
        (fence("cpp a.cpp", "x") + fence("cpp b.cpp", "y"), "only one is compiled"),
        (fence("cpp kernels/a.h", "x"), "nothing can be compiled"),
        (fence("cpp program.cpp", " "), "is empty"),
        (fence("cpp program.cpp", "x" * ((1 << 20) + 1)), "more than 32 files or 1 MiB"),
    ],
)
def test_an_answer_without_a_program_says_what_to_change(text: str, said: str) -> None:
    with pytest.raises(UnusableAnswerError, match=said):
        read_answer(text, {})


def test_an_answer_that_changes_nothing_is_told_so() -> None:
    with pytest.raises(UnusableAnswerError, match="nothing changed"):
        read_answer(fence("cpp program.cpp", "old"), PARENT, "program.cpp")


LONG = "int a;\nfor (;;) {\n    x += 1;\n}\n\nint b;\nfor (;;) {\n    x += 1;\n}\n"
SHOWN = {"program.cpp": LONG.encode(), "kernels/a.h": b"a\nb\nc\n"}


def edited(text: str) -> dict[str, bytes]:
    return dict(read_answer(text, SHOWN, "program.cpp").files)


def test_a_diff_is_applied_by_its_text_whatever_its_line_numbers_say() -> None:
    hunk = "@@ -70,3 +71,4 @@ void f()\n int b;\n-for (;;) {\n+while (go()) {\n+    y = 0;\n     x += 1;"
    files = edited("Unrolled.\n\n" + fence("diff program.cpp", hunk))
    assert files["program.cpp"] == (
        b"int a;\nfor (;;) {\n    x += 1;\n}\n\nint b;\nwhile (go()) {\n    y = 0;\n    x += 1;\n}\n"
    )
    assert files["kernels/a.h"] == SHOWN["kernels/a.h"]


def test_a_diff_of_several_files_names_them_in_its_headers_and_lies_beside_whole_files() -> None:
    diff = (
        "diff --git a/program.cpp b/program.cpp\n--- a/program.cpp\n+++ b/program.cpp\n@@ -1 +1 @@\n"
        "-int a;\n+int c;\n--- a/kernels/a.h\n+++ b/kernels/a.h\n@@\n a\n-b\n c\n\\ No newline at end of file"
    )
    files = edited(fence("diff", diff) + fence("cpp kernels/b.h", "new"))
    assert files["program.cpp"] == LONG.replace("int a;", "int c;").encode()
    assert (files["kernels/a.h"], files["kernels/b.h"]) == (b"a\nc\n", b"new\n")


def test_line_numbers_choose_among_equal_places_and_hunks_do_not_move_each_other() -> None:
    second = "@@ -7,2 +7,2 @@\n for (;;) {\n-    x += 1;\n+    x += 2;"
    first = "@@ -1,1 +1,3 @@\n int a;\n+int d;\n+int e;"
    files = edited(fence("diff program.cpp", first + "\n" + second))
    changed = LONG.replace("int a;\n", "int a;\nint d;\nint e;\n")
    assert files["program.cpp"] == ("2".join(changed.rsplit("1", 1))).encode()


def test_an_empty_line_that_is_kept_may_lack_its_space() -> None:
    files = edited(fence("diff program.cpp", "@@\n }\n\n-int b;\n+int z;\n"))
    assert files["program.cpp"] == LONG.replace("int b;", "int z;").encode()


@pytest.mark.parametrize(
    ("diff", "said"),
    [
        (fence("diff program.cpp", "@@\n-int q;\n+int z;"), "'int q;' is no line of it"),
        (fence("diff program.cpp", "@@\n }\n int a;\n-int b;"), "in another order"),
        (fence("diff program.cpp", "@@\n-    x += 1;\n+    x += 2;"), "stand 2 times"),
        (fence("diff program.cpp", "@@\n+int z;"), "no line of the file"),
        (fence("diff program.cpp", "@@\nint a;"), "none of space, \\+ and -"),
        (fence("diff program.cpp", ""), "holds no files|is empty"),
        (fence("diff", "@@\n-int a;"), "names no file"),
        (fence("diff other.cpp", "@@\n-int a;"), "not among the files shown: program.cpp, kernels/a.h"),
        (fence("diff", "--- /dev/null\n+++ b/n.h\n@@\n+int a;"), "makes or deletes n.h"),
        (fence("diff", "--- a/program.cpp\n+++ b/n.cpp\n@@\n-int a;"), "renames program.cpp to n.cpp"),
        (fence("diff program.cpp", "@@\n-int a;\n@@\n int a;\n+int c;"), "change the same lines"),
        (fence("diff program.cpp", "@@\n-int a;") + fence("cpp program.cpp", "x"), "whole and by a diff"),
        (fence("diff program.cpp", "@@\n-int a;\n+int a;"), "nothing changed"),
    ],
)
def test_a_diff_that_does_not_fit_says_why(diff: str, said: str) -> None:
    with pytest.raises(UnusableAnswerError, match=said):
        edited(diff)


def test_two_hundred_thousand_tokens_of_noise_are_no_program() -> None:
    words = [
        "```",
        "~~~",
        "cpp",
        "program.cpp",
        "\n",
        "@@ -1 +1 @@",
        "-old",
        "--- a/program.cpp",
        "{",
        " ",
        "#",
        "`",
    ]
    noise = "".join(random.Random(1).choices(words, k=200_000))
    with pytest.raises(UnusableAnswerError):
        read_answer(noise, PARENT, "program.cpp")
