"""Memory errors, races and undefined behaviour: a program run under sanitizers, and what they saw."""

from stitch_tools.sanitize.judge import apply_sanitizers, skipped_sanitizers
from stitch_tools.sanitize.run import SanitizeOptions, sanitize_program

__all__ = ["SanitizeOptions", "apply_sanitizers", "sanitize_program", "skipped_sanitizers"]
