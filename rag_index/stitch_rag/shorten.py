"""Makes hits fit a bound: later texts go first, then texts are cut, then hits are left out."""

from collections.abc import Sequence

from stitch_rag.results import Hit

CHARACTERS_PER_TOKEN = 4
_OVERHEAD = 130
"""Characters of a hit in an answer beside its texts and names, about: what its fields are called, numbers."""
_LISTED = 4
"""... and of each name in a list."""
_STEPS = (3000, 1200, 500, 200, 0)
"""Longest text of a hit, from one step to the next."""


def shorten(hits: Sequence[Hit], max_tokens: int) -> tuple[list[Hit], list[str]]:
    """The hits within `max_tokens`, and what the reader should know of what is missing.

    The first hit is kept whatever the bound, with its text cut as far as needed.
    """
    # Estimated, since the client's tokenizer is unknown.
    budget = max_tokens * CHARACTERS_PER_TOKEN
    rows = list(hits)
    sizes = [_size(row) for row in rows]
    for longest in _STEPS:
        # The last hit's text is the first to go: the better the hit, the longer its text stays whole.
        for place in range(len(rows) - 1, -1, -1):
            if sum(sizes) <= budget:
                return rows, []
            rows[place] = _cut(rows[place], longest)
            sizes[place] = _size(rows[place])
    left_out = 0
    # Only when no text is left: a name with its first sentence still tells more than a missing hit.
    while len(rows) > 1 and sum(sizes) > budget:
        rows.pop()
        sizes.pop()
        left_out += 1
    if sum(sizes) > budget and rows:
        rows[0] = rows[0].model_copy(
            update={
                "signature": _clip(rows[0].signature, budget // 2),
                "summary": _clip(rows[0].summary, budget // 4),
            }
        )
    more = "1 more hit" if left_out == 1 else f"{left_out} more hits"
    return rows, [f"{more} did not fit into {max_tokens} tokens"] if left_out else []


def _size(hit: Hit) -> int:
    """Characters that it takes in an answer, about."""
    texts_of_hit = (hit.id, hit.symbol, hit.path, hit.parent, hit.twin, hit.source)
    texts = len(hit.signature) + len(hit.summary) + len(hit.text)
    return _OVERHEAD + sum(map(len, texts_of_hit)) + sum(len(name) + _LISTED for name in hit.aliases) + texts


def _cut(hit: Hit, longest: int) -> Hit:
    if len(hit.text) <= longest:
        return hit
    return hit.model_copy(update={"text": _clip(hit.text, longest), "shortened": True})


def _clip(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[: max(0, longest - 4)].rstrip()} ..." if longest > 40 else ""
