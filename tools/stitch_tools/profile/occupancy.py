"""How many blocks of a kernel a multiprocessor holds at once, computed from registers, memory and block size.

The rules are those of CUDA's own occupancy calculator (cuda_occupancy.h): warps are given registers of their
sub-partition, in units of 256; blocks are given shared memory in units of 128 bytes, and 1 KiB each that the
driver keeps for itself.
"""

from dataclasses import dataclass
from typing import Literal

OccupancyLimit = Literal["warps", "blocks", "registers", "shared memory"]
WARP = 32
_SUB_PARTITIONS = 4
_REGISTERS = 65536
_REGISTER_UNIT = 256
_MOST_REGISTERS = 255
_MOST_THREADS = 1024


@dataclass(frozen=True)
class Multiprocessor:
    """What one multiprocessor of an architecture holds."""

    warps: int
    blocks: int
    shared_bytes: int
    shared_unit_bytes: int = 128
    reserved_bytes: int = 1024
    """Shared memory of each block that the driver uses."""


_BY_ARCH = {
    70: Multiprocessor(64, 32, 96 << 10, 256, 0),
    72: Multiprocessor(64, 32, 96 << 10, 256, 0),
    75: Multiprocessor(32, 16, 64 << 10, 256, 0),
    80: Multiprocessor(64, 32, 164 << 10),
    86: Multiprocessor(48, 16, 100 << 10),
    87: Multiprocessor(48, 16, 164 << 10),
    89: Multiprocessor(48, 24, 100 << 10),
    90: Multiprocessor(64, 32, 228 << 10),
    100: Multiprocessor(64, 32, 228 << 10),
    103: Multiprocessor(64, 32, 228 << 10),
    110: Multiprocessor(48, 24, 228 << 10),
    120: Multiprocessor(48, 24, 100 << 10),
    121: Multiprocessor(48, 24, 100 << 10),
}


@dataclass(frozen=True)
class Occupancy:
    """How full a multiprocessor can get, and what keeps it from being fuller."""

    blocks: int
    """At once on one multiprocessor; 0: such a block cannot be launched."""
    share: float
    """Warps at once over the most that there can be, 0 to 1."""
    limits: dict[OccupancyLimit, int]
    """Blocks at once that each resource allows."""

    @property
    def limited_by(self) -> OccupancyLimit:
        """The scarcest resource; of equal ones the first that a programmer can change."""
        order: tuple[OccupancyLimit, ...] = ("registers", "shared memory", "warps", "blocks")
        return min(order, key=lambda limit: self.limits[limit])


def multiprocessor(arch: str) -> Multiprocessor | None:
    """The multiprocessor of `sm_90`, `90a` or `9.0`; None of an architecture that is not known here."""
    number = arch.removeprefix("sm_").rstrip("af")
    major, dot, minor = number.partition(".")
    digits = f"{major}{minor}" if dot else number
    return _BY_ARCH.get(int(digits)) if digits.isdecimal() else None


def occupancy(
    arch: str, *, threads: int, registers: int, shared_bytes: int = 0, reserved: bool = False
) -> Occupancy | None:
    """The theoretical occupancy of a launch; None for an unknown architecture or an impossible block.

    Args:
        arch: sm_90, or compute capability 9.0.
        threads: of one block.
        registers: of one thread.
        shared_bytes: static plus dynamic, of one block.
        reserved: whether `shared_bytes` holds the driver's part already, as ncu's figures do.
    """
    unit = multiprocessor(arch)
    if unit is None or not 0 < threads <= _MOST_THREADS or registers > _MOST_REGISTERS:
        return None
    warps = -(-threads // WARP)
    limits: dict[OccupancyLimit, int] = {
        "warps": unit.warps // warps,
        "blocks": unit.blocks,
        "registers": _by_registers(registers, warps) if registers else unit.blocks,
        "shared memory": unit.blocks,
    }
    taken = shared_bytes + (0 if reserved else unit.reserved_bytes)
    taken = -(-taken // unit.shared_unit_bytes) * unit.shared_unit_bytes
    if taken:
        limits["shared memory"] = unit.shared_bytes // taken
    blocks = min(limits.values())
    return Occupancy(blocks, blocks * warps / unit.warps, limits)


def registers_for(arch: str, *, threads: int, blocks: int) -> int | None:
    """The most registers a thread with which `blocks` blocks of `threads` fit; None if they never do."""
    fitting = (
        count
        for count in range(_MOST_REGISTERS, 15, -1)
        if (found := occupancy(arch, threads=threads, registers=count)) and found.blocks >= blocks
    )
    return next(fitting, None)


def _by_registers(registers: int, warps: int) -> int:
    a_warp = -(-registers * WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    # A launch is refused unless the block fits with its warps rounded up to all sub-partitions.
    if a_warp * (-(-warps // _SUB_PARTITIONS) * _SUB_PARTITIONS) > _REGISTERS:
        return 0
    return (_REGISTERS // _SUB_PARTITIONS // a_warp) * _SUB_PARTITIONS // warps
