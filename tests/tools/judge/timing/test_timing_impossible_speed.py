"""Programs that are faster than is possible, and honest ones on a device whose ceilings are far too low."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stitch_tools.judge.timing import BenchOptions, benchmark_program
from stitch_tools.judge.timing.probes.impossible_speed import NO_CEILINGS
from stitch_tools.judge.timing.visits import TimingRules
from stitch_tools.judge.trial import Trial
from stitch_tools.machine.devices import cpu_info
from stitch_tools.models.graph import Ceilings
from stitch_tools.models.program import Program
from stitch_tools.models.verdict import Bench
from stitch_tools.run import ceilings
from stitch_tools.run.ceilings import cached_ceilings
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from tests.tools.check_support import AFFINE, affine_program, build, make_task, model_new

LARGEST_CACHE_BYTES = 128 << 20
needs_memory_traffic = pytest.mark.skipif(
    cpu_info().last_level_cache_bytes > LARGEST_CACHE_BYTES,
    reason="this processor's cache holds all that a block of calls writes, so the bound never applies here",
)
VIEW = AFFINE.replace("x * 2.0 + 1.0", "x.t()")
RULES = TimingRules(min_rounds=10, max_rounds=10, blocks_per_visit=1, ignore_others=True)
OPTIONS = BenchOptions(baselines=("eager",), rules=RULES, budget_s=3.0)


class ImpossibleSpeedSetup:
    """A warm session, and a cache folder whose ceilings the test chooses."""

    def __init__(self, session: TargetSession, root: Path) -> None:
        self.session, self.store, self.root = session, Store(root / "store"), root

    def ceilings(self, name: str, bytes_per_s: float) -> Path:
        """A cache folder with ceilings of this bandwidth."""
        cache_dir = self.root / name
        measured = Ceilings(
            device=cpu_info().model,
            target="cpu",
            copy_bytes_per_s=bytes_per_s,
            cache_bytes_per_s=10 * bytes_per_s,
            write_bytes_per_s=bytes_per_s,
            last_level_cache_bytes=cpu_info().last_level_cache_bytes,
            flops_per_s={"fp32": 1e12},
            launch_us=0.5,
        )
        ceilings._keep(ceilings._place("cpu", self.session.threads, cache_dir).file, measured)
        assert cached_ceilings("cpu", threads=self.session.threads, cache_dir=cache_dir) == measured
        return cache_dir

    def bench(self, program: Program, cache_dir: Path, reference: str = AFFINE) -> Bench:
        task = make_task(self.store, reference)
        with ReferenceServer(self.session, task, self.store) as server:
            facts = server.observe()
        return benchmark_program(
            Trial(
                task=task,
                program=program,
                build=build(program, self.store) if program.format == "native" else None,
                session=self.session,
                store=self.store,
                facts=facts,
            ),
            replace(OPTIONS, cache_dir=cache_dir),
        )


@pytest.fixture(scope="module")
def setup(
    one_thread: TargetSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ImpossibleSpeedSetup]:
    root = tmp_path_factory.mktemp("speeding")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STITCH_LOCK_DIR", str(root))
        yield ImpossibleSpeedSetup(one_thread, root)


def rules(bench: Bench) -> list[str]:
    return [row.rule for row in bench.doubts]


@needs_memory_traffic
@pytest.mark.slow
def test_a_program_that_leaves_old_results_in_place_is_faster_than_memory(
    setup: ImpossibleSpeedSetup,
) -> None:
    bench = setup.bench(affine_program(setup.store, "KEEPS 5000"), setup.ceilings("cheat", 20e9))
    doubt = next(row for row in bench.doubts if row.rule == "faster_than_memory")
    assert doubt.observed < 0.5 * doubt.expected
    # Its outputs on new inputs are wrong, too.
    assert (bench.outcome, bench.ratios) == ("unmeasured", ())


@needs_memory_traffic
@pytest.mark.slow
def test_an_honest_program_is_not_doubted_for_ceilings_that_are_far_too_low(
    setup: ImpossibleSpeedSetup,
) -> None:
    # A hundredth of any machine's bandwidth, as if neighbours had taken the rest while it was measured.
    cache_dir = setup.ceilings("low", 0.1e9)
    bench = setup.bench(affine_program(setup.store, "REPEAT 1"), cache_dir)
    assert "faster_than_memory" not in rules(bench), bench.doubts
    assert bench.outcome != "unmeasured"
    mended = cached_ceilings("cpu", threads=setup.session.threads, cache_dir=cache_dir)
    assert mended is not None
    assert mended.write_bytes_per_s is not None
    assert mended.write_bytes_per_s > 0.2e9


@pytest.mark.exhaustive
def test_a_python_program_may_hand_out_views_of_its_inputs(setup: ImpossibleSpeedSetup) -> None:
    source = (
        "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x.t()\n"
    )
    bench = setup.bench(model_new(setup.store, source), setup.ceilings("views", 0.1e9), VIEW)
    assert "faster_than_memory" not in rules(bench), bench.doubts


def test_without_ceilings_the_bound_is_not_checked_and_says_so(setup: ImpossibleSpeedSetup) -> None:
    bench = setup.bench(affine_program(setup.store, "SLEEP_MS 1"), setup.root / "empty")
    assert bench.not_checked == (NO_CEILINGS,)
