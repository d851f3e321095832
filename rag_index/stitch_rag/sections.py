"""The sections of a page: each heading with the text below it."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stitch_tools.errors import EnvironmentMissingError, UsageError

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

_SKIPPED_TAGS = "script, style, noscript, template, nav, header, footer, aside, svg, form, iframe"
_HEADINGS = ("h1", "h2", "h3", "h4")
_INLINE = re.compile(
    r"a|abbr|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|ins|kbd|label|mark|q|s|samp|small|span|strike|strong|"
    r"sub|sup|time|tt|u|var|wbr|img"
)
_TEXT = "-text"
_NOT_IN_ROWS = "table, pre, h1, h2, h3, h4"
_ATTRIBUTE = r"""[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z)|[^\s>"'][^\s>]*+)?+)?+"""
_MARKUP = re.compile(
    r"<!--(?:-?>|.*?(?:--!?>|\Z))|"
    rf"<(?P<end>/?)(?P<name>[a-zA-Z][^\s/>]*+)(?P<rest>(?:[\s/]++|{_ATTRIBUTE})*+)(?:>|\Z)",
    re.DOTALL,
)
"""A comment or a tag as browsers read it: what only looks like a tag must neither open nor close one."""
_RAW = re.compile(r"script|style|textarea|title|xmp|iframe|noembed|noframes")
"""What stands in these is no markup."""
_FOREIGN = ("svg", "math")
"""In these "/>" ends an element; elsewhere browsers overlook it."""
_FOREIGN_TEXT = ("foreignobject", "desc", "title", "annotation-xml", "mi", "mo", "mn", "ms", "mtext")
"""... but not in these."""
_UNCLOSED = re.compile(
    r"html|head|body|p|li|dt|dd|option|optgroup|tr|td|th|thead|tbody|tfoot|colgroup|caption|rt|rp|br|hr|img|input|"
    r"meta|link|area|base|col|embed|source|track|wbr|param"
)
"""Tags that need no end."""
_FRONT_MATTER = re.compile(r"---[ \t\r]*\n(?:[\w-]+:.*\n|[ \t#-].*\n|\r?\n)*?---[ \t\r]*(?:\n|\Z)")
"""Settings of a site's generator at the beginning of a page: keys, what is indented below them, lists."""
_DEEPEST = 2000
"""The parser's time grows with the square of the depth; no page for people comes near."""
_MOST_LINES = 200_000
"""Of Markdown: a list of so many items takes 5 s and 400 MB."""
_MOST_ATTRIBUTES = 5000
"""... and of a tag's attributes."""


@dataclass(frozen=True, slots=True)
class PageSection:
    """A heading and what stands below it."""

    heading: str
    text: str
    line: int | None = None


def markdown_sections(text: str) -> tuple[str, list[PageSection]]:
    """The page's first heading, and its sections.

    Raises:
        UsageError: it has hundreds of thousands of lines.
    """
    from markdown_it import MarkdownIt

    # Its lines stay, empty, so that all others keep their numbers; a rule of dashes would make it a heading.
    if settings := _FRONT_MATTER.match(text):
        text = "\n" * settings[0].count("\n") + text[settings.end() :]
    lines = text.split("\n")
    if len(lines) > _MOST_LINES:
        raise UsageError(f"the page has {len(lines)} lines", hint="split it, or save it as text")
    # First and last line of each heading, and its text.
    marks: list[tuple[int, int, str]] = []
    # Headings are blocks; reading what stands in each line costs most of the time, of some texts the square.
    tokens = MarkdownIt("commonmark").disable("inline").parse(text)
    for number, token in enumerate(tokens):
        if token.type == "heading_open" and token.map:
            marks.append((token.map[0], token.map[1], tokens[number + 1].content.strip()))
    begins = [*marks, (len(lines), 0, "")]
    sections = [PageSection("", "\n".join(lines[: begins[0][0]]).strip(), 1)]
    for (start, end, heading), after in zip(marks, begins[1:], strict=True):
        sections.append(PageSection(heading, "\n".join(lines[end : after[0]]).strip(), start + 1))
    return (marks[0][2] if marks else ""), sections


def html_sections(text: str) -> tuple[str, list[PageSection]]:
    """The page's title, and its sections.

    Raises:
        EnvironmentMissingError: the parser is not installed.
        UsageError: tags stand in each other thousands deep, or one has thousands of attributes.
    """
    try:
        from selectolax.lexbor import LexborHTMLParser
    except ImportError as error:
        raise EnvironmentMissingError(
            "reading HTML needs selectolax", hint="pip install selectolax, or save the page as text"
        ) from error
    _check_depth(text)
    tree = LexborHTMLParser(text)
    title = _words(tree.css_first("title"))
    for node in tree.css(_SKIPPED_TAGS):
        node.decompose()
    sections: list[PageSection] = []
    heading, lines, words = "", list[str](), list[str]()

    def end_line() -> None:
        line = " ".join("".join(words).split())
        words.clear()
        if line:
            lines.append(line)

    for node in _pieces_of(tree.body or tree.root):
        if node is None:
            end_line()
        elif node.tag in _HEADINGS:
            end_line()
            sections.append(PageSection(heading, "\n".join(lines)))
            heading, lines = _words(node).rstrip("#\u00b6\uf0c1 "), []
        elif node.tag == "pre":
            end_line()
            lines.append(node.text().strip("\n"))
        elif node.tag == "tr":
            end_line()
            words.append(" | ".join(filter(None, map(_cell, node.css("td, th")))))
            end_line()
        else:
            words.append(node.text(deep=False))
    end_line()
    sections.append(PageSection(heading, "\n".join(lines)))
    return title, sections


def _pieces_of(root: "LexborNode | None") -> "Iterator[LexborNode | None]":
    """Headings, preformatted text, rows and texts in order; None wherever a line ends."""
    node, depth = root, 0
    while node is not None:
        whole = node.tag in _HEADINGS or node.tag == "pre" or _is_row(node)
        if whole or node.tag == _TEXT:
            yield node
        elif not _INLINE.fullmatch(node.tag or ""):
            yield None
        below = None if whole else node.child
        depth += 1 if below is not None else 0
        while below is None and depth:
            below = node.next
            if below is None:
                node, depth = node.parent, depth - 1
                if node is None:
                    return
                if not _INLINE.fullmatch(node.tag or ""):
                    yield None
        node = below


def _cell(node: "LexborNode") -> str:
    pieces = (" " if piece is None else piece.text(deep=False) for piece in _pieces_of(node))
    return " ".join("".join(pieces).split())


def _is_row(node: "LexborNode") -> bool:
    """Whether this is a row of data; what is laid out by tables holds more than that."""
    return node.tag == "tr" and node.css_first(_NOT_IN_ROWS) is None


def _check_depth(text: str) -> None:
    opened: Counter[str] = Counter()
    depth = place = 0
    while (match := _MARKUP.search(text, place)) is not None:
        place, name = match.end(), (match["name"] or "").lower()
        if len(match["rest"] or "") > _MOST_ATTRIBUTES:
            _check_attributes(match["rest"])
        foreign = any(opened[other] for other in _FOREIGN)
        if not name or _UNCLOSED.fullmatch(name):
            continue
        if match["end"]:  # one that closes nothing is overlooked
            depth -= 1 if opened[name] else 0
            opened[name] -= 1 if opened[name] else 0
        elif _RAW.fullmatch(name) and not foreign:
            end = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(text, place)
            place = end.start() if end else len(text)
        elif not (foreign and match[0].endswith("/>") and not any(opened[other] for other in _FOREIGN_TEXT)):
            depth += 1
            opened[name] += 1
        if depth > _DEEPEST:
            raise UsageError(f"the page's tags stand in each other {depth} deep", hint="save it as text")


def _check_attributes(written: str) -> None:
    count = sum(1 for _ in re.finditer(_ATTRIBUTE, written))
    if count > _MOST_ATTRIBUTES:
        raise UsageError(f"a tag of the page has {count} attributes", hint="save it as text")


def _words(node: "LexborNode | None") -> str:
    return " ".join(node.text().split()) if node is not None else ""
