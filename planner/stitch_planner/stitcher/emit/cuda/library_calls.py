"""Library operations as calls of the package's CUDA headers. Text may name LIBRARIES, `errors` and `call`."""

from functools import singledispatch

from stitch_planner.stitcher.emit.call_text import CallText, flag
from stitch_planner.stitcher.emit.cuda.attention import attention
from stitch_planner.stitcher.emit.cuda.conv_calls import conv, volume_conv
from stitch_planner.stitcher.emit.cuda.images import concat, pool, resize, strided_copy
from stitch_planner.stitcher.emit.cuda.norms import norm_call
from stitch_planner.stitcher.emit.cuda.recurrent import rnn_text
from stitch_planner.stitcher.emit.cuda.sequences import class_loss, embedding, embedding_bag, extreme, scan
from stitch_planner.stitcher.lower.kernel_ir import LibraryOp
from stitch_planner.stitcher.lower.operations import (
    AttentionOp,
    BatchNormOp,
    ClassLossOp,
    ConcatOp,
    EmbeddingBagOp,
    EmbeddingOp,
    ExtremeOp,
    GroupNormOp,
    MatmulOp,
    MatrixLayout,
    NormPairOp,
    ResizeOp,
    RnnOp,
    ScanOp,
    StridedCopyOp,
    VolumePoolOp,
)

LIBRARIES = {
    "lib": "stitch::cuda::CublasLt",
    "products": "stitch::cuda::Products",
    "dnn": "stitch::cuda::ConvLibraries",
}
"""Members of the handle that calls name as arguments of their init, and their types; each has an `open`."""

SPLIT_NOTE = "cuBLASLt's float32, or three products of halves with float32's errors: measured"
"""What a program says of a product that may be split."""

_OPTIONS = ("m", "n", "k", "batch", "a", "b", "d", "has_bias", "has_addend", "allow_tf32")
"""Fields of stitch::cuda::GemmOptions in order; C++17 has no initialisers by name."""


@singledispatch
def call_text(op: LibraryOp) -> CallText:
    """The call that computes the operation on a GPU.

    Raises:
        TypeError: there is none.
    """
    raise TypeError(f"no CUDA header computes {type(op).__name__}")


@call_text.register
def matmul(op: MatmulOp) -> CallText:
    """gemm.cuh: cuBLASLt; product.cuh where split operands on tensor cores may be faster."""
    m, k, n = *op.a.shape[-2:], op.b.shape[-1]
    batch = op.a.shape[0] if len(op.a.shape) > 2 else 1
    flags = map(flag, (op.bias is not None, op.addend is not None, op.allow_tf32))
    named = zip(_OPTIONS, (*map(str, (m, n, k, batch)), *map(_layout, op.layouts), *flags), strict=True)
    options = "{" + ", ".join(f"/*{name}=*/{text}" for name, text in named) + "}"
    run = ("call", op.a, op.b, op.out, *((op.addend,) if op.addend is not None else ()))
    if not op.may_split and not op.relu:
        init = ("lib", options, *((op.bias,) if op.bias is not None else ()))
        chosen = f"cuBLASLt, {'TF32 allowed' if op.allow_tf32 else 'float32'}"
        return CallText("stitch/cuda/gemm.cuh", "stitch::cuda::Gemm", init, run, chosen)
    constant = op.b if op.b.buffer.role == "param" else None
    return CallText(
        "stitch/cuda/product.cuh",
        "stitch::cuda::Product",
        ("products", "call", options, constant, op.bias, flag(op.relu)),
        run,
        chosen=SPLIT_NOTE,
    )


call_text.register(conv)
call_text.register(volume_conv)
call_text.register(AttentionOp, attention)
call_text.register(RnnOp, rnn_text)
call_text.register(BatchNormOp, norm_call)
call_text.register(GroupNormOp, norm_call)
call_text.register(NormPairOp, norm_call)
call_text.register(StridedCopyOp, strided_copy)
call_text.register(ConcatOp, concat)
call_text.register(VolumePoolOp, pool)
call_text.register(ResizeOp, resize)
call_text.register(ScanOp, scan)
call_text.register(ExtremeOp, extreme)
call_text.register(EmbeddingOp, embedding)
call_text.register(EmbeddingBagOp, embedding_bag)
call_text.register(ClassLossOp, class_loss)


def _layout(layout: MatrixLayout) -> str:
    """A stitch::cuda::MatrixLayout."""
    return f"{{{flag(layout.transposed)}, {layout.ld}, {layout.batch_stride}}}"
