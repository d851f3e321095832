"""Examples in documentation comments stay as they were written, and the prose around them stays prose."""

from collections.abc import Callable

import pytest

from stitch_rag.extract.comments import read_comment
from stitch_rag.extract.declarations import declarations
from stitch_rag.extract.merge import HeaderOrigin, header_chunks

EXAMPLE = """#include <shelf/box.cuh>
// or equivalently <shelf/all.cuh>

shelf::vector<int> boxes(3);
if (boxes.size() > 2)
    boxes.pop();"""


def starred(text: str) -> str:
    return "/**\n" + "".join(f" * {line}".rstrip() + "\n" for line in text.split("\n")) + " */"


def slashed(text: str) -> str:
    return "\n".join(f"  //! {line}".rstrip() for line in text.split("\n"))


@pytest.mark.parametrize("written", [starred, slashed])
@pytest.mark.parametrize(
    ("begin", "end", "indent"),
    [
        (r"\code", r"\endcode", ""),
        ("@code{.cpp}", "  @endcode", "  "),
        ("```cpp", "```", ""),
        (".. code-block:: c++\n   :linenos:\n", "", "   "),
    ],
)
def test_an_example_stays_line_by_line_as_it_was_written(
    written: Callable[[str], str], begin: str, end: str, indent: str
) -> None:
    lines = "\n".join(f"{indent}{line}".rstrip() for line in EXAMPLE.split("\n"))
    found = read_comment(written(f"Puts boxes\non a shelf.\n\n{begin}\n{lines}\n{end}\n\nThen it\nends."))
    assert found.text == f"Puts boxes on a shelf.\n```\n{EXAMPLE}\n```\nThen it ends."
    assert found.brief == "Puts boxes on a shelf."


def test_an_example_whose_lines_bear_no_stars_keeps_its_own() -> None:
    found = read_comment(
        "/**\n * Puts a box.\n \\code\n     *box = 3;\n     // done\n       f();\n \\endcode\n * Ends.\n */"
    )
    assert found.text == "Puts a box.\n```\n*box = 3;\n// done\n  f();\n```\nEnds."


def test_an_example_without_its_end_is_text() -> None:
    assert read_comment("/** Puts a box.\n * \\code\n * f();\n */").text == "Puts a box.\nf();"
    assert read_comment("/** Puts a box.\n * ```\n * f();\n */").text.startswith("Puts a box.")


def test_pictures_other_files_and_their_settings_are_left_out() -> None:
    found = read_comment(
        slashed(
            "Puts a box.\n\n.. image:: ../box.png\n    :align: center\n\nMore.\n\n"
            ".. literalinclude:: ../box.cu\n    :language: c++\n    :dedent:\n\n:width: 30\n\nEnds."
        )
    )
    assert found.text == "Puts a box.\nMore.\nEnds."


def test_marks_of_restructured_text_are_left_out() -> None:
    found = read_comment(
        slashed(
            "Puts a box.\n\n- Small.\n- @devicestorage\n\n.. note::\n\n   Careful.\n\n"
            "@tparam T\n  **[inferred]** Its type\n\n"
            "@param[in] s\n  @rst\n  **[optional]** Default is lane\\ :sub:`0`, of ``N``\\ s.\n  @endrst"
        )
    )
    assert found.text == (
        "Puts a box.\n- Small.\nNote:\nCareful.\nParameter T: Its type\n"
        "Parameter s:\n[optional] Default is lane 0, of `N`s."
    )


def test_names_in_angle_brackets_stay_unless_they_are_html() -> None:
    found = read_comment(
        "/** Needs #include <shelf/box.h>: #boxPut takes <b>some</b> shelf::vector<int>::size_type of "
        '<a href="http://a.b/c">boxes</a>, see `that <https://a.b>`_ or ::boxGet. */'
    )
    assert found.text == (
        "Needs #include <shelf/box.h>: boxPut takes some shelf::vector<int>::size_type of boxes, "
        "see `that`_ or boxGet."
    )


def test_an_example_is_no_brief() -> None:
    rows = declarations(
        "/** boxPut\n *\n"
        " * @code\n * int a = boxPut(b, c, d);\n * @endcode\n *\n * Puts a box on it. */\nint boxPut();"
    )
    (chunk,) = header_chunks(rows, HeaderOrigin("shelf", "1.0", "shelf.h", "here"))
    assert chunk.brief == "Puts a box on it."
