"""A small reader of ELF shared libraries: which symbols one exports and which libraries it links.

Read with the standard library, so that no binutils are needed where only the compiler's own are present.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ABI_SYMBOLS = (
    "stitch_abi_version",
    "stitch_init",
    "stitch_plan",
    "stitch_forward",
    "stitch_last_error",
    "stitch_free",
)

_SHT_DYNAMIC = 6
_SHT_DYNSYM = 11
_DT_NEEDED = 1
_HIDDEN = (1, 2)  # STV_INTERNAL, STV_HIDDEN


@dataclass(frozen=True)
class SharedLibrary:
    """What the dynamic loader sees of one library."""

    exported: frozenset[str]
    """Defined symbols that other libraries can bind to."""
    needed: tuple[str, ...]
    """Sonames that it links."""


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int
    entry_size: int


def read_shared_library(path: Path) -> SharedLibrary:
    """The exported symbols and linked libraries of a 64-bit little-endian ELF file.

    Raises:
        ValueError: the file is not one, or is cut off.
    """
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
    try:
        sections = list(_sections(data))
        exported = frozenset(name for section in sections for name in _exports(data, sections, section))
        needed = tuple(name for section in sections for name in _needed(data, sections, section))
    except (struct.error, IndexError, ValueError) as error:
        raise ValueError(f"{path} is a damaged ELF file: {error}") from error
    return SharedLibrary(exported, needed)


def missing_abi_symbols(path: Path) -> tuple[str, ...]:
    """The functions of the native ABI that the library does not export, in the header's order."""
    exported = read_shared_library(path).exported
    return tuple(name for name in ABI_SYMBOLS if name not in exported)


def _sections(data: bytes) -> Iterator[_Section]:
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count = struct.unpack_from("<HH", data, 0x3A)
    for index in range(count):
        _, kind, _, _, offset, size, link, _, _, row = struct.unpack_from(
            "<IIQQQQIIQQ", data, table + index * entry_size
        )
        yield _Section(kind, offset, size, link, row)


def _exports(data: bytes, sections: list[_Section], section: _Section) -> Iterator[str]:
    if section.kind != _SHT_DYNSYM:
        return
    strings = sections[section.link]
    for start in range(section.offset, section.offset + section.size, section.entry_size):
        name, info, other, owner, _, _ = struct.unpack_from("<IBBHQQ", data, start)
        binding = info >> 4
        if owner != 0 and binding != 0 and (other & 3) not in _HIDDEN:
            yield _text(data, strings.offset + name)


def _needed(data: bytes, sections: list[_Section], section: _Section) -> Iterator[str]:
    if section.kind != _SHT_DYNAMIC:
        return
    strings = sections[section.link]
    for start in range(section.offset, section.offset + section.size, 16):
        tag, value = struct.unpack_from("<qQ", data, start)
        if tag == _DT_NEEDED:
            yield _text(data, strings.offset + value)


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode("utf-8", "replace")
