"""The documentation as tools use it: one reader behind a lock, and the best words on a compiler's errors."""

import contextlib
import re
import textwrap
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stitch_mcp.config import Config

if TYPE_CHECKING:
    from stitch_rag.reader import Reader
    from stitch_rag.results import Hit, SearchResult

T = TypeVar("T")
_MOST_QUERIES = 5
_LINE_CHARS = 600
_UNDECLARED = re.compile(r"is undefined|not declared|\bnamespace [\w:]+ has no member")
_UNKNOWN = re.compile(
    rf"{_UNDECLARED.pattern}|has no member|is not a member|does not name|undefined reference|[Uu]nknown|"
    r"[Nn]ot a name|has not been declared|unrecognized|must be a|No such file"
)
"""Messages that say that a name does not exist; all others are about names that do."""

_REFUSED = re.compile(
    r"too (?:few|many) arguments|is incompatible with parameter|overloaded function|no suitable constructor|"
    r"no matching function|could not convert|invalid conversion|call of overloaded"
)
"""Messages that refuse a call for its arguments."""
_MOST_NAMES = 4
_SIGNATURE_CHARS = 240
_QUALIFIERS = re.compile(r"\b(?:__(?:host|device|cudart_builtin|inline|forceinline)__|extern|static) ")
_NO_METHOD = re.compile(r"\b(?:class|struct) (?P<owner>[\w:]+) has no member (?:named )?(?P<name>\w+)")
_OF_A_CLASS = re.compile(r"\b(?:class|struct) .* has no member")
_UNKNOWN_NAME = re.compile(r"\bidentifier (\w+) is undefined|(\w+) (?:was|has) not (?:been )?declared")
_IN_HEADER = re.compile(r"^CUDA C\+\+, <([\w./]+)>")
"""Where a name of language.toml comes from."""
_DEFAULT = re.compile(r" = [^,()]+")
_REVISION = re.compile(r"_v\d+$")
"""What a macro of the driver's header adds to a function's name."""
_BEGINNINGS = ("CUDA ", "C++ ")
"""What tells the compiler's side, and is no name of a message."""
_WORD = re.compile(r"\w+")
_OF_GPU = re.compile(
    r"cuda|nvcc|nvidia|ptx|\bGPU|cublas|cudnn|cutlass|\bcub\b|thrust|__device__|__global__|__sync|\bwarps?\b|"
    r"\bkernel|\bdevice\b|__half|bfloat|wmma|cooperative_groups|\bsm_\d|atomicAdd|\bblocks?\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.:;]) (?=[A-Z])")
_NAME = re.compile(r"[A-Za-z_][\w:.]*")


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

        # SQLite's connection and the child process take one question at a time.
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


def advice(config: Config, queries: Iterable[str], *, cpu: bool = False) -> tuple[str, ...]:
    """A line for each of the first queries that the documentation has an answer to; never an error.

    Args:
        config: says where the index lies.
        queries: the `doc_query` of diagnostics or findings, the gravest first.
        cpu: leave out every sentence about GPUs.
    """
    # Later errors mostly follow from the first ones.
    wanted = list(dict.fromkeys(query for query in queries if query.strip()))[:_MOST_QUERIES]
    if not wanted:
        return ()
    from stitch_mcp.documentation import open_reader

    # Without vectors: a job would start the embedding model only to end it.
    with contextlib.closing(open_reader(config, meaning=False)) as reader:
        hits = reader.resolve(wanted, count=3, max_tokens=600)
        used: set[str] = set()
        lines = [
            _line(result, _own_entry(reader, result), _of_names(reader, result), used) for result in hits
        ]
    if cpu:
        lines = [_without_gpu(line) for line in lines]
    return tuple(dict.fromkeys(line for line in lines if line))


def _without_gpu(line: str) -> str:
    """A line of advice without its sentences about GPUs; "" where nothing is left."""
    head, colon, text = line.partition("): ")
    if not colon or _OF_GPU.search(head):
        return ""
    kept = [sentence for sentence in _SENTENCE.split(text) if not _OF_GPU.search(sentence)]
    return f"{head}{colon}{' '.join(kept)}" if any(row.strip(" .") for row in kept) else ""


def _line(result: "SearchResult", own: "list[Hit]", of_names: list[str], used: set[str]) -> str:
    """The line of one message.

    Args:
        result: what was found for its words.
        own: the message's own entry, if there is one.
        of_names: what was looked up of the names in it.
        used: ids of the entries that earlier lines cite, with this one added: no entry is cited twice.
    """
    shown = _shown(result)
    # A name that exists and is unknown to the compiler comes before what is said of any unknown name.
    named = any(hit == result.hits[0] and hit.kind != "diagnostic" for hit in shown[:1])
    hits = [*shown, *own] if named and _UNDECLARED.search(result.query) else [*own, *shown]
    # What is said of this very name comes before the general text, which may be cut.
    parts = of_names
    for hit in [hit for hit in hits[:1] if hit.id not in used]:
        used.add(hit.id)
        text = hit.summary or hit.text or hit.signature.partition("\n")[0]
        parts = [
            f"{hit.symbol} ({hit.library}, {version_of(hit)}): {text}",
            *parts,
            hit.text.removeprefix(text),
        ]
    return textwrap.shorten(" ".join(parts), _LINE_CHARS, placeholder=" ...")


def _own_entry(reader: "Reader", result: "SearchResult") -> "list[Hit]":
    """The entry whose message this is, however many symbols have more of its words; none for a finding."""
    from stitch_rag.search import Filters

    own = reader.search(result.query, count=3, max_tokens=600, filters=Filters(kinds=("diagnostic",)))
    return [hit for hit in own.hits if _is_said(hit, result.query)][:1]


def _of_names(reader: "Reader", result: "SearchResult") -> list[str]:
    """What the documentation knows of the names in a message: their like, a header, a signature."""
    query = result.query
    near = (*_methods_like(reader, query), *(result.nearest if _names_what_is_unknown(query) else ()))
    parts = [f"Names that exist: {', '.join(near)}."] if near else []
    if _REFUSED.search(query):
        parts += _signature(reader, query)
    if _UNDECLARED.search(query):
        parts += _declared(result) or _declared_elsewhere(reader, query)
    return parts


def _names_what_is_unknown(query: str) -> bool:
    """Whether names like those in a message are like the unknown one: a class without a method exists."""
    return bool(_UNKNOWN.search(query)) and not _OF_A_CLASS.search(query)


def _methods_like(reader: "Reader", query: str) -> list[str]:
    """The nearest of the methods that the class of a message has."""
    match = _NO_METHOD.search(query)
    if match is None:
        return []
    owner = match["owner"].rpartition("::")[2]
    result = reader.search(f"{owner}::{match['name']}", count=1, max_tokens=100)
    return [name for name in result.nearest if name.startswith(f"{owner}::")]


def _declared_elsewhere(reader: "Reader", query: str) -> list[str]:
    """Where the unknown name is declared, asked for alone: `half` is a word of many texts."""
    match = _UNKNOWN_NAME.search(query)
    name = next(filter(None, match.groups()), "") if match else ""
    return _declared(reader.search(name, count=3, max_tokens=600)) if name else []


def _signature(reader: "Reader", query: str) -> list[str]:
    """How the function is declared whose call is refused."""
    from stitch_rag.search import Filters

    functions = Filters(kinds=("function", "method"))
    overloaded = "overloaded" in query  # otherwise further forms are those of older versions
    for name in _said(query)[:_MOST_NAMES]:
        result = reader.search(_REVISION.sub("", name), count=1, max_tokens=600, filters=functions)
        for hit in result.hits if result.confidence == "exact" else ():
            return [f"Declared here: {_declarations(hit.signature, overloaded=overloaded)}."]
    return []


def _declarations(signature: str, *, overloaded: bool) -> str:
    """A function's first form, or two: those that only say another default are the same."""
    rows = [_QUALIFIERS.sub("", row) for row in signature.split("\n")]
    forms: dict[str, str] = {}
    for row in filter(None, rows):
        forms.setdefault(_DEFAULT.sub("", row), row)
    first, *others = forms.values() or [""]
    both = "; ".join([first, *(others[:1] if overloaded else ())])
    return (both if len(both) <= _SIGNATURE_CHARS else first)[:_SIGNATURE_CHARS]


def _shown(result: "SearchResult") -> list["Hit"]:
    """The hits that a message is about: entries on messages, and symbols whose name stands in it.

    A message shares words with many entries by chance: no line is better than one about an unrelated entry.
    """
    query_words = {*_said(result.query)}
    sure = result.confidence in ("exact", "high")
    return [
        hit
        for place, hit in enumerate(result.hits)
        if (hit.kind in ("diagnostic", "error") and query_words.issuperset(_said(hit.symbol)))
        or (place == 0 and result.confidence == "exact")
        or (sure and not query_words.isdisjoint((hit.symbol, *hit.aliases)))
    ]


def _is_said(hit: "Hit", query: str) -> bool:
    """Whether a message holds every word of one of an entry's forms: it is the compiler's own."""
    words = {*_WORD.findall(query.lower())}
    forms = hit.symbol.lower().split(", ") if hit.kind == "diagnostic" else ()
    return any({*_WORD.findall(form)} <= words for form in forms)


def _said(query: str) -> list[str]:
    """The names of code in a message in order, with and without what qualifies them."""
    from stitch_rag.tokens import is_plain

    text = query.split(" ", 1)[1] if query.startswith(_BEGINNINGS) and " " in query else query
    whole = [name.strip(":.") for name in _NAME.findall(text)]
    parts = [name.split("::")[start:] for name in whole for start in range(name.count("::") + 1)]
    return list(dict.fromkeys(name for name in map("::".join, parts) if not is_plain(name)))


def _declared(result: "SearchResult") -> list[str]:
    """Where a name of the message is declared: its header may only have to be included."""
    named = {*_WORD.findall(result.query)}
    for hit in result.hits:
        ours = _IN_HEADER.search(hit.signature) if hit.library == "language" else None
        if ours and hit.symbol in named:
            return [f"{hit.symbol} exists: {ours[1]} declares it."]
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
