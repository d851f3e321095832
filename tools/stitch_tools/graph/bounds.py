"""The shortest time that an operation can take on a device whose limits were measured."""

from stitch_tools.graph.cost import OperationWork
from stitch_tools.graph.families import Family
from stitch_tools.models.graph import Ceilings
from stitch_tools.models.task import Contract

_MATRIX_FAMILIES: tuple[Family, ...] = ("gemm", "conv", "sdpa", "rnn")
_FASTEST_FIRST = ("bf16", "fp16", "tf32", "fp32")
_PRODUCTS_FOR_FP32 = {"fp16": 3, "tf32": 3, "bf16": 6}
"""Products of a shorter format that make one with the errors of float32, from operands that are split."""


def min_time_us(
    work: OperationWork, family: Family, ceilings: Ceilings, contract: Contract, dtype: str
) -> float:
    """max(bytes / bandwidth, operations / rate) + launch in microseconds; 0 for what moves nothing.

    Data that fits the last-level cache is charged at the cache's bandwidth, matrix products at the rate of
    the fastest format that the contract allows, or of several products of a shorter one that are as exact: a
    bound must not be beaten by an honest program.
    """
    moved = work.bytes_read + work.bytes_written
    if not moved and not work.flops:
        return 0.0
    bandwidth = ceilings.copy_bytes_per_s
    if moved <= ceilings.last_level_cache_bytes and ceilings.cache_bytes_per_s is not None:
        bandwidth = max(bandwidth, ceilings.cache_bytes_per_s)
    seconds = moved / bandwidth
    rate = _rate(family, ceilings, contract, dtype)
    if rate is not None:
        seconds = max(seconds, work.flops / rate)
    return seconds * 1e6 + ceilings.launch_us


def _rate(family: Family, ceilings: Ceilings, contract: Contract, dtype: str) -> float | None:
    """Operations per second of matrix products; None of anything else, which memory limits."""
    if family not in _MATRIX_FAMILIES:
        return None
    if dtype in ("float16", "bfloat16"):
        own = "fp16" if dtype == "float16" else "bf16"
        return ceilings.flops_per_s.get(own, ceilings.flops_per_s.get("fp32"))
    allowed = contract.conv_precision if family == "conv" else contract.matmul_precision
    formats = _FASTEST_FIRST[_FASTEST_FIRST.index(allowed) :]
    rates = [ceilings.flops_per_s[name] for name in formats if name in ceilings.flops_per_s]
    if allowed == "fp32":
        known = ceilings.flops_per_s
        rates += [known[name] / count for name, count in _PRODUCTS_FOR_FP32.items() if name in known]
    return max(rates, default=None)
