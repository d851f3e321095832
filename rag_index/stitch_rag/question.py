"""What a question asks for: its words with their synonyms, and the names of code that it contains."""

import re
from dataclasses import dataclass

from stitch_rag.ranking import load_synonyms, load_weights
from stitch_rag.tokens import identifiers, index_words, is_plain, stem

LONGEST_QUESTION = 2000
"""Characters that are read."""
MOST_WORDS = 32
_STOP = re.compile(
    r"a|an|the|of|in|on|at|by|for|to|from|with|without|into|is|are|was|be|been|being|do|does|did|how|what|which|who|"
    r"when|where|why|can|could|should|would|may|might|must|i|you|we|it|its|this|that|these|those|there|my|your|our|"
    r"and|or|not|no|if|then|than|as|so|use|used|using|want|need|get|way|best|any|all|some|one|me|have|has|had|"
    r"will|between|about|over|only|also|via|per|each|them|they|their|such"
)
_QUALIFIED = re.compile(r"[A-Za-z_]\w*(?:(?:::|\.)[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True)
class Word:
    """One thing that the question is about."""

    stem: str
    alternatives: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Question:
    """A question as the index understands it."""

    text: str
    words: tuple[Word, ...]
    names: tuple[str, ...]
    """What looks like a name of code, the longest form first."""
    kinds: frozenset[str] = frozenset()
    """Kinds of thing that its words ask for."""
    libraries: frozenset[str] = frozenset()
    """Libraries that it names."""
    named_share: float = 0.0
    """Share of its words that belong to names of code."""

    @property
    def stems(self) -> list[str]:
        """Its words and their synonyms, each once."""
        return list(
            dict.fromkeys(stem for word in self.words for stem in (word.stem, *sorted(word.alternatives)))
        )


def read_question(text: str) -> Question:
    """The question in `text`; any text will do, an empty one asks for nothing."""
    text = " ".join(text[:LONGEST_QUESTION].split())
    synonyms = load_synonyms()
    every = identifiers(text)
    kept = [word for place, word in enumerate(every) if not _is_filler(word, place)]
    stems = dict.fromkeys(index_words(" ".join(kept)).split())
    words = [Word(stem, synonyms.get(stem, frozenset())) for stem in list(stems)[:MOST_WORDS]]
    code = [word for word in kept if not is_plain(word)]
    kinds, libraries = _asked(every)
    share = len(code) / len(kept) if kept else 0.0
    return Question(text, tuple(words), tuple(_names(text)), kinds, libraries, share)


def _is_filler(word: str, place: int) -> bool:
    """Whether a word says nothing; a capital letter inside a sentence names something: matrix A."""
    return _STOP.fullmatch(word.lower()) is not None and not (place > 0 and word == "A")


def _asked(words: list[str]) -> tuple[frozenset[str], frozenset[str]]:
    """The kinds of thing and the libraries that the words ask for."""
    weights = load_weights()
    stems = [stem(word.lower()) for word in words]
    begins = {kind for kind, row in weights.intent.items() if stems and stems[0] in set(map(stem, row.first))}
    holds = {kind for kind, row in weights.intent.items() if set(map(stem, row.any)) & set(stems)}
    kinds = begins or holds  # "set an attribute" asks for a function, not for an attribute
    libraries = {name for name, said in weights.named.items() if {stem(word) for word in said} & set(stems)}
    return frozenset(kinds), frozenset(libraries)


def _names(text: str) -> list[str]:
    """Identifiers that no English sentence holds, or the only word of the question."""
    found: dict[str, None] = {}
    alone = len(identifiers(text)) == 1
    for match in _QUALIFIED.findall(text):
        last = re.split(r"::|\.", match)[-1]
        if alone or not is_plain(last) or "::" in match:
            shorter = match.replace(".", "::").split("::")
            for start in range(len(shorter)):
                found.setdefault("::".join(shorter[start:]))
            found.setdefault(match)
    return [name for name in found if len(name) > 1 and not name.isdigit() and (alone or not is_plain(name))]
