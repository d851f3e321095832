"""Shared memory that several tensors travel in: layout, creation, poison. Needs no torch; used at both ends.

A pack is a descriptor and a manifest: where each tensor lies, every one aligned to 256 bytes. The descriptor
is a memfd, or memory of a GPU (exported_memory.py).
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Sequence
from typing import TypedDict

ALIGNMENT_BYTES = 256
_POISON_CHUNK_BYTES = 1 << 22

ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}


class PackEntry(TypedDict):
    """One tensor of a pack."""

    name: str
    shape: list[int]
    stride: list[int]
    """In elements."""
    dtype: str
    """float32, ...: torch's name without the prefix."""
    offset: int
    """In bytes from the start of the pack."""
    nbytes: int
    """From its first to its last element, gaps included."""


def contiguous_strides(shape: Sequence[int]) -> list[int]:
    """Row-major strides in elements."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return strides


def span_elements(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements between the first and the last one, both included; 0 for an empty tensor."""
    if any(size == 0 for size in shape):
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def lay_out(
    specs: Iterable[tuple[str, Sequence[int], Sequence[int] | None, str]],
) -> tuple[list[PackEntry], int]:
    """The manifest of a pack with these (name, shape, stride or None for row-major, dtype), and its bytes."""
    manifest: list[PackEntry] = []
    end = 0
    for name, shape, stride, dtype in specs:
        steps = list(stride) if stride is not None else contiguous_strides(shape)
        nbytes = span_elements(shape, steps) * ITEM_BYTES[dtype]
        offset = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        manifest.append(
            PackEntry(name=name, shape=list(shape), stride=steps, dtype=dtype, offset=offset, nbytes=nbytes)
        )
        end = offset + nbytes
    return manifest, max(end, ALIGNMENT_BYTES)


def end_of(manifest: Iterable[PackEntry]) -> int:
    """Bytes of a pack with this manifest."""
    return max([ALIGNMENT_BYTES, *(entry["offset"] + entry["nbytes"] for entry in manifest)])


def is_on_device(fd: int) -> bool:
    """Whether a pack is memory of a GPU: a memfd is a regular file, what the driver hands out is none."""
    return not stat.S_ISREG(os.fstat(fd).st_mode)


def create(nbytes: int, name: str = "stitch", *, sealable: bool = False) -> int:
    """The descriptor of new zeroed shared memory whose size nobody can change. The caller closes it.

    `sealable`: it may still be sealed against writes; else no process that gets it can take it from others.
    """
    import fcntl  # not on every system where this module is imported

    # A file without a name: gone with its last descriptor, and out of reach for whoever was given none.
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, fd)
        os.ftruncate(fd, nbytes)
        # A reader would die of SIGBUS if a writer could cut the memory under its feet.
        final = 0 if sealable else fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | final)
        undo.pop_all()
    return fd


def seal(fd: int) -> None:
    """Forbid every further write and every further seal; fails while a writable shared mapping exists."""
    import fcntl

    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Write all of `data`."""
    while data:
        written = os.pwrite(fd, data, offset)
        offset += written
        data = data[written:]


def poison(fd: int, byte: int = 0xFF) -> None:
    """Fill with one byte value: 0xFF is NaN in every float format, -1 in integers."""
    left = os.fstat(fd).st_size
    chunk = memoryview(bytes([byte]) * min(left, _POISON_CHUNK_BYTES))
    offset = 0
    while offset < left:
        part = chunk[: left - offset]
        write_at(fd, part, offset)
        offset += len(part)
