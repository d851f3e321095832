"""Pages that the user adds: HTML, Markdown or text, from files or addresses; one entry for each section."""

import codecs
import contextlib
import difflib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import urlparse

from pydantic import ValidationError

from stitch_rag.chunks import Chunk
from stitch_rag.extract.comments import first_sentence
from stitch_rag.fetch import fetched, is_address, shown
from stitch_rag.index_location import IndexLocation
from stitch_rag.sections import PageSection, html_sections, markdown_sections
from stitch_rag.tokens import storable
from stitch_tools.errors import UsageError
from stitch_tools.models.base import Fact, sha256_hex
from stitch_tools.storage.store import storing, sync_folder, write_atomically

PageFormat = Literal["html", "markdown", "text"]

LIBRARY = "pages"
LARGEST_BYTES = 20_000_000
LONGEST_SECTION = 6000
"""Characters; a longer section becomes several entries."""
_LONGEST_HEADING = 200
_MOST_NAMED = 5
_FORMATS: dict[str, PageFormat] = {
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".txt": "text",
    ".rst": "text",
}
_BINARY = (b"%PDF", b"PK\x03\x04", b"\x1f\x8b", b"\x89PNG", b"\x7fELF", b"\xff\xd8\xff")
"""Beginnings of files that hold no text."""
_MARKED = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_MARKS = tuple(mark for mark, _ in _MARKED)


class Page(Fact):
    """A page as it was added; kept whole, so that building anew needs neither the file nor the network."""

    origin: str
    """Path, or address without what looks like a secret."""
    format: PageFormat
    added_at: str
    content: str


def add_pages(
    place: IndexLocation, origin: str, progress: Callable[[str], None] = lambda sentence: None
) -> list[Page]:
    """The pages that were stored: a file's, an address', or those of all files of a folder.

    Args:
        place: where they are stored.
        origin: path or address.
        progress: hears of files of a folder that are passed over, for they cannot be read.

    Raises:
        UsageError: there is nothing readable there, or it is too large.
        EnvironmentMissingError: the address cannot be reached.
        StoreError: the cache cannot be written.
    """
    if is_address(origin):
        pages = dict([_fetched(origin)])
    else:
        path = _existing(origin)
        pages = dict(_in_folder(path, progress) if path.is_dir() else [_read(path)])
    if not pages:
        endings = ", ".join(_FORMATS)
        raise UsageError(
            f"there is no page in {origin}", hint=f"give a file or folder with one of: {endings}"
        )
    for name, page in pages.items():
        write_atomically(_stored_at(place, name), page.canonical_json(), "STITCH_CACHE_DIR")
    return list(pages.values())


def remove_pages(place: IndexLocation, origin: str) -> list[str]:
    """Origins of the pages that were removed: a file's, an address', or those of all files of a folder.

    Args:
        place: where they are stored.
        origin: as it was added or is shown; the file need not be there any more.

    Raises:
        UsageError: no such page was added; the hint names those that were.
        StoreError: the cache cannot be written.
    """
    removed = {path: page for path, page in _every_page(place) if _is_of(page, path.stem, origin)}
    if not removed:
        added = sorted(page.origin for _, page in _every_page(place))
        near = difflib.get_close_matches(origin, added, n=_MOST_NAMED, cutoff=0.0)
        more = f" and {len(added) - len(near)} more" if len(added) > len(near) else ""
        raise UsageError(
            f"no page of {_named(origin)} was added",
            hint=f"added were: {', '.join(near)}{more}" if near else "no page was added at all",
        )
    with storing(place.pages, "STITCH_CACHE_DIR"):
        for path in removed:
            path.unlink(missing_ok=True)  # another call may remove it, too
    sync_folder(place.pages)
    return sorted(page.origin for page in removed.values())


def stored_pages(place: IndexLocation) -> Iterator[tuple[str, str]]:
    """Name and content of each stored page file; one that is removed meanwhile is none."""
    if not place.pages.is_dir():
        return
    with storing(place.pages, "STITCH_CACHE_DIR"):
        for path in sorted(place.pages.glob("*.json")):
            with contextlib.suppress(FileNotFoundError):
                yield path.stem, path.read_text(encoding="utf-8", errors="replace")


def read_page(text: str) -> Page | None:
    """The page of a stored file; None for half a page, or one of another version."""
    try:
        return Page.from_json_bytes(text.encode("utf-8"))
    except ValidationError:
        return None


def _every_page(place: IndexLocation) -> Iterator[tuple[Path, Page]]:
    for name, text in stored_pages(place):
        page = read_page(text)
        if page is not None:
            yield place.pages / f"{name}.json", page


def _is_of(page: Page, name: str, origin: str) -> bool:
    """Whether a page of this name was added from `origin`, or from a file below it."""
    if is_address(origin):
        return name == _name_of(origin) or page.origin == _named(origin)
    if not origin.strip() or is_address(page.origin):
        return False
    # Only the spelling counts: neither needs to be there.
    own, asked = (os.path.normpath(path) for path in (page.origin, storable(str(Path(origin).absolute()))))
    return own == asked or own.startswith(f"{asked.rstrip(os.sep)}{os.sep}")


def _named(origin: str) -> str:
    """The path, or the address without its secrets."""
    try:
        return storable(shown(origin) if is_address(origin) else origin)
    except ValueError:  # half an IPv6 address
        return "this address"


def page_chunks(page: Page) -> list[Chunk]:
    """One chunk for each section, and more where a section is long. Text is data: nothing in it is obeyed."""
    title, sections = _sections(page)
    chunks: list[Chunk] = []
    used: dict[str, int] = {}
    for section in sections:
        heading = section.heading[:_LONGEST_HEADING].strip() or title
        for text in _pieces(section.text):
            # A page has many examples: each piece needs a name of its own, by which it can be asked for.
            used[heading] = used.get(heading, 0) + 1
            chunks.append(
                Chunk(
                    symbol=heading if used[heading] == 1 else f"{heading} ({used[heading]})",
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


def _stored_at(place: IndexLocation, origin: str) -> Path:
    return place.pages / f"{_name_of(origin)}.json"


def _name_of(origin: str) -> str:
    return sha256_hex(origin.encode("utf-8", errors="replace"))[:32]


def _existing(origin: str) -> Path:
    path = Path(origin)
    if not origin.strip() or "\0" in origin or not path.exists():
        raise UsageError(f"{origin!r} cannot be read: there is no such file", hint="check the path")
    return path


def _in_folder(folder: Path, progress: Callable[[str], None]) -> Iterator[tuple[str, Page]]:
    """Path and page of each file of a folder that lies in it and can be read."""
    inside = folder.resolve()
    for file in sorted(folder.rglob("*")):
        # A folder may be somebody else's, and its links lead to what is nobody's business.
        if file.suffix.lower() in _FORMATS and file.is_file() and file.resolve().is_relative_to(inside):
            try:
                yield _read(file)
            except UsageError as error:
                progress(f"passed over: {error}")


def _read(path: Path) -> tuple[str, Page]:
    """Path and page of a file."""
    if not path.is_file():
        raise UsageError(f"{path} is no file", hint="give a file or a folder")
    try:
        data = path.read_bytes() if path.stat().st_size <= LARGEST_BYTES else None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}", hint="check the path"
        ) from error
    if data is None:
        raise UsageError(f"{path} is larger than {LARGEST_BYTES // 1_000_000} MB", hint="split it")
    origin = str(path.absolute())
    return origin, _page(origin, data, _FORMATS.get(path.suffix.lower(), "text"))


def _fetched(address: str) -> tuple[str, Page]:
    """The whole address, which names the stored page only by its hash, and the page."""
    data, kind, charset = fetched(address, LARGEST_BYTES)
    ending = Path(urlparse(address).path).suffix.lower()
    format_ = "html" if "html" in kind else _FORMATS.get(ending, "text")
    return address, _page(shown(address), data, format_, charset)


def _page(origin: str, data: bytes, kind: PageFormat, charset: str | None = None) -> Page:
    if data.startswith(_BINARY) or (kind == "text" and _is_binary(data)):
        raise UsageError(f"{origin} is no text", hint="save it as HTML, Markdown or text")
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    page = Page(origin=storable(origin), format=kind, added_at=now, content=_decoded(data, kind, charset))
    # Each build reads what is stored: a page that none can read, or that says nothing, must not get there.
    if not page_chunks(page):
        raise UsageError(
            f"there is no text in {page.origin}", hint="save what a browser shows of it as text or HTML"
        )
    return page


def _is_binary(data: bytes) -> bool:
    """Whether zeros say that this is no text; in UTF-16 without a mark every other byte may be one."""
    zeros = data.count(0)
    return zeros > max(8, len(data) // 1000) and zeros < len(data) // 3 and not data.startswith(_MARKS)


def _decoded(data: bytes, kind: PageFormat, charset: str | None) -> str:
    """The text; what no encoding explains is replaced."""
    declared = re.search(rb"charset=[\"']?([\w-]+)", data[:2048].lower()) if kind == "html" else None
    marked = next((name for mark, name in _MARKED if data.startswith(mark)), None)
    name = marked or charset or (declared[1].decode("ascii") if declared else "utf-8")
    try:
        text = data.decode(name)
    except (UnicodeError, LookupError):  # some codecs that a page may name fail in ways of their own
        text = data.decode("utf-8", errors="replace")
    return storable(text.replace("\0", ""))


def _sections(page: Page) -> tuple[str, list[PageSection]]:
    """The page's title and its sections with text."""
    name = Path(urlparse(page.origin).path).stem or page.origin
    if page.format == "html":
        title, sections = html_sections(page.content)
    elif page.format == "markdown":
        title, sections = markdown_sections(page.content)
    else:
        title, sections = "", [PageSection("", page.content, 1)]
    kept = [section for section in sections if section.text.strip()]
    return (title or name)[:_LONGEST_HEADING].strip(), kept


def _pieces(text: str) -> Iterable[str]:
    """The text in pieces of whole lines; a line that is too long is cut between words."""
    piece = ""
    for line in _short_lines(text):
        if piece and len(piece) + len(line) > LONGEST_SECTION:
            yield piece.strip()
            piece = ""
        piece += line + "\n"
    if piece.strip():
        yield piece.strip()


def _short_lines(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        start = 0
        while len(line) - start > LONGEST_SECTION:
            cut = line.rfind(" ", start + 1, start + LONGEST_SECTION)
            end = cut if cut > start else start + LONGEST_SECTION
            yield line[start:end]
            start = end
        yield line[start:]
