"""The memory of a draw's outputs: poisoned before the program writes to it, compared afterwards."""

import math
import os
from typing import Any

import torch

from stitch_tools.worker import memory
from stitch_tools.worker.layout import BUFFER, GUARD
from stitch_tools.worker.reference.run import all_buffers, kept_generators
from stitch_tools.worker.reference.state import ServerState
from stitch_tools.worker.serving import Reply, Request
from stitch_tools.worker.streams import pack_torch_state
from stitch_tools.worker.tensors import map_pack
from stitch_tools.worker.threads import threads_for
from stitch_tools.worker.trees import flatten_inputs

GUARD_BYTE = 0xA5


def prime(state: ServerState, request: Request) -> Reply:
    """Poison the outputs' memory, and put the updated buffers' present values into it."""
    manifest = request.message["layout"]
    _, module = state.need()
    buffers = all_buffers(module)
    # Guards and the gaps that alignment leaves: nobody may write there.
    _whole(request.fds[0], writable=True).fill_(GUARD_BYTE)
    tensors = map_pack(request.fds[0], manifest, writable=True, private=False)
    for entry, tensor in zip(manifest, tensors, strict=True):
        name = entry["name"]
        if name.startswith(BUFFER):
            tensor.copy_(buffers[name.removeprefix(BUFFER)])
        elif tensor.numel():
            is_float = tensor.is_floating_point() or tensor.is_complex()
            tensor.reshape(-1).view(torch.uint8).fill_(0xFF if is_float else GUARD_BYTE)
    return Reply()


def compare(state: ServerState, request: Request) -> Reply:
    """Verdicts on the outputs in the pack; whether bytes beside them or the inputs were written to."""
    elements = sum(math.prod(entry["shape"]) for entry in request.message["layout"])
    with threads_for(elements):
        return _compare(state, request)


def _compare(state: ServerState, request: Request) -> Reply:
    manifest = request.message["layout"]
    tensors = [tensor.clone() for tensor in map_pack(request.fds[0], manifest)]
    outputs = [tensor for entry, tensor in zip(manifest, tensors, strict=True) if entry["name"] != GUARD]
    checked = [_as_bool(tensor) for tensor in outputs]
    verdicts = [verdict.as_json() for verdict in state.compare(checked)]
    for row, tensor in zip(verdicts, outputs, strict=False):  # written inputs come after the outputs
        row["problem"] = _untouched(tensor) or row["problem"]
    message: dict[str, Any] = {
        "outputs": verdicts,
        "overrun": _overrun(request.fds[0], manifest),
        "inputs_intact": _inputs_intact(state),
    }
    agreed = state.agrees_with_reference(checked)
    if agreed is not None:
        message["agreement"] = {**vars(agreed), "largest_difference": _finite(agreed.largest_difference)}
    if request.blob:
        message["same_generator"] = _same_generator(state, request.blob)
    return Reply(message)


def same_bits(state: ServerState, request: Request) -> Reply:
    """Whether the outputs in two packs of one layout hold the same bytes, and whether each is one value."""
    del state
    layout = request.message["layout"]
    first, second = (map_pack(fd, layout) for fd in request.fds)
    outputs = [tensor for entry, tensor in zip(layout, first, strict=True) if entry["name"] != GUARD]
    return Reply({"same": all(map(_same_bytes, first, second)), "constant": all(map(_is_constant, outputs))})


def _is_constant(tensor: torch.Tensor) -> bool:
    return not tensor.numel() or bool((tensor == tensor.reshape(-1)[0]).all())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _whole(fd: int, *, writable: bool = False) -> torch.Tensor:
    size = os.fstat(fd).st_size
    entry = memory.PackEntry(name="", shape=[size], stride=[1], dtype="uint8", offset=0, nbytes=size)
    return map_pack(fd, [entry], writable=writable, private=not writable)[0]


def _overrun(fd: int, manifest: list[memory.PackEntry]) -> bool:
    """Whether a byte that belongs to no output was written to."""
    raw, end = _whole(fd), 0
    for entry in [*(row for row in manifest if row["name"] != GUARD), None]:
        start = entry["offset"] if entry else raw.numel()
        if bool((raw[end:start] != GUARD_BYTE).any()):
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
    poison = 0xFF if tensor.is_floating_point() or tensor.is_complex() else GUARD_BYTE
    return "was never written" if bool((raw == poison).all()) else None


def _inputs_intact(state: ServerState) -> bool | None:
    draw = state.draw
    if draw is None or draw.shared is None or (draw.call and draw.call.inputs_after):
        return None
    masters = flatten_inputs(draw.arguments).tensors
    return all(_same_bytes(shared, master.cpu()) for shared, master in zip(draw.shared, masters, strict=True))


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
