"""docs/rules.md, written from the table: `python -m stitch_tools.judge.source.document docs/rules.md`."""

import sys
from pathlib import Path

from stitch_tools.judge.source.rule import Rule
from stitch_tools.judge.source.table import RULES

_HEAD = """# Rules of the static evidence

Written by `python -m stitch_tools.judge.source.document docs/rules.md`; do not edit.

A program's text is parsed, never run: Python with `ast`, C++ and CUDA with tree-sitter, sources inside
Python strings included. Each finding names file, line and quote. Severity:

- **fatal**: no honest program does this. One such finding rejects the program.
- **suspicious**: more evidence is asked for when the program runs, and the finding stays visible.
- **note**: information.

What running a program can decide is never fatal here. Comments and strings alone never convict. A finding
in code that nothing was seen to run weighs one step less. The severity below is the strongest that the rule
gives.

| rule | severity | what it means | what to do |
|---|---|---|---|
"""


def rules_document(rules: tuple[Rule, ...] = RULES) -> str:
    """The document's text."""
    rows = [f"| `{row.id}` | {row.severity} | {row.meaning} | {row.advice} |" for row in rules]
    return _HEAD + "\n".join(rows) + "\n"


def main() -> None:
    """Write the document to the path on the command line."""
    Path(sys.argv[1]).write_text(rules_document(), encoding="utf-8")


if __name__ == "__main__":
    main()
