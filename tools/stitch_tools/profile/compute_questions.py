"""Questions about a kernel's instructions: what bounds it, tensor cores, divergence, and why warps wait."""

from stitch_tools.models.profile import KernelAnswer
from stitch_tools.profile import ncu_metrics as m
from stitch_tools.profile.answers import (
    headroom,
    is_worth,
    measured,
    missing,
    no_problem,
    share,
    stall_shares,
    unknown,
)
from stitch_tools.profile.ncu_report import NcuKernel
from stitch_tools.profile.occupancy import WARP
from stitch_tools.profile.thresholds import THRESHOLDS

_IDLE_PERCENT = 0.5
"""Of the cycles: below it the tensor cores do nothing that counts."""
_TENSOR_GAIN = 8.0
"""TF32 tensor cores over FP32 pipes of an H100, dense: the least that a lower format brings."""
_STALLS: dict[str, tuple[str, str]] = {
    "barrier": (
        "other warps at __syncthreads",
        "Synchronise less often or smaller groups; even out the work of warps.",
    ),
    "branch_resolving": ("targets of branches", "Take branches out of the inner loop, or unroll it."),
    "dispatch_stall": ("the dispatcher", "Mix instructions of different pipes."),
    "drain": ("stores at the end of the kernel", "Write less, or in whole sectors."),
    "gmma": ("products of the tensor cores", "Keep several products of a warp group in flight."),
    "imc_miss": ("constants", "Read constants in order, or from shared memory."),
    "lg_throttle": ("the queue of global and local accesses", "Use wider accesses (float4), fewer of them."),
    "long_scoreboard": (
        "global or local memory",
        "Load earlier: prefetch or cp.async with several stages, more independent loads a thread, or reuse "
        "through shared memory.",
    ),
    "math_pipe_throttle": (
        "a busy arithmetic pipe",
        "Use another pipe (tensor cores) or cheaper instructions.",
    ),
    "membar": ("memory fences", "Use fewer or weaker fences."),
    "mio_throttle": (
        "the queue of shared memory and special functions",
        "Use wider shared accesses and fewer of them.",
    ),
    "misc": ("other hardware", ""),
    "no_instruction": ("instructions", "Shorten the unrolled code: it leaves the instruction cache."),
    "short_scoreboard": (
        "shared memory or special functions",
        "Read shared memory wider, keep values in registers.",
    ),
    "sleeping": ("nanosleep", "Poll less patiently, or do not poll."),
    "tex_throttle": ("the texture unit", "Use plain loads."),
    "wait": ("results of fixed-latency instructions", "Give each thread more independent arithmetic."),
}
"""What warps wait for in plain words, and what helps. `selected` and `not_selected` are no waiting."""


def ask_bound_by(kernel: NcuKernel) -> KernelAnswer:
    """Which unit is the busiest: arithmetic, memory, or none (latency)?"""
    absent = missing(kernel, m.SM, m.MEMORY)
    if absent:
        return unknown("bound_by", absent)
    compute, memory = share(kernel, m.SM), share(kernel, m.MEMORY)
    evidence = [
        measured("SM throughput", 100.0 * compute, "%"),
        measured("memory throughput", 100.0 * memory, "%"),
    ]
    for name, metric in (("DRAM", m.DRAM), ("L2", m.L2), ("L1", m.L1)):
        value = kernel.get(metric)
        if value is not None:
            evidence.append(measured(f"{name} throughput", value, "%"))
    moved = [kernel.get(metric) for metric in (m.DRAM_READ_BYTES, m.DRAM_WRITE_BYTES)]
    if None not in moved:
        evidence.append(measured("bytes from and to DRAM", sum(value or 0.0 for value in moved), "B"))
    if max(compute, memory) < THRESHOLDS.busy_pipe:
        summary = f"No unit is busy (SM {compute:.0%}, memory {memory:.0%}): time goes by waiting."
        return no_problem("bound_by", "latency", summary, evidence)
    verdict, busiest = ("compute", compute) if compute > memory else ("memory", memory)
    return no_problem(
        "bound_by", verdict, f"The busiest unit is {verdict}, at {busiest:.0%} of its peak.", evidence
    )


def ask_tensor_cores(kernel: NcuKernel) -> KernelAnswer:
    """Are matrix products done by tensor cores?"""
    absent = missing(kernel, m.TENSOR_INSTRUCTIONS, m.INSTRUCTIONS)
    if absent:
        return unknown("tensor_cores", absent)
    active = kernel.get(m.TENSOR_ACTIVE) or 0.0
    instructions = kernel.metrics[m.TENSOR_INSTRUCTIONS]
    # An H100 counts an instruction or two of the pipe for each warp of any kernel.
    if active > _IDLE_PERCENT or (instructions > 0 and kernel.get(m.TENSOR_ACTIVE) is None):
        evidence = (measured("tensor pipe active", active, "%"),)
        return no_problem(
            "tensor_cores", "used", f"Tensor cores are active in {active:.0f}% of the cycles.", evidence
        )
    lanes = WARP * kernel.metrics[m.INSTRUCTIONS] or 1.0
    fused = sum(kernel.get(metric) or 0.0 for metric in (m.FFMA, m.HFMA, m.DFMA)) / lanes
    evidence = (
        measured("multiply-adds of all instructions", 100.0 * fused, "%"),
        measured("FMA pipe active", kernel.get(m.FMA_ACTIVE) or 0.0, "%"),
        measured("tensor instructions", instructions),
    )
    saves = fused * share(kernel, m.SM) * (1.0 - 1.0 / _TENSOR_GAIN)
    if (
        fused < THRESHOLDS.product_share
        or share(kernel, m.SM) < THRESHOLDS.low_occupancy
        or not is_worth(saves)
    ):
        return no_problem(
            "tensor_cores", "not needed", "There is little multiply-add work to move there.", evidence
        )
    return KernelAnswer(
        question="tensor_cores",
        verdict="unused",
        is_problem=True,
        summary=f"{fused:.0%} of the instructions are multiply-adds on plain pipes; tensor cores are idle.",
        evidence=evidence,
        saves_share=round(saves, 4),
        action="Run the product on tensor cores (wmma, mma.sync, wgmma or cuBLASLt) in the fastest format "
        "that the contract allows; strict fp32 can use three TF32 products of split operands.",
    )


def ask_divergence(kernel: NcuKernel) -> KernelAnswer:
    """Do the threads of a warp take the same branches?"""
    threads = kernel.get(m.ACTIVE_THREADS)
    if threads is None:
        return unknown("divergence", (m.ACTIVE_THREADS,))
    evidence = [measured("active threads per instruction, of 32", threads)]
    uniform = kernel.get(m.UNIFORM_BRANCHES)
    if uniform is not None:
        evidence.append(measured("branches that all threads of a warp take alike", uniform, "%"))
    # Paths that run one after the other cost time as long as memory is not the limit.
    saves = (1.0 - threads / WARP) * max(0.0, 1.0 - share(kernel, m.MEMORY))
    if threads >= THRESHOLDS.threads_per_instruction or not is_worth(saves):
        return no_problem("divergence", "uniform", f"{threads:.1f} of 32 threads are active.", evidence)
    return KernelAnswer(
        question="divergence",
        verdict="divergent",
        is_problem=True,
        summary=f"Only {threads:.1f} of 32 threads are active per instruction: warps take several paths.",
        evidence=tuple(evidence),
        saves_share=round(saves, 4),
        action="Let whole warps take one path: sort or group the work by path, move the branch to the "
        "block's index, or compute both sides and select.",
    )


def ask_stall(kernel: NcuKernel) -> KernelAnswer:
    """What do warps wait for most?"""
    shares = stall_shares(kernel)
    if not shares:
        return unknown("stall", (m.stall_metric("..."),))
    ranked = sorted((stall for stall in shares if stall in _STALLS), key=lambda stall: -shares[stall])
    evidence = tuple(measured(f"warps' time in {stall}", 100.0 * shares[stall], "%") for stall in ranked[:3])
    first, issuing = ranked[0], share(kernel, m.ISSUE_ACTIVE)
    what, action = _STALLS[first]
    summary = f"Warps spend {shares[first]:.0%} of their time waiting for {what}."
    verdict = first.replace("_", " ")
    # A unit at its peak keeps warps waiting, whatever they wait for.
    is_bound = issuing >= THRESHOLDS.issue_slots or headroom(kernel) < 1.0 - THRESHOLDS.near_peak
    if shares[first] < THRESHOLDS.leading_stall or is_bound:
        return no_problem("stall", verdict, summary, evidence)
    # No saving is claimed: a stall is a symptom, and hides behind other warps once there are enough.
    return KernelAnswer(
        question="stall", verdict=verdict, is_problem=True, summary=summary, evidence=evidence, action=action
    )
