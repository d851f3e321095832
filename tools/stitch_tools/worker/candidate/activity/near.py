"""Memory that a 4-byte distance reaches from a program's code, however full the space around it is.

First a free page within 2 GB. Where everything around the program is reserved (a GPU's driver may do that),
the rest of the last page of the program's own code: the loader maps whole pages, and nobody uses what lies
behind the segment's end.
"""

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path

from stitch_tools.worker.candidate.activity.objects import Mapping
from stitch_tools.worker.elf import ElfFile

PAGE = 4096
READ, WRITE, EXECUTE = 1, 2, 4
_PRIVATE, _ANONYMOUS, _NO_REPLACE = 0x02, 0x20, 0x100000
_REACH = (1 << 31) - (1 << 20)
_LOWEST = 1 << 20  # below lies what no process may map
_MOST_TRIES = 64


class Memory:
    """The C library's calls that map and protect memory of this process."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        self._libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def anywhere(self, size: int) -> int:
        """New executable memory, wherever there is some.

        Raises:
            OSError: there is none.
        """
        found = self._map(0, size, 0)
        if found is None:
            raise OSError(ctypes.get_errno(), "no executable memory could be mapped")
        return found

    def near(
        self, start: int, end: int, size: int, used: Sequence[tuple[int, int]] | None = None
    ) -> int | None:
        """New executable memory in reach of every address from `start` to `end`; None where all is used.

        `used` are the ranges that are taken, by address; those of this process if None.
        """
        size = _pages(size)
        taken = used_ranges() if used is None else used
        tries = sorted(
            _free(taken, end - _REACH, start + _REACH, size, start), key=lambda at: abs(at - start)
        )
        for address in tries[:_MOST_TRIES]:
            found = self._map(address, size, _NO_REPLACE)
            if found == address:
                return found
            if found is not None:  # a kernel before 4.17 takes the address as a wish
                self._libc.munmap(found, size)
        return None

    def protect(self, address: int, size: int, how: int) -> None:
        """Change how the pages of a range may be used.

        Raises:
            OSError: this process may not do that.
        """
        first = address // PAGE * PAGE
        if self._libc.mprotect(first, address + size - first, how):
            raise OSError(ctypes.get_errno(), "the program's code could not be made writable")

    def _map(self, address: int, size: int, more: int) -> int | None:
        how = READ | WRITE | EXECUTE
        found = self._libc.mmap(address, _pages(size), how, _PRIVATE | _ANONYMOUS | more, -1, 0)
        return None if found is None or found == ctypes.c_void_p(-1).value else int(found)


def rest_of_code(elf: ElfFile, mapping: Mapping, size: int) -> int | None:
    """Address of unused bytes behind the code of a mapped file; None where its last page is too full."""
    end = mapping.base + elf.segment_end(mapping.offset)
    at = -(-end // 16) * 16
    return at if mapping.start < at and at + size <= _pages(end) else None


def used_ranges() -> list[tuple[int, int]]:
    """Start and end of every mapping of this process, by address."""
    found: list[tuple[int, int]] = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        start, _, end = line.partition(" ")[0].partition("-")
        found.append((int(start, 16), int(end, 16)))
    return found


def _free(used: Sequence[tuple[int, int]], low: int, high: int, size: int, wanted: int) -> Iterator[int]:
    """In each gap between `low` and `high` that holds `size` bytes the page nearest to `wanted`."""
    before = max(low, _LOWEST)
    for start, end in (*used, (high, high)):
        first, last = _pages(before), (min(start, high) - size) // PAGE * PAGE
        if first <= last:
            yield min(max(first, wanted // PAGE * PAGE), last)
        before = max(before, end)


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE
