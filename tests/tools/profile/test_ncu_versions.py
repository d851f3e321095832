"""Reports of ncu 2022.3 and 2024.1 are read as those of 2025.3 are (the other recorded ones)."""

import gzip
from pathlib import Path

import pytest

from stitch_tools.models.profile import KernelProfile
from stitch_tools.profile.kernels import kernel_profiles
from stitch_tools.profile.ncu_report import parse_ncu
from stitch_tools.profile.ncu_rules import parse_rules

RECORDED = Path(__file__).parent / "recorded"


def page(name: str) -> str:
    return gzip.decompress((RECORDED / f"{name}.csv.gz").read_bytes()).decode("utf-8")


def profile_of(name: str) -> KernelProfile:
    rules = parse_rules(page(f"{name}.rules"))
    (kernel,) = kernel_profiles(parse_ncu(page(name)), rules=rules)
    return kernel


@pytest.mark.parametrize(
    ("name", "kernel", "problem", "grid", "block"),
    [
        ("uncoalesced.ncu2022", "addConstDouble3", "coalescing", (4096, 1, 1), (256, 1, 1)),
        ("bank_conflicts.ncu2024", "transposeCoalesced", "bank_conflicts", (256, 256, 1), (32, 8, 1)),
    ],
)
def test_older_versions_name_the_fault_and_the_launch(
    name: str, kernel: str, problem: str, grid: tuple[int, ...], block: tuple[int, ...]
) -> None:
    profile = profile_of(name)
    assert profile.kernel.startswith(kernel)
    assert (profile.grid, profile.block) == (grid, block)
    first = profile.answers[0]
    assert (first.question, first.is_problem) == (problem, True)
    answered = {row.question for row in profile.answers if row.verdict != "unknown"}
    # Only the tensor pipe's instructions were not collected in these reports.
    assert {row.question for row in profile.answers} - answered == {"tensor_cores"}
    assert profile.theoretical_occupancy == 1.0


def test_estimates_of_rules_are_read_where_the_version_prints_them() -> None:
    older = profile_of("uncoalesced.ncu2022")
    assert older.rules
    assert all(row.saves_share is None and row.unit_share is None for row in older.rules)
    newer = profile_of("bank_conflicts.ncu2024")
    assert newer.rules[0].name == "UncoalescedSharedAccess"
    assert newer.rules[0].saves_share == pytest.approx(0.94, abs=0.01)
    assert any(row.unit_share is not None for row in newer.rules)
