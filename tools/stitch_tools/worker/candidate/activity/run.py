"""A few forwards under the tracer, in a worker that is never timed; then what was seen."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from stitch_tools.protocol.layout import BUFFER
from stitch_tools.protocol.serving import Reply, Request
from stitch_tools.worker.candidate.activity import UNWATCHED, kernels
from stitch_tools.worker.candidate.activity.gates import Gates
from stitch_tools.worker.candidate.activity.objects import Belongings
from stitch_tools.worker.candidate.activity.samples import Attribution, Sampler, Work
from stitch_tools.worker.candidate.activity.settled import Progress
from stitch_tools.worker.candidate.candidate_state import CandidateState, Outputs
from stitch_tools.worker.candidate.native import ProgramError, make_workspace
from stitch_tools.worker.gpu_wait import wait_for_device
from stitch_tools.worker.sleeping_threads import rest_between_loops
from stitch_tools.worker.trees import unflatten

_WARM_CALLS = 2
_ENOUGH_SAMPLES = 150
_LOOK_SAMPLES = 10  # between two looks at what they show
_SHORTEST, _LONGEST = 0.1, 6.0  # times the wanted seconds
_SHORTEST_PERIOD_US, _LONGEST_PERIOD_US = 200, 2000
_PERIODS_IN_A_CALL = 200
_BATCH_S = 0.002  # between two looks at samples and clock: they would be sampled, too
_COUNTED_CALLS = 2
_CALLS_BETWEEN_WAITS = 50
_MARGIN_S = 0.002  # between work that counts and work that does not, on a device
_MAX_ROWS = 200
_MAX_NAME = 300

Calls = Callable[[int], None]
"""So many forwards."""


class Tracer:
    """Samples stacks on a CPU; traces kernels on a GPU. Begin it before the program is loaded."""

    def __init__(
        self, belongings: Belongings, source_folder: str | None, sampler: str | None, *, cuda: bool
    ) -> None:
        self.belongings, self.source_folder = belongings, source_folder
        self.calls: list[int] = []
        self.passages: Counter[str] = Counter()
        self._sampler = Sampler(sampler) if sampler is not None and not cuda else None
        self._ranges: list[tuple[int, int]] = []
        self._profile: Any = None
        if cuda:
            # From before the constructor on: a graph may be captured there.
            # torch.profiler.profile, which wraps it, imports Inductor at its start: three seconds.
            self._profile = torch.autograd.profiler.profile(use_device="cuda", use_kineto=True)
            self._profile.__enter__()

    def block(self, state: CandidateState, calls: int, seconds: float, allowed_share: float) -> None:
        """`calls` calls on a GPU; on a CPU as many as give enough samples, for about `seconds` at most.

        `allowed_share` of the work may be PyTorch's: whether it is more has to be plain.
        """
        if self._profile is not None:
            self.calls.append(self._traced_block(scratch_calls(state), calls))
        elif self._sampler is not None:
            repeated = scratch_calls(state, self._sampler.repeat)
            progress = Progress(self.belongings, allowed_share)
            self.calls.append(self._sampled_block(self._sampler, repeated, progress, seconds))

    def watch(self, call: Callable[[], object]) -> None:
        """One call that is watched like the others and not counted: what it writes will be compared."""
        if self._sampler is None:
            call()
            return
        self._sampler.start()
        try:
            call()
        finally:
            self._sampler.stop()

    def finish(self) -> dict[str, Any]:
        """Everything that was seen, as JSON."""
        if self._profile is not None:
            self._profile.__exit__(None, None, None)
            return self._report_kernels()
        found: Counter[Work] = Counter()
        if self._sampler is not None:
            attribution, samples = Attribution(self.belongings), self._sampler.read()
            for first, last in self._ranges:
                found += attribution.count(samples[first:last])
            found["other", "waiting threads"] = self._sampler.waiting
            found["other", UNWATCHED] = self._sampler.unfollowed
            found = +found
        rows = [_row(work, None, number) for work, number in found.most_common()]
        return {"rows": rows[:_MAX_ROWS], "samples": sum(found.values()), "blocks": []}

    def _sampled_block(self, sampler: Sampler, call: Calls, progress: Progress, seconds: float) -> int:
        start = time.perf_counter()
        # The threads that a parallel runtime keeps exist after this call, and wait.
        call(1)
        now = time.perf_counter()
        sampler.period_us = period_us(now - start)
        first, calls, batch, start = sampler.count, 0, 1, now
        seen, enough = first, False
        sampler.start()
        try:
            # On a busy machine threads of a small program do little but wait, which gives no samples.
            while calls == 0 or now - start < (_SHORTEST if enough else _LONGEST) * seconds:
                call(batch)
                calls += batch
                began, now = now, time.perf_counter()
                if now - began < _BATCH_S:
                    batch *= 2
                if sampler.count >= seen + _LOOK_SAMPLES:
                    progress.add(sampler.plain(seen, seen := sampler.count))
                    enough = seen - first >= _ENOUGH_SAMPLES or progress.settled
        finally:
            sampler.stop()
        self._ranges.append((first, sampler.count))
        return calls

    def _traced_block(self, call: Calls, calls: int) -> int:
        call(_WARM_CALLS)
        wait_for_device()
        with torch.profiler.record_function(f"{kernels.MARK}{len(self.calls)}"):
            time.sleep(_MARGIN_S)
            call(calls)
            wait_for_device()
            time.sleep(_MARGIN_S)
        return calls

    def _report_kernels(self) -> dict[str, Any]:
        trace = kernels.read_trace(self._profile.kineto_results.events())
        own = kernels.own_kernels(self.belongings, self.source_folder)
        attributor = kernels.Attributor(trace, own)
        nanoseconds: Counter[Work] = Counter()
        launches: Counter[Work] = Counter()
        blocks: list[dict[str, float]] = []
        lost = 0
        for index, calls in enumerate(self.calls):
            block = f"{kernels.MARK}{index}"
            if block not in trace.blocks:
                continue  # the tracer of this machine gave nothing
            lost += kernels.lost_launches(trace, block)
            work = kernels.block_work(trace, attributor, block)
            nanoseconds += work.nanoseconds
            launches += work.launches
            blocks.append({f"{owner}: {name}": n / calls for (owner, name), n in work.launches.items()})
        total_calls = max(1, sum(self.calls))
        rows = [_row(work, launches[work] / total_calls, ns) for work, ns in nanoseconds.most_common()]
        seen = {kernels.identifier_of(row.name) for row in trace.launched}
        never = sorted(name for name in own.names if kernels.identifier_of(name) not in seen)
        return {
            "rows": rows[:_MAX_ROWS],
            "samples": len(trace.launched),
            "blocks": [dict(sorted(block.items())[:_MAX_ROWS]) for block in blocks],
            "lost": lost,
            "never": [name[:_MAX_NAME] for name in never if "(" in name][:_MAX_ROWS],
        }


def activity_begin(state: CandidateState, request: Request) -> Reply:
    """Start the tracer, or make the gates ready; asked for before the program is loaded.

    Raises:
        ProgramError: the program is loaded already.
    """
    if state.native is not None or state.python is not None:
        raise ProgramError("error", "activity_begin", "the tracer comes before the program")
    rest_between_loops()
    message = request.message
    belongings = Belongings(tuple(message["files"]), tuple(message["folders"]), tuple(message["harness"]))
    state.tracer = Tracer(
        belongings, message["source_folder"], message["sampler"], cuda=bool(message["cuda"])
    )
    return _ok()


def activity_gates(state: CandidateState, request: Request) -> Reply:
    """Lead the launches of the program's own binaries, as far as loaded, through gates.

    `trouble` of the answer says why some are not seen: then there are no counts.
    """
    if state.gates is None:
        message = request.message
        belongings = Belongings(tuple(message["files"]), tuple(message["folders"]), tuple(message["harness"]))
        state.gates = Gates(belongings, shut=bool(message["shut"]))
    state.gates.install()
    return _ok(passed=sum(state.gates.counts().values()), trouble=state.gates.trouble)


def activity_launches(state: CandidateState, request: Request) -> Reply:
    """Launches per forward of the program's own binaries, on the inputs of the last run; no tracer needed.

    With a `sampler` also whose host code runs: under a tracer the tracer's own would be seen.
    """
    gates, message = state.gates, request.message
    if gates is None:
        raise ProgramError("error", "activity_launches", "the gates come first")
    call = scratch_calls(state)
    call(_WARM_CALLS)
    before = gates.counts()
    call(_COUNTED_CALLS)
    _synchronize(state)
    passed = gates.counts() - before
    host: list[dict[str, Any]] = []
    if message.get("sampler"):
        belongings = Belongings(tuple(message["files"]), tuple(message["folders"]), (message["sampler"],))
        host = _host_rows(state, Sampler(message["sampler"]), call, belongings, float(message["seconds"]))
    launches = {name: number / _COUNTED_CALLS for name, number in passed.items()}
    return _ok(launches=launches, host=host, trouble=gates.trouble)


def _host_rows(
    state: CandidateState,
    sampler: Sampler,
    call: Calls,
    belongings: Belongings,
    seconds: float,
) -> list[dict[str, Any]]:
    """Samples of the host's threads. The device is waited for between short blocks that count."""
    sampled, start = 0.0, time.perf_counter()
    while sampled < seconds and time.perf_counter() < start + _LONGEST * seconds:
        _synchronize(state)
        sampler.start()
        try:
            block = time.perf_counter()
            call(_CALLS_BETWEEN_WAITS)
            sampled += time.perf_counter() - block
        finally:
            sampler.stop()
    _synchronize(state)
    found = Attribution(belongings).count(sampler.read())
    return [_row(work, None, number) for work, number in found.most_common()][:_MAX_ROWS]


def activity_run(state: CandidateState, request: Request) -> Reply:
    """Some forwards on new inputs under the tracer, and one more whose outputs are the answer."""
    message, (inputs_fd, outputs_fd) = request.message, request.fds
    tracer = state.tracer
    if tracer is None:
        raise ProgramError("error", "activity_run", "the tracer comes first")
    layout = message["layout"]
    state.buffer_names = tuple(
        entry["name"].removeprefix(BUFFER) for entry in layout if entry["name"].startswith(BUFFER)
    )
    state.take_inputs(inputs_fd, message["inputs"], shared=False, reuse=False)
    outputs = state.map_outputs(outputs_fd, layout)
    state.structure = message["structure"]
    buffers = _copied_buffers(state)
    tracer.block(state, int(message["calls"]), float(message["seconds"]), float(message["pytorch_share"]))
    for target, value in buffers:
        target.copy_(value)
    # A forward that writes to its inputs finds them as they came.
    state.take_inputs(inputs_fd, message["inputs"], shared=False, reuse=True)
    ends: list[bytes] = []
    tracer.watch(lambda: ends.append(_compared_call(state, outputs, request)))
    return Reply({"status": "ok", "step": "", "message": ""}, ends[0])


def activity_end(state: CandidateState, request: Request) -> Reply:
    """End the tracer and say what it saw."""
    tracer = state.tracer
    if tracer is None:
        raise ProgramError("error", "activity_end", "the tracer comes first")
    return _ok(**tracer.finish())


def period_us(call_s: float) -> int:
    """Microseconds between two looks at a program whose call takes so long.

    Many short calls have soon shown what they do. Of a long one all parts are to be seen: slots are few.
    """
    return round(min(max(1e6 * call_s / _PERIODS_IN_A_CALL, _SHORTEST_PERIOD_US), _LONGEST_PERIOD_US))


def scratch_calls(state: CandidateState, loop: Callable[..., int] | None = None) -> Calls:
    """Forwards on the present inputs whose outputs nobody looks at; a native program's in a C loop if given.

    Raises:
        ProgramError: nothing is loaded, or the program refuses the inputs.
    """
    if state.native is not None:
        return _native_calls(state, loop)
    if state.python is None or state.python.module is None:
        raise ProgramError("error", "activity", "load and init come first")
    module, arguments = state.python.module, unflatten(state.structure, state.inputs)

    def call(calls: int) -> None:
        try:
            with torch.no_grad():
                for _ in range(calls):
                    _ = module(**arguments) if isinstance(arguments, dict) else module(*arguments)
        except Exception as error:  # the candidate's outermost frame: what else is raised here is our trouble
            raise ProgramError("error", "forward", f"{type(error).__name__}: {error}") from error

    return call


def _native_calls(state: CandidateState, loop: Callable[..., int] | None) -> Calls:
    program = state.native
    if program is None:
        raise ProgramError("error", "activity", "no native program is loaded")
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
        if loop is not None:
            program.repeat(prepared, calls, loop)
            return
        for _ in range(calls):
            program.call(prepared)

    return call


def _compared_call(state: CandidateState, outputs: Outputs, request: Request) -> bytes:
    if state.native is None:
        return state.run_python(state.structure, outputs, request.blob, request.message["output_structure"])
    state.run_native(outputs)
    return b""


def _copied_buffers(state: CandidateState) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The module's buffers with their present values: many calls must not leave other statistics than one."""
    if state.python is None or state.python.module is None:
        return []
    return [(tensor, tensor.clone()) for tensor in state.python.module.buffers()]


def _synchronize(state: CandidateState) -> None:
    if state.device.startswith("cuda"):
        wait_for_device()


def _row(work: Work, calls: float | None, weight: int) -> dict[str, Any]:
    owner, name = work
    return {"owner": owner, "name": name[:_MAX_NAME], "calls": calls, "weight": weight}


def _ok(**fields: Any) -> Reply:
    return Reply({"status": "ok", "step": "", "message": "", **fields})
