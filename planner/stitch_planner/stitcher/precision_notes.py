"""What a run says about float32 work that tensor cores compute in lower formats."""

from collections.abc import Iterable

from stitch_planner.stitcher.emit.cuda.attention import is_split
from stitch_planner.stitcher.lower.kernel_ir import KernelProgram, LibraryCall
from stitch_planner.stitcher.lower.operations import AttentionOp, ConvOp, LibraryOp, MatmulOp


def precision_notes(programs: Iterable[KernelProgram]) -> tuple[str, ...]:
    """A line for each way in which the programs may multiply float32 numbers in a lower format.

    Empty where all work is ordinary float32, as on a CPU.
    """
    on_gpus = [program for program in programs if program.target != "cpu"]
    kernels = [kernel for program in on_gpus for kernel in program.kernels]
    operations = [kernel.operation for kernel in kernels if isinstance(kernel, LibraryCall)]
    split = sum(isinstance(op, MatmulOp) and op.may_split for op in operations)
    attention = sum(isinstance(op, AttentionOp) and is_split(op) for op in operations)
    rounded = sum(map(_may_round, operations))
    notes: list[str] = []
    if split:
        notes.append(
            f"large float32 products ({split}) take cuBLASLt's float32 or three tensor-core products of "
            "halves with errors of float32: the faster one, measured at initialisation"
        )
    if attention:
        notes.append(
            f"float32 attention ({attention}) multiplies on tensor cores: three TF32 products of split "
            "operands, with errors of float32"
        )
    if rounded:
        notes.append(f"products that may be rounded to TF32, as the contract allows: {rounded}")
    return tuple(notes)


def _may_round(operation: LibraryOp) -> bool:
    return isinstance(operation, MatmulOp | ConvOp | AttentionOp) and operation.allow_tf32
