"""Real programs beside a real reference: counts and same-run ratios only, since test machines are busy."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest

from stitch_tools.errors import EnvironmentMissingError, InterruptedRunError, LockedError
from stitch_tools.judge.timing import BenchOptions, benchmark_program
from stitch_tools.judge.timing.probes import PROBES, Probe, ProbeContext, ProbeReport
from stitch_tools.judge.timing.program_runners import beside
from stitch_tools.judge.timing.ring import MAX_SLOTS, ring_shape
from stitch_tools.judge.timing.rounds import run_rounds
from stitch_tools.judge.timing.runners import Runner
from stitch_tools.judge.timing.setup import Setup, make_draws
from stitch_tools.judge.timing.statistics import outcome_of
from stitch_tools.judge.timing.visits import TimingRules
from stitch_tools.judge.trial import Trial
from stitch_tools.machine.device_lock import device_lock
from stitch_tools.models.conditions import TimingDoubt
from stitch_tools.models.program import Program
from stitch_tools.models.verdict import Bench
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.sampling import sampled
from tests.tools.check_support import AFFINE, affine_program, build, make_task, model_new
from tests.tools.timing_support import start_program

RULES = TimingRules(block_s=0.005, min_rounds=10, max_rounds=10, blocks_per_visit=1, ignore_others=True)
SMALL = AFFINE.replace("64, 256", "8, 32")
"""A contestant of larger tensors fills three last-level caches first: 900 MB on some servers."""
# No test here judges a figure that the cache decides: a full ring of small inputs takes seconds to fill.
EAGER_ONLY = BenchOptions(baselines=("eager",), rules=RULES, budget_s=30.0, max_slots=1024)


class TimingSetup:
    """A warm session with one observed reference."""

    def __init__(self, session: TargetSession, store: Store, cache_dir: Path, source: str = SMALL) -> None:
        self.session, self.store, self.cache_dir = session, store, cache_dir
        self.task = make_task(store, source)
        with ReferenceServer(session, self.task, store) as reference:
            self.facts = reference.observe()

    def bench(
        self,
        program: Program,
        options: BenchOptions = EAGER_ONLY,
        *,
        emit: Callable[[str], None] | None = None,
        stop: threading.Event | None = None,
        probes: Sequence[Probe] = PROBES,
    ) -> Bench:
        return benchmark_program(
            Trial(
                task=self.task,
                program=program,
                build=build(program, self.store) if program.format == "native" else None,
                session=self.session,
                store=self.store,
                facts=self.facts,
                emit=emit,
                stop=stop,
            ),
            replace(options, cache_dir=self.cache_dir),
            probes=probes,
        )


@pytest.fixture(scope="module")
def timing_setup(
    one_thread: TargetSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TimingSetup]:
    root = tmp_path_factory.mktemp("timing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STITCH_LOCK_DIR", str(root))
        yield TimingSetup(one_thread, Store(root / "store"), root / "cache")


def test_a_program_that_sleeps_is_slower_and_its_times_are_complete(timing_setup: TimingSetup) -> None:
    bench = timing_setup.bench(affine_program(timing_setup.store, "SLEEP_MS 2"))
    assert (bench.outcome, bench.message) == ("slower", "")
    assert [timing.name for timing in bench.timings] == ["program", "eager"]
    assert all(timing.n >= 20 for timing in bench.timings)
    ratio = bench.ratio("eager")
    assert ratio is not None
    assert ratio.high < 0.5
    program, eager = bench.timings
    for slept, quick in (
        (program.latency_us, eager.latency_us),
        (program.throughput_us, eager.throughput_us),
    ):
        assert slept is not None
        assert quick is not None
        assert slept > 2 * quick
    assert (bench.figure, bench.threads) == ("throughput_us", 1)
    assert bench.sandbox == timing_setup.session.sandbox_level


def test_another_program_is_timed_beside_it_in_the_same_rounds(timing_setup: TimingSetup) -> None:
    store = timing_setup.store
    quick, slow = affine_program(store), affine_program(store, "SLEEP_MS 2")
    other = beside(quick, build(quick, store))
    bench = timing_setup.bench(slow, replace(EAGER_ONLY, other=other))
    assert [timing.name for timing in bench.timings] == ["program", other.name, "eager"]
    ratio, eager = bench.ratio(other.name), bench.ratio("eager", other.name)
    assert ratio is not None
    assert eager is not None, "the other one stands beside eager, too"
    assert (ratio.outcome, ratio.high < 0.5) == ("slower", True)
    assert other.name in bench.not_checked[-1]
    wrong = affine_program(store, "WRONG_AFTER 0")
    bench = timing_setup.bench(quick, replace(EAGER_ONLY, other=beside(wrong, build(wrong, store))))
    assert bench.outcome != "unmeasured", "what the other one does wrong is no fault of the first"
    assert [row.latency_us for row in bench.timings if row.name.startswith("program:")] == [None]


def test_where_times_decide_nothing_cpu_time_on_one_thread_is_told(timing_setup: TimingSetup) -> None:
    store = timing_setup.store
    quick, slow = affine_program(store), affine_program(store, "SLEEP_MS 2")
    few = replace(EAGER_ONLY, rules=replace(RULES, min_rounds=2, max_rounds=2))
    bench = timing_setup.bench(slow, replace(few, other=beside(quick, build(quick, store))), probes=())
    assert (bench.outcome, bench.ratios) == ("inconclusive", ())
    names = ["program", f"program:{quick.program_id[:16]}", "eager"]
    assert [row.name for row in bench.cpu_timings] == names
    assert all((row.low_us or 0) <= row.cpu_us <= (row.high_us or 0) for row in bench.cpu_timings)
    assert [row.baseline for row in bench.cpu_ratios] == names[1:]
    assert all(row.cpu_us < 1000 for row in bench.cpu_timings), "two milliseconds of sleep are no work"
    assert timing_setup.bench(slow, probes=()).cpu_timings == (), "times that decide need no second figure"


def test_a_budget_too_short_for_an_outcome_makes_a_trial_and_says_so(timing_setup: TimingSetup) -> None:
    slow = affine_program(timing_setup.store, "SLEEP_MS 2")
    said: list[str] = []
    short = BenchOptions(baselines=("eager",), rules=RULES, budget_s=0.01)
    bench = timing_setup.bench(slow, short, emit=said.append, probes=())
    assert (bench.outcome, bench.cpu_timings) == ("inconclusive", ())
    assert any("an outcome" in text for text in bench.not_checked)
    assert [line for line in said if "ring of 1024 slots" in line], said
    assert [line for line in said if "CPU time" in line] == []
    long = replace(short, budget_s=1.0)
    assert (long.can_decide, long.slots) == (True, MAX_SLOTS)
    assert replace(long, budget_s=0.4, quick=True).slots < MAX_SLOTS, "quick runs have half of it"


@pytest.mark.parametrize("variant", sampled(["WRONG_AFTER 500", "LAZY_AFTER 500"], 2))
def test_a_program_that_cheats_under_the_clock_is_found_by_its_outputs(
    timing_setup: TimingSetup, variant: str
) -> None:
    bench = timing_setup.bench(affine_program(timing_setup.store, variant))
    assert bench.outcome == "unmeasured"
    assert "another result than the reference" in bench.message
    assert bench.ratios == ()


@pytest.mark.parametrize(
    ("variant", "reason"), [("FAIL_AFTER 300", "status 1"), ("CRASH_AFTER 300", "SIGSEGV")]
)
def test_a_program_that_fails_under_the_clock_is_unmeasured(
    timing_setup: TimingSetup, variant: str, reason: str
) -> None:
    bench = timing_setup.bench(affine_program(timing_setup.store, variant))
    assert (bench.outcome, bench.program_failed) == ("unmeasured", True)
    assert reason in bench.message


@pytest.mark.parametrize(
    ("variant", "reason"),
    [
        ("WRONG_AFTER 0", "its first call gave another result than the reference"),
        ("CRASH_AFTER 0", "the program failed: the process crashed with SIGSEGV"),
    ],
)
def test_a_program_that_fails_at_once_costs_no_baseline(
    timing_setup: TimingSetup, variant: str, reason: str
) -> None:
    said: list[str] = []
    bench = timing_setup.bench(affine_program(timing_setup.store, variant), emit=said.append)
    assert (bench.outcome, bench.program_failed, bench.timings) == ("unmeasured", True, ())
    assert reason in bench.message
    assert "preparing eager" not in said


def test_a_wrong_python_program_costs_no_baseline_either(timing_setup: TimingSetup) -> None:
    source = (
        "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x * 2.0\n"
    )
    said: list[str] = []
    bench = timing_setup.bench(model_new(timing_setup.store, source), emit=said.append)
    assert "its first call gave another result than the reference" in bench.message
    assert "preparing eager" not in said


@pytest.mark.parametrize(
    ("last", "never"), [("preparing eager", "preparing compile"), ("timing program", "comparing")]
)
def test_a_request_to_stop_ends_the_timing_before_its_next_part(
    timing_setup: TimingSetup, last: str, never: str
) -> None:
    stop = threading.Event()
    said: list[str] = []

    def listen(sentence: str) -> None:
        said.append(sentence)
        if sentence.startswith(last):
            stop.set()

    options = EAGER_ONLY if "timing" in last else replace(EAGER_ONLY, baselines=("eager", "compile:default"))
    with pytest.raises(InterruptedRunError):
        timing_setup.bench(affine_program(timing_setup.store), options, emit=listen, stop=stop)
    assert said[-1].startswith(last)
    assert not any(sentence.startswith(never) for sentence in said)


def test_contestants_get_ready_while_another_process_times(
    timing_setup: TimingSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STITCH_LOCK_DIR", str(tmp_path))
    said: list[str] = []
    program = affine_program(timing_setup.store)
    with device_lock("cpu", wait_s=1.0), pytest.raises(LockedError):
        benchmark_program(
            Trial(
                task=timing_setup.task,
                program=program,
                build=build(program, timing_setup.store),
                session=timing_setup.session,
                store=timing_setup.store,
                facts=timing_setup.facts,
                emit=said.append,
            ),
            replace(EAGER_ONLY, lock_wait_s=0.1),
        )
    assert "preparing eager" in said
    assert not any(sentence.startswith("timing program") for sentence in said)


def test_a_kernelbench_program_is_timed_like_the_reference(timing_setup: TimingSetup) -> None:
    source = (
        "import time, torch\nclass ModelNew(torch.nn.Module):\n"
        "    def forward(self, x):\n        time.sleep(0.002)\n        return x * 2.0 + 1.0\n"
    )
    bench = timing_setup.bench(model_new(timing_setup.store, source))
    assert bench.outcome == "slower", bench.message
    assert bench.timings[0].note == "timed by a Python loop"


@pytest.mark.slow
def test_the_same_program_twice_is_alike_and_twice_the_work_is_slower(timing_setup: TimingSetup) -> None:
    timing_setup = TimingSetup(timing_setup.session, timing_setup.store, timing_setup.cache_dir, AFFINE)
    with ExitStack() as stack:
        shape = ring_shape(timing_setup.facts, cache_bytes=1 << 20, memory_bytes=1 << 30)
        judge = stack.enter_context(
            ReferenceServer(timing_setup.session, timing_setup.task, timing_setup.store)
        )
        setup = Setup(
            timing_setup.session,
            timing_setup.task,
            timing_setup.store,
            timing_setup.facts,
            shape,
            (1, 2),
            timing_setup.cache_dir,
            judge,
        )
        weights, draws = make_draws(stack, judge, (1, 2))

        def runner(name: str, variant: str) -> Runner:
            program = affine_program(timing_setup.store, variant)
            built = build(program, timing_setup.store)
            found = start_program(stack, setup, program, built, weights=weights, draws=draws, samples=1)
            found.name = name
            found.pause()
            return found

        runners = [runner("program", "REPEAT 40"), runner("same", "REPEAT 40"), runner("twice", "REPEAT 80")]
        many = replace(RULES, block_s=0.020, max_rounds=15, blocks_per_visit=3)
        rounds = run_rounds(runners, rules=many, figure="throughput_us", until_s=float("inf"))
        for each in runners:
            each.finish()
    twice = rounds.ratio("program", "twice", "throughput_us")
    same = rounds.ratio("same", "program", "throughput_us")
    assert twice is not None
    assert outcome_of(twice) == "slower"
    assert same is not None
    assert same.low is not None
    assert same.low < 1.15


@dataclass
class Doubting:
    """A probe that raises a doubt the first few times."""

    times: int
    stage: Literal["running", "finished"] = "running"
    looks: int = 0

    def look(self, context: ProbeContext) -> ProbeReport:
        assert context.program.name == "program"
        self.looks += 1
        doubt = TimingDoubt(rule="extra_cpus", observed=2.0, expected=1.0)
        return ProbeReport((doubt,) if self.looks <= self.times else ())


def test_a_doubt_that_is_still_there_at_a_second_timing_ends_every_gain_and_loss(
    timing_setup: TimingSetup,
) -> None:
    first, second = Doubting(2), Doubting(0)
    bench = timing_setup.bench(affine_program(timing_setup.store, "SLEEP_MS 2"), probes=(first, second))
    assert (first.looks, second.looks) == (2, 0), "what runs after a doubt would only cost time"
    assert bench.outcome == "inconclusive"
    assert [doubt.rule for doubt in bench.doubts] == ["extra_cpus"]
    assert bench.message == bench.doubt == "the program kept 2.0 CPUs busy, where one thread is allowed"
    assert bench.ratios
    assert all(row.outcome == "inconclusive" for row in bench.ratios)


def test_a_doubt_that_is_gone_at_a_second_timing_is_forgotten(timing_setup: TimingSetup) -> None:
    probe = Doubting(1, "finished")
    bench = timing_setup.bench(affine_program(timing_setup.store, "SLEEP_MS 2"), probes=(probe,))
    assert (probe.looks, bench.outcome, bench.doubts, bench.message) == (2, "slower", (), "")


def test_a_baseline_that_cannot_be_built_is_left_out_with_its_reason(timing_setup: TimingSetup) -> None:
    options = replace(EAGER_ONLY, baselines=("eager", "cudagraph", "nonsense"))
    bench = timing_setup.bench(affine_program(timing_setup.store, "SLEEP_MS 1"), options)
    absent = {timing.name: timing.note for timing in bench.timings if timing.latency_us is None}
    assert set(absent) == {"cudagraph", "nonsense"}
    assert "unknown baseline" in absent["nonsense"]
    # What eager alone decides; on a busy machine nothing may be decided.
    assert bench.ratio("eager") is not None
    assert bench.outcome in ("slower", "inconclusive"), bench.message


def test_a_program_for_a_device_that_is_not_here_is_unmeasured(timing_setup: TimingSetup) -> None:
    task = timing_setup.task.model_copy(update={"target": "cuda:sm_10"})
    bench = benchmark_program(
        Trial(
            task=task,
            program=affine_program(timing_setup.store),
            build=None,
            session=timing_setup.session,
            store=timing_setup.store,
            facts=timing_setup.facts,
        ),
        EAGER_ONLY,
    )
    assert bench.outcome == "unmeasured"
    assert "no device for cuda:sm_10" in bench.message
    assert not bench.program_failed
    assert bench.figure == "latency_us"


def test_a_program_that_was_not_built_is_unmeasured(timing_setup: TimingSetup) -> None:
    bench = benchmark_program(
        Trial(
            task=timing_setup.task,
            program=affine_program(timing_setup.store),
            build=None,
            session=timing_setup.session,
            store=timing_setup.store,
            facts=timing_setup.facts,
        )
    )
    assert (bench.outcome, bench.message) == ("unmeasured", "the program was not built")
    assert bench.program_failed


@pytest.mark.exhaustive  # test_cli_solve.py looks at one that is compiled already
def test_torch_compile_is_timed_beside_eager(timing_setup: TimingSetup) -> None:
    options = replace(EAGER_ONLY, baselines=None, quick=True)
    bench = timing_setup.bench(affine_program(timing_setup.store, "SLEEP_MS 1"), options)
    timing = next(timing for timing in bench.timings if timing.name == "compile:default")
    assert timing.latency_us is not None, timing.note
    assert bench.ratio("compile:default") is not None
    assert any((timing_setup.cache_dir / "inductor").iterdir())


def test_without_a_compiler_for_the_timed_loop_nothing_is_timed_and_it_is_named(
    timing_setup: TimingSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = affine_program(timing_setup.store, "SLEEP_MS 1")
    built = build(program, timing_setup.store)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("STITCH_CXX", "CXX"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EnvironmentMissingError, match="compiler"):
        benchmark_program(
            Trial(
                task=timing_setup.task,
                program=program,
                build=built,
                session=timing_setup.session,
                store=timing_setup.store,
                facts=timing_setup.facts,
            ),
            replace(EAGER_ONLY, cache_dir=tmp_path),
        )
