"""The ranking's weights and synonyms, read from this package's two TOML files."""

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files as package_files

from stitch_rag.tokens import stem
from stitch_tools.models.base import Fact


class Intent(Fact):
    """Words that ask for one kind of thing."""

    first: tuple[str, ...]
    any: tuple[str, ...]


class Verb(Fact):
    """Words that ask for something to be done, and the parts of names that say so."""

    words: tuple[str, ...]
    parts: tuple[str, ...]


class RankingWeights(Fact):
    """Everything in ranking.toml."""

    columns: tuple[float, ...]
    candidates: int
    telling: float
    looked_through: float
    synonym: float
    named_share: float
    low_coverage: float
    fewest_words: int
    score: Mapping[str, float]
    kind: Mapping[str, float]
    library: Mapping[str, float]
    intent: Mapping[str, Intent]
    verb: tuple[Verb, ...]
    named: Mapping[str, tuple[str, ...]]


@lru_cache(maxsize=1)
def load_weights() -> RankingWeights:
    """The weights that ship with the package."""
    # A file instead of constants, since scripts/fit-ranking fits most of the figures.
    text = (package_files("stitch_rag") / "ranking.toml").read_text(encoding="utf-8")
    return RankingWeights.model_validate(tomllib.loads(text))


@lru_cache(maxsize=1)
def load_synonyms() -> Mapping[str, frozenset[str]]:
    """Stem to the stems that may stand for it."""
    text = (package_files("stitch_rag") / "synonyms.toml").read_text(encoding="utf-8")
    synonyms: dict[str, set[str]] = {}
    content = tomllib.loads(text)
    for group in content["groups"]:
        stems = [stem(word) for word in group]
        for word in stems:
            # Groups hold in both directions; `expand` below holds in one: a special word finds the general
            # one.
            synonyms.setdefault(word, set()).update(other for other in stems if other != word)
    for word, others in content["expand"].items():
        synonyms.setdefault(stem(word), set()).update(stem(other) for other in others)
    return {word: frozenset(others) for word, others in synonyms.items()}
