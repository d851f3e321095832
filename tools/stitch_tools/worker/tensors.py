"""Tensors into shared memory and back: inputs sealed and mapped copy-on-write, outputs mapped shared."""

import contextlib
import ctypes
import mmap
import os
import warnings
from collections.abc import Sequence

import torch

from stitch_tools.worker import memory
from stitch_tools.worker.memory import PackEntry


def write_pack(
    tensors: Sequence[tuple[str, torch.Tensor]], *, sealed: bool = True
) -> tuple[int, list[PackEntry]]:
    """A memfd that holds the tensors with their strides, and its manifest. The caller closes the descriptor.

    Tensors on a device are copied to the CPU first. Gaps between the elements of a strided tensor are zeroed.

    Raises:
        TypeError: a tensor is sparse, quantized or of a dtype that packs do not know.
    """
    plain = [(name, _on_cpu(name, tensor)) for name, tensor in tensors]
    manifest, nbytes = memory.lay_out(
        (name, tensor.shape, tensor.stride(), dtype_name(tensor.dtype)) for name, tensor in plain
    )
    fd = memory.create(nbytes)
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, fd)
        for entry, (_, tensor) in zip(manifest, plain, strict=True):
            _write(fd, entry, tensor)
        if sealed:
            memory.seal(fd)
        undo.pop_all()
    return fd, manifest


def map_pack(
    fd: int,
    manifest: Sequence[PackEntry],
    *,
    writable: bool = False,
    private: bool = True,
    populate: bool = False,
) -> list[torch.Tensor]:
    """The tensors of a pack without a copy; the memory stays mapped while one of them lives.

    Args:
        fd: the pack; may be closed afterwards.
        manifest: where the tensors lie.
        writable: whether they may be written; to a private mapping writes stay in this process.
        private: copy-on-write (inputs), else shared with everyone who maps it (outputs).
        populate: touch every page now, so that no page fault falls into a timed region.

    Raises:
        ValueError: the manifest does not fit the memory.
    """
    size = os.fstat(fd).st_size
    flags = (mmap.MAP_PRIVATE if private else mmap.MAP_SHARED) | (mmap.MAP_POPULATE if populate else 0)
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    buffer = mmap.mmap(fd, size, flags=flags, prot=protection)
    return [_view(buffer, entry, size) for entry in manifest]


def dtype_name(dtype: torch.dtype) -> str:
    """float32 for torch.float32."""
    return str(dtype).removeprefix("torch.")


def _on_cpu(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if (
        tensor.layout is not torch.strided
        or tensor.is_quantized
        or dtype_name(tensor.dtype) not in memory.ITEM_BYTES
    ):
        raise TypeError(
            f"tensor {name} is {tensor.layout}, {tensor.dtype}: only plain dense tensors can be passed on"
        )
    # A lazily conjugated or negated tensor holds other bytes than its values.
    return tensor.detach().cpu().resolve_conj().resolve_neg()


def _write(fd: int, entry: PackEntry, tensor: torch.Tensor) -> None:
    if not entry["nbytes"]:
        return
    span = entry["nbytes"] // tensor.element_size()
    if span > tensor.numel() and not _overlaps(tensor):
        # The gaps may hold what others left in this heap: they must not travel.
        clean = torch.zeros(span, dtype=tensor.dtype)
        clean.as_strided(tensor.shape, tensor.stride()).copy_(tensor)
        tensor = clean
    source = (ctypes.c_ubyte * entry["nbytes"]).from_address(tensor.data_ptr())
    memory.write_at(fd, memoryview(source).cast("B"), entry["offset"])


def _overlaps(tensor: torch.Tensor) -> bool:
    reach = 0
    for size, step in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: pair[1]):
        if size > 1:
            if step <= reach:
                return True
            reach += (size - 1) * step
    return False


def _view(buffer: mmap.mmap, entry: PackEntry, size: int) -> torch.Tensor:
    dtype = getattr(torch, entry["dtype"])
    shape, stride = entry["shape"], entry["stride"]
    if entry["nbytes"] == 0:
        return torch.empty_strided(shape, stride, dtype=dtype)
    fits = entry["offset"] >= 0 and entry["offset"] + entry["nbytes"] <= size
    if not fits or memory.span_elements(shape, stride) * memory.ITEM_BYTES[entry["dtype"]] > entry["nbytes"]:
        raise ValueError(f"tensor {entry['name']} does not fit into its pack")
    with warnings.catch_warnings():
        # torch warns of every buffer that is mapped for reading only; that is meant here.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        raw = torch.frombuffer(buffer, dtype=torch.uint8, count=entry["nbytes"], offset=entry["offset"])
    return raw.view(dtype).as_strided(shape, stride)
