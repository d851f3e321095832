"""Where each temporary lies in the workspace: buffers that are never alive together share bytes."""

from collections.abc import Callable
from dataclasses import replace

from stitch_planner.stitcher.lower.kernel_ir import (
    Access,
    Buffer,
    Kernel,
    KernelProgram,
    LibraryCall,
    kernel_reads,
    kernel_writes,
)

ALIGNMENT = 256
"""Bytes; the caller aligns the workspace to as much."""


def assign_offsets(program: KernelProgram) -> KernelProgram:
    """The program with offsets for all workspace buffers, and the bytes that they need together.

    First fit, in execution order: a buffer lives from the kernel that writes it first to the last one that
    touches it.
    """
    lives = _lifetimes(program.kernels)
    placed: list[tuple[int, int, int, int]] = []
    offsets: dict[str, int] = {}
    top = 0
    for buffer, (first, last) in lives.items():
        # At least one unit: an empty buffer still gets an address of its own.
        size = _round_up(max(buffer.nbytes, 1))
        # Only buffers whose lifetime overlaps take room; both ends count, since a kernel reads and writes at
        # once.
        busy = sorted((begin, end) for begin, end, a, b in placed if a <= last and b >= first)
        offset = 0
        for begin, end in busy:
            if offset + size <= begin:
                break
            offset = max(offset, end)
        placed.append((offset, offset + size, first, last))
        offsets[buffer.name] = offset
        top = max(top, offset + size)
    return _with_offsets(program, offsets, top)


def _lifetimes(kernels: tuple[Kernel, ...]) -> dict[Buffer, tuple[int, int]]:
    """First and last kernel that touches each workspace buffer, in order of first use."""
    lives: dict[Buffer, tuple[int, int]] = {}
    for place, kernel in enumerate(kernels):
        for buffer in (*kernel_writes(kernel), *kernel_reads(kernel)):
            if buffer.role == "workspace":
                first, _ = lives.get(buffer, (place, place))
                lives[buffer] = (first, place)
    return lives


def _round_up(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def _with_offsets(program: KernelProgram, offsets: dict[str, int], total: int) -> KernelProgram:
    def moved(buffer: Buffer) -> Buffer:
        return replace(buffer, offset=offsets[buffer.name]) if buffer.name in offsets else buffer

    return replace(
        program,
        kernels=tuple(moved_kernel(kernel, moved) for kernel in program.kernels),
        buffers=tuple(moved(buffer) for buffer in program.buffers),
        workspace_bytes=total,
    )


def moved_kernel(kernel: Kernel, moved: Callable[[Buffer], Buffer]) -> Kernel:
    """The kernel over the buffers that `moved` gives for its own."""

    def access(item: Access) -> Access:
        return replace(item, buffer=moved(item.buffer))

    if isinstance(kernel, LibraryCall):
        return replace(kernel, operation=kernel.operation.over(moved))
    return replace(kernel, loads=tuple(map(access, kernel.loads)), stores=tuple(map(access, kernel.stores)))
