"""A brief says what its symbol does, or nothing is said: banners, authors' notes and echoes are no briefs."""

import pytest

from tests.rag_index.conftest import chunks_of


@pytest.mark.parametrize(
    "comment",
    [
        "/*****************\n *     reduce    *\n *****************/",
        "/*****************\n*                *\n*                *\n*****************/",
        "///////////////////// PUT_BOX /////////////////////",
        "// --------- boxes ----------",
        "// ===== boxes =====",
        "//// Boxes by hand",
        "////",
        "//!",
        "/* * // boxPut // */",
        "// TODO: find out what it does",
        "// TODO(somebody) call the other one",
        "/// 9.",
    ],
)
def test_banners_rulers_and_notes_of_the_authors_are_no_briefs(comment: str) -> None:
    assert chunks_of(f"{comment}\nint boxPut(int count);")["boxPut"].brief == ""


@pytest.mark.parametrize(
    ("comment", "brief"),
    [
        (
            "/*****************************\n * Puts one box on a shelf.  *\n *****************************/",
            "Puts one box on a shelf.",
        ),
        ("////\n/// Puts a box\n/// on a shelf", "Puts a box on a shelf"),
        ("// ---- boxes ----\n// Puts a box", "Puts a box"),
        ("// - puts a box", "puts a box"),
        ("/// Puts a box. TODO: more of them", "Puts a box."),
        (
            "/** Puts boxes, each a box *\n * or void *, of number *\n * size */",
            "Puts boxes, each a box * or void *, of number * size",
        ),
    ],
)
def test_what_stands_between_rulers_is_said(comment: str, brief: str) -> None:
    assert chunks_of(f"{comment}\nint boxPut(int count);")["boxPut"].brief == brief


@pytest.mark.parametrize("words", ["READ/WRITE", "READ-ONLY", "WRITE"])
def test_whether_an_attribute_can_be_written_is_text_but_no_brief(words: str) -> None:
    both = chunks_of(f"typedef enum {{\n  BOX_SIZE, // {words}\n  BOX_LID\n}} boxAttribute_t;")
    found = both["BOX_SIZE"]
    assert found.brief == ""
    assert words in found.text
    assert f"BOX_SIZE: {words}" in both["boxAttribute_t"].text


@pytest.mark.parametrize(
    ("said", "brief"),
    [
        ("Box put. These boxes stay where they are.", "Box put: These boxes stay where they are."),
        ("Box put.", "Box put."),
        ("Box\n *\n * Boxes stay where they are.", "Boxes stay where they are."),
    ],
)
def test_a_brief_that_repeats_the_name_goes_on_with_the_next_sentence_instead_of_its_own(
    said: str, brief: str
) -> None:
    assert chunks_of(f"/** {said} */\nint boxPut(int count);")["boxPut"].brief == brief


def values(enum: str, names: str, library: str = "shelf") -> set[str]:
    found = chunks_of(f"enum class {enum} {{ {names} }};", library).values()
    return {chunk.symbol.split("::")[-1] for chunk in found if chunk.kind == "enumerator"}


def test_names_of_data_types_are_an_entry_each_whatever_their_numbers() -> None:
    names = ["INT4", "INT8", "INT16", "INT32", "INT64", "INT128", "FP8_E4M3", "FP8_E5M2"]
    assert values("DataType_t", ", ".join(names)) == {*names}
    assert values("DataType_t", ", ".join(names), "cudnn_frontend") == {*names}
    assert values("Shape", "MMA884, MMA1684, MMA1688, MMA16816") == {
        "MMA884",
        "MMA1684",
        "MMA1688",
        "MMA16816",
    }


def test_six_values_that_differ_in_their_numbers_are_one_entry() -> None:
    assert values("Tile", ", ".join(f"TILE_{n}x8" for n in range(1, 7))) == {"TILE_1x8"}
