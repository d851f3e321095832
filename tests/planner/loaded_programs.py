"""What loading a Python program leaves in this process."""

import contextlib
import sys
from collections.abc import Generator

_PROGRAMS = ("stitch_reference", "stitch_candidate", "stitch_runtime")


@contextlib.contextmanager
def programs_forgotten() -> Generator[None]:
    """Programs are imported anew after the block: all use the same names for what they bring along."""
    before = set(sys.modules)
    try:
        yield
    finally:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in _PROGRAMS:
                del sys.modules[name]
