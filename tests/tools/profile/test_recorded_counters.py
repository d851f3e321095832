"""Questions over the counters that ncu read of the planted kernels on one H100."""

import gzip
from pathlib import Path

import pytest

from stitch_tools.profile.kernels import kernel_profiles
from stitch_tools.profile.ncu_report import parse_ncu

RECORDED = Path(__file__).parent / "recorded"
FIRST = {
    "uncoalesced": "coalescing",
    "bank_conflicts": "bank_conflicts",
    "low_occupancy": "occupancy",
    "spills": "spills",
    "no_tensor_cores": "tensor_cores",
    "divergent": "divergence",
    "tiny_grid": "grid_size",
    "tail_wave": "tail_wave",
}


@pytest.mark.parametrize(("name", "question"), FIRST.items())
def test_a_planted_fault_is_the_first_answer(name: str, question: str) -> None:
    text = gzip.decompress((RECORDED / f"{name}.ncu.csv.gz").read_bytes()).decode("utf-8")
    first = kernel_profiles(parse_ncu(text), lines={}, files=(f"{name}.cu", "planted.h"))[0]
    assert first.answers[0].is_problem
    assert first.answers[0].question == question
    assert first.answers[0].evidence
