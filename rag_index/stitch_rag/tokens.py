"""Words of documentation and of questions: identifiers whole and in their camel- and snake-case parts."""

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

_IDENTIFIER = re.compile(r"[^\W\d]\w*|\d+(?:\.\d+)?[A-Za-z]*")
_PART = re.compile(
    r"bfloat16|NaN|CU(?=[a-z])|[HDA]to[HDA](?![a-z])|[1-4](?:[dD](?![a-z])|D(?=[a-z]{3}))|\d+[A-Z]{1,2}(?![A-Za-z])|\d+x\d+|[A-Z]{2,}s(?![a-z])|"
    r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+"
)
_PLURAL = re.compile(r"[A-Z]{2,}s")
"""Of an acronym: SMs, CTAs, GPUs."""
_POSSESSIVE = re.compile(r"(?<=\w)['\u2019]s\b")
_BRANDS = {
    "cudnn": "cudnn",
    "cublas": "cublas",
    "cublaslt": "cublaslt cublas lt",
    "cusparse": "cusparse",
    "cusparselt": "cusparselt cusparse lt",
    "pytorch": "pytorch torch",
    "nvlink": "nvlink",
    "nan": "nan",
    "relu": "relu",
    "gelu": "gelu",
    "silu": "silu",
}
"""Names that are spelled with capitals inside, and are one word all the same."""

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
_FLOAT_MATH = re.compile(
    r"(?:a?(?:sin|cos|tan)h?|sincos|exp|expm1|log|log1p|pow|sqrt|rsqrt|cbrt|rcbrt|hypot|erf|erfc|erfcx|fma|fmod|fdivide|"
    r"saturate|floor|ceil|round|rint|trunc|remainder|ldexp|frexp|fabs|fmin|fmax)f"
)
"""C's functions for float: the last letter says the type."""
_DECIMAL = re.compile(r"(\d+)\.(\d+)")
LONGEST_TEXT = 20_000
"""Characters of a chunk's text that are indexed."""


def storable(text: str) -> str:
    """The text without halves of characters, as which Python reads bytes that are no UTF-8."""
    return text if text.isascii() else text.encode("utf-8", errors="replace").decode("utf-8")


def folded(text: str) -> str:
    """The text with letters as code writes them: no accents, no full width, nothing that takes no room.

    A page may break a name by an invisible character, and what is copied from it has that, too.
    """
    if text.isascii():
        return text
    # Compatibility forms too: a page may write full-width letters or ligatures, which no name has.
    apart = unicodedata.normalize("NFKD", text)
    return "".join(char for char in apart if unicodedata.category(char) not in ("Mn", "Cf"))


def identifiers(text: str) -> list[str]:
    """The identifiers in `text`, folded, in order, with repetitions."""
    text = folded(text)
    if "'" in text or "\u2019" in text:
        text = _POSSESSIVE.sub("", text)
    return _IDENTIFIER.findall(text)


@lru_cache(maxsize=50_000)
def parts(identifier: str) -> tuple[str, ...]:
    """The lower-case parts of an identifier: cudaMemcpyAsync -> cuda, memcpy, async; one part if it has none.

    A vendor's prefix that is glued to a lower-case word is split off: nvrtccompile -> nvrtc, compile.
    """
    result: list[str] = []
    for piece in identifier.split("_"):
        # fp16, sm90 and int8 are words: split into letters and digits they would match anything with an 8.
        if _ALPHANUMERIC.match(piece) or not piece.isascii():
            result.append(piece.lower())
            continue
        for part in _PART.findall(piece):
            low = (part[:-1] if _PLURAL.fullmatch(part) else part).lower()
            low = low[:-1] if _FLOAT_MATH.fullmatch(low) else low
            glued = None if low in _VENDORS else _GLUED.match(low)
            if glued is not None:
                result += [glued[1], low[glued.end() :]]
            else:
                result.append(low)
    return tuple(part for part in result if part)


def index_words(text: str) -> str:
    """`text` as the index stores it: stems of words; names in lower case, each followed by its parts."""
    return " ".join(map(_expanded, identifiers(text[:LONGEST_TEXT])))


def name_words(names: Iterable[str]) -> str:
    """The stems of the parts of several names, each once, in order."""
    stems = (stem(part) for name in names for word in identifiers(name) for part in parts(word))
    return " ".join(dict.fromkeys(stems))


@lru_cache(maxsize=50_000)
def symbol_stems(symbol: str) -> tuple[str, ...]:
    """The stems of one name's parts, in order."""
    return tuple(name_words([symbol]).split())


@lru_cache(maxsize=50_000)
def stem(word: str) -> str:
    """A lower-case word without its inflection, so that copies finds copy, and allocation finds allocate."""
    if len(word) < 4 or not word.isalpha() or word in _BRANDS:
        return word
    # Questions are written in both spellings, headers in the American one.
    word = _BRITISH.sub(r"iz\1", _IRREGULAR.get(word, word))
    for suffix, instead in _SUFFIXES:
        rest = word.removesuffix(suffix)
        # A stem needs a vowel and three letters: "sing" must not become "s".
        if rest != word and len(rest) >= 3 and _VOWEL.search(rest):
            word = rest + instead
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] in "bdgmnprt":
        word = word[:-1]  # mapped, mapping: map
    return word.removesuffix("e") if len(word) > 4 else word


def is_plain(identifier: str) -> bool:
    """Whether `identifier` is an English word or a product's name rather than a name of code."""
    if identifier.lower() in _BRANDS or _PLURAL.fullmatch(identifier) or not identifier.isascii():
        return True
    return identifier.isalpha() and (identifier.islower() or identifier.istitle())


_IRREGULAR = {
    form: word
    for word, forms in {
        "half": "halves",
        "index": "indices",
        "matrix": "matrices",
        "write": "wrote written",
        "build": "built",
        "keep": "kept",
        "send": "sent",
        "begin": "began begun",
        "choose": "chose chosen",
        "hold": "held",
        "take": "took taken",
        "give": "gave given",
        "find": "found",
        "make": "made",
        "lose": "lost",
        "run": "ran running",
        "know": "known knew",
        "draw": "drew drawn",
        "split": "splitting",
        "fast": "faster",
        "slow": "slower slowly",
        "small": "smaller",
        "large": "larger",
        "few": "fewer",
        "wide": "wider",
        "random": "randomly",
        "atomic": "atomically atomics",
        "concurrent": "concurrently",
        "synchronous": "synchronously",
        "asynchronous": "asynchronously",
        "launch": "launchable",
        "nan": "nans",
    }.items()
    for form in forms.split()
}
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
    if low in _BRANDS:
        return _BRANDS[low]
    if decimal := _DECIMAL.match(low):
        return f"{decimal[1]}_{decimal[2]}" if int(decimal[2]) else decimal[1]
    if _PLURAL.fullmatch(identifier):
        return low[:-1]
    if is_plain(identifier):
        return stem(low)
    split = parts(identifier)
    return low if split == (low,) else " ".join((low, *map(stem, split)))
