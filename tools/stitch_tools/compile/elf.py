"""Which symbols a shared library exports and which libraries it links.

So no binutils are needed where only the compiler's own are present.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stitch_tools.worker.elf import SHT_DYNAMIC, SHT_DYNSYM, ElfFile

ABI_SYMBOLS = (
    "stitch_abi_version",
    "stitch_init",
    "stitch_plan",
    "stitch_forward",
    "stitch_last_error",
    "stitch_free",
)

_DT_NEEDED = 1
_HIDDEN = (1, 2)  # STV_INTERNAL, STV_HIDDEN


@dataclass(frozen=True)
class SharedLibrary:
    """What the dynamic loader sees of one library."""

    exported: frozenset[str]
    """Defined symbols that other libraries can bind to."""
    needed: tuple[str, ...]
    """Sonames that it links."""


def read_shared_library(path: Path) -> SharedLibrary:
    """The exported symbols and linked libraries of a 64-bit little-endian ELF file.

    Raises:
        ValueError: the file is not one, or is cut off.
    """
    data = path.read_bytes()
    try:
        elf = ElfFile(data, str(path))
        exported = frozenset(
            symbol.name
            for symbol in elf.symbols(SHT_DYNSYM)
            if symbol.section != 0 and symbol.info >> 4 != 0 and (symbol.other & 3) not in _HIDDEN
        )
        return SharedLibrary(exported, tuple(_needed(elf)))
    except (struct.error, IndexError, ValueError) as error:
        raise ValueError(f"{path} is no whole ELF file: {error}") from error


def missing_abi_symbols(path: Path) -> tuple[str, ...]:
    """The functions of the native ABI that the library does not export, in the header's order."""
    exported = read_shared_library(path).exported
    return tuple(name for name in ABI_SYMBOLS if name not in exported)


def _needed(elf: ElfFile) -> Iterator[str]:
    for section in elf.sections:
        if section.kind != SHT_DYNAMIC:
            continue
        for start in range(section.offset, section.offset + section.size, 16):
            tag, value = struct.unpack_from("<qQ", elf.data, start)
            if tag == _DT_NEEDED:
                yield elf.text(elf.sections[section.link].offset + value)
