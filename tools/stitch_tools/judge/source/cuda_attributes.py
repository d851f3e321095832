"""Attribute macros of C++ and CUDA sources, blanked at equal length before the text is parsed.

The grammar does not know them all. This reads tokens, not syntax: which words are macros, and where their
parentheses end.
"""

import re
from collections.abc import Iterable, Set

from stitch_tools.judge.source.words import words

_TOKEN = re.compile(
    # What is never closed reaches to the end: else each such opening would be searched anew to there.
    rb'//[^\n]*|/\*.*?(?:\*/|\Z)|R"([^()\\\s]{0,16})\((?:.*?\)\1"|.*\Z)|"(?:\\.|[^"\\\n])*"'
    rb"|'(?:\\.|[^'\\\n])*'|[A-Za-z_]\w*|\S",
    re.DOTALL,
)
_WITH_ARGUMENTS = words("""
    __cluster_dims__ __maxnreg__ __launch_bounds__ __block_size__ __align__ _Pragma __attribute__ __declspec
    alignas
""")
_ALONE = words("__grid_constant__ __forceinline__ __noinline__ STITCH_EXPORT __restrict__ CUDART_CB CUDA_CB")
_ON_LAMBDAS = words("__device__ __host__")
_QUALIFIERS = (
    _WITH_ARGUMENTS
    | _ALONE
    | _ON_LAMBDAS
    | words("inline static extern constexpr __inline__ void __global__")
)
_DEFINE = re.compile(rb"#[ \t]*define[ \t]+([A-Za-z_]\w*)((?:\\\r?\n|[^\n])*)")


def find_macros(sources: Iterable[bytes]) -> set[str]:
    """Names that a program's own `#define` lines give to attributes."""
    macros: set[str] = set()
    for source in sources:
        for match in _DEFINE.finditer(source):
            names = _outer_names(match[2])
            if names and names <= _QUALIFIERS:
                macros.add(match[1].decode("latin-1"))
    return macros


def _outer_names(text: bytes) -> set[str]:
    """Identifiers outside of parentheses: `__attribute__` of `__attribute__((always_inline))`."""
    found: set[str] = set()
    depth = 0
    for match in _TOKEN.finditer(text):
        token = match.group().decode("latin-1")
        depth += (token == "(") - (token == ")")
        if depth == 0 and token.isidentifier():
            found.add(token)
    return found


def blank_attributes(source: bytes, macros: Set[str]) -> bytes:
    """The same bytes with spaces in place of attributes that the grammar does not know; lines stay."""
    out = bytearray(source)
    depth, start, end, before, directive_end = 0, -1, -1, "", 0
    for match in _TOKEN.finditer(source):
        token = match.group().decode("latin-1")
        if match.start() < directive_end or token.startswith(("//", "/*")):
            continue
        if start >= 0:  # inside, or right before, the parentheses of an attribute
            depth += (token == "(") - (token == ")")
            if depth == 0:
                _blank(out, start, match.end() if token == ")" else end)
                start = -1
        elif token in _WITH_ARGUMENTS:
            start, end = match.span()
        elif token in _ALONE or token in macros or (token in _ON_LAMBDAS and before == "]"):
            _blank(out, *match.span())
        elif token == "#":
            define = _DEFINE.match(source, match.start())
            directive_end = define.end() if define is not None else source.find(b"\n", match.start())
        before = before if token in _ON_LAMBDAS else token
    return bytes(out)


def _blank(out: bytearray, start: int, end: int) -> None:
    for place in range(start, end):
        if out[place] not in b"\r\n":
            out[place] = 0x20
