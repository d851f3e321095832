"""What ships with this package, for an index and for searches without one: reads no header and no page."""

from collections.abc import Callable

from stitch_rag.chunks import Chunk
from stitch_rag.diagnostics import message_chunks
from stitch_rag.language import language_chunks
from stitch_rag.notes import load_notes, note_chunks

OWN: dict[str, Callable[[], list[Chunk]]] = {
    "notes": lambda: list(note_chunks(load_notes())),
    "diagnostics": lambda: list(message_chunks()),
    "language": lambda: list(language_chunks()),
}
"""Place among an index' inputs to what reads it: notes, compilers' messages, names without a header."""
