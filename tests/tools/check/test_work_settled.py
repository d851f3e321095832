"""When samples are enough: only where they leave no doubt that the program does its own work."""

import _ctypes
import math
from pathlib import Path

import pytest

from stitch_tools.worker.candidate.activity import objects
from stitch_tools.worker.candidate.activity.objects import Belongings
from stitch_tools.worker.candidate.activity.run import period_us
from stitch_tools.worker.candidate.activity.settled import Progress, is_settled
from tests.tools.check.test_work_samples import LEAF, MM, code_of

MINE = str(Path(_ctypes.__file__).resolve())
OWN, PYTHON, LIBC = code_of(objects.OWN), code_of(objects.PYTHON), code_of(objects.LIBC)


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_own_samples_settle_it_once_so_many_without_another_are_unlikely(share: float) -> None:
    fewest = math.ceil(math.log(0.02) / math.log(1.0 - share))
    assert is_settled(fewest, 0, 0, share)
    assert not is_settled(fewest - 1, 0, 0, share)
    assert not is_settled(fewest, 0, 1, share)


def test_nothing_is_settled_about_a_program_that_hardly_works_itself() -> None:
    assert not is_settled(0, 0, 0, 0.1)
    assert not is_settled(5, 1000, 0, 0.1)
    assert not is_settled(1000, 0, 1000, 0.9)
    assert not is_settled(1000, 0, 0, 0.0), "a contract that allows none"


def settles(*samples: tuple[int, ...]) -> bool:
    """Whether many of these samples settle it."""
    progress = Progress(Belongings((MINE,), (), ()), 0.1)
    progress.add([(True, counter, stack) for counter, *stack in samples] * 100)
    return progress.settled


def test_samples_count_for_whoever_called() -> None:
    assert settles((OWN, PYTHON))
    assert settles((OWN, PYTHON), (LIBC, OWN, PYTHON), (LIBC, PYTHON), (PYTHON,))


@pytest.mark.parametrize(
    "other",
    [
        (LEAF, MM, PYTHON),
        (LEAF, OWN, PYTHON),
        (LIBC, MM, OWN),
        (LIBC, *[0] * 1000, OWN),  # too deep to be looked at meanwhile
        (0,),
    ],
)
def test_what_may_be_another_s_work_leaves_it_open(other: tuple[int, ...]) -> None:
    assert not settles((OWN, PYTHON), (OWN, PYTHON), other)


def test_long_calls_are_looked_at_in_all_their_parts_and_short_ones_often() -> None:
    assert period_us(1e-5) == 200
    assert period_us(0.1) == 500
    assert period_us(30.0) == 2000
