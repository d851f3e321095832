"""Lines of a byte stream, none of them longer than is bearable."""

from collections.abc import Callable, Generator
from dataclasses import dataclass

_EDGE_BYTES = 1024


@dataclass(frozen=True)
class TooLong:
    """A line of which only both ends are kept."""

    head: bytes
    tail: bytes


class _Line:
    """A line as far as it came."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = bytearray()
        self._long: TooLong | None = None

    def add(self, piece: bytes) -> None:
        if self._long is not None:
            self._long = TooLong(self._long.head, (self._long.tail + piece)[-_EDGE_BYTES:])
            return
        self._kept += piece
        if len(self._kept) > self._most:
            self._long = TooLong(bytes(self._kept[:_EDGE_BYTES]), bytes(self._kept[-_EDGE_BYTES:]))
            self._kept = bytearray()

    def take(self) -> bytes | TooLong:
        found = self._long or bytes(self._kept)
        self._kept, self._long = bytearray(), None
        return found


def split_lines(read: Callable[[], bytes], most: int) -> Generator[bytes | TooLong]:
    """The lines of a stream without their ends, empty ones left out; the last one need not be ended.

    Args:
        read: gives what comes next, and nothing at the stream's end.
        most: bytes of the longest line that is kept whole.
    """
    line = _Line(most)
    while chunk := read():
        first, *others = chunk.split(b"\n")
        line.add(first)
        for piece in others:
            if found := line.take():
                yield found
            line.add(piece)
    if found := line.take():
        yield found
