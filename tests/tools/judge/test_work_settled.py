"""When samples are enough: only where they leave no doubt that the program does its own work."""

import _ctypes
import math
from pathlib import Path
from typing import Literal

import pytest

from stitch_tools.judge.work.work_evidence import is_library_only
from stitch_tools.models import WorkEvidence
from stitch_tools.worker.candidate.activity import objects
from stitch_tools.worker.candidate.activity.objects import Belongings
from stitch_tools.worker.candidate.activity.odds import at_least, at_most
from stitch_tools.worker.candidate.activity.run import period_us
from stitch_tools.worker.candidate.activity.settled import Progress, is_settled
from tests.tools.judge.test_work_samples import LEAF, MM, code_of

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


def shares(
    own: int,
    library: int,
    pytorch: int = 0,
    *,
    waiting: int = 0,
    method: Literal["samples", "kernels"] = "samples",
) -> WorkEvidence:
    number = own + library + pytorch + waiting
    return WorkEvidence(
        method=method,
        own=own / number,
        library=library / number,
        pytorch=pytorch / number,
        copies=0.0,
        other=waiting / number,
        observations=number,
        outputs_right=True,
    )


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (shares(0, 300, waiting=1000), True),
        (shares(0, 77), True),
        (shares(0, 76), False),  # fewer can miss code that does five percent
        (shares(7, 293), True),  # rather seldom where its part is 0.01, and as seldom where it is 0.05
        (shares(8, 292), False),
        (shares(0, 1, 200), False),  # a library's sample that came by chance
        (shares(0, 30, 170), True),
        (shares(14, 986), True),
        (shares(30, 970), False),
        (shares(9, 991, method="kernels"), True),
        (shares(11, 989, method="kernels"), False),
        (shares(0, 10**15), True),  # a claim
    ],
)
def test_a_program_that_leaves_the_work_to_a_library_is_told_from_one_whose_own_part_is_small(
    evidence: WorkEvidence, expected: bool
) -> None:
    assert is_library_only(evidence) is expected


def test_the_odds_are_those_of_repeated_draws() -> None:
    assert at_most(0, 3, 0.5) == pytest.approx(1 / 8)
    assert at_least(2, 3, 0.5) == pytest.approx(1 / 2)
    assert at_least(0, 3, 0.5) == 1.0
    assert at_most(2, 3, 0.1) + at_least(3, 3, 0.1) == pytest.approx(1.0)
