"""The question sets keep the promises of their README."""

import hashlib
import re
from collections import Counter
from pathlib import Path

import pytest

from stitch_rag.diagnostics import message_chunks
from stitch_rag.evaluate import QuestionRow, read_questions
from stitch_rag.notes import load_notes
from stitch_tools.compile.toolchain import cuda_root, find_nvcc

QUESTIONS = Path(__file__).parent / "questions"
HALF_A, HALF_B, SET_C, D_READ, D_KEPT, E_READ, E_KEPT, F_READ, F_KEPT = (
    read_questions(QUESTIONS / f"{name}.jsonl")
    for name in (
        *("half_a", "half_b", "set_c", "set_d_read", "set_d_kept", "set_e_read", "set_e_kept"),
        *("set_f_read", "set_f_kept"),
    )
)
SET_D, SET_E, SET_F = D_READ + D_KEPT, E_READ + E_KEPT, F_READ + F_KEPT
FRESH = pytest.mark.parametrize("fresh", [SET_C, SET_D, SET_E, SET_F], ids=["c", "d", "e", "f"])


def contains_its_answer(row: QuestionRow) -> bool:
    answers = [answer for answer in row.answers if ":" not in answer[:5]]
    return any(re.sub(r".*(?:::|\.)", "", answer).lower() in row.question.lower() for answer in answers)


def questions_of(rows: list[QuestionRow]) -> set[str]:
    return {row.question.lower() for row in rows}


def test_there_are_enough_questions_and_the_halves_share_none() -> None:
    first, second = questions_of(HALF_A), questions_of(HALF_B)
    assert len(first) + len(second) >= 240
    assert not first & second
    assert abs(len(first) - len(second)) <= 2


@pytest.mark.parametrize(
    ("rows", "older", "least"),
    [
        (SET_C, HALF_A + HALF_B, 130),
        (SET_D, HALF_A + HALF_B + SET_C, 240),
        (SET_E, HALF_A + HALF_B + SET_C + SET_D, 240),
        (SET_F, HALF_A + HALF_B + SET_C + SET_D + SET_E, 240),
    ],
    ids=["c", "d", "e", "f"],
)
def test_a_fresh_set_is_large_enough_and_repeats_no_question(
    rows: list[QuestionRow], older: list[QuestionRow], least: int
) -> None:
    fresh = questions_of(rows)
    assert len(fresh) == len(rows) >= least
    assert not fresh & questions_of(older)


def test_each_set_asks_of_every_kind() -> None:
    kinds = [{row.kind for row in rows} for rows in (HALF_A, HALF_B, SET_C, SET_D, SET_E, SET_F)]
    assert all(found == kinds[0] for found in kinds)
    assert len(kinds[0]) >= 12


@FRESH
def test_a_fresh_set_asks_of_each_kind_as_often_as_the_halves_do(fresh: list[QuestionRow]) -> None:
    halves = Counter(row.kind for row in HALF_A + HALF_B)
    found = Counter(row.kind for row in fresh)
    for kind, count in halves.items():
        assert abs(found[kind] / len(fresh) - count / len(HALF_A + HALF_B)) < 0.03, kind


@pytest.mark.parametrize(
    "rows", [HALF_A + HALF_B, SET_C, SET_D, SET_E, SET_F], ids=["halves", "c", "d", "e", "f"]
)
def test_at_most_a_third_contains_the_answer_s_symbol(rows: list[QuestionRow]) -> None:
    assert sum(map(contains_its_answer, rows)) * 3 <= len(rows)


@pytest.mark.parametrize(
    "rows", [HALF_A, HALF_B, SET_C, SET_D, SET_E, SET_F], ids=["a", "b", "c", "d", "e", "f"]
)
def test_every_answer_is_a_name_and_notes_and_messages_among_them_exist(rows: list[QuestionRow]) -> None:
    known = {f"note:{note.slug}" for note in load_notes()} | {
        f"diag:{slug}" for chunk in message_chunks() for slug in chunk.aliases
    }
    for row in rows:
        assert row.answers, row.question
        assert len(set(row.answers)) == len(row.answers), row.question
        for answer in row.answers:
            assert re.fullmatch(r"(?:note|diag):[a-z0-9-]+|\w+(?:(?:::|\.| )\w+)*", answer), answer
            assert answer in known or not answer.startswith(("note:", "diag:")), answer


def test_the_readme_says_what_each_set_is_for_and_that_the_last_is_not_tuned_on() -> None:
    readme = (QUESTIONS / "README.md").read_text(encoding="utf-8")
    assert {path.name for path in QUESTIONS.glob("*.jsonl")} == set(re.findall(r"^- `(\S+)`:", readme, re.M))
    for kept in "def":
        assert f"`set_{kept}_kept.jsonl`: **held out: not used for tuning.**" in readme


@pytest.mark.parametrize(
    ("read", "kept"), [(D_READ, D_KEPT), (E_READ, E_KEPT), (F_READ, F_KEPT)], ids=["d", "e", "f"]
)
def test_a_set_is_split_by_the_hash_of_each_question(
    read: list[QuestionRow], kept: list[QuestionRow]
) -> None:
    def begins_low(row: QuestionRow) -> bool:
        return int(hashlib.sha256(row.question.encode("utf-8")).hexdigest()[0], 16) < 8

    assert all(map(begins_low, read))
    assert not any(map(begins_low, kept))


@pytest.mark.nvcc
@FRESH
def test_the_runtime_s_and_driver_s_names_of_a_fresh_set_stand_in_the_toolkit_s_headers(
    fresh: list[QuestionRow],
) -> None:
    nvcc = find_nvcc()
    if nvcc.major < 13:
        pytest.skip("the set was written for the names of CUDA 13")
    include = cuda_root(nvcc) / "include"
    headers = (
        "cuda.h",
        "cuda_runtime.h",
        "cuda_runtime_api.h",
        "driver_types.h",
        "texture_types.h",
        "library_types.h",
    )
    more = (
        "cuda_device_runtime_api.h",
        "cuda_occupancy.h",
        "cuda_profiler_api.h",
        "driver_functions.h",
        "cudaGL.h",
        "cuda_gl_interop.h",
    )
    text = "".join((include / name).read_text(encoding="utf-8", errors="replace") for name in headers + more)
    known = set(re.findall(r"\w+", text))
    named = {answer for row in fresh for answer in row.answers}
    # What stands in C++ namespaces, and titles of groups, are not theirs.
    ours = {name for name in named if re.fullmatch(r"(?:cuda|CUDA_|cu[A-Z]|CU[a-z_])\w*", name)}
    assert len(ours) > 150
    assert not ours - known
