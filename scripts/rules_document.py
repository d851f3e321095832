"""Writes docs/rules.md from the table of rules: `scripts/rules_document.py docs/rules.md`."""

import sys
from pathlib import Path

from stitch_tools.judge.source.scan import RULES
from stitch_tools.models.finding_kinds import STATIC_RULE_KINDS

_HEAD = """# Rules of the static evidence

Written by `scripts/rules_document.py docs/rules.md`; do not edit.

A program's text is parsed, never run: Python with `ast`, C++ and CUDA with tree-sitter, sources inside
Python strings included. Each finding names file, line and quote. Severity:

- **fatal**: no honest program does this. One such finding rejects the program.
- **suspicious**: stays visible, and counts against the program where the verdict's policy names its kind.
- **note**: information.

What running a program can decide is never fatal here. Comments and strings alone never convict. A finding
in Python code that nothing was seen to run weighs one step less. The severity below is the strongest that
the rule gives; the kind is what `stitch_tools.models.finding_kinds` makes of it.

| rule | severity | kind | what it means | what to do |
|---|---|---|---|---|
"""


def rules_document() -> str:
    """The text of docs/rules.md."""
    rows = [
        f"| `{row.id}` | {row.severity} | {STATIC_RULE_KINDS[row.id]} | {row.meaning} | {row.advice} |"
        for row in RULES
    ]
    return _HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(rules_document(), encoding="utf-8")
