"""Memory of this machine that is free for work. Needs no torch; used at both ends."""

import os
from pathlib import Path


def available_bytes() -> int:
    """Memory that can be taken without pushing anything out."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
