"""Whether this user may read a GPU's counters, and what is missing where not."""

import re
from dataclasses import dataclass
from pathlib import Path

_REFUSED = re.compile(r"ERR_NVGPUCTRPERM|does not have permission to access NVIDIA GPU Performance Counters")
_RESTRICTED = re.compile(r"^RmProfilingAdminOnly:\s*(\d+)", re.MULTILINE)
_CAPABILITIES = re.compile(r"^CapEff:\s*([0-9a-fA-F]+)", re.MULTILINE)
_CAP_SYS_ADMIN = 21
_CAP_PERFMON = 38
ALLOW_COUNTERS = (
    "an administrator opens the counters to all users with the line `options nvidia "
    "NVreg_RestrictProfilingToAdminUsers=0` in a file of /etc/modprobe.d, and a reboot; or starts the "
    "container with `--cap-add=SYS_ADMIN`; from driver 565 on CAP_PERFMON (`--cap-add=PERFMON`) is enough. "
    "Nobody needs to run everything as root"
)
"""How to get the permission; the end of a sentence."""


@dataclass(frozen=True)
class CounterAccess:
    """Who may read the counters here, as the driver and this process' capabilities say before any run."""

    restricted: bool | None
    """Whether the driver allows administrators only; None where it does not say."""
    privileged: bool
    """Whether this process has CAP_PERFMON or CAP_SYS_ADMIN."""

    @property
    def likely(self) -> bool | None:
        """Whether ncu will be allowed to read counters; None: only a try can tell."""
        if self.privileged:
            return True
        return None if self.restricted is None else not self.restricted

    def describe(self) -> str:
        """One sentence for people."""
        if self.likely:
            return "GPU counters may be read"
        if self.likely is None:
            return "the driver does not say who may read GPU counters"
        return f"the driver lets administrators alone read GPU counters: {ALLOW_COUNTERS}"


def counter_access(root: Path = Path("/")) -> CounterAccess:
    """What the driver's parameters and /proc/self/status below `root` say."""
    parameters = _read(root / "proc" / "driver" / "nvidia" / "params")
    restricted = _RESTRICTED.search(parameters)
    capabilities = _CAPABILITIES.search(_read(root / "proc" / "self" / "status"))
    held = int(capabilities.group(1), 16) if capabilities else 0
    privileged = bool(held >> _CAP_PERFMON & 1 or held >> _CAP_SYS_ADMIN & 1)
    return CounterAccess(None if restricted is None else restricted.group(1) != "0", privileged)


def is_refused(output: str) -> bool:
    """Whether ncu's output says that the counters may not be read."""
    return _REFUSED.search(output) is not None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
