"""Under the clock on a GPU: inputs that never came before, outputs that are fetched at "done"."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from stitch_planner.stitcher.emit.cuda.emit_cuda import emit_cuda
from stitch_planner.stitcher.emit.cuda.testing import build_for_gpus, lowered
from stitch_tools.judge.timing import BenchOptions, benchmark_program
from stitch_tools.judge.timing.baseline_runners import start_baseline
from stitch_tools.judge.timing.input_renewal import with_renewed_inputs
from stitch_tools.judge.timing.output_check import check_outputs
from stitch_tools.judge.timing.probes.remembered_inputs import remembered_inputs
from stitch_tools.judge.timing.ring import RingShape
from stitch_tools.judge.timing.runners import Runner
from stitch_tools.judge.timing.setup import Setup, make_draws
from stitch_tools.judge.timing.visits import TimingRules
from stitch_tools.judge.trial import Trial
from stitch_tools.models.program import Program
from stitch_tools.models.verdict import Bench
from stitch_tools.run.interpreter import find_interpreter
from stitch_tools.run.reference_server import ReferenceServer
from stitch_tools.run.session import TargetSession
from stitch_tools.storage.store import Store
from stitch_tools.worker.runtime.native import NativeProgram
from stitch_tools.worker.timed.region import graphed_program
from tests.tools.check_support import PROGRAMS, build, linear_relu_task
from tests.tools.timing_support import start_program

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.whole_gpu,
    pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="no NVIDIA GPU here: not measured"),
]
TARGET = "cuda:sm_90"
SEEDS = (21, 22, 23)
SLOTS = 9
RULES = TimingRules(min_rounds=10, max_rounds=10, blocks_per_visit=2, ignore_others=True)


@dataclass
class CudaTimingSetup:
    """A warm session with the task of `linear_relu.cu`."""

    session: TargetSession
    store: Store

    def __post_init__(self) -> None:
        self.task = linear_relu_task(self.store, target=TARGET)

    def program(self, form: str) -> Program:
        """The honest program, in CUDA C++ or in Python."""
        if form == "python":
            source = (PROGRAMS / "linear_relu.py").read_bytes()
            source = source.replace(b"class Model(", b"class ModelNew(")
            files, main, kind = {"program.py": source}, "program.py", "kernelbench"
        else:
            source = (PROGRAMS / "linear_relu.cu").read_bytes()
            files, main, kind = (
                {"linear_relu.cu": source, "fault.h": b"#define FAULT NONE\n"},
                "linear_relu.cu",
                "native",
            )
        return Program(format=kind, target=TARGET, files=self.store.put_files(files), main=main)

    def start(self, stack: ExitStack, form: str) -> tuple[Runner, Setup]:
        """The program under the clock."""
        judge = stack.enter_context(ReferenceServer(self.session, self.task, self.store))
        cache = self.store.root.parent / "cache"
        shape = RingShape(SLOTS, len(SEEDS), SLOTS << 16)
        facts = judge.observe()
        setup = Setup(self.session, self.task, self.store, facts, shape, SEEDS, cache, judge)
        weights, draws = make_draws(stack, judge, SEEDS)
        setup = with_renewed_inputs(setup, draws)
        program = self.program(form)
        built = build(program, self.store) if program.format == "native" else None
        runner = start_program(
            stack, setup, program, built, weights=weights, draws=draws, samples=3, graphed=form == "graphed"
        )
        return runner, setup


@pytest.fixture(scope="module")
def timing_setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CudaTimingSetup]:
    root = tmp_path_factory.mktemp("timing-cuda")
    with (
        pytest.MonkeyPatch.context() as patch,
        TargetSession(find_interpreter(None, root), scratch_root=root / "scratch") as session,
    ):
        patch.setenv("STITCH_LOCK_DIR", str(root))
        yield CudaTimingSetup(session, Store(root / "store"))


@pytest.mark.parametrize("form", ["native", "graphed", "python"])
def test_outputs_of_renewed_inputs_are_fetched_and_right(timing_setup: CudaTimingSetup, form: str) -> None:
    with ExitStack() as stack:
        runner, setup = timing_setup.start(stack, form)
        assert (setup.renews_inputs, setup.not_renewed) == (True, "")
        for calls in (1, 3, 1, SLOTS, 1, 1):
            runner.renew()
            runner.run_calls(calls)
            runner.take_one(calls)
        runner.finish()
        samples = runner.sampler.samples if runner.sampler is not None else []
        assert any(sample.token for sample in samples)
        check = check_outputs(setup, runner)
        assert (check.wrong, check.not_compared, check.compared) == ("", "", len(samples))


@pytest.mark.parametrize("form", ["native", "python"])
def test_an_honest_program_is_as_quick_on_new_inputs_as_on_known_ones(
    timing_setup: CudaTimingSetup, form: str
) -> None:
    with ExitStack() as stack:
        runner, _ = timing_setup.start(stack, form)
        runner.run_calls(200)
        assert remembered_inputs(runner, per_call_s=20e-6) is None


@pytest.mark.parametrize("kind", ["eager", "cudagraph"])
def test_a_baseline_is_given_renewed_inputs_too(timing_setup: CudaTimingSetup, kind: str) -> None:
    with ExitStack() as stack:
        _, setup = timing_setup.start(stack, "native")
        runner = start_baseline(stack, setup, kind)
        for _ in range(2 * SLOTS):
            runner.renew()
            assert runner.run_calls(1) > 0.0
        runner.finish()
        assert set(runner.tokens) == set(range(SLOTS))


def timed(timing_setup: CudaTimingSetup, form: str) -> Bench:
    program = timing_setup.program(form)
    with ReferenceServer(timing_setup.session, timing_setup.task, timing_setup.store) as reference:
        facts = reference.observe()
    return benchmark_program(
        Trial(
            task=timing_setup.task,
            program=program,
            build=build(program, timing_setup.store) if program.format == "native" else None,
            session=timing_setup.session,
            store=timing_setup.store,
            facts=facts,
        ),
        BenchOptions(
            baselines=("eager", "cudagraph"),
            rules=RULES,
            budget_s=20.0,
            cache_dir=timing_setup.store.root.parent / "cache",
        ),
    )


@pytest.mark.parametrize("form", ["native", "python"])
def test_an_honest_program_has_figures_and_no_doubt(timing_setup: CudaTimingSetup, form: str) -> None:
    bench = timed(timing_setup, form)
    assert bench.outcome != "unmeasured", bench.message
    assert bench.doubts == ()
    assert not any("by the values of their inputs" in row for row in bench.not_checked)
    rows = ", ".join(f"{row.name} {row.latency_us} us" for row in bench.timings)
    print(f"{form}: {bench.outcome}; {rows}; {bench.message}")


def test_a_captured_program_keeps_its_workspace(tmp_path: Path) -> None:
    """What is allocated after the capture must not get the memory that the graph's kernels write."""
    module = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512))
    module = module.cuda().eval()
    x = torch.randn(256, 512, device="cuda")
    made = build_for_gpus(emit_cuda(lowered(module, [x])), tmp_path, ["sm_90"])
    assert made.artifact is not None, made.diagnostics
    program = NativeProgram(made.artifact)
    with torch.inference_mode():
        stream = torch.cuda.current_stream().cuda_stream
        program.init(list(module.named_parameters()), device=x.device, stream=stream)
        workspace = program.plan([x]).workspace_bytes
        call = graphed_program(program, [x])
        others = [torch.zeros(workspace // 4, device="cuda") for _ in range(8)]
        found = call([x])[0]
        assert workspace
        assert all(not other.any() for other in others)
        torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-4)
