"""Everything that an index is made of: headers, notes, pages; each with a hash and a way to its chunks."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.resources import files as package_files
from pathlib import Path

from stitch_rag.chunks import Chunk
from stitch_rag.diagnostics import messages_text
from stitch_rag.docstrings import DocstringSource, read_docstrings
from stitch_rag.extract.declarations import declarations
from stitch_rag.extract.merge import HeaderOrigin, header_chunks
from stitch_rag.extract.ptx import GENERATED, as_declarations
from stitch_rag.glossary import explained, phrase_texts
from stitch_rag.index_location import IndexLocation
from stitch_rag.language import language_text
from stitch_rag.library_errors import LibraryFile, find_libraries, read_errors
from stitch_rag.notes import packaged_notes
from stitch_rag.pages import page_chunks, read_page, stored_pages
from stitch_rag.shipped import OWN
from stitch_rag.sources import Header, Root
from stitch_tools.models.base import sha256_hex

PAGE = "page:"
"""Begins the place of a page that the user added."""
_RENAMING = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\1(?:_v\d+|_64))[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Input:
    """One thing to index."""

    place: str
    """Names it among all inputs: header:PATH, notes, page:ID, ...; text that can be stored."""
    sha256: str
    """Of its content and of the code that reads it."""
    read: Callable[[], Sequence[Chunk]]
    called: str = ""
    """What people call it, where its place says nothing to them."""


def header_inputs(headers: Iterable[Header]) -> list[Input]:
    """The headers as inputs; one that cannot be read is passed over."""
    texts: list[tuple[Header, str]] = []
    renamed: dict[tuple[str, str | None], dict[str, str]] = {}
    for header in headers:
        try:
            # Old headers carry Latin-1 names of people: a damaged letter costs nothing.
            text = header.path.read_bytes().decode("utf-8", errors="replace")
        except OSError:
            continue
        texts.append((header, text))
        if header.relative.startswith("cublas"):
            renamed.setdefault((header.library, header.version), {}).update(_RENAMING.findall(text))
    return [
        _header_input(header, text, renamed.get((header.library, header.version), {}))
        for header, text in texts
    ]


def own_inputs() -> list[Input]:
    """What ships with this package: notes, what compilers' messages mean, names that no header explains."""
    notes = sorted((page.name, page.read_text(encoding="utf-8")) for page in packaged_notes().iterdir())
    content = {"notes": notes, "diagnostics": messages_text(), "language": language_text()}
    return [
        Input(place, sha256_hex(repr((code_hash(), content[place])).encode("utf-8")), read)
        for place, read in OWN.items()
    ]


def docstring_input(target: DocstringSource) -> Input | None:
    """The docstrings of an interpreter's torch; None where it has none."""
    if target.torch_version is None:
        return None
    key = sha256_hex(repr((code_hash(), target)).encode("utf-8"))
    return Input(f"docstrings:{_spelled(target.python)}", key, lambda: explained(read_docstrings(target)))


def error_inputs(roots: Iterable[Root], headers: Iterable[Header]) -> list[Input]:
    """The error messages of the libraries that lie beside the headers, or where a driver does."""
    inputs: list[Input] = []
    for library in find_libraries(roots, headers):
        try:
            stat = library.path.stat()
        except OSError:
            continue  # removed meanwhile
        key = repr((code_hash(), library, stat.st_size, stat.st_mtime_ns))
        inputs.append(
            Input(
                f"errors:{_spelled(library.path)}",
                sha256_hex(key.encode("utf-8", errors="replace")),
                partial(_errors, library),
            )
        )
    return inputs


def _errors(library: LibraryFile) -> list[Chunk]:
    return explained(read_errors(library))


def page_inputs(place: IndexLocation) -> list[Input]:
    """The pages that the user added."""
    inputs: list[Input] = []
    for name, text in stored_pages(place):
        page = read_page(text)
        if page is None:
            continue
        key = sha256_hex(f"{code_hash()}{text}".encode())
        inputs.append(Input(f"{PAGE}{name}", key, partial(page_chunks, page), page.origin))
    return inputs


@lru_cache(maxsize=1)
def code_hash() -> str:
    """Hash of the code that makes chunks: what an older version of it made is made again."""
    package = package_files("stitch_rag")
    parts: list[str] = []
    for name in (
        "chunks.py",
        "tokens.py",
        "notes.py",
        "diagnostics.py",
        "language.py",
        "glossary.py",
        "docstrings.py",
        "library_errors.py",
        "docstring_reader.py",
        "glossary.toml",
        "sources.py",
        "inputs.py",
        "pages.py",
        "sections.py",
    ):
        path = package / name
        parts.append(path.read_text(encoding="utf-8") if path.is_file() else "")
    parts += phrase_texts()
    for path in sorted((package / "extract").iterdir(), key=lambda path: path.name):
        if path.name.endswith(".py"):
            parts.append(path.read_text(encoding="utf-8"))
    return sha256_hex("\0".join(parts).encode("utf-8"))


def _header_input(header: Header, text: str, renamed: dict[str, str]) -> Input:
    key = repr(
        (code_hash(), header.relative, header.library, header.version, header.source, sorted(renamed.items()))
    )
    sha256 = sha256_hex(key.encode("utf-8") + text.encode("utf-8", errors="replace"))
    path = _spelled(header.path)

    def read() -> list[Chunk]:
        place = HeaderOrigin(header.library, header.version, path, header.source)
        plain = as_declarations(text) if GENERATED in path else text
        return explained(header_chunks(declarations(plain), place, renamed))

    return Input(f"header:{path}", sha256, read)


def _spelled(path: Path | str) -> str:
    """The path as text that can be stored; a byte that is no UTF-8 is spelled out."""
    return str(path).encode("utf-8", errors="backslashreplace").decode("utf-8")
