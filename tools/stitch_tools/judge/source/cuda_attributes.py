"""Attribute macros of C++ and CUDA sources, blanked at equal length before the text is parsed.

The grammar does not know them all. This reads tokens, not syntax: which words are macros, and where their
parentheses end.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

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
_QUALIFIERS = _WITH_ARGUMENTS | _ALONE | _ON_LAMBDAS | words("inline static extern constexpr __inline__ void")
_KERNEL = "__global__"
_DEFINE = re.compile(rb"#[ \t]*define[ \t]+([A-Za-z_]\w*)((?:\\\r?\n|[^\n])*)")


@dataclass(frozen=True)
class BlankedText:
    """A source text that is ready for the parser."""

    text: bytes
    kernels: tuple[int, ...]
    """Where a macro that makes a kernel was blanked, in order."""

    def marks_kernel(self, body: int) -> bool:
        """Whether such a macro stands in the head of the function whose body begins at `body`."""
        place = bisect_left(self.kernels, body)
        return place > 0 and not any(char in b";{}" for char in self.text[self.kernels[place - 1] : body])


def find_macros(sources: Iterable[bytes]) -> dict[str, bool]:
    """Names that a program's own `#define` lines give to attributes, each with whether it makes a kernel."""
    found: dict[str, bool] = {}
    for source in sources:
        for match in _DEFINE.finditer(source):
            names = _outer_names(match[2])
            if names and names <= _QUALIFIERS | {_KERNEL}:
                found[match[1].decode("latin-1")] = _KERNEL in names
    return found


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


def blank_attributes(source: bytes, macros: dict[str, bool]) -> BlankedText:
    """The same bytes with spaces in place of attributes that the grammar does not know; lines stay."""
    out = bytearray(source)
    kernels: list[int] = []
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
            kernels += [match.start()] if macros.get(token) else []
        elif token == "#":
            define = _DEFINE.match(source, match.start())
            directive_end = define.end() if define is not None else source.find(b"\n", match.start())
        before = before if token in _ON_LAMBDAS else token
    return BlankedText(bytes(out), tuple(kernels))


def _blank(out: bytearray, start: int, end: int) -> None:
    for place in range(start, end):
        if out[place] not in b"\r\n":
            out[place] = 0x20
