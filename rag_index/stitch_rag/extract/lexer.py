"""Splits a C or C++ header into comments, directives, braces and code. It understands no types on purpose.

Real parsers need the include path and trip over vendor macros; a header that documents an interface is
regular enough for this. Nothing here fails: what is not understood is code.
"""

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

TokenKind = Literal["comment", "directive", "open", "close", "end", "code"]

# Runs of plain characters are possessive (++): a choice at each character would take most of an index' time.
# A string has a longest length: each quotation mark that has no counterpart would look for its end.
_TOKEN = re.compile(
    r"""
    (?P<comment> /\*[^*]*+(?:\*(?!/)[^*]*+)*+(?:\*/)? | //(?:[^\n\\]++|\\\n|\\)*+ )
  | (?P<directive> ^[ \t]*\#(?: [^\n/\\]++ | \\\r?\n | \\ | /(?![*/]) )*+ )
  | (?P<string> "(?:[^"\\\n]|\\.){0,300}+" | '(?:[^'\\\n]|\\.){0,16}+' )
  | (?P<open> \{ )
  | (?P<close> \} )
  | (?P<end> ; )
  | (?P<code> (?: [^/"'\#{};\n]++ | /(?![*/]) | \n(?![ \t]*\#) | (?<!\n)\# )++ | . | \n )
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)


class Token(NamedTuple):
    """A piece of the file; `start` and `end` are its lines, counted from 1."""

    kind: TokenKind
    text: str
    start: int
    end: int


def tokens(text: str) -> Iterator[Token]:
    """The pieces of `text` in order; strings count as code, so that braces inside them count nothing."""
    line = 1
    for match in _TOKEN.finditer(text):
        kind, piece = match.lastgroup or "code", match.group()
        first = line
        line += piece.count("\n")
        if kind == "string":
            kind = "code"
        if kind == "code" and not piece.strip():
            continue
        yield Token(kind, piece, first, line)  # pyright: ignore[reportArgumentType] # the groups' names
