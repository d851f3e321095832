"""`stitch-mcp index build`, `add`, `remove`, `status`, `search`, `show`, `eval` and `clear`."""

import contextlib
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stitch_mcp.cli.exit_codes import ExitCode
from stitch_mcp.cli.options import json_option, settings, workspace_option
from stitch_mcp.cli.output import CommandOutput
from stitch_mcp.views.table import ReportSection, one_line
from stitch_rag.results import Hit, SearchResult, doubt
from stitch_tools.errors import UsageError

if TYPE_CHECKING:
    from stitch_rag.build import IndexStatus

_MEASURES = ("recall@1", "recall@5", "MRR")
_MOST_PAGES = 20
_TOO_SHORT = (
    "vectors were not searched: they are used for questions of at least two content words that are not names"
)
_ASKED_WITH = "`stitch-mcp index search --meaning` searches the vectors; the server does so automatically"
F = TypeVar("F", bound=Callable[..., Any])


def cache_option(command: F) -> F:
    """The command with --cache-dir."""
    text = "Folder of the cache (default: the user's cache folder)."
    return click.option("--cache-dir", metavar="DIR", help=text)(command)


def python_option(command: F) -> F:
    """The command with --python and --workspace, which choose the packages to index."""
    text = "Interpreter whose wheels and docstrings are indexed (default: the last one named, or the target)."
    return click.option("--python", metavar="PATH", help=text)(workspace_option(command))


@click.group("index")
def command() -> None:
    """Search the CUDA documentation of this machine."""


@command.command("build")
@click.option("--anew", is_flag=True, help="Read everything again, not only what changed.")
@click.option(
    "--vectors", is_flag=True, help="Also make vectors for search by meaning (extra `rag`; takes minutes)."
)
@python_option
@cache_option
@json_option
def build(
    cache_dir: str | None,
    python: str | None,
    workspace: str | None,
    anew: bool,
    vectors: bool,
    as_json: bool,
) -> int:
    """Index the CUDA headers that are installed here, torch's docstrings, and our notes."""
    from stitch_mcp import documentation

    output = CommandOutput("index build", as_json=as_json)
    config = settings(cache_dir=cache_dir, python=python, workspace=workspace)
    done = documentation.build(config, anew=anew, vectors=vectors, progress=output.progress)
    rows = tuple((row.library, row.version or "-", str(row.chunks)) for row in done.libraries)
    notes = (
        f"{done.chunks} entries from {done.files} files ({done.read} read, {done.removed} gone) "
        f"in {done.wall_s:.1f} s, {done.cpu_s:.1f} s of CPU",
        *done.sources,
        *((f"packages of {done.python} (--python names another)",) if done.python else ()),
        *(() if done.vectors is None else (f"{done.all_vectors} vectors, {done.vectors} new",)),
        f"index: {done.index}",
        *done.notices,
        *((_ASKED_WITH,) if vectors and done.vectors is not None else ()),
    )
    lacking = ExitCode.ENVIRONMENT if vectors and done.vectors is None else ExitCode.DONE
    return output.finish(
        dict(done), [ReportSection("", ("library", "version", "entries"), rows, notes)], lacking
    )


@command.command("add")
@click.argument("origin")
@python_option
@cache_option
@json_option
def add(origin: str, cache_dir: str | None, python: str | None, workspace: str | None, as_json: bool) -> int:
    """Add pages of your own to the index.

    ORIGIN is an HTML, Markdown or text file, a folder of them, or an address.
    """
    from stitch_mcp import documentation

    output = CommandOutput("index add", as_json=as_json)
    config = settings(cache_dir=cache_dir, python=python, workspace=workspace)
    pages, done = documentation.add(config, origin, output.progress)
    section = ReportSection(notes=tuple(f"added {page}" for page in pages))
    return output.finish({"pages": pages, "chunks": done.chunks, "fingerprint": done.fingerprint}, [section])


@command.command("remove")
@click.argument("origin")
@python_option
@cache_option
@json_option
def remove(
    origin: str, cache_dir: str | None, python: str | None, workspace: str | None, as_json: bool
) -> int:
    """Remove pages that `index add` added.

    ORIGIN is an added page, as `index status` shows it, or a folder above it; the files may be gone.
    """
    from stitch_mcp import documentation

    output = CommandOutput("index remove", as_json=as_json)
    config = settings(cache_dir=cache_dir, python=python, workspace=workspace)
    pages, done = documentation.remove(config, origin, output.progress)
    section = ReportSection(notes=tuple(f"removed {page}" for page in pages))
    return output.finish({"pages": pages, "chunks": done.chunks, "fingerprint": done.fingerprint}, [section])


@command.command("status")
@python_option
@cache_option
@json_option
def status(cache_dir: str | None, python: str | None, workspace: str | None, as_json: bool) -> int:
    """Show what the index holds, and whether it is up to date."""
    from stitch_mcp import documentation

    state = documentation.status(settings(cache_dir=cache_dir, python=python, workspace=workspace))
    rows = tuple((row.library, row.version or "-", str(row.chunks)) for row in state.libraries)
    packages = (f"packages of {state.python}",) if state.python else ()
    notes = (*_state(state), *packages, f"index: {state.index}", *state.notices)
    columns = ("library", "version", "entries") if rows else ()
    return CommandOutput("index status", as_json=as_json).finish(
        dict(state), [ReportSection("", columns, rows, notes)]
    )


@command.command("search")
@click.argument("query")
@click.option(
    "-k", "count", type=int, default=8, show_default=True, metavar="N", help="How many hits at most."
)
@click.option(
    "--max-tokens",
    type=int,
    default=4000,
    show_default=True,
    metavar="N",
    help="Length of all hits together at most.",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    help="Only this kind (function, enumerator, note, ...). May be repeated.",
)
@click.option(
    "--library",
    "libraries",
    multiple=True,
    help="Only this library (cudart, cublaslt, ...). May be repeated.",
)
@click.option("--arch", "architecture", default="", help="Leave out notes for other GPUs than this (sm_90).")
@click.option("--meaning", is_flag=True, help="Also search by meaning: wait for the embedding model.")
@click.option("--version", "version", default="", help="Only entries of this version (13, 13.0).")
@cache_option
@json_option
def search(
    query: str,
    count: int,
    max_tokens: int,
    kinds: tuple[str, ...],
    libraries: tuple[str, ...],
    architecture: str,
    meaning: bool,
    version: str,
    cache_dir: str | None,
    as_json: bool,
) -> int:
    """Find what the documentation says about QUERY: words, or a name."""
    from stitch_mcp import documentation
    from stitch_rag.search import Filters

    if not query.strip():
        raise UsageError("the query is empty", hint="give words, the name of a symbol, or a message")
    reader = documentation.open_reader(
        settings(cache_dir=cache_dir), wait_for_vectors_s=30.0 if meaning else 0.0, meaning=meaning
    )
    filters = Filters(kinds, libraries, architecture, version)
    with contextlib.closing(reader):
        result = reader.search(query, count=count, max_tokens=max_tokens, filters=filters)
    if meaning and result.mode == "lexical" and not result.notices:
        result = result.model_copy(update={"notices": (_TOO_SHORT,)})
    sections = _sections(result, cache_dir, filtered=filters != Filters())
    return CommandOutput("index search", as_json=as_json).finish(dict(result), sections)


@command.command("show")
@click.argument("id_or_name")
@cache_option
@json_option
def show(id_or_name: str, cache_dir: str | None, as_json: bool) -> int:
    """Show one entry in full: an id that a search printed, or a name."""
    from stitch_mcp import documentation

    with contextlib.closing(documentation.open_reader(settings(cache_dir=cache_dir))) as reader:
        hit = reader.entry(id_or_name)
    # A note's text does not repeat when it applies, nor an entry in our words what it says.
    summary = () if hit.summary.rstrip(".") in hit.text else (hit.summary,)
    notes = (hit.signature, "", *summary, hit.text, "", _place(hit))
    return CommandOutput("index show", as_json=as_json).finish(
        {"hit": hit}, [ReportSection(hit.id, notes=notes)]
    )


@command.command("eval")
@click.argument("questions", type=click.Path(path_type=Path))
@click.option("--misses", is_flag=True, help="List the questions whose answer is not among the first five.")
@cache_option
@json_option
def evaluation(questions: Path, misses: bool, cache_dir: str | None, as_json: bool) -> int:
    """Measure the search on QUESTIONS, a file of JSON lines with kind, question and answers."""
    from stitch_mcp import documentation

    scores = documentation.evaluate_search(settings(cache_dir=cache_dir), questions)
    kinds = [("all", scores.scores), *scores.kinds.items()]
    rows = tuple(
        (kind, str(row.questions), f"{row.recall_1:.2f}", f"{row.recall_5:.2f}", f"{row.mrr:.2f}")
        for kind, row in kinds
    )
    intervals = (scores.scores.recall_1_interval, scores.scores.recall_5_interval, scores.scores.mrr_interval)
    interval_text = "; ".join(
        f"{name} {pair[0]:.2f} to {pair[1]:.2f}"
        for name, pair in zip(_MEASURES, intervals, strict=True)
        if pair
    )
    notes = (
        f"95 %: {interval_text}",
        f"{scores.median_ms:.1f} ms median, {scores.p95_ms:.1f} ms 95th percentile",
    )
    columns = ("kind", "questions", *_MEASURES)
    sections = [
        ReportSection("", columns, rows, notes),
        *([ReportSection("misses", notes=scores.misses)] if misses else []),
    ]
    return CommandOutput("index eval", as_json=as_json).finish(dict(scores), sections)


@command.command("clear")
@cache_option
@json_option
def clear(cache_dir: str | None, as_json: bool) -> int:
    """Remove the index and all pages that were added to it."""
    from stitch_mcp import documentation

    freed = documentation.clear(settings(cache_dir=cache_dir))
    section = ReportSection(notes=(f"freed {freed / 1e6:.1f} MB",))
    return CommandOutput("index clear", as_json=as_json).finish({"freed_bytes": freed}, [section])


def _state(state: "IndexStatus") -> tuple[str, ...]:
    """Whether the index is there, can be read, is up to date, and has vectors; what was added to it."""
    half = ("a build was interrupted; `stitch-mcp index build` resumes it",) if state.half_built else ()
    if state.building:
        half = ("a build is running; what follows is the state before it",)
    if state.fault:
        return (*half, state.fault, *_pages(state))
    if not state.exists:
        return (*half, "there is no index; `stitch-mcp index build` makes one", *_pages(state))
    stale = (
        f"{state.changed_files} files changed since {state.built_at}; `stitch-mcp index build` reads them",
        *state.changed,
    )
    fresh = (f"up to date, built at {state.built_at}",)
    vectors = (f"{state.vectors} vectors",)
    if state.vectors < state.vectors_wanted:
        vectors = ()  # a notice says so
    elif not state.vectors:
        vectors = ("no vectors; `stitch-mcp index build --vectors` makes them",)
    return (*half, *(fresh if state.fresh else stale), *vectors, *_pages(state))


def _pages(status: "IndexStatus") -> tuple[str, ...]:
    shown = tuple(f"added page: {page}" for page in status.pages[:_MOST_PAGES])
    left = len(status.pages) - len(shown)
    return (*shown, f"... and {left} more pages") if left else shown


def _sections(result: SearchResult, cache_dir: str | None, *, filtered: bool) -> list[ReportSection]:
    rows = tuple(
        (_names(hit), hit.kind, hit.library, one_line(hit.summary or hit.signature)) for hit in result.hits
    )
    notes = [*result.notices]
    if warning := doubt(result, filtered=filtered):
        notes.append(warning)
    if result.hits:
        where = ["--cache-dir", cache_dir] if cache_dir else []
        notes.append(f"one in full: {shlex.join(['stitch-mcp', 'index', 'show', result.hits[0].id, *where])}")
    columns = ("name", "kind", "library", "what it is") if rows else ()
    near = (
        [ReportSection(notes=(f"no such name; nearest: {', '.join(result.nearest)}",))]
        if result.nearest
        else []
    )
    return [*near, ReportSection("", columns, rows, tuple(notes))]


def _names(hit: Hit) -> str:
    return f"{hit.symbol} / {hit.twin}" if hit.twin else hit.symbol


def _place(hit: Hit) -> str:
    line = f":{hit.line}" if hit.line else ""
    version = f" {hit.version}" if hit.version else ""
    return f"{hit.path}{line} ({hit.library}{version}, {hit.source})"
