"""Compiler messages: what they mean and what to do, in our own words."""

import tomllib
from collections.abc import Iterator
from importlib.resources import files as package_files

from stitch_rag.chunks import Chunk
from stitch_tools.models.base import Fact

LIBRARY = "compiler"


class CompilerMessage(Fact):
    """One entry of diagnostics.toml."""

    message: str
    """The recognisable part of the text."""
    meaning: str
    action: str
    keywords: str = ""
    asked: tuple[str, ...] = ()
    """Messages and symptoms as people paste or tell them."""


def messages_text() -> str:
    """The packaged file."""
    return (package_files("stitch_rag") / "diagnostics.toml").read_text(encoding="utf-8")


def message_chunks() -> Iterator[Chunk]:
    """One chunk for each message; its other name is the entry's."""
    for slug, fields in tomllib.loads(messages_text()).items():
        row = CompilerMessage.model_validate(fields)
        yield Chunk(
            symbol=row.message,
            kind="diagnostic",
            library=LIBRARY,
            version=None,
            brief=row.meaning,
            text=f"What to do: {row.action}",
            path="stitch_rag/diagnostics.toml",
            source=LIBRARY,
            aliases=(slug,),
            keywords=row.keywords,
            asked=row.asked,
        )
