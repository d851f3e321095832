"""A long source in short: each block at its margin by its first line, and the blocks that matter whole."""

import re
from collections.abc import Sequence
from typing import NamedTuple

_OPENS = re.compile(r"(template|struct|class|static|inline|__global__|extern|[A-Za-z_][\w:<>*& ]*\()")
_INNER = re.compile(r"  (  //|[A-Za-z_].*\{$)")
"""Headers of functions inside a block, and comments on what they do."""
_LEFT_OUT = "  // ... {count} lines are left out"


class Block(NamedTuple):
    """Lines from one that begins at the margin to the brace that closes it there."""

    lines: list[str]
    is_code: bool
    """Whether it has a body that can be left out."""

    @property
    def text(self) -> str:
        """All its lines."""
        return "\n".join(self.lines)


def outlined(source: str, costly: Sequence[str], most_chars: int) -> str:
    """The source with the bodies of its blocks left out, but for those of the named ones as far as they fit.

    Args:
        source: C++ or CUDA.
        costly: names of nodes whose kernels matter, the costliest first.
        most_chars: size of the result, more or less.
    """
    blocks = _blocks(source)
    short = [_shortened(block) for block in blocks]
    room = most_chars - sum(map(len, short))
    for name in costly:
        wanted = _plain(name)
        for place, block in enumerate(blocks):
            is_named = block.is_code and wanted and wanted in _plain(block.lines[0].partition("(")[0])
            extra = len(block.text) - len(short[place])
            if is_named and short[place] != block.text and extra <= room:
                short[place] = block.text
                room -= extra
    return "\n".join(short)


def _blocks(source: str) -> list[Block]:
    blocks: list[Block] = []
    opened: list[str] = []
    for line in source.splitlines():
        if opened:
            opened.append(line)
            if line.startswith("}"):
                blocks.append(Block(opened, is_code=True))
                opened = []
        elif _OPENS.match(line) and not line.rstrip().endswith(("}", ";")):
            opened = [line]
        else:
            blocks.append(Block([line], is_code=False))
    return [*blocks, *([Block(opened, is_code=True)] if opened else [])]


def _shortened(block: Block) -> str:
    if not block.is_code or len(block.lines) < 4:
        return block.text
    inner = [line for line in block.lines[1:-1] if _INNER.match(line)]
    left_out = _LEFT_OUT.format(count=len(block.lines) - 2 - len(inner))
    return "\n".join((block.lines[0], *inner, left_out, block.lines[-1]))


def _plain(name: str) -> str:
    """A name as `softmax_1` and `struct Softmax1Kernel` have it in common."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
