"""Completions as models really end them: cut off, only thought, without code, with too much of it."""

import pytest

from stitch_mcp.rl.training.completions import UnusableCompletionError, answer_of, completion_text
from stitch_mcp.rl.training.policies import ChoicePolicy, CodePolicy, PromptRow, plain_prompt

SOURCE = "```cpp program.cpp\nint main() { return 0; }\n```"
ROW = PromptRow(skill="generate", task="t", reference="/t.py", text="write", rows=(0, 8, 8))


def read(text: str, *, truncated: bool = False, row: PromptRow = ROW) -> dict[str, str]:
    files, _ = CodePolicy().program(answer_of(text, truncated=truncated), row)
    return dict(files)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "empty"),
        ("   \n", "empty"),
        ("<think>what to do", "only_thinking"),
        ("<think>what to do</think>\n", "only_thinking"),
        ("Use shared memory.", "no_code"),
        ("```cpp\nint a;\n```\nand\n```cpp\nint b;\n```", "several_blocks"),
        ("```text\nhello\n```", "no_program"),
    ],
)
def test_a_completion_without_a_program_says_why(text: str, problem: str) -> None:
    with pytest.raises(UnusableCompletionError) as caught:
        read(text)
    assert caught.value.problem == problem


def test_a_completion_that_was_cut_off_is_no_program_even_if_its_fence_is_closed() -> None:
    with pytest.raises(UnusableCompletionError) as caught:
        read(SOURCE, truncated=True)
    assert caught.value.problem == "truncated"


@pytest.mark.parametrize(
    "text",
    [
        SOURCE,
        f"<think>a draft:\n```cpp\nint x;\n```</think>\n{SOURCE}",
        f"begun in the prompt</think>\n{SOURCE}",
        f"First the plan.\n\n{SOURCE}\n",
    ],
)
def test_what_a_model_thought_is_no_part_of_its_answer(text: str) -> None:
    assert read(text) == {"program.cpp": "int main() { return 0; }\n"}


def test_named_files_may_be_several() -> None:
    header = "```cpp part/sum.h\nint sum();\n```"
    assert sorted(read(f"{header}\n{SOURCE}")) == ["part/sum.h", "program.cpp"]


def test_an_answer_to_a_refinement_may_be_a_diff_of_the_parent() -> None:
    row = ROW.model_copy(
        update={
            "skill": "refine",
            "parent_files": {"program.cpp": "int a;\nint b;\n"},
            "parent_main": "program.cpp",
        }
    )
    diff = "```diff program.cpp\n@@\n int a;\n-int b;\n+int c;\n```"
    assert read(diff, row=row) == {"program.cpp": "int a;\nint c;\n"}


@pytest.mark.parametrize(
    "words",
    [
        "",
        "math:polynomial walk:rows threads:all",
        "math:polynomial math:double walk:rows threads:all shortcut:none",
        "math:polynomial walk:rows threads:all shortcut:none please",
    ],
)
def test_words_that_choose_no_variant_are_no_program(words: str) -> None:
    with pytest.raises(UnusableCompletionError) as caught:
        ChoicePolicy("cpu").program(words, ROW)
    assert caught.value.problem == "no_choice"


def test_a_choice_is_rendered_into_a_whole_program() -> None:
    files, main = ChoicePolicy("cpu").program("shortcut:none walk:rows math:double threads:one", ROW)
    assert main == "program.cpp"
    assert "#define MATH 2\n" in files[main]
    assert "stitch_forward" in files[main]


def test_chat_messages_and_strings_give_the_same_text() -> None:
    assert completion_text([{"role": "assistant", "content": "a"}]) == completion_text("a") == "a"
    assert completion_text(None) == ""


def test_a_plain_prompt_holds_every_message_in_order() -> None:
    messages = ({"role": "system", "content": "rules"}, {"role": "user", "content": "task"})
    assert plain_prompt(messages) == "# system\n\nrules\n\n# user\n\ntask\n\n# assistant\n\n"
