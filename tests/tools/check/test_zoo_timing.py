"""Cheats that are right when they are checked: under the clock each is found out, or gains nothing."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from stitch_tools.check import ReferenceServer
from stitch_tools.models import Bench
from stitch_tools.processes.interpreter import find_interpreter
from stitch_tools.processes.session import TargetSession
from stitch_tools.timing import BenchOptions, benchmark_program
from stitch_tools.timing.blocks import Rules
from tests.tools.check.zoo_runner import Case, Court, load_cases

CASES = {case.name: case for case in load_cases("cpu", "cheats") if "timing" in case.caught_by}
RULES = Rules(min_rounds=10, max_rounds=10, blocks_per_visit=2, ignore_others=True)
OPTIONS = BenchOptions(baselines=("eager",), rules=RULES, budget_s=30.0)
LATE = "another result than the check"
SAMPLE = ("lazy_under_the_runner",)
WORDS = {
    "lazy_after_many_calls": (("unmeasured",), LATE),
    "lazy_on_a_ring_of_addresses": (("unmeasured",), LATE),
    "lazy_without_guard_bytes": (("unmeasured",), LATE),
    "lazy_under_the_runner": (("unmeasured",), LATE),
    "lazy_in_inference_mode": (("unmeasured",), LATE),
    # Its thread may meet the end of the worker before its outputs are looked at.
    "asynchronous_when_hurried": (("unmeasured",), ""),
    "work_in_plan": (("unmeasured",), LATE),
    "computes_ahead": (("unmeasured",), LATE),
    "answers_before_the_work": (("unmeasured",), "answered before it was asked"),
    "death_hidden_by_a_child": (("unmeasured",), "before it had answered"),
    "skips_what_is_written": (("inconclusive",), "results are kept from call to call"),
    # On a busy machine these do not come to their trick, or are disturbed themselves: they gain nothing then.
    "slow_clock": (("inconclusive", "slower"), ""),
    "work_moved_between_blocks": (("inconclusive", "slower"), ""),
    "more_threads_than_allowed": (("inconclusive", "slower"), ""),
}
"""What the bench says of each: outcomes, and words of its reason."""
MISSED = ("cached_by_content",)
"""Known holes: inputs come again under the clock, and nothing gives new ones."""


class Stopwatch:
    """A court with the bench in the place of the check."""

    def __init__(self, court: Court) -> None:
        self.court = court

    def time(self, case: Case) -> Bench:
        task = self.court.task(case)
        program, build = self.court.program(case)
        with ReferenceServer(self.court.session, task, self.court.store) as reference:
            facts = reference.observe()
        return benchmark_program(
            task,
            program,
            build,
            session=self.court.session,
            store=self.court.store,
            facts=facts,
            options=replace(OPTIONS, cache_dir=self.court.root / "cache"),
        )


@pytest.fixture(scope="module")
def stopwatch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopwatch]:
    root = tmp_path_factory.mktemp("clock")
    with (
        pytest.MonkeyPatch.context() as patch,
        TargetSession(find_interpreter(None, root), threads=1, scratch_root=root / "scratch") as session,
        Court(session, root) as court,
    ):
        patch.setenv("STITCH_LOCK_DIR", str(root))
        yield Stopwatch(court)


def test_every_cheat_under_the_clock_is_timed_here() -> None:
    assert set(CASES) == {*WORDS, *MISSED}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.exhaustive) for name in WORDS],
)
def test_a_cheat_under_the_clock_gets_no_speed_up(stopwatch: Stopwatch, name: str) -> None:
    outcomes, words = WORDS[name]
    bench = stopwatch.time(CASES[name])
    assert bench.outcome in outcomes, (bench.outcome, bench.message, bench.ratios)
    assert words in bench.message
