"""What a question names: existing names, names spelled like one that does not exist, quoted messages."""

import builtins
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from stitch_rag.chunks import Chunk
from stitch_rag.question import ParsedQuestion
from stitch_rag.store import IndexStore

MOST = 5
_SHORTEST = 4
_MOST_UNKNOWN = 3
_SLACK = 4
_LIKENESS = 0.75
"""Of difflib's ratio: a slip or two in a name."""
_WORD = re.compile(r"[a-z0-9]+")
_PART = re.compile(r"(?<=[a-z0-9])[A-Z]|_(?=[A-Za-z0-9])")
"""Where a part of a name begins."""
_TELLING = 4
"""Words of a message that no question says by chance."""
_FEWEST = 2
"""... and of one that is most of the question."""


@dataclass(frozen=True, slots=True)
class Named:
    """What the names of a question lead to."""

    exact: tuple[int, ...] = ()
    """Numbers of chunks that bear one, in the order of the question."""
    quoted: tuple[int, ...] = ()
    """... of errors whose message the question repeats word by word, the longest first."""
    similar: tuple[int, ...] = ()
    """... that bear a name like one that nothing bears, the nearest first."""
    nearest: tuple[str, ...] = ()
    """Those names."""


def named(store: IndexStore, question: ParsedQuestion) -> Named:
    """The chunks that the question names, or seems to."""
    by_name = {name: store.by_name(name) for name in question.names}
    exact = dict.fromkeys(number for numbers in by_name.values() for number in numbers)
    # A word that entries use, such as a library's name, is no slip, nor is RuntimeError.
    unknown = [
        name
        for name, numbers in by_name.items()
        if not numbers and len(name) >= _SHORTEST and not hasattr(builtins, name)
    ]
    frequencies = store.frequencies([name.lower() for name in unknown])
    unknown = [name for name in unknown if not frequencies[name.lower()] and not store.has_members(name)]
    # Bounded, since each look-up reads many names.
    near = {name: similar(store, name) for name in unknown[:_MOST_UNKNOWN]}
    numbers = dict.fromkeys(row[0] for rows in near.values() for row in rows)
    # torch.nn.Linear exists, and is read as torch::nn::Linear and nn::Linear, too: nothing is wrong with it,
    # nor with cg::tiled_partition, whose name after the namespace exists.
    existing = [f".{_plain(name)}" for name, chunks in by_name.items() if chunks]
    names = dict.fromkeys(
        row[1]
        for name, rows in near.items()
        if not any(whole.endswith(f".{_plain(name)}") for whole in existing)
        and not (rows and rows[0][0] in exact)
        for row in rows
    )
    return Named(tuple(exact), _quoted(store, question.text), tuple(numbers), tuple(names)[:MOST])


def _quoted(store: IndexStore, text: str) -> tuple[int, ...]:
    """A message is what people have at hand when they ask: `CUDA error: an illegal memory access ...`."""
    asked = _WORD.findall(text.lower())
    whole = f" {' '.join(asked)} "
    scored: list[tuple[int, int]] = []
    for number, message in store.messages():
        words = _WORD.findall(message.lower())
        enough = len(words) >= _TELLING or (len(words) >= _FEWEST and 2 * len(words) >= len(asked))
        # Compared as words with spaces around them: "invalid value" is no part of "invalid valued".
        if enough and f" {' '.join(words)} " in whole:
            scored.append((-len(words), number))
    longest = min(scored, default=(0, 0))[0]
    # "invalid argument" is a part of longer messages, too.
    return tuple(number for length, number in sorted(scored) if length == longest)


def _plain(name: str) -> str:
    return name.replace("::", ".").lower()


def similar(store: IndexStore, name: str) -> list[tuple[int, str]]:
    """Number and spelling of existing names like `name`, nearest first."""
    low = name.lower()[:80]
    heads = [head for head in _heads(name) if store.by_name(head)][:1]
    near = list(dict.fromkeys([*store.names_like(low, _SLACK), *heads]))
    # The store narrows the candidates down by length and ends of the name first, since difflib is slow.
    spelled = difflib.get_close_matches(low, near, n=MOST, cutoff=_LIKENESS) or heads
    numbers = [number for spelling in spelled for number in store.by_name(spelling)[:1]]
    chunks = store.get(numbers)
    return [(number, _spelling(chunks[number], spelled)) for number in numbers]


def _heads(name: str) -> list[str]:
    """The name without its last parts, while half of it and two parts are left: models add parts to names.

    A head of one part is a word: `transpose_tile` is no slip of `transpose`.
    """
    ends = [match.start() for match in _PART.finditer(name)][1:]
    return [name[:end].lower() for end in reversed(ends) if 2 * end >= len(name)]


def _spelling(chunk: Chunk, spelled: Sequence[str]) -> str:
    names = (chunk.symbol, *chunk.aliases)
    return next((name for name in names if name.lower() in spelled), chunk.symbol)
