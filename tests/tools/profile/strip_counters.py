"""Reduces pages of ncu to what is read, without processes, hosts and NVIDIA's words: for recorded reports.

python -m tests.tools.profile.strip_counters raw IN OUT.gz      a raw page: the metrics that are read
python -m tests.tools.profile.strip_counters rules IN OUT.gz    a details page: rules without words
"""

import csv
import gzip
import io
import sys
from pathlib import Path

from stitch_tools.profile.ncu_metrics import OLDER_NAMES
from stitch_tools.profile.questions import ALL_METRICS

_PRIVATE = ("Process ID", "Process Name", "Host Name", "Kernel Time")


def strip_raw(text: str) -> str:
    """The raw page with the columns that are read, in its own order."""
    rows = _table(text)
    kept = {*ALL_METRICS, *OLDER_NAMES.values()}
    chosen = [
        at for at, name in enumerate(rows[0]) if name in kept or ("__" not in name and name[:1].isupper())
    ]
    return _written([[_shown(rows[0][at], row[at], row is rows[0]) for at in chosen] for row in rows])


def strip_rules(text: str) -> str:
    """The details page with the lines of rules alone, and no words of theirs."""
    header, *rows = _table(text)
    name, said = header.index("Rule Name"), header.index("Rule Description")
    result = [header]
    for row in rows:
        padded = [*row, *[""] * (len(header) - len(row))]
        if padded[name]:
            padded[said] = "NVIDIA's words"
            result.append([_shown(title, cell, False) for title, cell in zip(header, padded, strict=True)])
    return _written(result)


def _table(text: str) -> list[list[str]]:
    lines = text.splitlines(keepends=True)
    start = next(at for at, line in enumerate(lines) if line.startswith('"ID"'))
    return list(csv.reader(line for line in lines[start:] if not line.startswith("==")))


def _shown(title: str, cell: str, is_header: bool) -> str:
    return "-" if title in _PRIVATE and cell and not is_header else cell


def _written(rows: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return text.getvalue()


if __name__ == "__main__":
    kind, source, target = sys.argv[1:]
    page = Path(source).read_text(encoding="utf-8")
    stripped = strip_raw(page) if kind == "raw" else strip_rules(page)
    Path(target).write_bytes(gzip.compress(stripped.encode("utf-8"), mtime=0))
