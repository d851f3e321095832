"""The question set keeps the promises of its README."""

import json
import re
from pathlib import Path

HALVES = [Path(__file__).parent / "questions" / f"half_{half}.jsonl" for half in "ab"]
ROWS = [[json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] for path in HALVES]


def contains_its_answer(row: dict[str, object]) -> bool:
    answers = [str(answer) for answer in row["answers"] if ":" not in str(answer)[:5]]  # type: ignore[attr-defined]
    question = str(row["question"]).lower()
    return any(re.sub(r".*(?:::|\.)", "", answer).lower() in question for answer in answers)


def test_there_are_enough_questions_and_the_halves_share_none() -> None:
    first, second = ({str(row["question"]) for row in rows} for rows in ROWS)
    assert len(first) + len(second) >= 240
    assert not first & second
    assert abs(len(first) - len(second)) <= 2


def test_both_halves_ask_of_every_kind() -> None:
    first, second = ({row["kind"] for row in rows} for rows in ROWS)
    assert first == second
    assert len(first) >= 12


def test_at_most_a_third_contains_the_answer_s_symbol() -> None:
    rows = [row for half in ROWS for row in half]
    assert sum(map(contains_its_answer, rows)) * 3 <= len(rows)
    assert all(row["answers"] and set(row) == {"kind", "question", "answers"} for row in rows)
