"""Pages that the user adds: HTML, Markdown or text, from files or addresses; one entry for each section."""

import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlparse

from stitch_rag.chunks import Chunk
from stitch_rag.extract.comments import first_sentence
from stitch_rag.place import IndexPlace
from stitch_tools.errors import EnvironmentMissingError, UsageError
from stitch_tools.models import Fact
from stitch_tools.models.base import sha256_hex
from stitch_tools.store import storing, write_atomically

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

PageFormat = Literal["html", "markdown", "text"]

LIBRARY = "pages"
LARGEST_BYTES = 20_000_000
LONGEST_SECTION = 6000
"""Characters; a longer section becomes several entries."""
_FETCH_S = 30.0
_FORMATS: dict[str, PageFormat] = {
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".txt": "text",
    ".rst": "text",
}
_SKIPPED_TAGS = "script, style, noscript, template, nav, header, footer, aside, svg, form, iframe"
_BLOCK_TAGS = ("p", "li", "pre", "dt", "dd", "td", "th", "blockquote", "figcaption", "caption")


class Page(Fact):
    """A page as it was added; kept whole, so that building anew needs neither the file nor the network."""

    origin: str
    """Path or address."""
    format: PageFormat
    added_at: str
    content: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands below it."""

    heading: str
    text: str
    line: int | None = None


def add_pages(place: IndexPlace, origin: str) -> list[Page]:
    """The pages that were stored: a file's, an address', or those of all files of a folder.

    Raises:
        UsageError: there is nothing readable there, or it is too large.
        EnvironmentMissingError: the address cannot be reached.
        StoreError: the cache cannot be written.
    """
    pages = [_fetched(origin)] if urlparse(origin).scheme in ("http", "https") else list(_read(Path(origin)))
    if not pages:
        endings = ", ".join(_FORMATS)
        raise UsageError(
            f"there is no page in {origin}", hint=f"give a file or folder with one of: {endings}"
        )
    for page in pages:
        write_atomically(_stored_at(place, page.origin), page.canonical_json(), "STITCH_CACHE_DIR")
    return pages


def stored_pages(place: IndexPlace) -> Iterator[tuple[str, str]]:
    """Name and content of each stored page file; a damaged one is passed over."""
    if not place.pages.is_dir():
        return
    with storing(place.pages, "STITCH_CACHE_DIR"):
        for path in sorted(place.pages.glob("*.json")):
            yield path.stem, path.read_text(encoding="utf-8", errors="replace")


def page_chunks(page: Page) -> list[Chunk]:
    """One chunk for each section, and more where a section is long. Text is data: nothing in it is obeyed."""
    title, sections = _sections(page)
    chunks: list[Chunk] = []
    for section in sections:
        for number, text in enumerate(_pieces(section.text)):
            heading = section.heading or title
            chunks.append(
                Chunk(
                    symbol=heading if number == 0 else f"{heading} ({number + 1})",
                    kind="section",
                    library=LIBRARY,
                    version=None,
                    brief=first_sentence(text),
                    text=text,
                    path=page.origin,
                    line=section.line,
                    parent=title,
                    source="user page",
                )
            )
    return chunks


def _stored_at(place: IndexPlace, origin: str) -> Path:
    return place.pages / f"{sha256_hex(origin.encode('utf-8'))[:32]}.json"


def _read(path: Path) -> Iterator[Page]:
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.is_file() and file.suffix.lower() in _FORMATS:
                yield from _read(file)
        return
    try:
        data = path.read_bytes() if path.stat().st_size <= LARGEST_BYTES else None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}", hint="check the path"
        ) from error
    if data is None:
        raise UsageError(f"{path} is larger than {LARGEST_BYTES // 1_000_000} MB", hint="split it")
    yield _page(str(path.absolute()), data, _FORMATS.get(path.suffix.lower(), "text"))


def _fetched(address: str) -> Page:
    request = urllib.request.Request(address, headers={"User-Agent": "stitch-mcp"})
    try:
        with urllib.request.urlopen(request, timeout=_FETCH_S) as answer:
            data = answer.read(LARGEST_BYTES + 1)
            kind = answer.headers.get_content_type()
    except (OSError, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise EnvironmentMissingError(
            f"{address} cannot be fetched: {error}", hint="save the page and add the file"
        ) from error
    if len(data) > LARGEST_BYTES:
        raise UsageError(f"{address} is larger than {LARGEST_BYTES // 1_000_000} MB", hint="add a part of it")
    ending = Path(urlparse(address).path).suffix.lower()
    return _page(address, data, "html" if "html" in kind else _FORMATS.get(ending, "text"))


def _page(origin: str, data: bytes, kind: PageFormat) -> Page:
    head = data[:2048].lower()
    declared = re.search(rb"charset=[\"']?([\w-]+)", head) if kind == "html" else None
    name = declared[1].decode("ascii") if declared else "utf-8"
    try:
        text = data.decode(name)
    except (UnicodeDecodeError, LookupError):
        text = data.decode("utf-8", errors="replace")
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Page(origin=origin, format=kind, added_at=now, content=text.replace("\0", ""))


def _sections(page: Page) -> tuple[str, list[Section]]:
    """The page's title and its sections with text."""
    name = Path(urlparse(page.origin).path).stem or page.origin
    if page.format == "html":
        title, sections = _html_sections(page.content)
    elif page.format == "markdown":
        title, sections = _markdown_sections(page.content)
    else:
        title, sections = "", [Section("", page.content, 1)]
    return title or name, [section for section in sections if section.text.strip()]


def _markdown_sections(text: str) -> tuple[str, list[Section]]:
    from markdown_it import MarkdownIt

    lines = text.split("\n")
    marks: list[tuple[int, int, str]] = []
    tokens = MarkdownIt("commonmark").parse(text)
    for number, token in enumerate(tokens):
        if token.type == "heading_open" and token.map:
            marks.append((token.map[0], token.map[1], tokens[number + 1].content.strip()))
    sections = [Section("", "\n".join(lines[: marks[0][0] if marks else len(lines)]).strip(), 1)]
    for (start, end, heading), after in zip(marks, [*marks[1:], (len(lines), 0, "")], strict=True):
        sections.append(Section(heading, "\n".join(lines[end : after[0]]).strip(), start + 1))
    return (marks[0][2] if marks else ""), sections


def _html_sections(text: str) -> tuple[str, list[Section]]:
    try:
        from selectolax.lexbor import LexborHTMLParser
    except ImportError as error:
        raise EnvironmentMissingError(
            "reading HTML needs selectolax", hint="pip install selectolax, or save the page as text"
        ) from error
    tree = LexborHTMLParser(text)
    for node in tree.css(_SKIPPED_TAGS):
        node.decompose()
    title = _words(tree.css_first("title"))
    sections: list[Section] = []
    heading, parts = "", list[str]()
    for node in tree.css(", ".join(("h1", "h2", "h3", "h4", *_BLOCK_TAGS))):
        if node.tag in ("h1", "h2", "h3", "h4"):
            sections.append(Section(heading, "\n".join(parts)))
            heading, parts = _words(node).rstrip("#\u00b6\uf0c1 "), []
        elif node.parent is None or node.parent.tag not in _BLOCK_TAGS:
            parts.append(node.text().strip() if node.tag == "pre" else _words(node))
    sections.append(Section(heading, "\n".join(parts)))
    return title, sections


def _words(node: "LexborNode | None") -> str:
    return " ".join(node.text().split()) if node is not None else ""


def _pieces(text: str) -> Iterable[str]:
    """The text in pieces of whole lines."""
    piece = ""
    for line in text.split("\n"):
        if piece and len(piece) + len(line) > LONGEST_SECTION:
            yield piece.strip()
            piece = ""
        piece += line[:LONGEST_SECTION] + "\n"
    if piece.strip():
        yield piece.strip()
