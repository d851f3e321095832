"""Reads what ncu's own rules say of each launch, from its details page (`--page details --csv`).

The rules and their words are NVIDIA's, and come from the ncu that is installed. A rule estimates either by
how much the kernel's own time shrinks ("global"), or how much better one unit would be used ("local"), which
says nothing of the time (Nsight Compute's NvRules API, SpeedupType).
"""

import csv
import re

from stitch_tools.models.profile import ProfilerRule

RULE_SECTIONS = (
    "SpeedOfLight",
    "LaunchStats",
    "Occupancy",
    "SchedulerStats",
    "WarpStateStats",
    "ComputeWorkloadAnalysis",
    "MemoryWorkloadAnalysis",
    "MemoryWorkloadAnalysis_Tables",
    "SourceCounters",
)
"""What ncu must collect for its rules; each version since 2021 has these."""
MOST_RULES = 5
_LONGEST_TEXT = 500
_LEAST_SHARE = 0.01
_HEADER = re.compile(r'^"?ID"?,')


def parse_rules(text: str) -> dict[int, tuple[ProfilerRule, ...]]:
    """By launch, the rules that found something to improve, the largest estimate first; {} of any other text.

    Rules that only inform are left out, and so are estimates below 1%. ncu before 2023 prints no estimates:
    its rules then stand without any.
    """
    lines = text.splitlines(keepends=True)
    start = next((at for at, line in enumerate(lines) if _HEADER.match(line)), None)
    if start is None:
        return {}
    found: dict[int, list[ProfilerRule]] = {}
    for row in csv.DictReader(line for line in lines[start:] if not line.startswith("==")):
        launch = (row.get("ID") or "").strip()
        rule = _rule(row)
        if launch.isdecimal() and rule is not None:
            found.setdefault(int(launch), []).append(rule)
    return {launch: _ranked(rules) for launch, rules in found.items()}


def _rule(row: dict[str, str]) -> ProfilerRule | None:
    """The rule of this row; None where the row has a metric, or the rule nothing to improve."""
    name, kind = (row.get("Rule Name") or "").strip(), (row.get("Rule Type") or "").strip().upper()
    if not name or kind not in ("OPT", "WRN"):
        return None
    share = _share(row.get("Estimated Speedup") or "")
    if share is not None and share < _LEAST_SHARE:
        return None
    is_local = (row.get("Estimated Speedup Type") or "").strip().lower() == "local"
    return ProfilerRule(
        name=name,
        section=(row.get("Section Name") or "").strip(),
        text=" ".join((row.get("Rule Description") or "").split())[:_LONGEST_TEXT],
        saves_share=None if is_local else share,
        unit_share=share if is_local else None,
    )


def _share(percent: str) -> float | None:
    try:
        return min(1.0, round(float(percent.strip().rstrip("%").replace(",", "")) / 100.0, 4))
    except ValueError:
        return None


def _ranked(rules: list[ProfilerRule]) -> tuple[ProfilerRule, ...]:
    """The same rule of several sections once, those that estimate time before those that do not."""
    once = {(rule.name, rule.text): rule for rule in rules}.values()
    ordered = sorted(once, key=lambda rule: (-(rule.saves_share or 0.0), -(rule.unit_share or 0.0)))
    return tuple(ordered[:MOST_RULES])
