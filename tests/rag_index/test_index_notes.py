"""The notes fit their schema."""

import pytest

from stitch_rag.notes import SECTIONS, load_notes, note_chunks, read_note
from stitch_tools.errors import UsageError

GOOD = """+++
title = "Stack boxes"
when = "There are boxes."
symbols = ["shelfPutBox"]
asked = ["boxes fall down"]
+++
## What to do
Stack.

## Fragment
```cuda
__global__ void f() {}
```

## How to see it
Look.

## When not to
Never.
"""


def test_every_packaged_note_has_title_occasion_and_the_four_sections() -> None:
    notes = load_notes()
    assert notes
    for note in notes:
        assert note.headings == SECTIONS
        assert note.title
        assert note.when
        assert len(note.body) > 400, note.slug
        assert len(set(note.asked)) == len(note.asked) >= 7, note.slug
    assert len({note.title for note in notes}) == len(notes)


def test_a_note_becomes_one_entry_that_its_file_name_leads_to() -> None:
    (chunk,) = note_chunks([read_note("stack-boxes", GOOD)])
    assert (chunk.symbol, chunk.kind, chunk.aliases) == ("Stack boxes", "note", ("stack-boxes",))
    assert chunk.brief == "There are boxes."
    assert "__global__ void f() {}" in chunk.text
    assert chunk.asked == ("boxes fall down",)


def test_the_fragments_of_a_note_are_its_code() -> None:
    assert read_note("stack-boxes", GOOD).fragments == ("__global__ void f() {}\n",)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("+++\ntitle", "title", "no front matter"),
        ('title = "Stack boxes"\n', "", "title"),
        ('when = "There', 'colour = "red"\nwhen = "There', "colour"),
        ("when = ", "when ", "note x"),
        ("## When not to", "## Never", "sections"),
    ],
)
def test_a_page_that_does_not_fit_is_refused_by_name(old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        read_note("x", GOOD.replace(old, new, 1))
    assert "note x" in error.value.message
