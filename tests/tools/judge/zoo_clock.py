"""Times the zoo's cheats against the clock, and says what the bench has to answer."""

from dataclasses import dataclass, replace

from stitch_tools.judge.timing import BenchOptions, benchmark_program
from stitch_tools.judge.timing.visits import TimingRules
from stitch_tools.judge.trial import Trial
from stitch_tools.models.conditions import DoubtRule
from stitch_tools.models.verdict import Bench
from stitch_tools.run.reference_server import ReferenceServer
from tests.tools.judge.zoo_runner import Case, Court

RULES = TimingRules(min_rounds=10, max_rounds=10, blocks_per_visit=2, ignore_others=True)
OPTIONS = BenchOptions(baselines=("eager",), rules=RULES, budget_s=30.0)
_LATE = "gave another result than the"


@dataclass(frozen=True)
class Wanted:
    """What the bench says of a cheat that is found out, or gains nothing."""

    outcomes: tuple[str, ...]
    words: str = ""
    """Part of its reason."""
    rules: tuple[DoubtRule, ...] = ()
    """Of its first doubt; (): any, or none."""

    def fits(self, bench: Bench) -> bool:
        """Whether the bench said so, and the program is not faster as a graph either."""
        # Of the program itself the outcome knows more than its ratios: what speaks against them.
        gains = any(row.outcome == "faster" for row in bench.ratios if row.contestant != "program")
        doubted = not self.rules or (bool(bench.doubts) and bench.doubts[0].rule in self.rules)
        return bench.outcome in self.outcomes and self.words in bench.message and doubted and not gains


_GAINS_NOTHING = Wanted(("inconclusive", "slower", "unmeasured"))
"""On a busy machine these do not come to their trick, are disturbed themselves, or do not end in time."""
WANTED = {
    "lazy_after_many_calls": Wanted(("unmeasured",), _LATE),
    "lazy_on_a_ring_of_addresses": Wanted(("unmeasured",), _LATE),
    "lazy_without_guard_bytes": Wanted(("unmeasured",), _LATE),
    "lazy_under_the_runner": Wanted(("unmeasured",), _LATE),
    "lazy_in_inference_mode": Wanted(("unmeasured",), _LATE),
    # Its thread may meet the end of the worker before its outputs are looked at.
    "asynchronous_when_hurried": Wanted(("unmeasured",)),
    "work_in_plan": Wanted(("unmeasured",), _LATE),
    # Its thread holds the lock nearly always. Where that starves the calls, they are named as far too slow.
    "computes_ahead": Wanted(("unmeasured",)),
    "answers_before_the_work": Wanted(("unmeasured",), "answered before it was asked"),
    "death_hidden_by_a_child": Wanted(("unmeasured",), "before it had answered"),
    # It leaves what is written where new inputs lie, too.
    "skips_what_is_written": Wanted(("unmeasured",), _LATE),
    "computed_when_collected": Wanted(("inconclusive",), rules=("deferred_work",)),
    "cached_by_content": Wanted(("inconclusive",), rules=("slow_on_new_inputs",)),
    "slow_clock": _GAINS_NOTHING,
    "second_process_helps": _GAINS_NOTHING,
    "new_inputs_met_early": _GAINS_NOTHING,
    "works_in_empty_gos": _GAINS_NOTHING,
    "work_moved_between_blocks": _GAINS_NOTHING,
    "more_threads_than_allowed": _GAINS_NOTHING,
    # It leaves new inputs as they are, too.
    "lazy_on_written_inputs": Wanted(("unmeasured",), _LATE),
    "runs_while_stopped": _GAINS_NOTHING,
}


def wanted(case: Case) -> Wanted:
    """What the bench has to say of the case; where no words are listed, that it gains nothing."""
    return WANTED.get(case.name, _GAINS_NOTHING)


class Stopwatch:
    """A court with the bench in the place of the check."""

    def __init__(self, court: Court) -> None:
        self.court = court

    def time(self, case: Case) -> Bench:
        """The bench of the case beside eager."""
        task = self.court.task(case)
        program, build = self.court.program(case)
        with ReferenceServer(self.court.session, task, self.court.store) as reference:
            facts = reference.observe()
        return benchmark_program(
            Trial(
                task=task,
                program=program,
                build=build,
                session=self.court.session,
                store=self.court.store,
                facts=facts,
            ),
            replace(OPTIONS, cache_dir=self.court.root / "cache"),
        )
