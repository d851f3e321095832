"""Causes on the device's side: small kernels, traffic, layouts, formats, libraries' general ways."""

import re

from stitch_tools.diagnose.evidence import ProfileEvidence, quantity, time_of
from stitch_tools.diagnose.rule import Looked, Seen
from stitch_tools.graph.lower_bounds import graph_traffic
from stitch_tools.models.profile import Quantity

_MATTERS = 0.05
_SHORT_US = 5.0
_POINTWISE = re.compile(
    r"elementwise|vectorized|aten::(add|sub|mul|div|relu|gelu|silu|sigmoid|tanh|clamp|exp|pow|where|dropout"
    r"|native_dropout|leaky_relu|hardtanh|softplus)_?$"
)
_LAYOUT = re.compile(
    r"nchwToNhwc|nhwcToNchw|NCHW_?to_?NHWC|NHWC_?to_?NCHW|transpose_readWrite|aten::contiguous", re.I
)
_COPIES = re.compile(r"direct_copy_kernel|CatArrayBatchedCopy|aten::(copy_|clone|cat|contiguous)$")
_FP32_PRODUCT = re.compile(
    r"sgemm|simt_?sgemm|f32f32_f32f32_f32|_s1688gemm_simt|ampere_sgemm|gemmSN|gemv", re.I
)
_TENSOR_PRODUCT = re.compile(r"tensorop|s16816|h16816|s1688(?!gemm_simt)|hmma|wgmma|tf32|bf16|f16", re.I)
_RECURRENT = re.compile(r"_cudnn_rnn|\bLSTM_|\bGRU_|RNN_|elemWiseRNN|elementWise_?RNN", re.I)
_SOFTMAX = re.compile(r"softmax", re.I)
_BATCHED_PRODUCT = re.compile(r"aten::(bmm|baddbmm)$")
_NORM = re.compile(r"batch_?norm|bn_fw|cudnn::bn|native_batch_norm", re.I)
_SCAN = re.compile(r"cumsum|scan|tensor_kernel_scan", re.I)


def recurrent_steps(evidence: ProfileEvidence) -> Looked:
    """A recurrent network as thousands of launches: its state goes through memory at each step."""
    rows = evidence.rows(_RECURRENT)
    named = any(use.type in ("LSTM", "GRU", "RNN") for use in evidence.system.modules)
    nodes = evidence.system.device_activities or 0.0
    if (not rows and not named) or nodes < 300:
        return "no recurrent network is run step by step"
    spent = max(time_of(rows), evidence.system.busy_us if named else 0.0)
    total = evidence.total_us
    return Seen(
        f"a recurrent network runs as {nodes:.0f} kernels, each a fraction of a time step long: weights and "
        "state are read from memory again at every step",
        0.3 * min(spent, total),
        0.7 * min(spent, total),
        0.95 * total,
        (
            quantity("kernels per iteration", nodes, "", evidence),
            quantity("device time of an iteration", evidence.system.busy_us, "us", evidence),
        ),
        module=rows[0].module if rows else "",
    )


def small_kernels(evidence: ProfileEvidence) -> Looked:
    """Kernels so short that starting them is a good part of their time."""
    nodes, launch_us = evidence.system.device_activities, evidence.launch_us
    if not nodes:
        return None
    each = evidence.system.busy_us / nodes
    if each > 4 * _SHORT_US:
        return f"kernels take {each:.0f} us on average: starting them does not matter"
    cost = launch_us if launch_us is not None else 1.4
    small = [row for row in evidence.system.kernels if row.count and row.total_us / row.count < _SHORT_US]
    count = sum(row.count for row in small)
    most = count * cost
    if most < _MATTERS * evidence.total_us:
        return (
            f"{count:.0f} kernels are shorter than {_SHORT_US:g} us, {most:.0f} us for their starts at most"
        )
    return Seen(
        f"{count:.0f} of {nodes:.0f} kernels take less than {_SHORT_US:g} us: the device takes "
        f"{cost:.1f} us from one to the next",
        0.2 * most,
        0.5 * most,
        0.9 * most,
        (
            quantity(f"kernels shorter than {_SHORT_US:g} us", count, "", evidence),
            Quantity(
                name="time from kernel to kernel",
                value=cost,
                unit="us",
                origin="ceilings" if launch_us is not None else "estimated",
            ),
        ),
    )


def pointwise_passes(evidence: ProfileEvidence) -> Looked:
    """Elementwise operations that each read and write memory of their own."""
    rows = [row for row in evidence.rows(_POINTWISE) if row.owner in ("pytorch", "own")]
    spent = time_of(rows)
    if not spent or spent < _MATTERS * _all_us(evidence):
        return f"elementwise operations take {_part(spent, evidence)}"
    scale = _scale(evidence)
    traffic = ()
    if evidence.graph is not None and evidence.graph.nodes:
        between = graph_traffic(evidence.graph).between_bytes
        traffic = (Quantity(name="bytes between operations", value=between, unit="B", origin="counted"),)
    largest = max(rows, key=lambda row: row.total_us)
    return Seen(
        f"elementwise operations that could be computed where their inputs are made take {spent:.0f} us "
        f"({_part(spent, evidence)})",
        0.4 * spent * scale,
        0.75 * spent * scale,
        spent * scale,
        (quantity("time of elementwise kernels", spent, "us", evidence), *traffic),
        kernel=largest.name,
        module=largest.module,
    )


def layout_conversions(evidence: ProfileEvidence) -> Looked:
    """Tensors are converted between channel orders, or copied to be contiguous."""
    rows = [*evidence.rows(_LAYOUT), *(row for row in evidence.rows(_COPIES) if not _LAYOUT.search(row.name))]
    spent = time_of({row.name: row for row in rows}.values())
    if not spent or spent < _MATTERS * _all_us(evidence):
        return f"layout conversions and copies take {_part(spent, evidence)}"
    largest = max(rows, key=lambda row: row.total_us)
    scale = _scale(evidence)
    return Seen(
        f"layout conversions, concatenations and copies take {spent:.0f} us "
        f"({_part(spent, evidence)}), the largest is "
        f"{largest.short_name or largest.name[:60]}",
        0.5 * spent * scale,
        0.8 * spent * scale,
        spent * scale,
        (quantity("time of conversions and copies", spent, "us", evidence),),
        kernel=largest.name,
        module=largest.module,
    )


def fp32_products(evidence: ProfileEvidence) -> Looked:
    """Matrix products on the fp32 units, which are many times slower than tensor cores."""
    rows = [row for row in evidence.rows(_FP32_PRODUCT) if not _TENSOR_PRODUCT.search(row.name)]
    spent = time_of(rows)
    if not spent or spent < 0.1 * _all_us(evidence):
        return f"products on fp32 units take {_part(spent, evidence)}"
    allowed = evidence.contract.matmul_precision
    largest = max(rows, key=lambda row: row.total_us)
    scale = _scale(evidence)
    # Measured on one H100 by plain library calls: 1.5 to 2.4 times by three TF32 products, 8 times by one.
    low, expected, high = (0.0, 0.5, 0.62) if allowed == "fp32" else (0.6, 0.8, 0.9)
    action = (
        "split both operands into two TF32 parts and add three tensor-core products (fp32 accuracy is kept)"
        if allowed == "fp32"
        else f"compute the products in {allowed}, which the contract allows, on tensor cores"
    )
    return Seen(
        f"fp32 products without tensor cores take {spent:.0f} us ({_part(spent, evidence)})",
        low * spent * scale,
        expected * spent * scale,
        high * spent * scale,
        (quantity("time of fp32 products", spent, "us", evidence),),
        kernel=largest.name,
        module=largest.module,
        action=action,
    )


def unfused_attention(evidence: ProfileEvidence) -> Looked:
    """Attention as products and a softmax, with the scores in memory."""
    softmax, products = evidence.rows(_SOFTMAX), evidence.rows(_BATCHED_PRODUCT)
    spent = time_of(softmax) + time_of(products)
    if not softmax or not products:
        return "no softmax between batched products"
    if not spent or spent < 0.15 * _all_us(evidence):
        return f"softmax and batched products take {_part(spent, evidence)}"
    scale = _scale(evidence)
    return Seen(
        f"attention is computed as batched products with a softmax between, {spent:.0f} us: the scores are "
        "written and read several times",
        0.3 * spent * scale,
        0.6 * spent * scale,
        0.9 * spent * scale,
        (quantity("time of softmax and batched products", spent, "us", evidence),),
        module=softmax[0].module,
    )


def norm_passes(evidence: ProfileEvidence) -> Looked:
    """Batch normalisation as passes of its own."""
    rows = evidence.rows(_NORM)
    spent = time_of(rows)
    if not spent or spent < 0.1 * _all_us(evidence):
        return f"batch normalisation takes {_part(spent, evidence)}"
    evaluating = evidence.contract.named_mode == "eval"
    scale = _scale(evidence)
    action = (
        "fold the normalisation's constants into the convolution before it"
        if evaluating
        else "compute statistics in the convolution's epilogue, and normalise, activate and add in one pass"
    )
    return Seen(
        f"batch normalisation takes {spent:.0f} us ({_part(spent, evidence)}) in passes of its own",
        0.2 * spent * scale,
        (0.9 if evaluating else 0.5) * spent * scale,
        0.95 * spent * scale,
        (quantity("time of batch normalisation", spent, "us", evidence),),
        module=rows[0].module,
        action=action,
    )


def scans(evidence: ProfileEvidence) -> Looked:
    """Prefix sums as kernels of their own."""
    rows = evidence.rows(_SCAN)
    spent = time_of(rows)
    if not spent or spent < 0.1 * _all_us(evidence):
        return f"prefix sums take {_part(spent, evidence)}"
    scale = _scale(evidence)
    return Seen(
        f"prefix sums take {spent:.0f} us, and write results that only the next operation reads",
        0.3 * spent * scale,
        0.6 * spent * scale,
        0.9 * spent * scale,
        (quantity("time of prefix sums", spent, "us", evidence),),
        kernel=rows[0].name,
        module=rows[0].module,
    )


def kernel_problem(evidence: ProfileEvidence) -> Looked:
    """The most costly problem that the kernel level found."""
    problems = [
        (answer.saves_share * kernel.share, kernel, answer)
        for kernel in evidence.kernels
        for answer in kernel.answers
        if answer.is_problem and answer.saves_share is not None and kernel.share is not None
    ]
    if not problems:
        return None if not evidence.kernels else "the kernels that were looked at closely have no problem"
    share, kernel, answer = max(problems, key=lambda row: row[0])
    saved = share * evidence.system.busy_us * _scale(evidence)
    return Seen(
        f"{kernel.kernel[:80]}: {answer.summary.rstrip('.')}",
        0.25 * saved,
        0.6 * saved,
        saved,
        answer.evidence,
        kernel=kernel.kernel,
        file=answer.file,
        line=answer.line,
        action=answer.action,
        doc_query=f"cuda kernel {answer.question.replace('_', ' ')} {answer.verdict}",
    )


def near_bound(evidence: ProfileEvidence) -> Looked:
    """The whole is near what the device allows: nothing is left to win."""
    bound = evidence.bounds.fused_us if evidence.bounds is not None else None
    if bound is None or bound <= 0:
        return None
    ratio = evidence.total_us / bound
    if ratio < 1.3:
        return Seen(
            f"the whole takes {ratio:.2f} times the lower bound of its bytes and operations",
            0.0,
            0.0,
            max(0.0, evidence.total_us - bound),
            (Quantity(name="lower bound, all in one kernel", value=bound, unit="us", origin="estimated"),),
        )
    return f"the whole takes {ratio:.1f} times its lower bound: there is something to win"


def _all_us(evidence: ProfileEvidence) -> float:
    """Recorded time of all kernels or operators of an iteration."""
    return time_of(evidence.system.kernels) + evidence.system.other_kernels_us


def _part(spent_us: float, evidence: ProfileEvidence) -> str:
    """What part of the recorded time this is, in words."""
    return f"{spent_us / max(1e-9, _all_us(evidence)):.0%} of the kernels' time"


def _scale(evidence: ProfileEvidence) -> float:
    """From recorded device time to untraced time, which is shorter where a graph overlaps kernels."""
    busy = evidence.system.busy_us
    return min(1.0, evidence.total_us / busy) if busy else 1.0
