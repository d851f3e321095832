"""A small reader of 64-bit ELF files: sections and symbols, with the standard library alone."""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SHT_SYMTAB, SHT_DYNSYM = 2, 11
_SYMBOL = struct.Struct("<IBBH16x")

Bytes = bytes | mmap.mmap


@dataclass(frozen=True)
class ElfSection:
    """One section of the file."""

    kind: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True)
class Symbol:
    """One defined or undefined symbol."""

    name: str
    info: int
    other: int
    section: int
    """0: undefined."""


class ElfFile:
    """An ELF file in memory.

    Damaged files make the methods raise ValueError, IndexError or struct.error; the constructor checks the
    magic alone.
    """

    def __init__(self, data: Bytes, name: str) -> None:
        """`name` is for the message.

        Raises:
            ValueError: this is no 64-bit little-endian ELF file.
        """
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{name} is not a 64-bit little-endian ELF file")
        self.data = data
        self.sections = list(_sections(data))

    def symbols(self, kind: int) -> Iterator[Symbol]:
        """The symbols of the tables of one kind (SHT_SYMTAB, SHT_DYNSYM)."""
        for section in self.sections:
            if section.kind == kind:
                for index in range(section.size // _SYMBOL.size):
                    yield self._symbol(section, index)

    def _symbol(self, table: ElfSection, index: int) -> Symbol:
        name, info, other, section = _SYMBOL.unpack_from(self.data, table.offset + index * _SYMBOL.size)
        text = self.text(self.sections[table.link].offset + name)
        return Symbol(text, info, other, section)

    def text(self, start: int) -> str:
        """The NUL-terminated text at an offset of the file."""
        end = self.data.find(b"\0", start)
        if end < 0:
            raise ValueError("a name has no end")
        return bytes(self.data[start:end]).decode("utf-8", "replace")


def open_elf(path: str | Path) -> ElfFile:
    """The ELF file at `path`, mapped into memory.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not one.
    """
    with Path(path).open("rb") as file:
        return ElfFile(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), str(path))


def _sections(data: Bytes) -> Iterator[ElfSection]:
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count = struct.unpack_from("<HH", data, 0x3A)
    for index in range(count):
        _, kind, _, _, offset, size, link, *_ = struct.unpack_from(
            "<IIQQQQIIQQ", data, table + index * entry_size
        )
        yield ElfSection(kind, offset, size, link)
