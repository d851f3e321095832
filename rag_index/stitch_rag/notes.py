"""Our own notes: one technique a page, when it pays, a fragment that compiles, how to see that it worked.

A note is Markdown with TOML front matter between `+++` lines and the four sections of `SECTIONS`. Skills
(`stitch_planner.skills`) are pages of the same kind with a whole program.
"""

import re
import tomllib
from collections.abc import Iterator
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable
from pathlib import Path

from pydantic import ValidationError

from stitch_rag.chunks import Chunk
from stitch_tools.errors import UsageError
from stitch_tools.models.base import Fact

SECTIONS = ("What to do", "Fragment", "How to see it", "When not to")
LIBRARY = "notes"
_FRONT = re.compile(r"\A\+\+\+\n(?P<front>.*?)\n\+\+\+\n(?P<body>.*)\Z", re.DOTALL)
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_FENCE = re.compile(r"^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


class Gain(Fact):
    """What the technique brought, and how that is known."""

    text: str
    source: str
    """The measurement (page of this repository) or publication."""


class NoteHead(Fact):
    """A note's front matter."""

    title: str
    when: str
    """The situation in which it pays, one or two sentences."""
    architectures: tuple[str, ...] = ()
    """GPUs that the fragment is built for: sm_80, sm_90a, ...; cpu for a page about CPU programs; empty for a
    page without device code."""
    libraries: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    """Names that it uses; each exists in a header of its libraries."""
    keywords: str = ""
    """Other words that people use for it."""
    asked: tuple[str, ...] = ()
    """How people put it who do not know the technique: symptoms, questions, other names."""
    gain: Gain | None = None
    """None where nobody measured it."""


class TechniquePage(Fact):
    """A page in sections on one technique."""

    body: str
    """The Markdown below the front matter."""

    @property
    def headings(self) -> tuple[str, ...]:
        """Its section titles in order."""
        return tuple(_HEADING.findall(self.body))


class Note(NoteHead, TechniquePage):
    """A whole note."""

    slug: str
    """File name without suffix."""

    @property
    def fragments(self) -> tuple[str, ...]:
        """The CUDA C++ that the page shows; each compiles alone."""
        return tuple(
            match["code"] for match in _FENCE.finditer(self.body) if match["language"] in ("cuda", "cpp")
        )


def packaged_notes() -> Traversable:
    """The folder of the notes that ship with this package."""
    return package_files("stitch_rag") / "notes"


def load_notes(folder: Traversable | Path | None = None) -> list[Note]:
    """All notes of a folder by name; None is those that ship with the package.

    Raises:
        UsageError: a page does not fit the schema; the message names it.
    """
    pages = sorted((packaged_notes() if folder is None else folder).iterdir(), key=lambda page: page.name)
    return [
        read_note(page.name[:-3], page.read_text(encoding="utf-8"))
        for page in pages
        if page.name.endswith(".md")
    ]


def read_note(slug: str, text: str) -> Note:
    """The note in `text`.

    Raises:
        UsageError: front matter or sections are not as they should be.
    """
    match = _FRONT.match(text.replace("\r\n", "\n"))
    if match is None:
        raise UsageError(
            f"note {slug} has no front matter between +++ lines", hint="see rag_index/stitch_rag/notes.py"
        )
    try:
        note = Note(slug=slug, body=match["body"].strip(), **tomllib.loads(match["front"]))
    except (tomllib.TOMLDecodeError, ValidationError, TypeError) as error:
        raise UsageError(f"note {slug}: {error}", hint="compare it with a packaged note") from error
    if note.headings != SECTIONS:
        raise UsageError(f"note {slug} has the sections {note.headings}", hint=f"they are {SECTIONS}")
    return note


def note_chunks(notes: list[Note]) -> Iterator[Chunk]:
    """One chunk a note."""
    for note in notes:
        gain = f"\n\nGain: {note.gain.text} ({note.gain.source})" if note.gain else ""
        yield Chunk(
            symbol=note.title,
            kind="note",
            library=LIBRARY,
            version=None,
            signature=", ".join(note.symbols),
            brief=note.when,
            text=f"{note.body}{gain}",
            path=f"stitch_rag/notes/{note.slug}.md",
            line=1,
            parent=" ".join(note.libraries),
            source=LIBRARY,
            aliases=(note.slug,),
            architectures=note.architectures,
            keywords=note.keywords,
            asked=note.asked,
        )
