"""The messages between a search and its child process: one JSON line each way."""

from typing import TypedDict


class VectorRequest(TypedDict, total=False):
    """One request; the first of these keys that it holds says what is asked for."""

    add: list[tuple[str, str]]
    """Ids and texts to embed and store."""
    drop: list[str]
    """Ids to remove."""
    alone: bool
    """Remove the vectors of all other models."""
    ids: bool
    """List the stored ids."""
    query: str
    """A text to embed; its nearest stored texts are wanted."""
    count: int
    """How many of them."""


class VectorReply(TypedDict, total=False):
    """One reply. `error` alone: the request failed."""

    ready: bool
    """The first line of a child that has loaded its model."""
    stored: int
    """How many vectors it had then."""
    added: int
    dropped: int
    ids: list[str]
    hits: list[tuple[str, float]]
    """Id and similarity (up to 1), the nearest first."""
    error: str
