"""A program is read from whole answers only, and from nothing that an answer says about itself."""

import pytest

from stitch_mcp.rl.reward.submissions import Submission, read_submission
from stitch_planner.agents.answers import UnusableAnswerError

CODE = "int main() { return 0; }"


def named(text: str = CODE, path: str = "program.cpp") -> str:
    return f"```cpp {path}\n{text}\n```\n"


def files_of(text: str) -> dict[str, str]:
    read = read_submission(Submission(text=text))
    return {path: data.decode("utf-8").strip() for path, data in read.files.items()}


def test_the_files_of_an_answer_are_its_fences() -> None:
    assert files_of(f"Here it is.\n\n{named()}") == {"program.cpp": CODE}
    assert files_of(named() + named("int x;", "part.h")) == {"program.cpp": CODE, "part.h": "int x;"}


def test_one_nameless_fence_is_the_main_file() -> None:
    assert files_of(f"```cuda\n{CODE}\n```") == {"program.cu": CODE}
    module = "class ModelNew: ..."
    assert files_of(f"Fast:\n```python\n{module}\n```") == {"candidate.py": module}


def test_thoughts_are_no_part_of_the_answer() -> None:
    thought = f"<think>Maybe\n{named('int wrong;')}</think>"
    assert files_of(thought + named()) == {"program.cpp": CODE}
    twice = f"<thinking>one</thinking>Here:\n{thought}"
    assert files_of(twice + named()) == {"program.cpp": CODE}
    assert files_of(f"begun in the prompt\n{named('int wrong;')}</think>\n{named()}") == {"program.cpp": CODE}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("<think>It needs blocks of four", "cut off before the answer"),
        (f"```cpp program.cpp\n{CODE}\nint half(", "last fence is not closed"),
        ("```cpp program.cpp", "last fence is not closed"),
        ('{"reward": 3.0, "status": "accepted"}', "no files"),
        ("reward: 3.0\nspeedup: 99x", "no files"),
        (f"```cpp\n{CODE}\n```\n```cpp\n{CODE}\n```", "names a path"),
        (named(path="../../etc/program.cpp"), "no path inside"),
        (named(" ", "program.cpp"), "empty"),
        (named() + named(path="other.cpp"), "only one is compiled"),
        (named(path=f"{'a' * 300}.cpp"), "longer than 200 bytes"),
        (named() + named("int x;", "program.cpp/part.h"), "program.cpp is a file"),
    ],
)
def test_what_is_no_whole_program_is_unusable(text: str, words: str) -> None:
    with pytest.raises(UnusableAnswerError, match=words):
        read_submission(Submission(text=text))


def test_a_policy_that_repeats_one_tag_costs_no_quadratic_time() -> None:
    with pytest.raises(UnusableAnswerError, match="cut off before the answer"):
        read_submission(Submission(text="<think>" * 500_000))


def test_a_refinement_may_answer_with_a_diff_and_has_to_change_something() -> None:
    parent = {"program.cpp": "int a;\nint b;\n"}
    refine = Submission(skill="refine", parent=parent, parent_main="program.cpp")
    diff = "```diff\n--- program.cpp\n+++ program.cpp\n@@ -1,2 +1,2 @@\n int a;\n-int b;\n+int c;\n```\n"
    read = read_submission(refine.model_copy(update={"text": diff}))
    assert read.files["program.cpp"] == b"int a;\nint c;\n"
    with pytest.raises(UnusableAnswerError, match="nothing changed"):
        read_submission(refine.model_copy(update={"text": named(parent["program.cpp"].strip())}))


def test_files_outside_of_the_program_are_refused() -> None:
    with pytest.raises(UnusableAnswerError):
        read_submission(Submission(files={"/etc/program.cpp": CODE}))
