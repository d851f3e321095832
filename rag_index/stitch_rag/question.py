"""What a question asks for: its words with their synonyms, and the names of code that it contains."""

import re
from dataclasses import dataclass

from stitch_rag.ranking_weights import load_synonyms, load_weights
from stitch_rag.tokens import folded, identifiers, index_words, is_plain, stem, storable

LONGEST_QUESTION = 2000
"""Characters that are read."""
MOST_WORDS = 32
_STOP = re.compile(
    r"a|an|the|of|in|on|at|by|for|to|from|with|without|into|is|are|was|were|be|been|being|do|does|did|how|what|which|"
    r"who|when|where|why|can|could|should|would|may|might|must|shall|i|you|we|it|its|this|that|these|those|there|my|"
    r"your|our|and|or|not|no|if|then|than|as|so|use|used|using|want|need|needs|get|way|best|some|one|me|have|"
    r"has|had|will|between|about|over|only|also|via|per|each|them|they|their|such|am|but|still|already|yet|very|quite|"
    r"rather|really|just|please|ever|here|now|right|too|up|somehow|although|though|because|while|whether|until|"
    r"something|anything|nothing|everything|somebody|nobody|someone|else|ok|okay|he|she|his|her|us|let|lets|"
    r"help|helps|pay|pays|worth|worthwhile"
)
_LIGHT = re.compile(
    r"any|all|many|much|more|most|less|least|same|other|others|another|both|own|every|each|either|several|different|various|"
    r"certain|given|whole|entire|like|instead|again|later|soon|always|often|never|once|twice|well|good|bad|better|"
    r"work|works|call|calls|called|make|makes|made|go|goes|come|comes|put|puts|take|takes|show|shows|see|look|looks|"
    r"tell|tells|say|says|know|knows|give|gives|find|try|happen|happens|thing|things|bit|kind|sort|lot|lots|inside|"
    r"outside|along|across|around|behind|beside|next|last|first|moment|time|times|mean|means|allow|able|possible|"
    r"possibly|actually|directly|exactly|correctly|properly|currently|before|after|out|off|down|away|back|together|"
    r"apart|big|little|small|large|huge|handful|couple|since|within|among|through|during|against"
)
"""Words that may matter, but tell little."""
_LIGHTLY = 0.4
_ADVICE = re.compile(
    r"\b(?:helps?|pays?|worth|worthwhile|faster|should (?:i|we)|speed(?:ing)? up|"
    r"(?:so|too|is|are|very) slow|make .{1,40} fast)\b",
    re.IGNORECASE,
)
"""Said of a technique, it asks whether or how it pays; a symbol is asked for in other words."""
_HASTE = frozenset(("fast", "faster", "slow", "speed", "speeding", "up"))
"""Where advice is asked for these say so, and lead to whatever is called fast."""
_ABBREVIATION = re.compile(r"\b(?:e\.\s?g|i\.\s?e|etc|vs)\b\.?", re.IGNORECASE)
_GPU = re.compile(r"(?:sm|compute)_?\d{2,3}[af]?", re.IGNORECASE)
_PAY_OFF = re.compile(r"\b(pay|pays|paid|paying) off\b", re.IGNORECASE)
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{2,}\b")
"""In messages: its digits would be words."""
_QUALIFIED = re.compile(r"[A-Za-z_]\w*(?:(?:::|\.)[A-Za-z_]\w*)*")
_FILE = re.compile(
    r".*\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|i|ii|ipynb|json|md|o|ptx|cubin|py|pyi|so|toml|txt|xml|yml)",
    re.IGNORECASE,
)
"""What only looks like a dotted name."""
_QUALIFIER = re.compile(r"__(?:global|shared|device|host|constant|managed|local)__")
"""Messages say of each access and function where it lies; only a short question is about the word itself."""
_SHORT = 5
_IMPORTED_AS = {"nn": "torch.nn", "F": "torch.nn.functional", "tl": "triton.language"}
"""What everybody calls these modules."""


@dataclass(frozen=True, slots=True)
class Word:
    """One thing that the question is about."""

    stem: str
    alternatives: frozenset[str] = frozenset()
    weight: float = 1.0
    """How much it counts beside how rare it is."""


@dataclass(frozen=True, slots=True)
class ParsedQuestion:
    """A question as the index understands it."""

    text: str
    words: tuple[Word, ...]
    names: tuple[str, ...]
    """What looks like a name of code, the longest form first."""
    kinds: frozenset[str] = frozenset()
    """Kinds of thing that its words ask for."""
    libraries: frozenset[str] = frozenset()
    """Libraries that it names."""
    verbs: frozenset[str] = frozenset()
    """Parts of names (stems) that say what its first word asks to be done."""
    asks_advice: bool = False
    """Whether it asks if something pays: does it help, is it worth it, should I."""
    named_share: float = 0.0
    """Share of its words that belong to names of code."""

    @property
    def stems(self) -> list[str]:
        """Its words and their synonyms, each once."""
        return list(
            dict.fromkeys(stem for word in self.words for stem in (word.stem, *sorted(word.alternatives)))
        )


def read_question(text: str) -> ParsedQuestion:
    """The question in `text`; any text will do, an empty one asks for nothing."""
    # Bounded, since somebody may paste a log of megabytes.
    text = " ".join(storable(text[:LONGEST_QUESTION]).split())
    synonyms = load_synonyms()
    plain = _PAY_OFF.sub(r"\1", _ABBREVIATION.sub(" ", _ADDRESS.sub(" ", folded(text))))
    every = identifiers(plain)
    shouted = text.isupper()
    kept = [word for place, word in enumerate(every) if not _is_filler(word, place, shouted=shouted)]
    advice = _ADVICE.search(plain) is not None
    # "faster" asks whether it pays here; as a word it would lead to functions that have it in their names.
    if advice:
        kept = [word for word in kept if word.lower() not in _HASTE]
    words: dict[str, Word] = {}
    for word in kept:
        weight = _LIGHTLY if _LIGHT.fullmatch(word.lower()) else 1.0
        parts = index_words(word).split()
        if word.lower() in load_weights().named and len(kept) > 1:
            weight /= len(parts)  # cublasLt is one word, and its parts are those of all its symbols
        for piece in parts:
            words.setdefault(piece, Word(piece, synonyms.get(piece, frozenset()), weight))
    dotted = {part for name in _dotted(plain) for part in name.split(".")}
    code = [word for word in kept if _is_code(word) or word in dotted]
    kinds, libraries = _asked(every)
    share = len(code) / len(kept) if kept else 0.0
    asked = tuple(words.values())[:MOST_WORDS]
    return ParsedQuestion(text, asked, tuple(_names(plain)), kinds, libraries, _verbs(every), advice, share)


def _is_filler(word: str, place: int, *, shouted: bool) -> bool:
    """Whether a word says nothing; one in capitals inside a sentence names something: matrix A, atomic OR."""
    # A question written in capitals throughout says nothing by them.
    if word.isupper() and not shouted and (place > 0 or len(word) > 1) and word != "I":
        return False
    return _STOP.fullmatch(word.lower()) is not None


def _is_code(word: str) -> bool:
    """Whether a word is a name of code; an acronym, a number or a GPU (sm_90a) is none."""
    return not (
        is_plain(word) or _GPU.fullmatch(word) or word[0].isdigit() or (word.isalpha() and word.isupper())
    )


def _asked(words: list[str]) -> tuple[frozenset[str], frozenset[str]]:
    """The kinds of thing and the libraries that the words ask for."""
    weights = load_weights()
    stems = [stem(word.lower()) for word in words]
    begins = {kind for kind, row in weights.intent.items() if stems and stems[0] in set(map(stem, row.first))}
    # "set an attribute" asks for a function, not for an attribute; "launch attribute" may ask for either.
    telling = set(stems[1:2] if begins else stems)
    kinds = begins | {kind for kind, row in weights.intent.items() if telling & set(map(stem, row.any))}
    libraries = {
        name for name, spellings in weights.named.items() if {stem(word) for word in spellings} & set(stems)
    }
    return frozenset(kinds), frozenset(libraries)


def _verbs(words: list[str]) -> frozenset[str]:
    """The parts of names that answer the question's first word."""
    first = stem(words[0].lower()) if words else ""
    return frozenset(
        stem(part) for row in load_weights().verb if first in set(map(stem, row.words)) for part in row.parts
    )


def _dotted(text: str) -> list[str]:
    """Names like torch.cuda.graph, cp.async or Graph::sdpa, of whatever words they consist."""
    matches = (match for match in _QUALIFIED.findall(text) if "." in match or "::" in match)
    return [match.replace("::", ".") for match in matches if not _FILE.fullmatch(match)]


def _names(text: str) -> list[str]:
    """Identifiers that no English sentence holds, or the only name of the question."""
    result: dict[str, None] = {}
    count = len(identifiers(text))
    for match in _QUALIFIED.findall(text):
        last = re.split(r"::|\.", match)[-1]
        alone = count == len(identifiers(match))
        if _FILE.fullmatch(match) or (count > _SHORT and _QUALIFIER.fullmatch(match)):
            continue
        if alone or not is_plain(match):
            result.setdefault(match)
        begins, dot, rest = match.partition(".")
        if dot and begins in _IMPORTED_AS:
            result.setdefault(f"{_IMPORTED_AS[begins]}.{rest}")
        if (alone and "." not in match) or not is_plain(last) or "::" in match:
            shorter = match.replace(".", "::").split("::")
            names = ["::".join(shorter[start:]) for start in range(len(shorter))]
            result.update(dict.fromkeys(name for name in names if alone or not is_plain(name)))
    return [name for name in result if len(name) > 1 and not name.isdigit()]
