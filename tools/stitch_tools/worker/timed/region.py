"""The timed region in the target interpreter: rings of prepared calls, and the loops over them.

Everything that is timed, program and baselines alike, takes its inputs from a ring of distinct memory and
leaves its outputs in one, under inference_mode. Slot i holds a copy of draw i modulo the number of draws.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stitch_tools.worker.plain_calls import wait_for_device
from stitch_tools.worker.runtime import abi
from stitch_tools.worker.runtime.native import NativeProgram, ProgramError, make_workspace
from stitch_tools.worker.timed.input_renewal import Between
from stitch_tools.worker.timed.loop import NativeRunner, serve_python
from stitch_tools.worker.trees import fresh_copy, map_tensors, raw_values

Call = Callable[[Any], Any]
COMPILE = "compile:"
GRAPHED = "cudagraph"
GRAPHED_STATIC = "cudagraph-static"
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 1 << 30
_LARGEST_BLOCK = 32 << 20  # what glibc accepts at most; larger blocks are always mapped anew


def serve_native(
    program: NativeProgram,
    draws: Sequence[Sequence[torch.Tensor]],
    outputs: Sequence[Sequence[torch.Tensor]],
    *,
    updated: Sequence[torch.Tensor] = (),
    unseen: Sequence[Sequence[torch.Tensor]] = (),
    in_place: bool = False,
    collect: Callable[[int], object] | None = None,
    runner: NativeRunner,
    request_fd: int,
    reply_fd: int,
    stream: int = 0,
) -> None:
    """Serve calls of `stitch_forward`, one slot for each entry of `outputs`, until the controller stops.

    With `unseen` the same memory then gets these draws, and calls are served until the controller stops once
    more. `collect` brings the outputs of one slot into the controller's memory. With `in_place` the draws
    themselves are the inputs of the slots, not copies.

    Raises:
        ProgramError: the program refuses the inputs.
    """
    planned = program.plan(draws[0])
    device = draws[0][0].device if draws[0] else torch.device("cpu")
    workspace = make_workspace(planned.workspace_bytes, device)
    place = _as_it_is if in_place else fresh_copy
    inputs = [[place(tensor) for tensor in draws[slot % len(draws)]] for slot in range(len(outputs))]
    calls = [
        program.prepare(row, outputs[slot], state=updated, workspace=workspace, stream=stream)
        for slot, row in enumerate(inputs)
    ]

    ring = (abi.ForwardArgs * len(calls))(*(call.args for call in calls))
    forward = ctypes.cast(program.library.stitch_forward, ctypes.c_void_p).value
    handle = program.handle.value
    if forward is None or handle is None:
        raise ProgramError("error", "stitch_forward", "the program has no handle; was it initialised?")

    def serve(values: Sequence[Sequence[torch.Tensor]]) -> None:
        between = Between(inputs, values, outputs=outputs, collect=collect, cuda=device.type == "cuda")
        runner.serve(
            forward=forward,
            handle=handle,
            ring=ctypes.addressof(ring),
            slots=len(calls),
            request_fd=request_fd,
            reply_fd=reply_fd,
            service=between.serve,
        )

    serve(draws)
    if unseen:
        refill(inputs, unseen)
        serve(unseen)


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def refill(ring: Sequence[Sequence[torch.Tensor]], draws: Sequence[Sequence[torch.Tensor]]) -> None:
    """Put draw i modulo their number into the memory of slot i, without torch's counters telling of it."""
    for slot, row in enumerate(ring):
        for target, value in zip(row, draws[slot % len(draws)], strict=True):
            raw_values(target.data).copy_(raw_values(value))


class PythonRing:
    """A Python callable over a ring of inputs; its latest outputs stay by slot, so that they can be read."""

    def __init__(
        self, call: Call, draws: Sequence[Any], slots: int, *, keep_outputs: bool, in_place: bool = False
    ) -> None:
        """Copy draw i modulo their number into slot i.

        Args:
            call: takes the arguments of one slot.
            draws: arguments of one call each (any nesting of tensors).
            slots: length of the ring.
            keep_outputs: hold the outputs in the ring. A CUDA graph's are static: those of the last call.
            in_place: take the draws themselves, not copies.
        """
        self._call = call
        self._draws = [_leaves(draw) for draw in draws]
        place = _as_it_is if in_place else fresh_copy
        self._arguments = [map_tensors(draws[slot % len(draws)], place) for slot in range(slots)]
        self._inputs = [_leaves(row) for row in self._arguments]
        self.outputs: list[Any] = [None] * slots
        self._keep = keep_outputs

    def refill(self, draws: Sequence[Any]) -> None:
        """Put other draws into the memory of the slots."""
        self._draws = [_leaves(draw) for draw in draws]
        refill(self._inputs, self._draws)

    def serve(
        self, request_fd: int, reply_fd: int, *, cuda: bool, collect: Callable[[int], object] | None = None
    ) -> None:
        """Serve batches of calls until the controller stops; exceptions of the callable pass through.

        `collect` brings the outputs of one slot into the controller's memory.
        """
        call, arguments, outputs = self._call, self._arguments, self.outputs

        def keeping(slot: int) -> None:
            outputs[slot] = call(arguments[slot])

        def dropping(slot: int) -> None:
            call(arguments[slot])

        between = Between(self._inputs, self._draws, collect=collect, cuda=cuda)
        with torch.inference_mode():
            serve_python(
                keeping if self._keep else dropping,
                slots=len(arguments),
                request_fd=request_fd,
                reply_fd=reply_fd,
                synchronize=wait_for_device if cuda else None,
                service=between.serve,
            )


def graphed_program(program: NativeProgram, draw: Sequence[torch.Tensor]) -> Call:
    """The program's forward captured in a CUDA graph, with the inputs of a call copied in before its replay.

    The counterpart of the baseline `cudagraph`: the same copies, the same replay. Returns its outputs, whose
    memory the next call overwrites.

    Args:
        program: it said that its forward is capturable.
        draw: tensors of one call.

    Raises:
        ProgramError: the program refuses the inputs, or a call fails.
        RuntimeError: its forward cannot be captured after all.
    """
    planned = program.plan(draw)
    # A task's forward may take no tensors.
    device = draw[0].device if draw else torch.device("cuda", torch.cuda.current_device())
    outputs = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in planned.outputs]
    workspace = make_workspace(planned.workspace_bytes, device)

    def forward(static: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        stream = torch.cuda.current_stream().cuda_stream
        program.call(program.prepare(static, outputs, workspace=workspace, stream=stream))
        return outputs

    return _graphed(forward, list(draw), copy_inputs=True)


def build_baseline(kind: str, module: torch.nn.Module, example: Any) -> Call:
    """The callable of one baseline, compiled or captured, and run twice on `example`.

    Args:
        kind: `eager`, `compile:<mode>`, `cudagraph` (inputs copied in) or `cudagraph-static`.
        module: in the contract's mode already.
        example: arguments of one call.

    Raises:
        ValueError: an unknown kind.
    """
    with torch.inference_mode():
        if kind == "eager":
            call = _plain(module)
        elif kind.startswith(COMPILE):
            compiled = torch.compile(module, dynamic=False, mode=kind.removeprefix(COMPILE))
            call = _plain(compiled)
        elif kind in (GRAPHED, GRAPHED_STATIC):
            return _graphed(_plain(module), example, copy_inputs=kind == GRAPHED)
        else:
            raise ValueError(f"unknown baseline {kind!r}")
        for _ in range(2):
            call(example)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return call


def keep_freed_memory() -> bool:
    """Whether the C library now keeps freed memory, instead of giving it back to the system.

    Left to itself, eager PyTorch on a CPU is in one of two states, by how its blocks lie on the heap:
    memory that is given back after each call faults in again at the next (measured: 6.6 and 11.8 ms for one
    network). Baselines are timed in the faster one, so that no program wins by the other's page faults.
    """
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)) and bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK))


def keeps_outputs(kind: str, device: str) -> bool:
    """Whether a baseline's outputs may be held: not where later calls overwrite them."""
    return device == "cpu" or kind in ("eager", "compile:default", "compile:max-autotune-no-cudagraphs")


def _plain(module: Any) -> Call:
    def call(arguments: Any) -> Any:
        return module(**arguments) if isinstance(arguments, dict) else module(*arguments)

    return call


def _graphed(plain: Call, example: Any, *, copy_inputs: bool) -> Call:
    static = map_tensors(example, fresh_copy)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            plain(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = plain(static)
    return _Replayed(plain, graph, _leaves(static), held, copy_inputs)


@dataclass(frozen=True)
class _Replayed:
    """A captured call."""

    captured: Call
    """Never called again. It owns memory that the graph's kernels use and that no output tells of, such as a
    workspace: freed, it would be given to others between two replays."""
    graph: torch.cuda.CUDAGraph
    inputs: list[torch.Tensor]
    """What the graph's kernels read; held also where nothing is copied there."""
    outputs: Any
    copy_inputs: bool

    def __call__(self, arguments: Any) -> Any:
        """Copy the inputs, replay; the next call overwrites what comes back."""
        if self.copy_inputs:
            for place, value in zip(self.inputs, _leaves(arguments), strict=True):
                place.copy_(value)
        self.graph.replay()
        return self.outputs


def _leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in _leaves(item)]
    return []
