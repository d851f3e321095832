"""Cheats that are right when they are checked: under the clock each is found out, or gains nothing."""

from collections.abc import Iterator

import pytest

from stitch_tools.run.session import TargetSession
from tests.tools.judge.zoo_clock import WANTED, Stopwatch
from tests.tools.judge.zoo_runner import Court, load_cases

CASES = {case.name: case for case in load_cases("cpu", "cheats") if "timing" in case.caught_by}
SAMPLE = ("lazy_under_the_runner",)


@pytest.fixture(scope="module")
def stopwatch(one_thread: TargetSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopwatch]:
    root = tmp_path_factory.mktemp("clock")
    with pytest.MonkeyPatch.context() as patch, Court(one_thread, root) as court:
        patch.setenv("STITCH_LOCK_DIR", str(root))
        yield Stopwatch(court)


def test_every_cheat_under_the_clock_is_timed_here() -> None:
    assert set(CASES) == set(WANTED)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.exhaustive) for name in WANTED],
)
def test_a_cheat_under_the_clock_gets_no_speed_up(stopwatch: Stopwatch, name: str) -> None:
    bench = stopwatch.time(CASES[name])
    assert WANTED[name].fits(bench), (bench.outcome, bench.message, bench.ratios)
