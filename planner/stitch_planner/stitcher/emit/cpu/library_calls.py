"""Library operations as calls of the package's CPU headers: one function for each operation.

Text may name `lib` (the handle's `stitch::cpu::Dnnl`) and `threads` (int).
"""

from functools import singledispatch

from stitch_planner.stitcher.emit.call_text import CallText, braced, enumerator, flag
from stitch_planner.stitcher.emit.scalar_text import CPP, VALUE_TYPES, literal
from stitch_planner.stitcher.lower.kernel_ir import LibraryOp
from stitch_planner.stitcher.lower.operations import (
    AttentionOp,
    BatchMatmulOp,
    BatchNormOp,
    ClassLossOp,
    ConvOp,
    EmbeddingBagOp,
    EmbeddingOp,
    ExtremeOp,
    GroupNormOp,
    ImageNormOp,
    PackedMatmulOp,
    PoolOp,
    PoolWindow,
    PostOp,
    ResizeOp,
    RnnOp,
    ScanOp,
    StridedCopyOp,
)


@singledispatch
def call_text(op: LibraryOp) -> CallText:
    """The call that computes the operation on a CPU.

    Raises:
        TypeError: there is none.
    """
    raise TypeError(f"no CPU header computes {type(op).__name__}")


@call_text.register
def strided_copy(op: StridedCopyOp) -> CallText:
    """layout.h."""
    shape, strides, goal = braced(op.source.shape), braced(op.source.strides), braced(op.out.strides)
    return CallText(
        "stitch/cpu/layout.h",
        "stitch::cpu::StridedCopy",
        (shape, strides, goal),
        (op.source, op.out, "threads"),
    )


@call_text.register
def packed_matmul(op: PackedMatmulOp) -> CallText:
    """gemm.h, with a prepacked weight."""
    (rows, depth), width = op.a.shape, op.weight.shape[1]
    options = (
        f"{{.n = {width}, .k = {depth}, .weight_kn = {flag(not op.weight_transposed)}, "
        f".weight_ld = {op.weight_ld}, .has_bias = {flag(op.bias is not None)}, "
        f".post = {_post_ops(op.post)}, .m_hint = {rows}}}"
    )
    operand_ld = width if op.operands else 0
    return CallText(
        "stitch/cpu/gemm.h",
        "stitch::cpu::Gemm",
        ("lib", options, op.weight, op.bias),
        (str(rows), op.a, str(op.a.strides[0]), op.out, str(width), op.operands, str(operand_ld)),
        chosen="oneDNN matmul, weights packed once",
        uses_dnnl=True,
    )


@call_text.register
def batch_matmul(op: BatchMatmulOp) -> CallText:
    """gemm.h, with two activations."""
    (rows, depth), width = op.a.shape[-2:], op.b.shape[-1]
    return CallText(
        "stitch/cpu/gemm.h",
        "stitch::cpu::BatchMatmul",
        ("lib", _post_ops(op.post)),
        (
            braced((*op.batch, rows, width, depth)),
            op.a,
            f"{{{braced((*op.a_strides, *op.a.strides[-2:]))}}}",
            op.b,
            f"{{{braced((*op.b_strides, *op.b.strides[-2:]))}}}",
            op.out,
            f"{{{braced((*op.out_strides, width, 1))}}}",
            op.operands,
        ),
        chosen="oneDNN matmul of two activations",
        uses_dnnl=True,
    )


@call_text.register
def scan(op: ScanOp) -> CallText:
    """scan.h."""
    kind = f"{VALUE_TYPES[op.source.dtype]}, {flag(op.product)}"
    dims = braced((op.outer, op.length, op.inner))
    return CallText(
        "stitch/cpu/scan.h", f"stitch::cpu::Scan<{kind}>", (dims,), (op.source, op.out, "threads")
    )


@call_text.register
def extreme(op: ExtremeOp) -> CallText:
    """scan.h, with places."""
    kind = f"{VALUE_TYPES[op.source.dtype]}, {flag(op.largest)}"
    dims = braced((op.outer, op.length, op.inner))
    arguments = (op.source, op.values, op.places, "threads")
    return CallText("stitch/cpu/scan.h", f"stitch::cpu::Extreme<{kind}>", (dims,), arguments)


@call_text.register
def conv(op: ConvOp) -> CallText:
    """conv.h."""
    size = op.source.shape[0], op.source.shape[2], op.source.shape[3]
    options = (
        f"{{.in_channels = {op.channels[0]}, .out_channels = {op.channels[1]}, .groups = {op.groups}, "
        f".kernel = {braced(op.kernel)}, .stride = {braced(op.stride)}, "
        f".padding = {braced(op.padding)}, .dilation = {braced(op.dilation)}, "
        f".transposed = {flag(op.transposed)}, .output_padding = {braced(op.output_padding)}, "
        f".has_bias = {flag(op.bias is not None)}, .post = {_post_ops(op.post)}, .hint = {braced(size)}}}"
    )
    norm = op.norm
    fold = () if norm is None else (norm.gamma, norm.beta, norm.mean, norm.variance, repr(norm.eps))
    return CallText(
        "stitch/cpu/conv.h",
        "stitch::cpu::Conv",
        ("lib", options, op.weight, op.bias, *fold),
        (*map(str, size), op.source, op.out, op.operands),
        chosen="oneDNN convolution, channels last, weights packed once",
        uses_dnnl=True,
    )


@call_text.register
def pool(op: PoolOp) -> CallText:
    """pool.h."""
    window = ", .adaptive = true" if op.window is None else _window(op.window)
    return CallText(
        "stitch/cpu/pool.h",
        f"stitch::cpu::Pool<stitch::cpu::Pooling::{enumerator(op.kind)}, {flag(op.channels_last)}>",
        (f"{{{_image_sizes(op)}{window}}}",),
        (op.source, op.out, "threads"),
        chosen=f"{'channels' if op.channels_last else 'columns'} are vectorised",
    )


@call_text.register
def resize(op: ResizeOp) -> CallText:
    """upsample.h."""
    scale = ", ".join(map(repr, op.scale))
    return CallText(
        "stitch/cpu/upsample.h",
        f"stitch::cpu::Upsample<stitch::cpu::Resize::{enumerator(op.kind)}, {flag(op.channels_last)}>",
        (f"{{{_image_sizes(op)}, .scale = {{{scale}}}, .align_corners = {flag(op.align_corners)}}}",),
        (op.source, op.out, "threads"),
        chosen="source places computed once",
    )


@call_text.register
def batch_norm(op: BatchNormOp) -> CallText:
    """batchnorm.h."""
    # The running statistics are no result of a program: see simplify.live_outputs.
    return _norm(op, "stitch/cpu/batchnorm.h", "stitch::cpu::BatchNorm", running=(None,) * 4)


@call_text.register
def group_norm(op: GroupNormOp) -> CallText:
    """groupnorm.h."""
    return _norm(op, "stitch/cpu/groupnorm.h", "stitch::cpu::GroupNorm", more=f", .groups = {op.groups}")


@call_text.register
def rnn(op: RnnOp) -> CallText:
    """rnn.h."""
    options = (
        f"{{.features = {op.features}, .hidden = {op.units}, .layers = {op.layers}, "
        f".directions = {op.directions}, .batch_first = {flag(op.batch_first)}, "
        f".has_bias = {flag(op.has_bias)}, .hint_rows = {op.steps * op.batch}}}"
    )
    states = (op.hidden, op.cell, op.out, op.last_hidden, op.last_cell)
    return CallText(
        "stitch/cpu/rnn.h",
        f"stitch::cpu::Rnn<stitch::cpu::Cell::{enumerator(op.kind)}>",
        ("lib", options, op.weights),
        (str(op.steps), str(op.batch), op.source, *states, "threads"),
        chosen="input products at once, recurrence and cell in one register tile",
        uses_dnnl=True,
    )


@call_text.register
def embedding(op: EmbeddingOp) -> CallText:
    """embedding.h."""
    return CallText(
        "stitch/cpu/embedding.h",
        f"stitch::cpu::Embedding<{VALUE_TYPES[op.index.dtype]}>",
        tuple(map(str, op.table.shape)),
        (str(op.index.numel), op.index, op.table, op.out, "threads"),
    )


@call_text.register
def embedding_bag(op: EmbeddingBagOp) -> CallText:
    """embedding.h."""
    padding = "-1" if op.padding is None else str(op.padding)
    return CallText(
        "stitch/cpu/embedding.h",
        f"stitch::cpu::EmbeddingBag<{VALUE_TYPES[op.index.dtype]}, {flag(op.mean)}>",
        (*map(str, op.table.shape), padding),
        (str(op.out.shape[0]), str(op.index.numel), op.index, op.offsets, op.table, op.out, "threads"),
    )


@call_text.register
def class_loss(op: ClassLossOp) -> CallText:
    """loss.h."""
    options = (
        f"{{.rows = {op.target.numel}, .classes = {op.scores.shape[1]}, "
        f".ignore_index = {op.ignore_index}, .smoothing = {op.smoothing!r}f}}"
    )
    reduction = f"stitch::cpu::Reduction::{enumerator(op.reduction)}"
    return CallText(
        "stitch/cpu/loss.h",
        f"stitch::cpu::ClassLoss<{flag(op.from_logits)}, {reduction}>",
        (options,),
        (op.scores, op.target, op.weight, op.out, "threads"),
        chosen="log-sum-exp and target's score of a row in one go",
    )


@call_text.register
def attention(op: AttentionOp) -> CallText:
    """attention.h."""
    batch, heads, queries, width = op.q.shape
    keys, value_width = op.v.shape[2:]
    mask = (0, 0, 0, 0) if op.mask is None else op.mask.strides
    options = (
        f"{{.batch = {batch}, .heads = {heads}, .queries = {queries}, .keys = {keys}, .width = {width}, "
        f".value_width = {value_width}, .scale = {op.scale!r}f, .causal = {flag(op.causal)}, "
        f".empty_is_zero = {flag(op.empty_is_zero)}, .q = {braced(op.q.strides[:3])}, "
        f".k = {braced(op.k.strides[:3])}, .v = {braced(op.v.strides[:3])}, "
        f".out = {braced(op.out.strides[:3])}, .mask = {braced(mask)}}}"
    )
    return CallText(
        "stitch/cpu/attention.h",
        f"stitch::cpu::Attention<stitch::cpu::MaskKind::{enumerator(op.mask_kind)}>",
        (options,),
        (op.q, op.k, op.v, op.mask, op.out, "threads"),
        chosen="scores of six queries at a time stay in cache",
    )


def _post_ops(post: tuple[PostOp, ...]) -> str:
    """A braced list of PostOp."""
    return "{" + ", ".join(map(_post_op, post)) + "}"


def _post_op(op: PostOp) -> str:
    if op.kind in ("add", "mul"):
        return f"stitch::cpu::PostOp::{op.kind}()"
    if op.kind == "add_channel":
        return "stitch::cpu::PostOp::add(stitch::cpu::Spread::kChannel)"
    numbers = "".join(f", {literal(value, 'float32', CPP)}" for value in op.numbers)
    return f"stitch::cpu::PostOp::activation(stitch::cpu::Act::{enumerator(op.kind)}{numbers})"


def _image_sizes(op: PoolOp | ResizeOp) -> str:
    """The fields of an options struct that say how large images are."""
    n, c, h, w = op.source.shape
    return f".images = {n}, .channels = {c}, .input = {braced((h, w))}, .output = {braced(op.out.shape[2:])}"


def _window(window: PoolWindow) -> str:
    """The fields of PoolOptions that say how windows lie."""
    sides = f".stride = {braced(window.stride)}, .padding = {braced(window.padding)}"
    text = f", .kernel = {braced(window.kernel)}, {sides}"
    if window.dilation is not None:
        text += f", .dilation = {braced(window.dilation)}"
    if window.count_padding is not None:
        text += f", .count_padding = {flag(window.count_padding)}"
    return text if window.divisor is None else f"{text}, .divisor = {window.divisor}"


def _norm(
    op: ImageNormOp, header: str, kind: str, *, more: str = "", running: tuple[None, ...] = ()
) -> CallText:
    images, channels = op.source.shape[:2]
    options = (
        f"{{.images = {images}, .area = {op.area}, .channels = {channels}{more}, "
        f".eps = {op.eps!r}f, .slope = {op.slope!r}f}}"
    )
    activation = f"stitch::cpu::Epilogue::{enumerator(op.activation)}"
    return CallText(
        header,
        f"{kind}<{flag(op.channels_last)}, {activation}, {flag(op.residual is not None)}>",
        (options,),
        (op.source, op.weight, op.bias, op.residual, *running, op.out, "threads"),
        chosen="statistics in one pass, scale, residual and activation in a second",
    )
