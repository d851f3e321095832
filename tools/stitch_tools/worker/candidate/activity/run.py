"""A few forwards under PyTorch's profiler, in a worker that is never timed; then what was seen."""

import time
from collections import Counter
from collections.abc import Callable, Iterable

import torch
from torch._C._profiler import _ExperimentalConfig  # pyright: ignore[reportPrivateUsage]

from stitch_tools.protocol.messages_candidate import (
    BeginTrace,
    RunTraced,
    StepReply,
    TracedRow,
    TraceReport,
)
from stitch_tools.worker.candidate.activity import kernels, objects
from stitch_tools.worker.candidate.activity.kernels import Work
from stitch_tools.worker.candidate.activity.operators import operator_time
from stitch_tools.worker.candidate.activity.profiler_records import MARK, ProfilerEvent
from stitch_tools.worker.candidate.candidate_state import CandidateState
from stitch_tools.worker.plain_calls import wait_for_device
from stitch_tools.worker.runtime.native import NativeProgram, ProgramError, make_workspace
from stitch_tools.worker.sleeping_threads import rest_between_loops
from stitch_tools.worker.trees import call_with, unflatten

_WARM_CALLS = {"cpu": 1, "cuda": 2}
_MOST_CALLS = 50  # of one block on a CPU: each operator leaves a record
_BLOCK_S = 0.1  # on a CPU
_MARGIN_S = 0.002  # between work that counts and work that does not, on a device
_MAX_ROWS = 200
_MAX_NAME = 300

Calls = Callable[[int], None]
"""So many forwards."""


class Tracer:
    """The profiler around a program's forwards. Begin it before the program is loaded."""

    def __init__(self, asked: BeginTrace) -> None:
        self.own, self.source_folder, self.cuda = asked.own, asked.source_folder, asked.cuda
        self.calls: list[int] = []
        """Of each marked block (cuda)."""
        self._before = set(objects.executable_mappings())
        # From before the constructor on: a graph may be captured there.
        # torch.profiler.profile, which wraps it, imports Inductor at its start: three seconds.
        self._profile = (
            torch.autograd.profiler.profile(use_device="cuda", use_kineto=True)
            if asked.cuda
            else torch.autograd.profiler.profile(use_kineto=True, experimental_config=_all_threads())
        )
        self._profile.__enter__()

    def block(self, state: CandidateState, calls: int) -> None:
        """`calls` calls on a GPU; on a CPU as many as fit into about a tenth of a second, at least one."""
        call = scratch_calls(state)
        # What is compiled, captured or chosen at the first call is no part of the work.
        call(_WARM_CALLS["cuda" if self.cuda else "cpu"])
        if not self.cuda:
            _repeat(call)
            return
        wait_for_device()
        with torch.profiler.record_function(f"{MARK}{len(self.calls)}"):
            time.sleep(_MARGIN_S)
            call(calls)
            wait_for_device()
            time.sleep(_MARGIN_S)
        self.calls.append(calls)

    def finish(self) -> TraceReport:
        """Everything that was seen."""
        self._profile.__exit__(None, None, None)
        results = self._profile.kineto_results
        events: Iterable[ProfilerEvent] = results.events() if results is not None else ()
        own = objects.own_files(self.own)
        past_dispatcher = tuple(objects.past_dispatcher(own)[:_MAX_ROWS])
        if self.cuda:
            return self._report_kernels(events, past_dispatcher)
        result = operator_time(events)
        times = result.nanoseconds.most_common(_MAX_ROWS)
        new = [mapping for mapping in objects.executable_mappings() if mapping not in self._before]
        libraries = objects.libraries((row.path for row in new if row.path), self.own)
        return TraceReport(
            tuple(TracedRow("pytorch", name[:_MAX_NAME], None, ns) for name, ns in times),
            result.calls,
            past_dispatcher,
            outside_ns=result.outside_ns,
            # Code that was generated at run time may be the program's; nobody can tell.
            own_code=bool(own) or any(not mapping.path for mapping in new),
            libraries=tuple(libraries[:_MAX_ROWS]),
        )

    def _report_kernels(
        self, events: Iterable[ProfilerEvent], past_dispatcher: tuple[str, ...]
    ) -> TraceReport:
        trace = kernels.read_trace(events)
        own = kernels.own_kernels(self.own, self.source_folder)
        attributor = kernels.Attributor(trace, own)
        nanoseconds: Counter[Work] = Counter()
        launches: Counter[Work] = Counter()
        blocks: list[dict[str, float]] = []
        lost = 0
        for index, calls in enumerate(self.calls):
            block = f"{MARK}{index}"
            if block not in trace.blocks:
                continue  # the profiler of this machine gave nothing
            lost += kernels.lost_launches(trace, block)
            block_ns, block_launches = kernels.block_work(trace, attributor, block)
            nanoseconds += block_ns
            launches += block_launches
            counts = {f"{owner}: {name}": n / calls for (owner, name), n in block_launches.items()}
            blocks.append(dict(sorted(counts.items())[:_MAX_ROWS]))
        total_calls = max(1, sum(self.calls))
        seen = {kernels.identifier_of(row.name) for row in trace.launched}
        never = sorted(name for name in own.names if kernels.identifier_of(name) not in seen)
        return TraceReport(
            tuple(
                TracedRow(owner, name[:_MAX_NAME], launches[owner, name] / total_calls, ns)
                for (owner, name), ns in nanoseconds.most_common(_MAX_ROWS)
            ),
            len(trace.launched),
            past_dispatcher,
            blocks=tuple(blocks),
            lost=lost,
            never=tuple(name[:_MAX_NAME] for name in never if "(" in name)[:_MAX_ROWS],
        )


def _all_threads() -> _ExperimentalConfig | None:
    """Have operators of threads that the program makes recorded too; None where torch is too old (2.6)."""
    try:
        return _ExperimentalConfig(profile_all_threads=True)
    except TypeError:
        return None


def _repeat(call: Calls) -> None:
    """Call until the time is over, each call marked: one that was interrupted must not count."""
    end, calls = time.perf_counter() + _BLOCK_S, 0
    while calls == 0 or (calls < _MOST_CALLS and time.perf_counter() < end):
        with torch.profiler.record_function(f"{MARK}{calls}"):
            call(1)
        calls += 1


def activity_begin(state: CandidateState, message: BeginTrace) -> StepReply:
    """Start the profiler; asked for before the program is loaded.

    Raises:
        ProgramError: the program is loaded already.
    """
    if state.native is not None or state.python is not None:
        raise ProgramError("error", "activity_begin", "the profiler comes before the program")
    rest_between_loops()
    state.tracer = Tracer(message)
    return StepReply()


def activity_run(state: CandidateState, message: RunTraced) -> StepReply:
    """Some forwards on new inputs under the profiler, and one more whose outputs are the answer."""
    tracer = _tracer(state, "activity_run")
    state.structure = message.structure
    state.take_inputs(message.inputs_fd, message.inputs, shared=False, reuse=False)
    outputs = state.map_outputs(message.outputs_fd, message.layout)
    buffers = _copied_buffers(state)
    tracer.block(state, message.calls)
    for target, value in buffers:
        target.copy_(value)
    # A forward that writes to its inputs finds them as they came.
    state.take_inputs(message.inputs_fd, message.inputs, shared=False, reuse=True)
    return StepReply(generator=state.run(outputs, message.generator, message.output_structure))


def activity_end(state: CandidateState) -> TraceReport:
    """End the profiler and say what it saw."""
    return _tracer(state, "activity_end").finish()


def _tracer(state: CandidateState, step: str) -> Tracer:
    if not isinstance(state.tracer, Tracer):
        raise ProgramError("error", step, "the profiler comes first")
    return state.tracer


def scratch_calls(state: CandidateState) -> Calls:
    """Forwards on the present inputs whose outputs nobody looks at.

    Raises:
        ProgramError: nothing is loaded, or the program refuses the inputs.
    """
    if state.native is not None:
        return _native_calls(state.native, state)
    if state.python is None or state.python.module is None:
        raise ProgramError("error", "activity", "load and init come first")
    module, arguments = state.python.module, unflatten(state.structure, state.inputs)

    def call(calls: int) -> None:
        try:
            with torch.no_grad():
                for _ in range(calls):
                    _ = call_with(module, arguments)
        except Exception as error:  # the candidate's outermost frame: what else is raised here is our trouble
            raise ProgramError("error", "forward", f"{type(error).__name__}: {error}") from error

    return call


def _native_calls(program: NativeProgram, state: CandidateState) -> Calls:
    planned = program.plan(state.inputs)
    device, parameters = state.device, dict(state.parameters)
    prepared = program.prepare(
        state.inputs,
        [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in planned.outputs],
        state=[parameters[name].clone() for name in state.buffer_names],
        workspace=make_workspace(planned.workspace_bytes, device),
        stream=state.stream,
    )

    def call(calls: int) -> None:
        for _ in range(calls):
            program.call(prepared)

    return call


def _copied_buffers(state: CandidateState) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The module's buffers with their present values: many calls must not leave other statistics than one."""
    if state.python is None or state.python.module is None:
        return []
    return [(tensor, tensor.clone()) for tensor in state.python.module.buffers()]
