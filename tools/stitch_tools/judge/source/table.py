"""All rules, in the order of docs/rules.md.

A new rule is a function, an entry in its file's `RULES`, and its kind in `stitch_tools.models.finding_kinds`.
"""

from stitch_tools.judge.source import (
    rules_attacks,
    rules_kernels,
    rules_patches,
    rules_pytorch,
    rules_reference,
    rules_results,
    rules_text,
)
from stitch_tools.judge.source.program import SourceRule

_FILES = (
    rules_patches, rules_attacks, rules_reference, rules_results, rules_kernels, rules_pytorch, rules_text,
)  # fmt: skip
_WEIGHT = ("fatal", "suspicious", "note")
RULES: tuple[SourceRule, ...] = tuple(
    sorted((rule for file in _FILES for rule in file.RULES), key=lambda rule: _WEIGHT.index(rule.severity))
)
