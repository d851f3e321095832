"""Verdicts on programs found elsewhere beside the labels of their readers, as JSON lines and as Markdown."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from tests.tools.judge.conditions import in_lines

LABELS = ("honest", "specialized", "partial", "reduced", "wrong", "cheat")
COUNTS, QUALIFIED = "counts", "accepted with a shortcoming"
FITS = {
    "honest": (COUNTS,),
    "specialized": (COUNTS, QUALIFIED),
    "partial": (QUALIFIED,),
}
"""Outcomes that agree with a label; those of the other labels are refusals, whatever the status."""


@dataclass
class WildRow:
    """What was said of one case."""

    case: str
    kind: str
    digest: str
    target: str
    revision: str
    status: str = "error"
    """`error`: there is no verdict, the judge failed or was stuck."""
    flags: tuple[str, ...] = ()
    counts: bool = False
    reasons: tuple[str, ...] = ()
    """Why it does not count: rule and sentence."""
    findings: tuple[str, ...] = ()
    """Rules, with their severity."""
    message: str = ""
    """First sentence."""
    kernelbench: bool | None = None
    """KernelBench's own rule on the same draws; None: it was not compared."""
    build_s: float | None = None
    """None: a program in Python, whose check builds it."""
    check_s: float = 0.0
    bench: str | None = None
    """None: not timed."""

    @property
    def outcome(self) -> str:
        """The word of the table."""
        return COUNTS if self.counts else QUALIFIED if self.status == "accepted" else self.status


ROWS = TypeAdapter(WildRow)


def read_rows(lines: Path, target: str) -> dict[str, WildRow]:
    """The last row of each case on the target; a torn last line is left out."""
    rows: dict[str, WildRow] = {}
    with suppress(FileNotFoundError), lines.open(encoding="utf-8") as file:
        for line in file:
            with suppress(ValidationError):
                row = ROWS.validate_json(line)
                if row.target == target:
                    rows[row.case] = row
    return rows


class Labels:
    """What the readers said of each case."""

    def __init__(self, corpus: Path) -> None:
        first, second, third = (read_labels(corpus / f"labels{name}.toml") for name in ("1", "2", ""))
        self.read = [labels for labels in (first, second) if labels]
        self.disputed = [name for name in first if name in second and first[name] != second[name]]
        both = {name: label for name, label in first.items() if second.get(name) == label}
        self.settled = {**(both if len(self.read) == 2 else self.read[0] if self.read else {}), **third}
        """A case's label: both readers' or, where only one has read, that one's; the third file's else."""

    def describe(self, name: str) -> str:
        """Both readers' words."""
        return " / ".join(labels.get(name, "not read") for labels in self.read)


def read_labels(path: Path) -> dict[str, str]:
    """Labels by case.

    Raises:
        ValueError: a label has another name.
    """
    raw = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    labels = {name: table["label"] for name, table in raw.items()}
    if unknown := sorted(set(labels.values()) - set(LABELS)):
        raise ValueError(f"{path.name}: unknown label: {', '.join(unknown)}")
    return labels


def report(rows: Mapping[str, WildRow], labels: Labels, where: Mapping[str, str]) -> str:
    """Everything as Markdown: labels against outcomes, then what does not fit, and each case."""
    settled = {name: labels.settled[name] for name in rows if name in labels.settled}
    lines = ["# Programs found elsewhere", "", *in_lines(dict(where)), ""]
    if len(labels.read) < 2:
        lines += ["Labels are provisional: not two readers have read the corpus.", ""]
    for kind in ("all kinds", *sorted({row.kind for row in rows.values()})):
        own = [name for name in settled if kind in ("all kinds", rows[name].kind)]
        lines += [f"## Label against outcome: {kind}", "", *confusion(own, rows, settled), ""]
    refused = [name for name, label in settled.items() if label == "honest" and rows[name].outcome != COUNTS]
    lines += ["## Honest programs that do not count", "", *(told(rows[name]) for name in refused), ""]
    others = [name for name in settled if name not in refused and not fits(settled[name], rows[name])]
    lines += ["## Other outcomes against the label", ""]
    lines += [*(f"{told(rows[name])} Label: {settled[name]}." for name in others), ""]
    open_cases = [name for name in labels.disputed if name not in labels.settled]
    lines += [
        "## Readers disagree",
        "",
        *(f"- {name}: {labels.describe(name)}" for name in open_cases if name in rows),
        "",
    ]
    return "\n".join([*lines, "## Cases", "", *every_case(rows, settled)]) + "\n"


def fits(label: str, row: WildRow) -> bool:
    """Whether the outcome is what the label asks for."""
    return row.outcome in FITS[label] if label in FITS else row.status != "accepted"


def confusion(names: Iterable[str], rows: Mapping[str, WildRow], labels: Mapping[str, str]) -> list[str]:
    """Counts of label and outcome."""
    found = Counter((labels[name], rows[name].outcome) for name in names)
    outcomes = sorted(
        {outcome for _, outcome in found}, key=lambda word: (word != COUNTS, word != QUALIFIED, word)
    )
    lines = [f"| label | {' | '.join([*outcomes, 'all'])} |", f"|{'---|' * (len(outcomes) + 2)}"]
    for label in (label for label in LABELS if any(label == known for known, _ in found)):
        counts = [found[label, outcome] for outcome in outcomes]
        lines.append(f"| {label} | {' | '.join(str(count or '') for count in [*counts, sum(counts)])} |")
    return lines if found else ["None."]


def told(row: WildRow) -> str:
    """A case with what was said of it, as an item of a list."""
    reasons = "; ".join(row.reasons) or row.message
    return f"- {row.case} ({row.kind}): {row.status}: {' '.join(reasons.split())}"


def every_case(rows: Mapping[str, WildRow], labels: Mapping[str, str]) -> list[str]:
    """One line a case."""
    lines = ["| case | kind | label | outcome | flags | KernelBench's rule | bench | build s | check s |"]
    lines.append(f"|{'---|' * 9}")
    for name, row in sorted(rows.items()):
        rule = "" if row.kernelbench is None else "equal" if row.kernelbench else "not equal"
        cells = [name, row.kind, labels.get(name, "open"), row.outcome, ", ".join(row.flags), rule]
        cells += [(row.bench or "").partition(":")[0], "" if row.build_s is None else f"{row.build_s:.0f}"]
        lines.append(f"| {' | '.join([*cells, f'{row.check_s:.0f}'])} |")
    return lines
