"""Names of CUDA C++ that no header declares with a comment, in our own words."""

import tomllib
from collections.abc import Iterator
from importlib.resources import files as package_files

from stitch_rag.chunks import Chunk, ChunkKind
from stitch_tools.models.base import Fact

LIBRARY = "language"


class LanguageEntry(Fact):
    """One entry of language.toml."""

    kind: ChunkKind
    of: str
    """The header or language that brings it."""
    says: str
    use: str
    asked: tuple[str, ...]
    """How people ask for it."""
    aliases: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    """The oldest GPU that has it; empty means all."""


def language_text() -> str:
    """The packaged file."""
    return (package_files("stitch_rag") / "language.toml").read_text(encoding="utf-8")


def language_chunks() -> Iterator[Chunk]:
    """One chunk for each name."""
    for name, fields in tomllib.loads(language_text()).items():
        row = LanguageEntry.model_validate(fields)
        yield Chunk(
            symbol=name,
            kind=row.kind,
            library=LIBRARY,
            version=None,
            signature=row.of,
            brief=row.says,
            text=row.use,
            path="stitch_rag/language.toml",
            source="CUDA C++, in our words",
            aliases=row.aliases,
            architectures=row.architectures,
            asked=row.asked,
        )
