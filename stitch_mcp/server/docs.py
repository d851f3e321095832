"""The documentation as tools use it: one reader behind a lock, and the best words on a compiler's errors."""

import contextlib
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stitch_mcp.config import Config

if TYPE_CHECKING:
    from stitch_rag.reader import Reader
    from stitch_rag.results import Hit, SearchResult

T = TypeVar("T")
_MOST_QUERIES = 2
_LINE_CHARS = 600
_MOST_SIGNATURES = 2
_LINKER = "undefined reference"
_UNDECLARED = re.compile(r"is undefined|not declared|\bnamespace [\w:]+ has no member")
_NO_SUCH_NAME = re.compile(
    rf"{_UNDECLARED.pattern}|has no member|undeclared|not a member|does not name|reference"
)
"""Of a message; in others a name that is not indexed may exist all the same."""
_REFUSED_CALL = re.compile(r"\barguments? |no instance of")


class Docs:
    """This user's documentation. Questions come from many threads; one is answered at a time."""

    def __init__(self, config: Config) -> None:
        """Nothing is opened before the first question."""
        self._config = config
        self._guard = threading.Lock()
        self._reader: Reader | None = None

    def ask(self, question: "Callable[[Reader], T]") -> T:
        """What the open reader answers; errors are the question's."""
        from stitch_mcp.documentation import open_reader

        with self._guard:
            if self._reader is None:
                self._reader = open_reader(self._config)
            return question(self._reader)

    def close(self) -> None:
        """Close the index and end the process of the embedding model, if they were opened."""
        with self._guard:
            if self._reader is not None:
                self._reader.close()
            self._reader = None


def version_of(hit: "Hit") -> str:
    """The version of what a hit documents; a page that the user added has none."""
    return hit.version or "unknown"


def advice(config: Config, queries: Iterable[str]) -> tuple[str, ...]:
    """A line for each of the first queries that the documentation has an answer to; never an error.

    Args:
        config: says where the index lies.
        queries: the `doc_query` of diagnostics or findings, the gravest first.
    """
    wanted = list(dict.fromkeys(query for query in queries if query.strip()))[:_MOST_QUERIES]
    if not wanted:
        return ()
    from stitch_mcp.documentation import open_reader

    with contextlib.closing(open_reader(config, meaning=False)) as reader:
        found = reader.resolve(wanted, count=3, max_tokens=600)
    lines = (_line(result) for result in found)
    return tuple(dict.fromkeys(line for line in lines if line))


def _line(result: "SearchResult") -> str:
    hits = [hit for hit in result.hits if _is_of(hit, result)]
    undeclared = _UNDECLARED.search(result.query) is not None
    # What is said of this very name comes before the general text, which may be cut.
    parts: list[str] = []
    if result.nearest and _NO_SUCH_NAME.search(result.query):
        parts.append(f"Names that exist: {', '.join(result.nearest)}.")
    if undeclared:
        parts += _declared(result)
        hits = [hit for hit in hits if not hit.symbol.startswith(_LINKER)]  # the compiler said it
    elif _REFUSED_CALL.search(result.query):
        parts += _signatures(result)
    for hit in hits[:1]:
        said = hit.summary or hit.text or hit.signature.partition("\n")[0]
        parts = [
            f"{hit.symbol} ({hit.library}, {version_of(hit)}): {said}",
            *parts,
            hit.text.removeprefix(said),
        ]
    return " ".join(" ".join(parts).split())[:_LINE_CHARS]


def _said(result: "SearchResult") -> set[str]:
    """The words of a message, each part of a qualified name by itself."""
    return {*re.findall(r"\w+", result.query)}


def _is_of(hit: "Hit", result: "SearchResult") -> bool:
    """Whether a hit is about messages, or of a name that the message says; words alone lead anywhere."""
    if hit.kind in ("diagnostic", "error"):
        return True
    if result.confidence not in ("exact", "high"):
        return False
    # A compiler's message has an entry of its own, or its words lead to any note.
    noted = hit.kind == "note" and not result.query.startswith(("CUDA ", "C++ "))
    return noted or _is_named(hit, result)


def _is_named(hit: "Hit", result: "SearchResult") -> bool:
    """Whether the message says a name of the hit, without its namespace or with it."""
    names = (hit.symbol, hit.twin, *hit.aliases)
    return not _said(result).isdisjoint(name.rpartition("::")[2].rpartition(".")[2] for name in names if name)


def _signatures(result: "SearchResult") -> list[str]:
    """How the functions are declared that the message names, or the line that was refused."""
    return [
        f"Declared as: {'; '.join(hit.signature.splitlines()[:_MOST_SIGNATURES])}."
        for hit in result.hits
        if hit.kind in ("function", "method") and hit.signature and _is_named(hit, result)
    ]


def _declared(result: "SearchResult") -> list[str]:
    """Where a name of the message is declared: its header may only have to be included."""
    named = _said(result)
    for hit in result.hits:
        header = hit.path.rpartition("/include/")[2].removeprefix("cccl/")
        if f"{hit.symbol}_sync" in hit.summary:
            return []  # a shuffle or vote without a mask: its header is no way to it
        if hit.line and hit.symbol in named and header != hit.path and not header.startswith("crt/"):
            return [f"{hit.symbol} exists: {_to_include(hit.path, header)} declares it."]
    return []


def _to_include(path: str, header: str) -> str:
    """The header that programs include: what lies in a folder `details` is taken in by one beside it."""
    public = header.replace("/details/", "/")
    return public if Path(path[: -len(header)], public).is_file() else header
