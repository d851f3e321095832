"""Programs of `scripts/roofline`: stitched and built in many processes, loaded and timed in one."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from roofline_cases import TemplateCase, cases_by_label
from torch import nn

from stitch_planner.planning import make_plan
from stitch_planner.step_work import StepWork
from stitch_planner.stitcher import stitch
from stitch_planner.stitcher.lower.graph_index import value_key
from stitch_planner.stitcher.targets import simple_graph
from stitch_tools.compile.build import compile_program
from stitch_tools.graph.build import build_graph
from stitch_tools.models.program import Program
from stitch_tools.models.task import Contract, ReferenceFacts, Task
from stitch_tools.storage.store import Store
from stitch_tools.worker.capture.exporting import Arguments, by_export
from stitch_tools.worker.runtime.native import NativeProgram, make_workspace

ROUNDS = 12
GRAPH_S = 2e-3
"""Least time of one replay: its launch then costs less than 1 %."""
MOST_SLOTS, MOST_CALLS = 64, 400
Call = Callable[[], object]


@dataclass(frozen=True)
class Prepared:
    """A built program, and the work of its forward at least."""

    artifact: str = ""
    libraries: tuple[str, ...] = ()
    bytes: int = 0
    """Read and written by the steps of the plan; the first input as often as the case says."""
    flops: int = 0
    steps: int = 0
    problem: str = ""
    """Why there is no program; "" where there is one."""


def prepare(label: str, target: str, folder: Path) -> Prepared:
    """Stitches and builds the program of a case. Nothing is built again that lies in `folder`."""
    # By its label, as no other process can be given functions without a name.
    case = cases_by_label(small=target == "cpu")[label]
    blank = [value.blank() for value in case.inputs]
    contract = Contract(
        mode="train" if case.train else "eval",
        matmul_precision=case.precision,
        conv_precision=case.precision,
    )
    module = case.module().train(case.train)
    # A run's capture also compares graph and forward on values; here the program is, later.
    exported, _ = by_export(module, Arguments(tuple(blank)))
    graph = build_graph({"source": "export", "mode": contract.mode, **exported}, contract, None)
    task = Task(name="roofline", files=(), main="case.py", target=target, contract=contract)
    facts = ReferenceFacts(inputs=(), outputs=(), output_structure="", parameters=())
    plan = make_plan(graph, facts, task, None)
    stitched = stitch(task, facts, graph, plan, {"case.py": b""})
    if stitched.format != "native":
        return Prepared(problem=stitched.notes[-1])
    store = Store(folder / "store")
    program = Program(
        format="native", target=target, files=store.put_files(stitched.files), main=stitched.main
    )
    build = compile_program(program, store, cache_dir=folder / "cache")
    if build.artifact is None:
        return Prepared(problem=f"not built: {build.diagnostics[0].message if build.diagnostics else ''}")
    simple = simple_graph(task, facts, graph)
    work = StepWork(simple)
    moved = sum(sum(work.bytes(step.nodes)) for step in plan.steps)
    if not plan.steps:  # a view that has to be copied out
        outputs = [work.index.spec(value_key(out.value)) for out in simple.outputs if out.value is not None]
        moved = sum(spec.nbytes for spec in (*blank, *outputs))
    again = (case.reads - 1) * blank[0].nbytes
    flops = sum(step.flops for step in plan.steps)
    return Prepared(build.artifact, build.libraries, moved + again, flops, len(plan.steps))


class Contest:
    """Program and eager PyTorch over a ring of inputs that no cache holds."""

    def __init__(self, case: TemplateCase, prepared: Prepared, device: str, cache_bytes: int) -> None:
        """Loads the program with the module's weights."""
        self.device = device
        torch.manual_seed(0)
        with torch.no_grad():
            self.module: nn.Module = case.module().train(case.train).to(device)
            for parameter in self.module.parameters():
                # As initialised, a norm's weight is 1 and its bias 0.
                parameter.add_(0.1 * torch.randn_like(parameter))
        self.slots = min(MOST_SLOTS, max(2, -(-3 * cache_bytes // max(1, prepared.bytes))))
        self.ring = [[value.make(device) for value in case.inputs] for _ in range(self.slots)]
        self.program = NativeProgram(prepared.artifact, prepared.libraries)
        named = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        weights = [(name, value.detach()) for name, value in named.items()]
        self.program.init(weights, device=device, stream=self._stream())
        planned = self.program.plan(self.ring[0])
        self.outputs = [
            [torch.full(shape, 77, dtype=dtype, device=device) for shape, dtype in planned.outputs]
            for _ in range(self.slots)
        ]
        self.workspace = make_workspace(planned.workspace_bytes, device)
        self.theirs: list[object] = [None] * self.slots

    def run(self, slot: int) -> None:
        """The program on the inputs of a slot, on the current stream."""
        call = self.program.prepare(
            self.ring[slot], self.outputs[slot], workspace=self.workspace, stream=self._stream()
        )
        self.program.call(call)

    def run_eager(self, slot: int) -> None:
        """PyTorch on the same; its result is kept, so that each slot has memory of its own."""
        self.theirs[slot] = self.module(*self.ring[slot])

    def error(self) -> float:
        """The largest difference from eager over its output's rms or the value, whichever is larger.

        Of integers the part that differs.
        """
        self.run(0)
        self.run_eager(0)
        self.wait()
        pairs = zip(self.outputs[0], _leaves(self.theirs[0]), strict=True)
        return max(_deviation(one, other) for one, other in pairs)

    def times(self, least_s: float) -> tuple[list[float], list[float]]:
        """Seconds of one call of program and of eager, a value a round. `least_s`: of a call, as expected."""
        count = max(1, min(MOST_CALLS // self.slots, int(GRAPH_S / (least_s * self.slots))))
        one, two = self._repeated(self.run, count), self._repeated(self.run_eager, count)
        mine: list[float] = []
        eager: list[float] = []
        for work, into in ((one, []), (two, [])):
            self._clock(work, into)  # the first replay uploads the graph
        for turn in range(ROUNDS):
            # Mirrored rounds: what warms up or cools down meanwhile disturbs both alike.
            order = ((one, mine), (two, eager))
            for work, into in order if turn % 2 else order[::-1]:
                self._clock(work, into)
        calls = count * self.slots
        return [value / calls for value in mine], [value / calls for value in eager]

    def wait(self) -> None:
        """Until the device is idle."""
        if self.device != "cpu":
            torch.cuda.synchronize()

    def close(self) -> None:
        """Frees the program."""
        self.wait()
        self.program.close()

    def _stream(self) -> int:
        return 0 if self.device == "cpu" else torch.cuda.current_stream().cuda_stream

    def _repeated(self, run: Callable[[int], None], count: int) -> Call:
        """All slots, so many times; on a GPU as the replay of a graph, so that the host does not count."""

        def work() -> None:
            for _ in range(count):
                for slot in range(self.slots):
                    run(slot)

        if self.device == "cpu":
            return work
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            run(0)
        self.wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph.replay

    def _clock(self, work: Call, into: list[float]) -> None:
        if self.device == "cpu":
            began = time.perf_counter()
            work()
            into.append(time.perf_counter() - began)
            return
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        into.append(begin.elapsed_time(end) * 1e-3)


def middle_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """The median, and half the distance between the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, (high - low) / 2.0


def _leaves(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, tuple | list) else []


def _deviation(found: torch.Tensor, right: torch.Tensor) -> float:
    if not right.is_floating_point():
        return float((found != right).double().mean())
    exact = right.double()
    size = exact.square().mean().sqrt().clamp(min=1e-30).maximum(exact.abs())
    return float(((found.double() - exact).abs() / size).max())
