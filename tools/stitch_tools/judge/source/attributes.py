"""Attribute macros of C++ and CUDA sources, blanked at equal length before the text is parsed.

This reads tokens, not syntax: which words are macros, and where their parentheses end.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stitch_tools.judge.source.words import words

_TOKEN = re.compile(
    rb'//[^\n]*|/\*.*?\*/|R"([^()\\\s]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[A-Za-z_]\w*|\S',
    re.DOTALL,
)
_WITH_ARGUMENTS = words("""
    __cluster_dims__ __maxnreg__ __launch_bounds__ __block_size__ __align__ _Pragma __attribute__ __declspec
    alignas
""")
_ALONE = words("__grid_constant__ __forceinline__ __noinline__ STITCH_EXPORT __restrict__ CUDART_CB CUDA_CB")
_ON_LAMBDAS = words("__device__ __host__")
_QUALIFIERS = (
    _WITH_ARGUMENTS | _ALONE | _ON_LAMBDAS | words("inline static extern constexpr __inline__ __inline")
)
_KERNEL = "__global__"


@dataclass(frozen=True)
class Macros:
    """Names that a program's own `#define` lines give to attributes."""

    plain: frozenset[str] = frozenset()
    kernel: frozenset[str] = frozenset()
    """Those that contain `__global__`."""


NO_MACROS = Macros()


@dataclass(frozen=True)
class Blanked:
    """A source text that is ready for the parser."""

    text: bytes
    kernels: tuple[int, ...]
    """Where a macro that makes a kernel was blanked."""


def find_macros(sources: Iterable[bytes]) -> Macros:
    """Names that stand for nothing but attributes, whichever file defines them."""
    plain: set[str] = set()
    kernel: set[str] = set()
    for source in sources:
        for line in source.replace(b"\\\r\n", b" ").replace(b"\\\n", b" ").split(b"\n"):
            head = line.lstrip()
            if not head.startswith(b"#") or not head[1:].lstrip().startswith(b"define"):
                continue
            tokens = [match.group().decode("latin-1") for match in _TOKEN.finditer(head)][2:]
            body = list(_outer_words(tokens[1:]))
            if tokens and _KERNEL in body and _QUALIFIERS.issuperset(set(body) - {_KERNEL, "void"}):
                kernel.add(tokens[0])
            elif tokens and _QUALIFIERS.issuperset(body):
                plain.add(tokens[0])
    return Macros(frozenset(plain), frozenset(kernel))


def _outer_words(tokens: list[str]) -> Iterator[str]:
    """What is left when comments and parentheses are taken out."""
    depth = 0
    for token in tokens:
        depth += (token == "(") - (token == ")")
        if depth == 0 and token != ")" and not token.startswith(("//", "/*")):
            yield token


def blank_attributes(source: bytes, macros: Macros = NO_MACROS) -> Blanked:
    """The same bytes with spaces in place of attributes that the grammar does not know; lines stay."""
    out = bytearray(source)
    alone = _ALONE | macros.plain | macros.kernel
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
        elif token in alone or (token in _ON_LAMBDAS and before == "]"):
            _blank(out, *match.span())
            kernels.extend([match.start()] if token in macros.kernel else [])
        elif token == "#":
            directive_end = _end_of_directive(source, match.start())
        if token not in _ON_LAMBDAS:
            before = token
    return Blanked(bytes(out), tuple(kernels))


def _end_of_directive(source: bytes, start: int) -> int:
    end = source.find(b"\n", start)
    while end > 0 and source.endswith((b"\\", b"\\\r"), 0, end):
        end = source.find(b"\n", end + 1)
    return len(source) if end < 0 else end


def _blank(out: bytearray, start: int, end: int) -> None:
    for place in range(start, end):
        if out[place] not in b"\r\n":
            out[place] = 0x20
