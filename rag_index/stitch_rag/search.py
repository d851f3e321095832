"""Answers a question from an open index: candidates by words and names, ranked, filtered, shortened."""

import itertools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from stitch_rag.chunks import KINDS, Chunk
from stitch_rag.driver_twins import twin_key
from stitch_rag.nearest import Named, named, similar
from stitch_rag.question import ParsedQuestion, Word, read_question
from stitch_rag.rank_hits import Candidate, HitEvidence, rank, rarity, with_meaning
from stitch_rag.ranking_weights import RankingWeights, load_weights
from stitch_rag.results import Confidence, Hit, SearchMode, SearchResult
from stitch_rag.shorten import shorten
from stitch_rag.store import IndexStore, Outline, Row
from stitch_rag.tokens import storable
from stitch_tools import __version__
from stitch_tools.errors import UsageError

MOST_HITS = 100
DEFAULT_TOKENS = 4000
_LETTER_RARITY = 3.0
_UNKNOWN = 0.5
"""What a word counts that no entry holds, of the rarest."""
_NOTES = 10
"""Notes that are looked at where a question asks whether something pays, whatever else says its words."""
_FEW = 300
"""Entries that are looked through in no time."""
_ALWAYS = 2
"""Words that are searched for, however common."""
_ALWAYS_OWN = 4
"""... of those that the question itself says."""
_MOST_SIGNATURES = 12
_ALL_SIGNATURES = 100
_MORE_OVERLOADS = re.compile(r"\.\.\. and (\d+) more overloads")
_OURS = ("notes", "compiler", "language")
"""Libraries of what ships with this package; their modules are not imported for a search."""
_OUR_VERSION = f"stitch-mcp {__version__}"
_LONGEST_VERSION = 40
_MOST_OTHERS = 20
_MOST_JOINED = 8
"""Entries of one id that are shown together."""
_COMPLETED = ("function", "enumerator", "error")
_ARCHITECTURE = re.compile(r"(?:sm_?|compute_?)?(\d{2,3}|\d{1,2}\.\d)([af]?)", re.IGNORECASE)


CPU = "cpu"
"""Stands for the host where an architecture is asked for."""
_OF_NO_DEVICE = frozenset({"compiler", "onednn", "pages"})
"""Libraries whose entries are no advice about a GPU."""


@dataclass(frozen=True, slots=True)
class Filters:
    """What a hit must be; empty means anything."""

    kinds: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    architecture: str = ""
    """A GPU (sm_90): notes for others are left out; or cpu: what is about GPUs is."""
    version: str = ""
    """Begins the version of every hit: 13, 13.0."""

    def admits(self, chunk: Outline) -> bool:
        """Whether `chunk` may be shown."""
        if self.kinds and chunk.kind not in self.kinds:
            return False
        if self.libraries and chunk.library not in self.libraries:
            return False
        if not _fits_device(chunk, self.architecture):
            return False
        return not self.version or chunk.version is None or _begins(chunk.version, self.version)


def search(
    store: IndexStore,
    query: str,
    *,
    count: int = 8,
    max_tokens: int = DEFAULT_TOKENS,
    filters: Filters | None = None,
    mode: SearchMode = "lexical",
    ask_meaning: Callable[[], Callable[[], Mapping[int, float]]] | None = None,
    notices: Sequence[str] = (),
) -> SearchResult:
    """The best hits for `query` from an open index.

    Args:
        store: the index.
        query: words or names; any text.
        count: most hits, 1 to 100.
        max_tokens: bound on the hits' size, at about four characters a token.
        filters: what a hit must be.
        mode: how the store came about, for the result; `fused` where meaning was asked and answered.
        ask_meaning: asks vectors, for questions of several plain words; what it returns waits for
            similarity of meaning by chunk number, and is called once.
        notices: what the caller already knows the reader should know.

    Raises:
        UsageError: a number is out of its range, or a filter names what does not exist.
    """
    started = time.perf_counter()
    filters = _checked(count, max_tokens, filters or Filters())
    weights = load_weights()
    question = read_question(query)
    ask = ask_meaning if profits_from_meaning(question, weights) else None
    # The question is sent first and its answer taken last: the child process computes while the words are
    # looked up.
    similar_meaning = ask() if ask else dict[int, float]
    names = named(store, question)
    hit_evidence = evidence(store, question, names, weights, filters)
    ranked = _ranked(store, hit_evidence, weights)
    if dense := similar_meaning():
        mode = "fused"
        ranked_numbers = {row.outline.number for row in ranked}
        others = store.outlines([number for number in dense if number not in ranked_numbers])
        ranked = with_meaning(ranked, replace(hit_evidence, dense=dense), others, weights)
    absent = [
        *_absent_libraries(store, [*filters.libraries, *_spelled_out(question, filters)]),
        *_absent_version(store, filters, names, [row.outline for row in ranked]),
    ]
    # Architecture and version are not part of the full-text query, so they are applied here.
    kept = [row for row in ranked if filters.admits(row.outline)]
    hits, left_out = shorten(_hits(store, folded(kept)[:count]), max_tokens)
    confidence = _confidence(question, kept, names, weights)
    return SearchResult(
        query=question.text,
        hits=tuple(hits),
        mode=mode,
        confidence=confidence,
        nearest=names.nearest,
        notices=(*notices, *absent, *left_out),
        duration_ms=round((time.perf_counter() - started) * 1e3, 2),
    )


def profits_from_meaning(question: ParsedQuestion, weights: RankingWeights) -> bool:
    """Whether meaning may find more: a question of several plain words, and not a name."""
    enough = question.asks_advice or len(question.words) >= weights.fewest_words
    return enough and question.named_share < weights.named_share


def candidates(
    store: IndexStore,
    question: ParsedQuestion,
    names: Named,
    weights: RankingWeights,
) -> list[Candidate]:
    """Everything that may answer the question by its words, best first."""
    return _ranked(store, evidence(store, question, names, weights), weights)


def _ranked(store: IndexStore, hit_evidence: HitEvidence, weights: RankingWeights) -> list[Candidate]:
    every = (
        hit_evidence.short,
        hit_evidence.full,
        hit_evidence.exact,
        hit_evidence.similar,
        hit_evidence.quoted,
    )
    return rank(hit_evidence, store.outlines([*dict.fromkeys(itertools.chain(*every))]), weights)


def evidence(
    store: IndexStore,
    question: ParsedQuestion,
    names: Named,
    weights: RankingWeights,
    filters: Filters | None = None,
) -> HitEvidence:
    """What the index says of a question before candidates are compared, without meaning."""
    filters = filters or Filters()
    short: dict[int, float] = {}
    full: dict[int, float] = {}
    total = store.count()
    counts = store.frequencies(question.stems)
    # Weights come from the documentation itself, not from general English: "warp" is common here, "fruit" is
    # not.
    idf = {word.stem: word.weight * _rarity(word, counts, total) for word in question.words}
    if stems := _searched(question, counts, total, weights):
        # Every word is quoted, so that no syntax gets through.
        expression = " OR ".join(f'"{stem}"' for stem in stems)
        # Names and first sentences alone, too: long texts hold many of the words by chance.
        short_expression = f"{{parts brief asked}} : ({expression})"
        limits = (weights.columns, weights.candidates, filters.kinds, filters.libraries)
        short = dict(store.match(short_expression, *limits))
        full = dict(store.match(expression, *limits))
        if question.asks_advice and not filters.libraries:
            notes = store.match(expression, weights.columns, _NOTES, filters.kinds, ("notes",))
            full |= dict(notes)  # what fits best stays the first
    return HitEvidence(question, idf, short, full, {}, names.exact, names.similar, names.quoted)


def _searched(
    question: ParsedQuestion, counts: Mapping[str, int], total: int, weights: RankingWeights
) -> list[str]:
    """The words that are searched for, the rarest first; the others are only compared.

    What every eighth entry says finds nothing, and takes most of the time; so do the commonest of many words.
    The question's own rarest words are searched for before what may stand for them.
    """
    most = max(_FEW, total * weights.telling)
    # Where every word is common there is no better choice than all of them.
    telling = [stem for stem, count in counts.items() if 0 < count <= most] or list(counts)
    telling.sort(key=lambda stem: counts[stem])
    own = {word.stem for word in question.words}
    always = {*telling[:_ALWAYS], *[stem for stem in telling if stem in own][:_ALWAYS_OWN]}
    # Bounds the work of one search: each word costs as much as the entries that hold it.
    left = max(_FEW, total * weights.looked_through)
    return [
        stem
        for stem, running_total in zip(
            telling, itertools.accumulate(counts[stem] for stem in telling), strict=True
        )
        if stem in always or running_total <= left
    ]


def _rarity(word: Word, counts: Mapping[str, int], total: int) -> float:
    """How much a word tells; one that no entry holds as much as what may stand for it."""
    if len(word.stem) == 1:
        return _LETTER_RARITY  # a letter is an article in prose and the name of a matrix in a symbol
    if counts[word.stem]:
        return rarity(counts[word.stem], total)
    others = max((counts[stem] for stem in word.alternatives), default=0)
    return rarity(others, total) * (1.0 if others else _UNKNOWN)


def entry(store: IndexStore, chunk_id: str) -> Hit:
    """One entry in full, with what else bears its id: the same name in other headers, the library's message.

    Raises:
        UsageError: there is no such entry; the hint names the nearest.
    """
    chunk_id = storable(chunk_id)
    rows = store.by_id(chunk_id)
    others: list[str] = []
    if not rows:
        named = [row for number in store.by_name(chunk_id)[:_MOST_OTHERS] for row in _rows(store, number)]
        # An id may be guessed from a name: the entry of that name is a better answer than an error.
        rows, others = named[:1], [row.chunk.chunk_id for row in named]
    if not rows:
        near = [name for _, name in similar(store, chunk_id.split("/")[-1].split("@")[0])]
        hint = f"nearest names: {', '.join(near)}" if near else "search for it with words"
        raise UsageError(f"there is no entry {chunk_id[:120]!r}", hint=hint)
    hit = _hit(_joined(store, rows[0].chunk), [row.chunk.version for row in rows[1:]], 1.0)
    plain = hit.id.partition("@")[0]  # of another version that stands beside it
    if others := [other for other in dict.fromkeys(others) if other.partition("@")[0] != plain]:
        hit = hit.model_copy(update={"text": f"{hit.text}\n\nAlso of this name: {', '.join(others)}"})
    return hit


def _joined(store: IndexStore, first: Chunk) -> Chunk:
    """An entry with everything of the same id, which is all that a hit's id can name."""
    others = [other for other in store.bearing([first.chunk_id])[first.chunk_id] if other != first]
    first = _with_overloads(first, others, _ALL_SIGNATURES)
    signatures = first.signature.split("\n")
    texts = {first.text: first.text or first.brief}
    for other in others[:_MOST_JOINED]:
        heard = {*other.signature.split("\n")} <= {*signatures} or first.kind == other.kind == "function"
        own = other.text if other.brief.rstrip(".") in other.text else f"{other.brief}\n{other.text}"
        addition = own if heard else f"{other.signature}\n{own}"
        if addition.strip():
            place = f"{other.path}:{other.line}" if other.line else other.path
            texts.setdefault(addition.strip(), f"{place}\n{addition.strip()}")
    if len(others) > _MOST_JOINED:
        texts.setdefault("...", f"... and {len(others) - _MOST_JOINED} more of this name")
    return replace(first, text="\n\n".join(filter(None, texts.values())))


def _with_overloads(chunk: Chunk, others: Sequence[Chunk], most: int) -> Chunk:
    """A function with the signatures that other headers add: atomicAdd is declared in seven of them."""
    if chunk.kind != "function":
        return chunk
    heard = [other.signature for other in (chunk, *others) if other.kind == "function"]
    lines = dict.fromkeys("\n".join(heard).split("\n"))
    shown = [line for line in lines if line and not _MORE_OVERLOADS.fullmatch(line)]
    left = len(shown) - most if len(shown) > most else 0
    left += sum(int(match[1]) for line in lines if (match := _MORE_OVERLOADS.fullmatch(line)))
    more = [f"... and {left} more overloads"] if left else []
    return replace(chunk, signature="\n".join([*shown[:most], *more]))


def _rows(store: IndexStore, number: int) -> list[Row]:
    return [Row(outline, chunk) for outline, chunk in store.get([number]).items()]


def _checked(count: int, max_tokens: int, filters: Filters) -> Filters:
    """The filters, spelled as entries spell them.

    Raises:
        UsageError: a number is out of its range, or a filter cannot fit any entry.
    """
    if not 1 <= count <= MOST_HITS:
        raise UsageError(f"{count} hits cannot be given", hint=f"ask for 1 to {MOST_HITS}")
    if max_tokens < 1:
        raise UsageError(f"max_tokens is {max_tokens}", hint="give at least 1, or leave it out")
    kinds = tuple(storable(kind).strip().lower() for kind in filters.kinds)
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(f"there is no kind {kind[:40]!r}", hint=f"kinds: {', '.join(KINDS)}")
    libraries = tuple(storable(library).strip().lower() for library in filters.libraries)
    return replace(
        filters,
        kinds=kinds,
        libraries=libraries,
        architecture=_architecture(filters.architecture.strip()),
        version=storable(filters.version).strip()[:_LONGEST_VERSION],
    )


def _architecture(asked: str) -> str:
    """The GPU as notes name it: 90, 9.0 and compute_90 are sm_90."""
    if asked in ("", CPU):
        return asked
    match = _ARCHITECTURE.fullmatch(asked)
    if match is None:
        raise UsageError(
            f"{asked[:40]!r} is no GPU architecture", hint="give one like sm_80, sm_90 or sm_100a, or cpu"
        )
    return f"sm_{match[1].replace('.', '')}{match[2].lower()}"


def _spelled_out(question: ParsedQuestion, filters: Filters) -> list[str]:
    """Libraries whose own name stands in the question, not only a word that is much used with them."""
    words = question.text.lower().split()
    return [name for name in sorted(question.libraries) if name in words and name not in filters.libraries]


def _absent_libraries(store: IndexStore, wanted: Sequence[str]) -> list[str]:
    """That nothing is known of a library, with those of which something is."""
    if not wanted:
        return []
    here = list(dict.fromkeys(name for name, _, _ in store.libraries()))
    problem = (
        f"is not in this index, which has {', '.join(here)}; `stitch-mcp index build --python PATH`"
        " reads the wheels of an interpreter"
    )
    return [f"library {name[:40]!r} {problem}" for name in wanted if name not in here]


def folded(rows: Sequence[Candidate]) -> list[tuple[Candidate, list[Outline]]]:
    """The best row of each symbol, with what says the same: its other versions, its twin in the driver."""
    groups: dict[tuple[str, str], tuple[Candidate, list[Outline]]] = {}
    for row in rows:
        key = hit_key(row.outline)
        if key in groups:
            groups[key][1].append(row.outline)
        else:
            groups[key] = (row, [])
    return list(groups.values())


def hit_key(row: Outline) -> tuple[str, str]:
    """What entries have in common that are one hit; sections of two pages are two."""
    if row.kind == "section":
        return (row.library, row.chunk_id)
    twin = twin_key(row.library, row.kind, row.symbol)
    return ("", twin) if twin else (row.library, row.symbol)


def twin_of(row: Candidate, others: Sequence[Outline]) -> str:
    """The other library's name for a hit; "" where it has none."""
    return next((other.symbol for other in others if other.library != row.outline.library), "")


def _hits(store: IndexStore, rows: Sequence[tuple[Candidate, list[Outline]]]) -> list[Hit]:
    chunks = store.get([row.outline.number for row, _ in rows])
    same = store.bearing([row.outline.chunk_id for row, _ in rows if row.outline.kind in _COMPLETED])
    return [
        _hit(
            _completed(store, chunks[row.outline.number], same.get(row.outline.chunk_id, [])),
            [other.version for other in others if other.library == row.outline.library],
            row.score,
            twin_of(row, others),
        )
        for row, others in rows
        if row.outline.number in chunks
    ]


def _completed(store: IndexStore, chunk: Chunk, same: Sequence[Chunk]) -> Chunk:
    """A hit with what belongs to it: overloads of a function, an error's message and the header's words."""
    if any(other.kind == "error" for other in same):
        return _joined(store, chunk)
    return _with_overloads(chunk, same, _MOST_SIGNATURES)


def _hit(chunk: Chunk, others: Sequence[str | None], score: float, twin: str = "") -> Hit:
    versions = dict.fromkeys(version for version in others if version not in (None, chunk.version))
    return Hit(
        id=chunk.chunk_id,
        symbol=chunk.symbol,
        kind=chunk.kind,
        library=chunk.library,
        signature=chunk.signature,
        summary=chunk.brief,
        text=chunk.text,
        path=chunk.path,
        line=chunk.line,
        source=chunk.source,
        version=chunk.version or (_OUR_VERSION if chunk.library in _OURS else None),
        aliases=chunk.aliases[:20],
        parent=chunk.parent,
        architectures=chunk.architectures,
        also_versions=tuple(version for version in versions if version),
        twin=twin,
        score=round(score, 4),
    )


def _confidence(
    question: ParsedQuestion, kept: Sequence[Candidate], names: Named, weights: RankingWeights
) -> Confidence:
    if not kept:
        return "none"
    if kept[0].outline.number in (*names.exact, *names.quoted):
        return "exact"
    if names.nearest:
        return "low"  # a name of the question does not exist: whatever comes first is a guess
    if question.names and question.named_share >= weights.named_share:
        exact = {*names.exact}
        if not any(row.outline.number in exact for row in kept):
            return "low"  # it is of names, and none of them is here: its parts are words of other names
    # Ways to ask hold any word by chance, and a letter stands in many names.
    says_anything = any(len(word.stem) > 1 for word in question.words) and kept[0].said > 0
    return "high" if says_anything and kept[0].coverage >= weights.low_coverage else "low"


def _absent_version(
    store: IndexStore, filters: Filters, names: Named, outlines: Sequence[Outline]
) -> list[str]:
    """That the version asked for is not here, with those that are, for what the question names first."""
    if not filters.version:
        return []
    outlines = [row for row in outlines if row.number in names.exact] or outlines
    wanted = filters.libraries or tuple(dict.fromkeys(row.library for row in outlines[:20] if row.version))
    notices: list[str] = []
    for library in wanted:
        here = [version for name, version, _ in store.libraries() if name == library and version]
        if here and not any(_begins(version, filters.version) for version in here):
            notices.append(f"{library} {filters.version} is not installed here; there is {', '.join(here)}")
    return notices


def _fits_device(chunk: Outline, asked: str) -> bool:
    """Whether it is of use on the device; notes for CPUs are shown only to whoever asks for one."""
    if asked == CPU:
        return CPU in chunk.architectures or (not chunk.architectures and chunk.library in _OF_NO_DEVICE)
    if CPU in chunk.architectures:
        return False
    return not (asked and chunk.architectures) or _serves(chunk.architectures, asked)


def _serves(architectures: Sequence[str], asked: str) -> bool:
    """Whether code for one of these GPUs is of use on `asked`: the same, or an older one without a suffix."""
    wanted = asked.rstrip("af")
    return any(
        own.rstrip("af") == wanted or (own[-1:].isdigit() and _number(own) <= _number(wanted))
        for own in architectures
    )


def _number(architecture: str) -> int:
    digits = "".join(character for character in architecture if character.isdigit())
    return int(digits) if digits else 0


def _begins(version: str, asked: str) -> bool:
    return f"{version}.".startswith(f"{asked.removesuffix('.')}.")
