"""The memory of a draw's outputs: poisoned before the program writes to it, compared afterwards."""

import math
from collections.abc import Generator
from contextlib import contextmanager

import torch

from stitch_tools.protocol import memory
from stitch_tools.protocol.layout import BUFFER, GUARD, GUARD_BYTE, untouched_byte
from stitch_tools.protocol.messages import Done, Fd
from stitch_tools.protocol.messages_reference import (
    BitsCompared,
    CompareBits,
    CompareOutputs,
    MakeOutputs,
    OutputsCompared,
    PrimeOutputs,
)
from stitch_tools.worker.cuda_driver import DriverError
from stitch_tools.worker.random_streams import pack_torch_state
from stitch_tools.worker.reference.reference_calls import all_buffers, kept_generators
from stitch_tools.worker.reference.reference_state import ServerState
from stitch_tools.worker.tensors import create_on_device, dtype_name, map_pack, map_whole, view_of
from stitch_tools.worker.trees import flatten_inputs

_FIRST_LOOK_BYTES = 1 << 12
# Elements below which one thread is quick enough.
_SMALL = 1 << 22


def prime(state: ServerState, message: PrimeOutputs) -> Done:
    """Poison the outputs' memory, and put the updated buffers' present values into it."""
    _, module = state.need()
    buffers = all_buffers(module)
    whole = map_whole(message.fd, memory.end_of(message.layout))
    # Guards and the gaps that alignment leaves: nobody may write there.
    whole.fill_(GUARD_BYTE)
    for entry in message.layout:
        name, tensor = entry["name"], view_of(whole, entry)
        if name.startswith(BUFFER):
            tensor.copy_(buffers[name.removeprefix(BUFFER)])
        else:
            poison(tensor)
    if whole.is_cuda:
        torch.cuda.synchronize()  # the program's process reads it next
    return Done()


def poison(tensor: torch.Tensor) -> None:
    """Fill dense memory with what no program computes."""
    if tensor.numel():
        tensor.reshape(-1).view(torch.uint8).fill_(untouched_byte(dtype_name(tensor.dtype)))


def make_outputs(state: ServerState, message: MakeOutputs) -> tuple[Fd, ...]:
    """Memory of the GPU for outputs, which the program then writes to; no descriptor where it gives none."""
    del state
    try:
        return (Fd(create_on_device(message.nbytes)),)
    except DriverError:
        return ()


def compare(state: ServerState, message: CompareOutputs) -> OutputsCompared:
    """Verdicts on the outputs in the pack; whether bytes beside them or the inputs were written to."""
    wanted = [entry for entry in message.layout if entry["name"] != GUARD]
    with _threads_for(sum(math.prod(entry["shape"]) for entry in wanted)):
        whole = map_whole(message.fd, memory.end_of(message.layout))
        outputs = [view_of(whole, entry).clone() for entry in wanted]
        checked = [_as_bool(tensor) for tensor in outputs]
        result = state.compare(checked)
        verdicts = [verdict.as_json() for verdict in result]
        for row, tensor in zip(verdicts, outputs, strict=False):  # written inputs come after the outputs
            row["problem"] = _untouched(tensor) or row["problem"]
        return OutputsCompared(
            outputs=tuple(verdicts),
            overrun=_overrun(whole, wanted),
            inputs_intact=_inputs_intact(state),
            same_generator=_same_generator(state, message.generator) if message.generator else None,
            agreement=state.agrees_with_reference(checked),
            decided=any(row.decided for row in result) or not result,
        )


@contextmanager
def _threads_for(elements: int) -> Generator[None]:
    """One thread for few elements: on a busy machine each small operation would wait for all of them."""
    threads = torch.get_num_threads()
    if elements < _SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def same_bits(state: ServerState, message: CompareBits) -> BitsCompared:
    """Whether the outputs in two packs of one layout hold the same bytes, and whether each is one value."""
    del state
    layout = message.layout
    first, second = (map_pack(fd, layout) for fd in message.fds)
    outputs = [tensor for entry, tensor in zip(layout, first, strict=True) if entry["name"] != GUARD]
    return BitsCompared(all(map(_same_bytes, first, second)), all(map(_is_constant, outputs)))


def _is_constant(tensor: torch.Tensor) -> bool:
    return not tensor.numel() or bool((tensor == tensor.reshape(-1)[0]).all())


def _overrun(whole: torch.Tensor, outputs: list[memory.PackEntry]) -> bool:
    """Whether a byte that belongs to no output was written to."""
    end = 0
    for entry in [*outputs, None]:
        start = entry["offset"] if entry else whole.numel()
        if bool((whole[end:start] != GUARD_BYTE).any()):
            return True
        end = start + (entry["nbytes"] if entry else 0)
    return False


def _as_bool(tensor: torch.Tensor) -> torch.Tensor:
    # A byte other than 0 and 1 in a bool tensor makes torch's own comparisons contradict each other.
    return tensor.view(torch.uint8) != 0 if tensor.dtype == torch.bool else tensor


def _untouched(tensor: torch.Tensor) -> str | None:
    if not tensor.numel():
        return None
    raw = tensor.contiguous().reshape(-1).view(torch.uint8)
    if tensor.dtype == torch.bool and bool((raw > 1).any()):
        return "was not written everywhere: it holds bytes that are neither true nor false"
    byte = untouched_byte(dtype_name(tensor.dtype))
    # A look at the start settles it for nearly every program.
    untouched = bool((raw[:_FIRST_LOOK_BYTES] == byte).all()) and bool((raw == byte).all())
    return "was never written" if untouched else None


def _inputs_intact(state: ServerState) -> bool | None:
    draw = state.draw
    if draw is None or draw.shared is None or (draw.call and draw.call.inputs_after):
        return None
    masters = flatten_inputs(draw.arguments).tensors
    return all(
        _same_bytes(shared.cpu(), master.cpu()) for shared, master in zip(draw.shared, masters, strict=True)
    )


def _same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    raw_left, raw_right = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (left, right))
    return torch.equal(raw_left, raw_right)


def _same_generator(state: ServerState, blob: bytes) -> bool:
    end = state.end_state()
    if end is None:
        return False
    with kept_generators():
        torch.set_rng_state(end.cpu)
        if end.cuda is not None:
            torch.cuda.set_rng_state(end.cuda)
        return pack_torch_state() == blob
