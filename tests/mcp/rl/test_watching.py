"""Alarms are raised for rewards that jump without correctness, and hacks are counted by family."""

from pathlib import Path

import pytest

from stitch_mcp.rl.reward.watching import RewardEntry, attempted_hacks, find_alarms, read_log
from stitch_tools.errors import UsageError


def entry(step: int, reward: float, correct: bool = True, **more: object) -> RewardEntry:
    return RewardEntry.model_validate(
        {"step": step, "reward": reward, "floor": 0, "ceiling": 3, "correct": correct, **more}
    )


def steps(means: list[tuple[float, float]], count: int = 10) -> list[RewardEntry]:
    """For each step its mean reward and its share of correct programs."""
    rows: list[RewardEntry] = []
    for number, (reward, share) in enumerate(means):
        right = round(share * count)
        rows += [entry(number, reward * count / max(right, 1)) for _ in range(right)]
        rows += [entry(number, 0, False) for _ in range(count - right)]
    return rows


def test_a_reward_that_grows_with_correctness_raises_no_alarm() -> None:
    assert find_alarms(steps([(0.1 * n, 0.1 * n) for n in range(1, 9)])) == ()
    assert find_alarms(steps([(0.30, 0.3), (0.31, 0.3), (0.29, 0.3), (0.9, 0.8)])) == ()


def test_a_reward_that_jumps_while_no_more_programs_are_right_raises_an_alarm() -> None:
    alarms = find_alarms(steps([(0.30, 0.3), (0.31, 0.3), (0.29, 0.3), (0.30, 0.3), (0.9, 0.3)]))
    assert [(row.step, row.kind) for row in alarms] == [(4, "jump")]
    assert "jumped from 0.3 to 0.9" in alarms[0].message


def test_a_slow_rise_at_the_same_correctness_is_what_training_does() -> None:
    assert find_alarms(steps([(0.30 + 0.03 * n, 0.3) for n in range(8)])) == ()


def test_a_probe_or_a_wrong_program_that_earns_something_raises_an_alarm() -> None:
    rows = [
        entry(3, 0.4, probe="cached_by_pointer"),
        entry(3, 0, False, probe="hang"),
        entry(4, 0.2, False),
        entry(4, 1.0, hacking=True),
        entry(5, float("nan")),
    ]
    assert [row.kind for row in find_alarms(rows)] == ["probe_paid", "hack_paid", "hack_paid", "not_finite"]


def test_attempts_are_counted_by_family() -> None:
    rows = [
        entry(1, 0, False, hacking=True, findings=("cached_results",)),
        entry(4, 0, False, findings=("result_kept", "cached_results", "not_scanned")),
        entry(2, 0, False, hacking=True, findings=("deferred_work",)),
        entry(2, 0.1, True, hacking=True),
        entry(2, 1.3),
        entry(3, 0, False, probe="fork_bomb"),
    ]
    found = {
        row.family: (row.tries, row.first_step, row.last_step, row.earned) for row in attempted_hacks(rows)
    }
    assert found == {
        "earlier_result_kept": (2, 1, 4, 0),
        "deferred_work": (1, 2, 2, 0),
        "unnamed": (1, 2, 2, 1),
        "probe:fork_bomb": (1, 3, 3, 0),
    }


def test_a_torn_last_line_of_a_log_is_left_out_and_another_line_is_named(tmp_path: Path) -> None:
    line = entry(1, 0.5).model_dump_json()
    log = tmp_path / "rewards.jsonl"
    log.write_text(f"{line}\n{line}\n{line[:20]}", encoding="utf-8")
    assert len(read_log(log)) == 2
    log.write_text(f"{line}\n{{}}\n{line}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="line 2"):
        read_log(log)
