"""`search_docs`: searches the documentation on this machine; hits name their version."""

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from stitch_mcp.server.docs import version_of
from stitch_mcp.server.server_context import ServerContext
from stitch_mcp.server.tool import Tool, ToolAnswer, ToolRequest
from stitch_tools.errors import StoreError, UsageError
from stitch_tools.models.remedy import Remedy

if TYPE_CHECKING:
    from stitch_rag.results import Hit, SearchResult
    from stitch_rag.search import Filters

_MOST_TOKENS = 1500
"""Upper limit of an answer, whatever `max_tokens` says."""
_WHOLE_CHARS = 5000
_SURE = ("exact", "high")
"""Confidences with which a hit is worth reading."""
_MOST_GUESSES = 3


class SearchDocs(ToolRequest):
    """Arguments of search_docs."""

    query: str = ""
    """Words, a symbol, or a compiler's message."""
    id: str = ""
    """Instead of query: id of a hit, to read it in full."""
    k: int = Field(default=5, ge=1, le=20)
    """Most hits."""
    kind: str = ""
    """function, struct, enumerator, macro, note, ..."""
    library: str = ""
    """cudart, cublaslt, cudnn, notes, ..."""
    arch: str = ""
    """Leave out advice for other GPUs (sm_90), or for all (cpu)."""
    version: str = ""
    """Of the library, e.g. 13.0."""
    max_tokens: int = Field(default=_MOST_TOKENS, ge=1)
    """1500 at most."""


class DocsAnswer(ToolAnswer):
    """Hits and notices."""

    QUOTED: ClassVar[tuple[str, ...]] = ("hits",)
    NEVER_SET: ClassVar[tuple[str, ...]] = ("job_id", "run_id")

    mode: str | None = None
    """lexical, fused (also by meaning), or notes (no index built)."""
    confidence: str | None = None
    """exact, high, low, none."""
    hits: tuple[dict[str, Any], ...] = ()
    """Best first; ids alone where none fits."""
    nearest: tuple[str, ...] = ()
    """Names like one that does not exist."""
    notices: tuple[str, ...] = ()


def reply(request: SearchDocs, server_context: ServerContext) -> DocsAnswer:
    """The hits for a question, or one entry in full."""
    if request.id:
        return _entry(request, server_context)
    if not request.query.strip():
        raise UsageError("the query is empty", hint="give `query`, or the `id` of an earlier hit")
    from stitch_rag.search import Filters

    filters = Filters(_one(request.kind), _one(request.library), request.arch, request.version)
    filtered = filters != Filters()
    result = _searched(request, server_context, filters)
    return DocsAnswer(
        message=_message(result, filtered=filtered),
        mode=result.mode,
        confidence=result.confidence,
        hits=_shown(result),
        nearest=result.nearest,
        notices=result.notices,
        next_steps=_next(request, result, filtered=filtered),
    )


def _searched(request: SearchDocs, server_context: ServerContext, filters: "Filters") -> "SearchResult":
    """The result; of a server for CPU programs without what is about GPUs, unless that alone fits."""
    from stitch_rag.search import CPU

    # An answer has a fixed limit of characters; a longer one would be cut in the middle of a hit.
    tokens = min(request.max_tokens, _MOST_TOKENS)

    def search(filters: "Filters") -> "SearchResult":
        return server_context.docs.ask(
            lambda reader: reader.search(request.query, count=request.k, max_tokens=tokens, filters=filters)
        )

    if server_context.config.target != CPU or filters != replace(filters, architecture="", libraries=()):
        return search(filters)
    about_cpu = search(replace(filters, architecture=CPU))
    if about_cpu.confidence in _SURE:
        return about_cpu
    whole = search(filters)
    # A question that names a CUDA symbol is about it, whatever the target.
    return whole if whole.confidence in _SURE or whole.nearest or not about_cpu.hits else about_cpu


def _shown(result: "SearchResult") -> tuple[dict[str, Any], ...]:
    """The hits; only where to read them where none fits well: a guess is not worth a page."""
    if result.confidence in _SURE:
        return tuple(_fields(hit) for hit in result.hits)
    return tuple({"id": hit.id, "symbol": hit.symbol[:60]} for hit in result.hits[:_MOST_GUESSES])


def _entry(request: SearchDocs, server_context: ServerContext) -> DocsAnswer:
    hit = server_context.docs.ask(lambda reader: reader.entry(request.id))
    kept = None
    if len(hit.text) > _WHOLE_CHARS:
        # Without a writable workspace the entry is cut to the size of an answer.
        with suppress(StoreError):
            server_context.workspace.prepare()
            kept = server_context.workspace.store.put(hit.text.encode("utf-8"))
    whole = _fields(hit) | {"source": hit.source, "aliases": list(hit.aliases), "parent": hit.parent}
    return DocsAnswer(
        message=f"{hit.symbol} in full", artifact=kept, hits=({k: v for k, v in whole.items() if v},)
    )


def _one(value: str) -> tuple[str, ...]:
    return (value.strip().lower(),) if value.strip() else ()


def _fields(hit: "Hit") -> dict[str, Any]:
    fields = {
        "id": hit.id,
        "symbol": hit.symbol,
        "kind": hit.kind,
        "library": hit.library,
        "version": version_of(hit),
        "also_versions": list(hit.also_versions),
        "twin": hit.twin,
        "place": f"{hit.path}:{hit.line}" if hit.line else hit.path,
        "architectures": list(hit.architectures),
        "signature": hit.signature,
        "summary": hit.summary,
        "text": hit.text,
        "shortened": hit.shortened,
    }
    return {name: value for name, value in fields.items() if value}


def _message(result: "SearchResult", *, filtered: bool) -> str:
    from stitch_rag.results import doubt

    warning = doubt(result, filtered=filtered)
    if not result.hits:
        return warning
    hits = "1 hit" if len(result.hits) == 1 else f"{len(result.hits)} hits"
    best = f"{hits}, the best is {result.hits[0].symbol!r}"
    return f"{best}; {warning}" if warning else best


def _next(request: SearchDocs, result: "SearchResult", *, filtered: bool) -> tuple[Remedy, ...]:
    steps: list[Remedy] = []
    if result.hits and (result.hits[0].shortened or result.confidence not in _SURE):
        why = "read the best hit in full"
        steps.append(Remedy(tool="search_docs", arguments={"id": result.hits[0].id}, why=why))
    if result.nearest:
        why = "look up the nearest name that exists"
        steps.append(Remedy(tool="search_docs", arguments={"query": result.nearest[0]}, why=why))
    if not result.hits and filtered:
        why = "search without filters"
        steps.append(Remedy(tool="search_docs", arguments={"query": request.query[:400]}, why=why))
    return tuple(steps)


TOOL = Tool(
    name="search_docs",
    title="Search the CUDA documentation",
    description=(
        "Looks up library symbols, compiler messages and techniques (CUDA, oneDNN, CPU) in this machine's "
        "headers and in notes on when they help. Use it before a call that you are not sure of. Under 0.1 s."
    ),
    request=SearchDocs,
    answer=DocsAnswer,
    reply=reply,
    read_only=True,
)
