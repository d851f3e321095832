"""What the answers to questions about a kernel share: evidence, "unknown", and figures of one launch."""

from collections.abc import Iterable, Sequence

from stitch_tools.models.profile import KernelAnswer, KernelQuestion, Origin, Quantity
from stitch_tools.profile import ncu_metrics as m
from stitch_tools.profile.ncu_report import NcuKernel
from stitch_tools.profile.occupancy import Occupancy, occupancy
from stitch_tools.profile.thresholds import THRESHOLDS


def measured(name: str, value: float, unit: str = "", origin: Origin = "ncu") -> Quantity:
    """A figure of an answer's evidence."""
    return Quantity(name=name, value=round(value, 4), unit=unit, origin=origin)


def unknown(question: KernelQuestion, missing: Iterable[str]) -> KernelAnswer:
    """The answer where metrics are missing."""
    names = ", ".join(missing)
    return KernelAnswer(
        question=question,
        verdict="unknown",
        is_problem=False,
        summary="The report does not tell.",
        reason=f"not in the report: {names}",
    )


def no_problem(
    question: KernelQuestion, verdict: str, summary: str, evidence: Sequence[Quantity] = ()
) -> KernelAnswer:
    """An answer with which nothing needs to change."""
    return KernelAnswer(
        question=question, verdict=verdict, is_problem=False, summary=summary, evidence=tuple(evidence)
    )


def missing(kernel: NcuKernel, *names: str) -> tuple[str, ...]:
    """Those of the metrics that the report does not hold."""
    return tuple(name for name in names if kernel.get(name) is None)


def share(kernel: NcuKernel, metric: str) -> float:
    """A percentage as a share; 0 where it was not collected."""
    return (kernel.get(metric) or 0.0) / 100.0


def headroom(kernel: NcuKernel) -> float:
    """What lies between the busiest unit and its peak: no change of one fault wins more than this."""
    return max(0.0, 1.0 - max(share(kernel, m.SM), share(kernel, m.MEMORY)))


def stall_shares(kernel: NcuKernel) -> dict[str, float]:
    """The share of the warps' time by what they wait for, `selected` (they issue) among them."""
    values = {stall: kernel.get(m.stall_metric(stall)) or 0.0 for stall in m.STALLS}
    total = sum(values.values())
    return {stall: value / total for stall, value in values.items()} if total > 0 else {}


def waits_for(kernel: NcuKernel, *stalls: str) -> float:
    """The share of the warps' time that they wait for any of these."""
    shares = stall_shares(kernel)
    return sum(shares.get(stall, 0.0) for stall in stalls)


def kernel_occupancy(kernel: NcuKernel) -> Occupancy | None:
    """The theoretical occupancy of the launch; None where its resources or its device are not known."""
    registers, threads = kernel.get(m.REGISTERS), kernel.threads
    if registers is None or threads is None:
        return None
    shared = sum(kernel.get(name) or 0.0 for name in (m.SHARED_STATIC, m.SHARED_DYNAMIC))
    return occupancy(kernel.capability, threads=threads, registers=int(registers), shared_bytes=int(shared))


def is_worth(saves_share: float) -> bool:
    """Whether what could be won stands out of the noise."""
    return saves_share >= THRESHOLDS.saves
