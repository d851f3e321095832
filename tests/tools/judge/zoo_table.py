"""The suite's results as Markdown."""

import statistics
from collections.abc import Mapping, Sequence

from tests.tools.judge.conditions import in_lines
from tests.tools.judge.zoo_record import ZooRow

_LONGEST_CELL = 110
_EXTRA = (
    ("bench", "under the clock"),
    ("kernelbench_static", "KernelBench: text"),
    ("kernelbench_trials", "KernelBench: trials"),
)


def report(
    rows: Sequence[ZooRow], conditions: Mapping[str, str], repeats: Mapping[str, Mapping[str, int]]
) -> str:
    """All tables."""
    cheats = [row for row in rows if row.kind == "cheats"]
    honest = [row for row in rows if row.kind == "honest"]
    lines = [f"# The adversarial suite on {conditions['target']}", ""]
    lines += in_lines({name: text for name, text in conditions.items() if name != "target"})
    lines += ["", *_summary(cheats, honest), ""]
    lines += ["## Cheats by family", "", *_families(cheats)]
    if repeats:
        lines += ["", "## The same program again and again", "", *_repeats(repeats)]
    lines += ["", "## Cheats", "", *_cases(cheats), "", "## Honest programs", "", *_cases(honest)]
    return "\n".join(lines) + "\n"


def _summary(cheats: Sequence[ZooRow], honest: Sequence[ZooRow]) -> list[str]:
    caught = [row for row in cheats if row.right]
    pairs = {(row.family, row.probes) for row in caught}
    rows = [*cheats, *honest]
    middle = statistics.median(row.seconds for row in rows) if rows else 0.0
    lines = [
        f"- Cheats caught: {len(caught)} of {len(cheats)}; {len(pairs)} distinct pairs of mechanism and "
        "probe, where two caught by one probe for one reason count once.",
        f"- Honest programs accepted: {sum(row.right for row in honest)} of {len(honest)}.",
        f"- Median {middle:.1f} s a case, {sum(row.seconds for row in rows):.0f} s in all; load before each "
        f"case {min((row.load for row in rows), default=0.0):.1f} to "
        f"{max((row.load for row in rows), default=0.0):.1f}.",
    ]
    return [*lines, *_on_kernelbench(cheats, honest)]


def _on_kernelbench(cheats: Sequence[ZooRow], honest: Sequence[ZooRow]) -> list[str]:
    lines: list[str] = []
    for name, rows in (("cheats", cheats), ("honest programs", honest)):
        asked = [
            row
            for row in rows
            if row.kernelbench_static is not None and not row.kernelbench_static.startswith("not run")
        ]
        if asked:
            static = sum(row.kernelbench_static != "fine" for row in asked)
            trials = sum(row.kernelbench_trials != "correct" for row in asked)
            passed = sum(
                (row.kernelbench_static, row.kernelbench_trials) == ("fine", "correct") for row in asked
            )
            lines.append(
                f"- KernelBench's own checker on {len(asked)} {name}: its reading of the text refuses "
                f"{static}, its five trials refuse {trials}; {passed} pass both."
            )
    return lines


def _families(cheats: Sequence[ZooRow]) -> list[str]:
    lines = ["| family | caught | total | probes |", "|---|---|---|---|"]
    for family in sorted({row.family for row in cheats}):
        own = [row for row in cheats if row.family == family]
        probes = ", ".join(sorted({probe for row in own for probe in row.probes}))
        lines.append(f"| {family} | {sum(row.right for row in own)} | {len(own)} | {probes} |")
    return lines


def _repeats(repeats: Mapping[str, Mapping[str, int]]) -> list[str]:
    lines = ["| program | verdicts |", "|---|---|"]
    for name, counts in repeats.items():
        lines.append(f"| {name} | {', '.join(f'{count} times {word}' for word, count in counts.items())} |")
    return lines


def _cases(rows: Sequence[ZooRow]) -> list[str]:
    extra = [(name, title) for name, title in _EXTRA if any(getattr(row, name) is not None for row in rows)]
    columns = ["case", "family", "as expected", "status", "noticed by", "flags and rules", "s"]
    columns += [title for _, title in extra]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in rows:
        mark = "yes" if row.right else "no (known)" if row.known_miss else "NO"
        rules = tuple(dict.fromkeys((*row.flags, *row.rules)))
        cells = [row.name, row.family, mark, row.status, ", ".join(row.noticed), ", ".join(rules)]
        cells += [f"{row.seconds:.1f}", *(_cell(row, name) for name, _ in extra)]
        lines.append(f"| {' | '.join(_short(cell) for cell in cells)} |")
    return lines


def _cell(row: ZooRow, name: str) -> str:
    value = getattr(row, name)
    return "-" if value is None else str(value)


def _short(text: str) -> str:
    line = " ".join(text.replace("|", "/").split())
    return line if len(line) <= _LONGEST_CELL else f"{line[: _LONGEST_CELL - 3]}..."
