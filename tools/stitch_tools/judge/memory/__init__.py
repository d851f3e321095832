"""Memory errors, races and undefined behaviour: a program run under sanitizers, and what they saw."""

from stitch_tools.judge.memory.case import SanitizeOptions
from stitch_tools.judge.memory.run import apply_sanitizers, sanitize_program

__all__ = ["SanitizeOptions", "apply_sanitizers", "sanitize_program"]
