"""Words of documentation and of questions: identifiers whole and in their camel- and snake-case parts."""

import re
from collections.abc import Iterable
from functools import lru_cache

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|\d+(?:\.\d+)?[A-Za-z]*")
_PART = re.compile(r"bfloat16|\d+[A-Z]{1,2}(?![A-Za-z])|\d+x\d+|[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_VENDORS = (
    "cublas",
    "cudnn",
    "cuda",
    "nccl",
    "cusparse",
    "cusolver",
    "cufft",
    "curand",
    "nvrtc",
    "nvtx",
    "cupti",
)
_GLUED = re.compile(rf"({'|'.join(_VENDORS)})(?=lt|[a-z]{{3,}})")
_ALPHANUMERIC = re.compile(r"^(?:fp|bf|tf|int|sm|f|s|u|b|e)\d", re.IGNORECASE)
LONGEST_TEXT = 20_000
"""Characters of a chunk's text that are indexed."""


def identifiers(text: str) -> list[str]:
    """The identifiers in `text`, in order, with repetitions."""
    return _IDENTIFIER.findall(text)


def parts(identifier: str) -> list[str]:
    """The lower-case parts of an identifier: cudaMemcpyAsync -> cuda, memcpy, async; one part if it has none.

    A vendor's prefix that is glued to a lower-case word is split off: nvrtccompile -> nvrtc, compile.
    """
    found: list[str] = []
    for piece in identifier.split("_"):
        if _ALPHANUMERIC.match(piece):
            found.append(piece.lower())
            continue
        for part in _PART.findall(piece):
            low = part.lower()
            glued = None if low in _VENDORS else _GLUED.match(low)
            if glued is not None:
                found += [glued[1], low[glued.end() :]]
            else:
                found.append(low)
    return [part for part in found if part]


def index_words(text: str) -> str:
    """`text` as the index stores it: stems of words; names in lower case, each followed by its parts."""
    return " ".join(map(_expanded, identifiers(text[:LONGEST_TEXT])))


def name_words(names: Iterable[str]) -> str:
    """The stems of the parts of several names, each once, in order."""
    found = (stem(part) for name in names for word in identifiers(name) for part in parts(word))
    return " ".join(dict.fromkeys(found))


@lru_cache(maxsize=50_000)
def symbol_stems(symbol: str) -> tuple[str, ...]:
    """The stems of one name's parts, in order."""
    return tuple(name_words([symbol]).split())


@lru_cache(maxsize=50_000)
def stem(word: str) -> str:
    """A lower-case word without its inflection, so that copies finds copy, and allocation finds allocate."""
    if len(word) < 4 or not word.isalpha():
        return word
    word = _BRITISH.sub(r"iz\1", word.removesuffix("'s"))
    for suffix, instead in _SUFFIXES:
        rest = word.removesuffix(suffix)
        if rest != word and len(rest) >= 3 and _VOWEL.search(rest):
            word = rest + instead
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] in "bdgmnprt":
        word = word[:-1]  # mapped, mapping: map
    return word.removesuffix("e") if len(word) > 4 else word


def is_plain(identifier: str) -> bool:
    """Whether `identifier` is an English word rather than a name of code."""
    return identifier.isalpha() and (identifier.islower() or identifier.istitle())


_VOWEL = re.compile(r"[aeiouy]")
_BRITISH = re.compile(r"is(e|es|ed|er|ers|ing|ation|ations)$")
_SUFFIXES = (
    ("izations", "iz"),
    ("ization", "iz"),
    ("ations", "at"),
    ("ation", "at"),
    ("ctions", "ct"),
    ("ction", "ct"),
    ("ions", ""),
    ("ion", ""),
    ("sses", "ss"),
    ("shes", "sh"),
    ("ches", "ch"),
    ("xes", "x"),
    ("ies", "y"),
    ("ied", "y"),
    ("ings", ""),
    ("ing", ""),
    ("edly", ""),
    ("ed", ""),
    ("ously", "ous"),
    ("ss", "ss"),
    ("us", "us"),
    ("is", "is"),
    ("s", ""),
)


@lru_cache(maxsize=100_000)
def _expanded(identifier: str) -> str:
    """What the index stores for one identifier."""
    low = identifier.lower()
    if is_plain(identifier):
        return stem(low)
    split = parts(identifier)
    return low if split == [low] else " ".join((low, *map(stem, split)))
