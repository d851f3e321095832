"""One searchable piece of documentation: a symbol of a header, a section of a page, or a note."""

from dataclasses import dataclass
from typing import Literal

from stitch_tools.models.base import sha256_hex

ChunkKind = Literal[
    "function",
    "method",
    "enum",
    "enumerator",
    "struct",
    "class",
    "typedef",
    "macro",
    "group",
    "section",
    "note",
    "error",
    "diagnostic",
    "docstring",
]

KINDS: tuple[ChunkKind, ...] = ChunkKind.__args__


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece as it is stored."""

    symbol: str
    """What is looked up: the identifier as code writes it, or the title of a section or note."""
    kind: ChunkKind
    library: str
    """Short name: cudart, driver, cublaslt, cudnn, notes, ..."""
    version: str | None
    """Of the library, as its header or package says; None where it says nothing."""
    signature: str = ""
    brief: str = ""
    """First sentence."""
    text: str = ""
    path: str = ""
    line: int | None = None
    parent: str = ""
    """The enum of an enumerator, the class of a method, the page of a section."""
    source: str = ""
    """Where it was found, in words: "CUDA toolkit", "wheel nvidia-cublas", "notes", "user page"."""
    aliases: tuple[str, ...] = ()
    """Other names that lead here: a macro that renames it, a tag, the members of a numbered family."""
    architectures: tuple[str, ...] = ()
    """Which GPUs it is for (sm_90, ...); empty means all."""
    keywords: str = ""
    """Further words to be found by, never shown."""
    asked: tuple[str, ...] = ()
    """How people ask for it, each in words of their own; never shown."""

    @property
    def chunk_id(self) -> str:
        """Stable name of the chunk: library, symbol, version; of a section its page instead."""
        suffix = f"@{self.version}" if self.version else ""
        if self.kind == "section":  # every guide has an "Overview"
            suffix = f"@{sha256_hex(self.path.encode('utf-8'))[:8]}"
        return f"{self.library}/{self.symbol}{suffix}"
