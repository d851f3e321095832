"""The suite's results as Markdown."""

import statistics
from collections.abc import Mapping, Sequence

from tests.tools.judge.conditions import in_lines
from tests.tools.judge.zoo_record import Row

_LONGEST_CELL = 110
_GAIN = 1.05
"""A speed-up that a naive clock would have reported."""
_FURTHER, _ELSEWHERE = "passes, without", "passes ("
_STOPPED = ("did not end", "died", "ends the harness")
_EXTRA = (
    ("ablation", "without its probe"),
    ("naive", "naive harness"),
    ("bench", "under the clock"),
    ("kernelbench_static", "KernelBench: text"),
    ("kernelbench_trials", "KernelBench: trials"),
)


def report(
    rows: Sequence[Row], conditions: Mapping[str, str], repeats: Mapping[str, Mapping[str, int]]
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


def _summary(cheats: Sequence[Row], honest: Sequence[Row]) -> list[str]:
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
    return [*lines, *_on_ablation(caught), *_on_naive(cheats), *_on_kernelbench(cheats, honest)]


def _on_ablation(caught: Sequence[Row]) -> list[str]:
    tried = [row.ablation for row in caught if row.ablation is not None]
    if not tried:
        return []
    judge = sum(_passes_judge(text) for text in tried)
    further = sum(text.startswith(_FURTHER) for text in tried)
    elsewhere = sum(text.startswith(_ELSEWHERE) for text in tried)
    other = sum(text.startswith("caught by") for text in tried)
    stopped = sum(text.startswith(_STOPPED) for text in tried)
    left_out = sum(text.startswith("not run") for text in tried)
    rest = len(tried) - judge - elsewhere - other - stopped - left_out
    shown = {(row.family, row.probes) for row in caught if _is_shown(row.ablation or "")}
    pairs = {(row.family, row.probes) for row in caught}
    return [
        f"- Without the probe that catches it: of {len(tried)} caught cheats {judge} pass the judge"
        f" ({further} of them once further probes are gone, which catch them for the same reason), "
        f"{elsewhere} pass a harness that lacks the probe, {stopped} stop that harness, "
        f"{other} are caught by another probe, {rest} fail otherwise, {left_out} were not run.",
        f"- That shows {len(shown)} of the {len(pairs)} distinct pairs of mechanism and probe.",
    ]


def _passes_judge(text: str) -> bool:
    return text == "passes" or text.startswith(_FURTHER)


def _is_shown(text: str) -> bool:
    return _passes_judge(text) or text.startswith((_ELSEWHERE, *_STOPPED))


def _on_naive(cheats: Sequence[Row]) -> list[str]:
    known = [row for row in cheats if row.naive is not None]
    if not known:
        return []
    accepted = [row for row in known if row.naive == "accepted"]
    clocked = [row for row in accepted if row.bench is not None]
    gained = sum((row.naive_speedup or 0.0) > _GAIN for row in clocked)
    return [
        f"- A naive harness accepts {len(accepted)} of the {len(known)} cheats that it was given; of the "
        f"{len(clocked)} cheats on the clock among them its own clock sees {gained} faster than eager."
    ]


def _on_kernelbench(cheats: Sequence[Row], honest: Sequence[Row]) -> list[str]:
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


def _families(cheats: Sequence[Row]) -> list[str]:
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


def _cases(rows: Sequence[Row]) -> list[str]:
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


def _cell(row: Row, name: str) -> str:
    value = getattr(row, name)
    if name == "naive" and row.naive_speedup is not None:
        return f"{value}, {row.naive_speedup:.2f}x"
    return "-" if value is None else str(value)


def _short(text: str) -> str:
    line = " ".join(text.replace("|", "/").split())
    return line if len(line) <= _LONGEST_CELL else f"{line[: _LONGEST_CELL - 3]}..."
