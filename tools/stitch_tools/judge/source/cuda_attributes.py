"""Attribute macros of C++ and CUDA sources, blanked at equal length before the text is parsed.

The grammar does not know them all. This reads tokens, not syntax: which words are macros, and what stands in
the parentheses behind them.
"""

import re
from collections.abc import Iterable, Set

from stitch_tools.judge.source.words import words

_WITH_ARGUMENTS = words("""
    __cluster_dims__ __maxnreg__ __launch_bounds__ __block_size__ __align__ _Pragma __attribute__ __declspec
    alignas
""")
_ALONE = words("__grid_constant__ __forceinline__ __noinline__ STITCH_EXPORT __restrict__ CUDART_CB CUDA_CB")
_MORE = words("__device__ __host__ __global__ inline static extern constexpr __inline__ void")
# In parentheses two levels of others: more of them do not stand in attributes.
_PARENTHESES = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_DEFINE = re.compile(rb"#[ \t]*define[ \t]+([A-Za-z_]\w*)((?:\\\r?\n|[^\n])*)")
# Comments, literals and directives stay. What is never closed reaches to the end: else each such opening
# would be searched anew to there.
_KEPT = (
    r'//[^\n]*|/\*.*?(?:\*/|\Z)|R"(?P<mark>[^()\\\s]{0,16})\((?:.*?\)(?P=mark)"|.*\Z)|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])*'|#(?:\\\r?\n|[^\n])*"
)


def find_macros(sources: Iterable[bytes]) -> set[str]:
    """Names that a program's own `#define` lines give to attributes."""
    macros: set[str] = set()
    for source in sources:
        for match in _DEFINE.finditer(source):
            body = re.sub(_PARENTHESES, "", match[2].decode("latin-1"))
            names = set(re.findall(r"[A-Za-z_]\w*", body))
            if names and names <= _WITH_ARGUMENTS | _ALONE | _MORE:
                macros.add(match[1].decode("latin-1"))
    return macros


_ATTRIBUTE = re.compile(
    rf"(?P<kept>{_KEPT})"
    rf"|\b(?:{'|'.join(sorted(_WITH_ARGUMENTS))})\b(?:\s*{_PARENTHESES})?"
    r"|(?<=\])(?:\s*\b__(?:device|host)__\b)+"
    r"|(?P<word>[A-Za-z_]\w*)".encode(),
    re.DOTALL,
)


def blank_attributes(source: bytes, macros: Set[str]) -> bytes:
    """The same bytes with spaces in place of attributes that the grammar does not know; lines stay."""
    # A set, not an alternation: a text may define as many macros as it has lines.
    alone = _ALONE | macros

    def blanked(match: re.Match[bytes]) -> bytes:
        word: bytes | None = match["word"]
        is_kept = match["kept"] or (word is not None and word.decode("latin-1") not in alone)
        return match[0] if is_kept else re.sub(rb"[^\r\n]", b" ", match[0])

    return _ATTRIBUTE.sub(blanked, source)
