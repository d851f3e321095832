"""The prompts of a run: files of samples, the mix of both skills, tokenizers that lack something."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from stitch_mcp.rl.training.policies import PromptRow
from stitch_mcp.rl.training.prompt_rows import mixed, parse_task, read_rows
from stitch_mcp.rl.training.tokenizing import prepare_tokenizer, prompt_of
from stitch_tools.errors import UsageError

MESSAGES = ({"role": "user", "content": "task"},)


def rows(count: int) -> list[PromptRow]:
    generate = [PromptRow(skill="generate", task=f"g{n}", reference="/r.py", text="p") for n in range(count)]
    refine = [
        PromptRow(skill="refine", task=f"r{n}", reference="/r.py", text="p", parent_files={"p.cpp": "x"})
        for n in range(count)
    ]
    return generate + refine


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"skill": "generate", "task": "t", "text": "p"}', "reference"),
        ('{"skill": "sing", "task": "t", "reference": "/r", "text": "p"}', "skill"),
        ('{"skill": "generate", "task": "t", "reference": "/r"}', "no prompt"),
        ('{"skill": "refine", "task": "t", "reference": "/r", "text": "p"}', "parent_files"),
        ('{"skill": "generate", "task"', "line 2"),
    ],
)
def test_a_row_that_misses_something_is_named_with_its_line(tmp_path: Path, line: str, named: str) -> None:
    file = tmp_path / "train.jsonl"
    good = PromptRow(skill="generate", task="t", reference="/r", text="p").model_dump_json()
    file.write_text(f"{good}\n{line}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="line 2") as caught:
        read_rows(file)
    assert named in caught.value.message


def test_an_empty_file_of_samples_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text("\n", encoding="utf-8")
    with pytest.raises(UsageError, match="no sample"):
        read_rows(file)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_both_skills_are_mixed_by_ratio(share: float) -> None:
    chosen = mixed(rows(3), share, 40, seed=1)
    assert sum(row.skill == "refine" for row in chosen) == round(40 * share)


def test_a_longer_run_begins_with_the_prompts_of_a_shorter_one() -> None:
    assert mixed(rows(3), 0.4, 50, seed=1)[:20] == mixed(rows(3), 0.4, 20, seed=1)
    assert mixed(rows(3), 0.4, 20, seed=2) != mixed(rows(3), 0.4, 20, seed=1)


def test_a_skill_without_samples_is_refused() -> None:
    with pytest.raises(UsageError, match="refine"):
        mixed(rows(2)[:2], 0.5, 4, seed=0)


@pytest.mark.parametrize("text", ["silu", "silu 8x", "sinh 8x8", "silu 8x6", "silu 0x8"])
def test_a_name_that_is_no_task_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_task(text)


@dataclass
class Tokenizer:
    eos_token: str | None = "<end>"
    eos_token_id: int | None = 1
    pad_token: str | None = None
    pad_token_id: int | None = None
    padding_side: str = "right"
    chat_template: object = None


def test_a_tokenizer_without_padding_pads_with_its_end_token() -> None:
    tokenizer = Tokenizer()
    prepare_tokenizer(tokenizer)
    assert (tokenizer.pad_token, tokenizer.padding_side) == ("<end>", "left")


def test_a_tokenizer_keeps_its_own_padding_token() -> None:
    tokenizer = Tokenizer(pad_token="<pad>", pad_token_id=0)
    prepare_tokenizer(tokenizer)
    assert tokenizer.pad_token == "<pad>"


def test_a_tokenizer_without_an_end_token_is_refused() -> None:
    with pytest.raises(UsageError, match="no end token"):
        prepare_tokenizer(Tokenizer(eos_token=None, eos_token_id=None))


def test_a_model_without_a_chat_template_gets_plain_text() -> None:
    row = PromptRow(skill="generate", task="t", reference="/r", messages=MESSAGES)
    assert prompt_of(row, Tokenizer()) == "# user\n\ntask\n\n# assistant\n\n"
    assert prompt_of(row, Tokenizer(chat_template="{{ messages }}")) == list(MESSAGES)
