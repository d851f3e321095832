"""Which symbols a shared library exports.

So no binutils are needed where only the compiler's own are present.
"""

import struct
from pathlib import Path

from stitch_tools.worker.elf import SHT_DYNSYM, ElfFile

ABI_SYMBOLS = (
    "stitch_abi_version",
    "stitch_init",
    "stitch_plan",
    "stitch_forward",
    "stitch_last_error",
    "stitch_free",
)

_HIDDEN = (1, 2)  # STV_INTERNAL, STV_HIDDEN


def exported_symbols(path: Path) -> frozenset[str]:
    """The symbols that other libraries can bind to in a 64-bit little-endian ELF file.

    Raises:
        ValueError: the file is not one, or is cut off.
    """
    try:
        elf = ElfFile(path.read_bytes(), str(path))
        return frozenset(
            symbol.name
            for symbol in elf.symbols(SHT_DYNSYM)
            if symbol.section != 0 and symbol.info >> 4 != 0 and (symbol.other & 3) not in _HIDDEN
        )
    except (struct.error, IndexError, ValueError) as error:
        raise ValueError(f"{path} is no whole ELF file: {error}") from error


def missing_abi_symbols(path: Path) -> tuple[str, ...]:
    """The functions of the native ABI that the library does not export, in the header's order."""
    exported = exported_symbols(path)
    return tuple(name for name in ABI_SYMBOLS if name not in exported)
