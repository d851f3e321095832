"""Memory of this machine that is free for work. Needs no torch; used at both ends."""

from pathlib import Path


def available_bytes() -> int:
    """Memory that can be taken without pushing anything out."""
    return _meminfo_bytes("MemAvailable:")


def total_bytes() -> int:
    """All memory of this machine."""
    return _meminfo_bytes("MemTotal:")


def _meminfo_bytes(name: str) -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))
