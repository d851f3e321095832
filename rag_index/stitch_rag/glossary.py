"""Adds our own words to entries: a sentence where the header has none, and how people ask for a name."""

import itertools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files as package_files

from stitch_rag.chunks import Chunk

_SEPARATOR = re.compile(r"[,;] ")


@dataclass(frozen=True, slots=True)
class _Entry:
    name: re.Pattern[str]
    says: str


@dataclass(frozen=True, slots=True)
class _Glossary:
    entries: Sequence[_Entry]
    every: re.Pattern[str]
    """All names in one pattern: one match rules most symbols out, instead of one for each entry."""
    letters: Mapping[str, str]
    words: Mapping[str, str]
    """Part of a name to its meaning: exp is the exponential."""


def glossary_text() -> str:
    """The packaged file."""
    return (package_files("stitch_rag") / "glossary.toml").read_text(encoding="utf-8")


def phrase_texts() -> list[str]:
    """The packaged files of phrases (ways to ask for a name), sorted by file name."""
    folder = package_files("stitch_rag") / "phrases"
    files = sorted(
        (path for path in folder.iterdir() if path.name.endswith(".toml")), key=lambda row: row.name
    )
    return [path.read_text(encoding="utf-8") for path in files]


def explained(chunks: Iterable[Chunk]) -> list[Chunk]:
    """The chunks with our words: a first sentence where there is none, else keywords; and ways to ask."""
    return [_asked_for(_explain(chunk)) for chunk in chunks]


def _asked_for(chunk: Chunk) -> Chunk:
    """The chunk with the phrases for its names; a key `library/name` is for that library's entry alone."""
    phrases = _phrases()
    names = (chunk.symbol, *chunk.aliases)
    keys = [key for name in names for key in (name, f"{chunk.library}/{name}")]
    additions = [part for key in keys for part in phrases.get(key, ())]
    return replace(chunk, asked=(*chunk.asked, *dict.fromkeys(additions))) if additions else chunk


def _explain(chunk: Chunk) -> Chunk:
    glossary = _glossary()
    if chunk.kind in ("group", "section", "note"):
        return chunk
    # A method's other names are those of functions, too.
    names = (chunk.symbol,) if chunk.kind == "method" else (chunk.symbol, *chunk.aliases)
    name = next((name for name in names if glossary.every.fullmatch(name)), None)
    if name is None:
        return chunk
    for entry in glossary.entries:
        match = entry.name.fullmatch(name)
        if match is not None:
            says = _filled(entry.says, match, glossary)
            if chunk.brief:
                return replace(chunk, keywords=f"{chunk.keywords} {says}".strip())
            return replace(
                chunk, brief=says, text=f"{chunk.text}\n(in our words: the header says nothing)".strip()
            )
    return chunk


def _filled(says: str, match: re.Match[str], glossary: _Glossary) -> str:
    named = match.groupdict().get("t")
    text = says.replace("{type}", glossary.letters.get((named or "").upper(), "single precision"))
    for number, group in enumerate(match.groups(), 1):
        text = text.replace(f"{{{number}}}", glossary.words.get(group or "", group or ""))
    return text


@lru_cache(maxsize=1)
def _phrases() -> Mapping[str, tuple[str, ...]]:
    """Name to phrases; parsed once a process, as every header asks for them."""
    phrases: dict[str, tuple[str, ...]] = {}
    for names, joined in itertools.chain.from_iterable(
        tomllib.loads(text).items() for text in phrase_texts()
    ):
        # Several names share them, or one has a space (`pragma unroll`).
        for name in dict.fromkeys((names, *names.split())):
            phrases[name] = (*phrases.get(name, ()), *_SEPARATOR.split(joined))
    return phrases


@lru_cache(maxsize=1)
def _glossary() -> _Glossary:
    content = tomllib.loads(glossary_text())
    entries = [_Entry(re.compile(row["name"]), row["says"]) for row in content["entry"]]
    every = "|".join(re.sub(r"\?P<t>", "?:", row["name"]) for row in content["entry"])
    return _Glossary(entries, re.compile(f"(?:{every})"), content["letters"], content["words"])
