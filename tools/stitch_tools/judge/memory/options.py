"""What a run under the sanitizers does, and how long it waits."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stitch_tools.models.sanitizer import SanitizerTool


@dataclass(frozen=True)
class SanitizeOptions:
    """Which tools run, and how long each may take."""

    tools: Sequence[SanitizerTool] = ()
    """() is all of the device's."""
    limit_s: float = 120.0
    """Seconds of one draw under one tool, however busy the machine is; what takes longer is not checked."""
    build_limit_s: float = 300.0
    """Seconds for building the program with a sanitizer."""
    cache_dir: Path | None = None
    """Cache folder; None is the user's."""
