"""Every rule finds its cheats and lets their honest twins be."""

import pytest

from stitch_tools.judge.source import RULES, scan_program
from stitch_tools.models.verdict import Finding
from tests.tools.judge.source.pairs import PAIRS
from tests.tools.judge.source.programs import REFERENCE, Files


def scan(files: Files) -> tuple[Finding, ...]:
    form = "kernelbench" if "program.py" in files else "native"
    return scan_program(files, format=form, main="program.py", reference_source=REFERENCE)


def test_every_rule_has_a_cheat_and_an_honest_twin() -> None:
    assert {rule.id for rule in RULES} == set(PAIRS)
    assert all(cheats and twins for cheats, twins in PAIRS.values())
    assert len({rule.id for rule in RULES}) == len(RULES)


CHEATS = [(rule, number) for rule, (cheats, _) in PAIRS.items() for number in range(len(cheats))]
TWINS = [(rule, number) for rule, (_, twins) in PAIRS.items() for number in range(len(twins))]


@pytest.mark.parametrize(("rule", "number"), CHEATS)
def test_a_rule_finds_its_cheat(rule: str, number: int) -> None:
    files = PAIRS[rule][0][number]
    strongest = next(row.severity for row in RULES if row.id == rule)
    found = [row for row in scan(files) if row.rule == rule]
    assert found, list(files.values())
    assert all(row.file in files and row.line and row.message for row in found)
    if strongest == "fatal":
        assert any(row.severity == "fatal" for row in found)


@pytest.mark.parametrize(("rule", "number"), TWINS)
def test_a_rule_lets_the_honest_twin_be(rule: str, number: int) -> None:
    found = scan(PAIRS[rule][1][number])
    assert [row for row in found if row.rule == rule] == []
    assert [row for row in found if row.severity == "fatal"] == []
