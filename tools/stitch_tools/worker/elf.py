"""A small reader of 64-bit ELF files: sections, symbols and imports, with the standard library alone."""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SHT_SYMTAB, SHT_RELA, SHT_DYNAMIC, SHT_DYNSYM = 2, 4, 6, 11
_SHF_EXECINSTR = 4
_PT_LOAD = 1
_PAGE = 4096
_STT_FUNC = 2
_R_X86_64_GLOB_DAT, _R_X86_64_JUMP_SLOT = 6, 7
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")

Bytes = bytes | mmap.mmap


@dataclass(frozen=True)
class Section:
    """One section; `address` is where it lies in memory, relative to the load address."""

    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    entry_size: int

    @property
    def executable(self) -> bool:
        """Whether it holds code."""
        return bool(self.flags & _SHF_EXECINSTR)


@dataclass(frozen=True)
class Symbol:
    """One defined or undefined symbol."""

    name: str
    info: int
    other: int
    section: int
    """0: undefined."""
    address: int
    size: int

    @property
    def is_function(self) -> bool:
        """Whether it names code of this file."""
        return self.info & 15 == _STT_FUNC and self.section != 0


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

    def imports(self, wanted: frozenset[str]) -> Iterator[tuple[str, int]]:
        """Name and relative address of the slots that the loader fills with those functions' addresses."""
        for section in self.sections:
            if section.kind != SHT_RELA:
                continue
            table = self.sections[section.link]
            for start in range(section.offset, section.offset + section.size, _RELOCATION.size):
                place, info, _ = _RELOCATION.unpack_from(self.data, start)
                if info & 0xFFFFFFFF in (_R_X86_64_GLOB_DAT, _R_X86_64_JUMP_SLOT):
                    name = self._symbol(table, info >> 32).name
                    if name in wanted:
                        yield name, place

    def _symbol(self, table: Section, index: int) -> Symbol:
        name, info, other, section, address, size = _SYMBOL.unpack_from(
            self.data, table.offset + index * _SYMBOL.size
        )
        text = self.text(self.sections[table.link].offset + name)
        return Symbol(text, info, other, section, address, size)

    def text(self, start: int) -> str:
        """The NUL-terminated text at an offset of the file."""
        end = self.data.find(b"\0", start)
        if end < 0:
            raise ValueError("a name has no end")
        return bytes(self.data[start:end]).decode("utf-8", "replace")

    def shift(self, offset: int) -> int:
        """Linked address minus file offset of the loaded segment that holds `offset`."""
        segment = self._segment(offset)
        return segment[1] - segment[0] if segment else 0

    def segment_end(self, offset: int) -> int:
        """Where in the file the loaded segment that holds `offset` ends; 0 for none."""
        segment = self._segment(offset)
        return segment[0] + segment[2] if segment else 0

    def _segment(self, offset: int) -> tuple[int, int, int] | None:
        """File offset, linked address and size in the file of the loaded segment that holds `offset`."""
        (table,) = struct.unpack_from("<Q", self.data, 0x20)
        entry_size, count = struct.unpack_from("<HH", self.data, 0x36)
        for index in range(count):
            kind, _, start, address, _, size = struct.unpack_from(
                "<IIQQQQ", self.data, table + index * entry_size
            )
            if kind == _PT_LOAD and start - _PAGE < offset < start + size:
                return int(start), int(address), int(size)
        return None


def open_elf(path: str | Path) -> ElfFile:
    """The ELF file at `path`, mapped into memory.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not one.
    """
    with Path(path).open("rb") as file:
        return ElfFile(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), str(path))


def _sections(data: Bytes) -> Iterator[Section]:
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count = struct.unpack_from("<HH", data, 0x3A)
    for index in range(count):
        _, kind, flags, address, offset, size, link, _, _, row = struct.unpack_from(
            "<IIQQQQIIQQ", data, table + index * entry_size
        )
        yield Section(kind, flags, address, offset, size, link, row)
