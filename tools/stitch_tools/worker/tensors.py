"""Tensors into shared memory and back: inputs sealed and mapped copy-on-write, outputs mapped shared.

Tensors on a GPU may travel in its own memory (exported_memory.py): a copy, never the tensors themselves.
"""

import contextlib
import ctypes
import mmap
import os
import warnings
from collections.abc import Sequence

import torch

from stitch_tools.protocol import memory
from stitch_tools.protocol.memory import PackEntry
from stitch_tools.worker import dlpack, exported_memory
from stitch_tools.worker.cuda_driver import DriverError
from stitch_tools.worker.trees import raw_values


def write_pack(
    tensors: Sequence[tuple[str, torch.Tensor]], *, sealed: bool = True, on_device: bool = False
) -> tuple[int, list[PackEntry]]:
    """A pack that holds the tensors with their strides, and its manifest. The caller closes the descriptor.

    Gaps between the elements of a strided tensor are zeroed.

    Args:
        tensors: by name. Those on a device are copied to the CPU first.
        sealed: whether nobody may write to it any more; a pack on a device cannot be sealed.
        on_device: stay on the GPU where all tensors lie on one, and it has memory left to hand out.

    Raises:
        TypeError: a tensor is sparse, quantized or of a dtype that packs do not know.
    """
    if on_device and tensors and all(tensor.is_cuda for _, tensor in tensors):
        with contextlib.suppress(DriverError):
            return export_pack(tensors)
    plain = [(name, _plain(name, tensor).cpu()) for name, tensor in tensors]
    manifest, nbytes = memory.lay_out(
        (name, tensor.shape, tensor.stride(), dtype_name(tensor.dtype)) for name, tensor in plain
    )
    fd = memory.create(nbytes, sealable=sealed)
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, fd)
        for entry, (_, tensor) in zip(manifest, plain, strict=True):
            _write(fd, entry, tensor)
        if sealed:
            memory.seal(fd)
        undo.pop_all()
    return fd, manifest


def export_pack(tensors: Sequence[tuple[str, torch.Tensor]]) -> tuple[int, list[PackEntry]]:
    """The same in memory of the GPU that the tensors lie on: copied there, so that they stay out of reach.

    Raises:
        TypeError: a tensor is sparse, quantized or of a dtype that packs do not know.
        DriverError: the GPU has no such memory, or none left.
    """
    plain = [(name, _plain(name, tensor)) for name, tensor in tensors]
    manifest, nbytes = memory.lay_out(
        (name, tensor.shape, tensor.stride(), dtype_name(tensor.dtype)) for name, tensor in plain
    )
    fd, whole = _create_on_device(nbytes, plain[0][1].device)
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, fd)
        for entry, (_, tensor) in zip(manifest, plain, strict=True):
            _copy_over(view_of(whole, entry), tensor)
        undo.pop_all()
    return fd, manifest


def create_on_device(nbytes: int) -> int:
    """The descriptor of new zeroed memory of the current GPU. The caller closes it.

    Raises:
        DriverError: it has no such memory, or none left.
    """
    return _create_on_device(nbytes, torch.device("cuda", torch.cuda.current_device()))[0]


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
        fd: the pack; may be closed afterwards. One on a device is always shared, and writable.
        manifest: where the tensors lie.
        writable: whether they may be written; to a private mapping writes stay in this process.
        private: copy-on-write (inputs), else shared with everyone who maps it (outputs).
        populate: touch every page now, so that no page fault falls into a timed region.

    Raises:
        ValueError: the manifest does not fit the memory.
        DriverError: a pack on a device cannot be mapped here.
    """
    if memory.is_on_device(fd):
        whole = map_whole(fd, memory.end_of(manifest))
        return [view_of(whole, entry) for entry in manifest]
    size = os.fstat(fd).st_size
    flags = (mmap.MAP_PRIVATE if private else mmap.MAP_SHARED) | (mmap.MAP_POPULATE if populate else 0)
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    buffer = mmap.mmap(fd, size, flags=flags, prot=protection)
    return [_view(buffer, entry, size) for entry in manifest]


def map_whole(fd: int, nbytes: int) -> torch.Tensor:
    """All bytes of a pack of `nbytes`, shared; on a device up to the end of its last page."""
    if not memory.is_on_device(fd):
        return torch.frombuffer(mmap.mmap(fd, nbytes), dtype=torch.uint8)
    torch.cuda.synchronize()  # a process that has done nothing there has no context yet
    number = torch.cuda.current_device()
    return _tensor_over(exported_memory.attach(fd, nbytes, number), number)


def view_of(whole: torch.Tensor, entry: PackEntry) -> torch.Tensor:
    """One tensor of a pack whose bytes are all in `whole`.

    Raises:
        ValueError: the entry does not fit the memory.
    """
    dtype, (offset, nbytes) = getattr(torch, entry["dtype"]), (entry["offset"], entry["nbytes"])
    shape, stride = entry["shape"], entry["stride"]
    if nbytes == 0:
        return torch.empty_strided(shape, stride, dtype=dtype, device=whole.device)
    _require_fit(entry, whole.numel())
    return whole[offset : offset + nbytes].view(dtype).as_strided(shape, stride)


def dtype_name(dtype: torch.dtype) -> str:
    """float32 for torch.float32."""
    return str(dtype).removeprefix("torch.")


def _plain(name: str, tensor: torch.Tensor) -> torch.Tensor:
    if (
        tensor.layout is not torch.strided
        or tensor.is_quantized
        or dtype_name(tensor.dtype) not in memory.ITEM_BYTES
    ):
        raise TypeError(
            f"tensor {name} is {tensor.layout}, {tensor.dtype}: only plain dense tensors can be passed on"
        )
    # A lazily conjugated or negated tensor holds other bytes than its values.
    return tensor.detach().resolve_conj().resolve_neg()


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


def _create_on_device(nbytes: int, device: torch.device) -> tuple[int, torch.Tensor]:
    """The descriptor of new memory, and all of it as a tensor, by whose end it is unmapped here."""
    torch.cuda.synchronize(device)
    fd, mapping = exported_memory.create(nbytes, device.index)
    return fd, _tensor_over(mapping, device.index)


def _tensor_over(mapping: exported_memory.DeviceMapping, device: int) -> torch.Tensor:
    return dlpack.bytes_at(mapping.address, mapping.nbytes, (dlpack.CUDA, device), mapping.close)


def _copy_over(target: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy the elements into zeroed memory of the same strides, and nothing that lies between them."""
    if memory.span_elements(tensor.shape, tensor.stride()) > tensor.numel() and not _overlaps(tensor):
        target.copy_(tensor)
    elif tensor.numel():
        raw_values(target).copy_(raw_values(tensor))


def _require_fit(entry: PackEntry, size: int) -> None:
    span = memory.span_elements(entry["shape"], entry["stride"]) * memory.ITEM_BYTES[entry["dtype"]]
    if entry["offset"] < 0 or entry["offset"] + entry["nbytes"] > size or span > entry["nbytes"]:
        raise ValueError(f"tensor {entry['name']} does not fit into its pack")


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
    _require_fit(entry, size)
    with warnings.catch_warnings():
        # torch warns of every buffer that is mapped for reading only; that is meant here.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        raw = torch.frombuffer(buffer, dtype=torch.uint8, count=entry["nbytes"], offset=entry["offset"])
    return raw.view(dtype).as_strided(shape, stride)
