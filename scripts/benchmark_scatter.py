"""One program timed against itself: two of its processes differ by the noise of every ratio."""

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from benchmark_table import Table

from stitch_tools.compile import compile_program
from stitch_tools.judge.timing.program_runners import RingPlan, load_program, start_ring
from stitch_tools.judge.timing.ring import ring_shape
from stitch_tools.judge.timing.rounds import Rounds, run_rounds
from stitch_tools.judge.timing.runners import Runner
from stitch_tools.judge.timing.setup import Setup, make_draws
from stitch_tools.judge.timing.visits import TimingRules
from stitch_tools.machine.device_lock import device_lock
from stitch_tools.machine.devices import cpu_info
from stitch_tools.models.program import Build, Program
from stitch_tools.models.task import Task
from stitch_tools.protocol.free_memory import available_bytes
from stitch_tools.protocol.messages_reference import WeightsMade
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.reference_server import Inputs, ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store

KERNELS = Path(__file__).resolve().parent / "benchmark_kernels"
ROOT = Path(__file__).resolve().parent.parent
SEEDS = (1, 2)
BUDGET_S = 30.0
SCALE_TASK = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2.0 + 1.0


def get_inputs():
    return [torch.randn({elements})]


def get_init_inputs():
    return []
"""
COLUMNS = ("elements", "restarts", "us a call", "ratio", "95% interval", "rounds", "visits left out", "took")


@dataclass(frozen=True)
class SelfTiming:
    """A program, and what two processes of it are given."""

    setup: Setup
    program: Program
    build: Build
    weights: WeightsMade
    draws: tuple[Inputs, ...]

    def run(self, rules: TimingRules, budget_s: float) -> Rounds:
        """Rounds of two fresh processes."""
        with ExitStack() as stack:
            runners: list[Runner] = []
            for name in ("first", "second"):
                loaded = load_program(stack, self.setup, self.program, self.build, self.weights)
                plan = RingPlan(self.setup.shape.slots, self.draws)
                runner = start_ring(stack, self.setup, loaded, plan)
                runner.name, runner.sampler = name, None
                runner.pause()
                runners.append(runner)
            until_s = time.monotonic() + budget_s
            rounds = run_rounds(runners, rules=rules, figure="throughput_us", until_s=until_s)
            for runner in runners:
                runner.finish()
        return rounds


def time_against_itself(task: Task, program: Program, build: Build, *, store: Store, restarts: int) -> Rounds:
    """The rounds of one timing, shared among so many pairs of fresh processes."""
    rules = TimingRules()
    share = replace(
        rules, min_rounds=-(-rules.min_rounds // restarts), max_rounds=-(-rules.max_rounds // restarts)
    )
    with ExitStack() as stack:
        session = stack.enter_context(TargetSession(find_interpreter(None, ROOT)))
        stack.enter_context(device_lock("cpu", wait_s=600.0, purpose="self-test"))
        judge = stack.enter_context(ReferenceServer(session, task, store))
        facts = judge.observe()
        shape = ring_shape(
            facts, cache_bytes=cpu_info().last_level_cache_bytes, memory_bytes=available_bytes() // 8
        )
        weights, draws = make_draws(stack, judge, SEEDS)
        setup = Setup(session, task, store, facts, shape, SEEDS, None, judge)
        timing = SelfTiming(setup, program, build, weights, draws)
        rounds, *others = [timing.run(share, BUDGET_S / restarts) for _ in range(restarts)]
    for other in others:
        for name, series in other.series.items():
            rounds.series[name].visits.extend(series.visits)
    return rounds


def scatter() -> Table:
    """One native program against itself, in one pair of processes and in several."""
    table = Table("One program against itself", COLUMNS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = Store(folder / "store")
        files = store.put_files({"scale.cpp": (KERNELS / "scale.cpp").read_bytes()})
        program = Program(format="native", target="cpu", files=files, main="scale.cpp")
        built = compile_program(program, store, cache_dir=folder / "cache")
        for elements in (1_000, 30_000, 1_000_000, 8_000_000):
            task_files = store.put_files({"scale.py": SCALE_TASK.format(elements=elements).encode()})
            task = Task(name="scale", files=task_files, main="scale.py")
            for restarts in (1, 10, 40):
                began = time.monotonic()
                rounds = time_against_itself(task, program, built, store=store, restarts=restarts)
                visits = [visit for series in rounds.series.values() for visit in series.visits]
                ratio = rounds.ratio("second", "first", "throughput_us")
                table.rows.append(
                    [
                        f"{elements:,}",
                        str(restarts),
                        f"{rounds.series['first'].throughput_s() * 1e6:.2f}",
                        f"{ratio.middle:.3f}" if ratio else "-",
                        f"{ratio.low:.3f} to {ratio.high:.3f}" if ratio and ratio.low and ratio.high else "-",
                        str(ratio.count if ratio else 0),
                        f"{sum(not visit.clean for visit in visits)} of {len(visits)}",
                        f"{time.monotonic() - began:.0f} s",
                    ]
                )
    return table


SECTIONS = {"scatter": scatter}
