"""Agreement is counted beyond chance, and only over what both know."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stitch_mcp.rl.reward.agreement import agreement


def test_kappa_is_the_textbooks() -> None:
    # 45 yes/yes, 15 no/no, 25 yes/no, 15 no/yes: agreed .6, chance .54.
    first = ["yes"] * 45 + ["no"] * 15 + ["yes"] * 25 + ["no"] * 15
    second = ["yes"] * 45 + ["no"] * 15 + ["no"] * 25 + ["yes"] * 15
    found = agreement(first, second)
    assert found.agreed == pytest.approx(0.6)
    assert found.kappa == pytest.approx((0.6 - 0.54) / 0.46)
    assert found.confusion == {"yes": {"yes": 45, "no": 25}, "no": {"no": 15, "yes": 15}}


@given(st.lists(st.sampled_from("abc"), min_size=2))
def test_a_sequence_agrees_with_itself(labels: list[str]) -> None:
    found = agreement(labels, labels)
    assert found.agreed == 1
    assert found.kappa == (1 if len(set(labels)) > 1 else None)


def test_nothing_is_said_of_nothing() -> None:
    assert agreement([], []).kappa is None
